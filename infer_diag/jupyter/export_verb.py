"""The verb `%diag export`."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from infer_diag import export
from infer_diag.errors import DiagError
from infer_diag.export.labels import written
from infer_diag.jupyter.completion import completed, paths
from infer_diag.jupyter.panel import Panel
from infer_diag.jupyter.session import Session

Run = Callable[[Session, argparse.Namespace], Panel]
Code = Callable[[Session, argparse.Namespace], str]
Verb = Callable[[str, Run, Code], argparse.ArgumentParser]


def export_verb(session: Session, options: argparse.Namespace) -> Panel:
    """Hand phases, findings and metrics on: OTLP to a collector or a file, metrics by Prometheus remote write."""
    diagnosis = session.get(options.recording).diagnosis
    calls = {function: to for function, to in _targets(options).items() if to is not None}
    if not calls:
        raise DiagError("where to is not said", hint="--otlp ENDPOINT|FILE, --remote-write URL, or both")
    labels = written(options.label)
    done = [getattr(export, function)(diagnosis, to, labels=labels) for function, to in calls.items()]
    told = [line for one in done for line in str(one).splitlines()]
    return Panel("export", told[0], tuple(told[1:]))


def export_code(session: Session, options: argparse.Namespace) -> str:
    """The Python of `%diag export`."""
    labels = written(options.label)
    more = f", labels={labels!r}" if labels else ""
    calls = [
        f"diag.export.{function}(diagnosis, {to!r}{more})"
        for function, to in _targets(options).items()
        if to is not None
    ]
    code = session.get(options.recording).code
    return "\n".join(["import infer_diag as diag", code, "diagnosis = diag.diagnose(recording)", *calls])


def _targets(options: argparse.Namespace) -> dict[str, str | None]:
    return {"otlp": options.otlp, "remote_write": options.remote_write}


def add_export_verb(verb: Verb) -> argparse.ArgumentParser:
    """Adds the verb to the grammar and returns its parser, which still lacks its recording."""
    parser = verb("export", export_verb, export_code)
    to = parser.add_argument("--otlp", metavar="TO", help="OTLP to http://collector:4318, or as JSON to a file")
    completed(to, paths)
    parser.add_argument("--remote-write", metavar="URL", help="metrics to http://prometheus:9090/api/v1/write")
    parser.add_argument("--label", metavar="NAME=VALUE", action="append", default=[], help="such as tenant_id=acme")
    return parser
