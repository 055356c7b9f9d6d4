"""The verb `export` of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated

import typer

from infer_diag.errors import DiagError

_ORIGIN = "Where the first stamp is to stand if the logs' own clock is not known, such as 2026-03-14T09:00:00Z."


def register(app: typer.Typer) -> None:
    """Adds the verb to the command line."""
    app.command(
        epilog="\b\nExamples:\n"
        "  infer-diag export server.log --year 2026 --tz UTC --otlp diagnosis.jsonl\n"
        "  infer-diag export logs/ --otlp http://collector:4318 --label tenant_id=acme --label order_id=A-1\n"
        "  infer-diag export logs/ --remote-write http://prometheus:9090/api/v1/write --label tenant_id=acme"
    )(export)


def export(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Log files, folders, globs, samples.")],
    to_otlp: Annotated[
        str | None,
        typer.Option("--otlp", metavar="ENDPOINT|FILE", help="OTLP to http://collector:4318, or as JSON to a file."),
    ] = None,
    write_url: Annotated[
        str | None, typer.Option("--remote-write", metavar="URL", help="Metrics to a Prometheus receiver.")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A label of all that is exported; repeatable.")
    ] = None,
    origin: Annotated[str | None, typer.Option(metavar="TIME", help=_ORIGIN)] = None,
    format: Annotated[str | None, typer.Option(help="Read every file as this format.")] = None,
    year: Annotated[int | None, typer.Option(help="Year of stamps that print none.")] = None,
    tz: Annotated[str | None, typer.Option(help="Time zone of stamps that name none, such as Asia/Shanghai.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Fail at the first damaged line.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Hand phases, findings and metrics on: as OTLP spans and metrics, or by Prometheus remote write.

    Exit status: 0 when everything was taken, 2 when not.
    """
    if to_otlp is None and write_url is None:
        raise DiagError("where to is not said", hint="--otlp ENDPOINT|FILE, --remote-write URL, or both")
    from infer_diag.cli_answers import diagnosed
    from infer_diag.export.labels import checked, written

    labels, place = written(label or []), _moment(origin)
    checked(labels)  # before the logs are read, which may take long
    diagnosis = diagnosed(paths, quiet, format=format, year=year, tz=tz, strict=strict)
    for line in _handed_on(diagnosis, {"otlp": to_otlp, "remote_write": write_url}, labels, place):
        if not quiet:
            typer.echo(line, err=True)


def _handed_on(
    diagnosis: object, targets: dict[str, str | None], labels: dict[str, str], origin: datetime | None
) -> Iterator[str]:
    from infer_diag import export as exports
    from infer_diag.diagnose import Diagnosis

    if not isinstance(diagnosis, Diagnosis):
        raise DiagError("a fleet cannot be exported at once", hint="export each of its deployments")
    for function, to in targets.items():
        if to is not None:
            yield str(getattr(exports, function)(diagnosis, to, labels=labels, origin=origin))


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise DiagError(f"{text[:40]!r} is no time", hint="2026-03-14T09:00:00Z, for instance") from None
