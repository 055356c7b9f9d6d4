"""What each verb of `%diag` does: look up, call one public function, return a panel; and the same in Python."""

from __future__ import annotations

import argparse
from dataclasses import fields

import polars as pl

from infer_diag import samples
from infer_diag.errors import DiagError
from infer_diag.jupyter.completion import verbs_of
from infer_diag.jupyter.losses_panel import losses_panel
from infer_diag.jupyter.memory_panel import memory_panel
from infer_diag.jupyter.panel import Panel
from infer_diag.jupyter.panels import batching_panel, cold_start_panel, summary_panel
from infer_diag.jupyter.session import Loaded, Session
from infer_diag.loaders import load
from infer_diag.recording import Source
from infer_diag.report import report
from infer_diag.units import parse_duration_s

_IMPORT = "import infer_diag as diag"
_LOAD_OPTIONS = ("format", "year", "tz", "start", "end")
_SOURCE_COLUMNS = ("path", "format", "engine", "engine_version", "lines", "rejected_lines", "cut")


def overview(parser: argparse.ArgumentParser, session: Session) -> Panel:
    """The verbs and the recordings that are loaded."""
    loaded = ", ".join(session.names()) or "nothing yet; begin with %diag load PATH"
    return Panel(
        "infer_diag: why an LLM deployment costs what it costs", f"loaded: {loaded}", _verbs(parser), whole=True
    )


def help_of(parser: argparse.ArgumentParser, verb: str | None) -> Panel:
    """The grammar of one verb, or the list of all."""
    if verb is None:
        return Panel(
            "%diag VERB [RECORDING] [OPTIONS]", "%diag help VERB tells the options", _verbs(parser), whole=True
        )
    lines = usage(verbs_of(parser)[verb]).splitlines()
    return Panel(lines[0], "", tuple(line for line in lines[1:] if line.startswith("  ")))


def usage(parser: argparse.ArgumentParser) -> str:
    """The help text of a parser as a reader types it, without the escapes that IPython's formatter leaves in."""
    return parser.format_help().replace("%%", "%").removeprefix("::\n\n  ")


def load_verb(session: Session, options: argparse.Namespace) -> Panel:
    """Load logs and keep the recording under a name."""
    paths = tuple(options.path)
    chosen = {name: getattr(options, name) for name in _LOAD_OPTIONS}
    recording = load(*paths, strict=options.strict, **chosen)
    name = options.name or session.name_for(paths)
    session.add(Loaded(name, recording, paths, _load_call(options), {**chosen, "strict": options.strict}))
    return Panel(f"loaded as {name}", repr(recording), frame=sources_frame(recording.sources))


def load_code(session: Session, options: argparse.Namespace) -> str:
    """The Python of `%diag load`."""
    return f"{_IMPORT}\n{_load_call(options)}"


def list_verb(session: Session, options: argparse.Namespace) -> Panel:
    """The recordings that are loaded, the last one first."""
    each = [session.get(name) for name in session.names()]
    frame = pl.DataFrame(
        {"name": [one.name for one in each], "recording": [repr(one.recording) for one in each]},
        schema={"name": pl.String, "recording": pl.String},
    )
    lines = tuple(f"{one.name}: {one.recording!r}" for one in each)
    return Panel(f"{len(each)} loaded", "" if each else "begin with %diag load PATH", lines, frame)


def samples_verb(session: Session, options: argparse.Namespace) -> Panel:
    """The logs that are shipped, recorded and simulated."""
    names = samples.names()
    frame = pl.DataFrame({"sample": [f"sample:{name}" for name in names], "shows": map(samples.about, names)})
    lines = tuple(f"{name}  {about}" for name, about in frame.iter_rows())
    return Panel("Shipped logs; read one with %diag load sample:NAME", "", lines, frame, whole=True)


def samples_code(session: Session, options: argparse.Namespace) -> str:
    """The Python of `%diag samples`."""
    return f"{_IMPORT}\ndiag.samples.names()"


def summary_verb(session: Session, options: argparse.Namespace) -> Panel:
    """What the logs say, the gravest finding first."""
    return summary_panel(session.get(options.recording).diagnosis)


def summary_code(session: Session, options: argparse.Namespace) -> str:
    """The Python of `%diag summary`."""
    return f"{_IMPORT}\n{session.get(options.recording).code}\ndiag.diagnose(recording)"


def coldstart_verb(session: Session, options: argparse.Namespace) -> Panel:
    """Where the seconds of a start go, with the silent stretches named."""
    return cold_start_panel(session.get(options.recording).diagnosis, options.start)


def coldstart_code(session: Session, options: argparse.Namespace) -> str:
    """The Python of `%diag coldstart`."""
    start = f", {options.start!r}" if options.start else ""
    return _panel_code(session, options, "cold_start_panel", start)


def batching_verb(session: Session, options: argparse.Namespace) -> Panel:
    """Serving over time: token rates, queue, KV use and the time of the steps."""
    loaded = session.get(options.recording)
    if options.what_if:
        try:
            from infer_diag.jupyter.what_if_panel import what_if_panel
        except ModuleNotFoundError as error:
            raise DiagError(
                f"a prediction needs {error.name}", hint="pip install 'infer-diag[sim]' brings it"
            ) from error
        return what_if_panel(loaded.recording, options.what_if)
    if options.losses:
        return losses_panel(loaded.recording)
    return batching_panel(loaded.diagnosis)


def batching_code(session: Session, options: argparse.Namespace) -> str:
    """The Python of `%diag batching`."""
    if options.what_if:
        loaded = session.get(options.recording)
        imports = f"{_IMPORT}\nfrom infer_diag.jupyter.what_if_panel import what_if_panel"
        return f"{imports}\n{loaded.code}\nwhat_if_panel(recording, {options.what_if!r})"
    if options.losses:
        loaded = session.get(options.recording)
        imports = f"{_IMPORT}\nfrom infer_diag.jupyter.losses_panel import losses_panel"
        return f"{imports}\n{loaded.code}\nlosses_panel(recording)"
    return _panel_code(session, options, "batching_panel", "")


def memory_verb(session: Session, options: argparse.Namespace) -> Panel:
    """What stands where in device memory, over time, and what its holes would serve."""
    if options.what_if:
        try:
            from infer_diag.jupyter.memory_what_if_panel import memory_what_if_panel
        except ModuleNotFoundError as error:
            raise DiagError(f"a replay needs {error.name}", hint="pip install 'infer-diag[sim]' brings it") from error
        return memory_what_if_panel(session.get(options.recording).recording, options.what_if)
    return memory_panel(session.get(options.recording).diagnosis, _at_s(options))


def memory_code(session: Session, options: argparse.Namespace) -> str:
    """The Python of `%diag memory`."""
    if options.what_if:
        loaded = session.get(options.recording)
        imports = f"{_IMPORT}\nfrom infer_diag.jupyter.memory_what_if_panel import memory_what_if_panel"
        return f"{imports}\n{loaded.code}\nmemory_what_if_panel(recording, {options.what_if!r})"
    at_s = _at_s(options)
    return _panel_code(session, options, "memory_panel", f", at_s={at_s:g}" if at_s is not None else "")


def _at_s(options: argparse.Namespace) -> float | None:
    return None if options.at is None else parse_duration_s(options.at)


def report_verb(session: Session, options: argparse.Namespace) -> Panel:
    """Write the diagnosis as a file: .html (needs no network), .md (for a ticket) or .ipynb (can be run again)."""
    loaded = session.get(options.recording)
    path = report(loaded.diagnosis, options.out, load_options={"paths": loaded.paths, **loaded.options})
    return Panel("report", f"written to {path}")


def report_code(session: Session, options: argparse.Namespace) -> str:
    """The Python of `%diag report`."""
    loaded = session.get(options.recording)
    again = {"paths": list(loaded.paths)} | {name: value for name, value in loaded.options.items() if value}
    how = f", load_options={again!r}" if options.out.endswith(".ipynb") else ""
    return f"{_IMPORT}\n{loaded.code}\ndiag.report(diag.diagnose(recording), {options.out!r}{how})"


def sources_frame(sources: tuple[Source, ...]) -> pl.DataFrame:
    """One row per file that was read."""
    kinds = {field.name: field.type for field in fields(Source)}
    rows = [{name: getattr(source, name) for name in _SOURCE_COLUMNS} for source in sources]
    types = {"int": pl.Int64, "bool": pl.Boolean}
    return pl.DataFrame(rows, schema={name: types.get(str(kinds[name]), pl.String) for name in _SOURCE_COLUMNS})


def _verbs(parser: argparse.ArgumentParser) -> tuple[str, ...]:
    return tuple(f"  {verb:<10} {sub.description}" for verb, sub in verbs_of(parser).items())


def _load_call(options: argparse.Namespace) -> str:
    words = [repr(path) for path in options.path]
    words += [f"{name}={value!r}" for name in _LOAD_OPTIONS if (value := getattr(options, name)) is not None]
    words += ["strict=True"] if options.strict else []
    return f"recording = diag.load({', '.join(words)})"


def _panel_code(session: Session, options: argparse.Namespace, function: str, more: str) -> str:
    loaded = session.get(options.recording)
    imports = f"{_IMPORT}\nfrom infer_diag.jupyter import {function}"
    return f"{imports}\n{loaded.code}\n{function}(diag.diagnose(recording){more})"
