"""A diagnosis as a file to hand on: HTML that needs no network, Markdown for a ticket, or an executed notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import infer_diag
from infer_diag import charts
from infer_diag.attribution import timeline
from infer_diag.diagnose.cost import FleetDiagnosis
from infer_diag.errors import SourceError, UnknownNameError
from infer_diag.report.figures import Chart, chart, plotly_js, script_policy
from infer_diag.report.fleet import fleet_charts, fleet_order, fleet_page
from infer_diag.report.markdown import markdown
from infer_diag.report.memory import memory_section
from infer_diag.report.notebook import write_notebook
from infer_diag.report.page import page, without_secrets

if TYPE_CHECKING:
    from infer_diag.diagnose import Diagnosis

__all__ = ["FORMATS", "markdown", "render", "report"]

FORMATS = {"html": (".html", ".htm"), "md": (".md", ".markdown"), "ipynb": (".ipynb",)}
"""The forms of a report, each with the suffixes of its files; a file with another suffix is HTML."""

_PLACED = "the first row adds up to the span; the rows below show each phase whole."
_UNPLACED = "the parts as the log prints their lengths; it has no stamps that would order them."


def report(
    diagnosis: Diagnosis | FleetDiagnosis,
    path: str | Path,
    *,
    format: str | None = None,
    load_options: Mapping[str, Any] | None = None,
) -> Path:
    """Writes the report to a file and returns its path; the same logs give the same bytes.

    Args:
        diagnosis: of a recording or of a fleet.
        path: the file.
        format: `html` (one file that needs no network), `md` (for a ticket) or `ipynb` (a notebook that was run and can
            be run again); by default what the suffix says.
        load_options: of a notebook: the `paths` that `load` was given and its options, where they were any.

    Raises:
        UnknownNameError: there is no such format.
        SourceError: the file cannot be written.
        DiagError: a notebook cannot be made of this diagnosis, or papermill is not installed.
    """
    target = Path(path).expanduser()
    chosen = format or next((name for name, ends in FORMATS.items() if target.suffix.lower() in ends), "html")
    if chosen not in FORMATS:
        raise UnknownNameError("format of a report", chosen, FORMATS)
    if chosen == "ipynb":
        write_notebook(diagnosis, target, load_options)
        return target
    text = markdown(diagnosis) if chosen == "md" else render(diagnosis)
    try:
        target.write_text(text, encoding="utf-8", errors="replace", newline="\n")
    except OSError as error:
        raise SourceError(
            f"{target} cannot be written: {error.strerror}", hint="name a file in a folder that exists"
        ) from error
    return target


def render(diagnosis: Diagnosis | FleetDiagnosis) -> str:
    """The report as the text of one HTML document: no external request, no time of its own, fixed ids.

    Text from logs is redacted and escaped. The content policy lets only the scripts run that are written here, by their
    hashes, so markup that slipped through would still do nothing.
    """
    if isinstance(diagnosis, FleetDiagnosis):
        return _fleet(diagnosis)
    content = page(diagnosis)
    start_charts = _start_charts(diagnosis, [start["start_id"] for start in content["detailed"]])
    serving_charts = _serving_charts(diagnosis) if content["serving"] is not None else []
    memory = memory_section(diagnosis)
    drawn = [*start_charts, *serving_charts, *memory.charts]
    parts = {"start_charts": start_charts, "serving_charts": serving_charts, "memory": memory}
    return _page("report.html.j2", drawn, content | parts)


def _fleet(diagnosis: FleetDiagnosis) -> str:
    content = without_secrets(fleet_page(diagnosis))
    heatmap, waterfalls = fleet_charts(diagnosis)
    for each, name in zip(content["deployments"], fleet_order(diagnosis), strict=True):
        each["chart"] = waterfalls.get(name)
    drawn = [*([] if heatmap is None else [heatmap]), *waterfalls.values()]
    return _page("fleet.html.j2", drawn, content | {"heatmap": heatmap})


def _page(template: str, drawn: Sequence[Chart], content: dict[str, Any]) -> str:
    scripts = [plotly_js(), _text("page.js")] if drawn else []
    return (
        _environment()
        .get_template(template)
        .render(
            **content,
            scripts=scripts,
            script_policy=Markup(script_policy([*scripts, *(script for each in drawn for script in each.scripts)])),
            style=_text("style.css"),
            version=infer_diag.__version__,
        )
    )


@cache
def _environment() -> Environment:
    return Environment(loader=PackageLoader("infer_diag.report", "."), autoescape=True, undefined=StrictUndefined)


def _text(name: str) -> Markup:
    return Markup(files("infer_diag.report").joinpath(name).read_text(encoding="utf-8"))


def _start_charts(diagnosis: Diagnosis, start_ids: list[str]) -> list[Chart]:
    told, sources = diagnosis.cold_start, diagnosis.recording.sources
    drawn = []
    if len(told.summary) > 1 and len(told.slices):
        drawn.append(
            chart(charts.cold_start_bars(told.slices, told.summary), "chart-starts", "All starts beside each other.")
        )
    timed = set(told.slices["start_id"].to_list())
    for number, start_id in enumerate((each for each in start_ids if each in timed), start=1):
        figure = charts.cold_start_timeline(told.slices, told.phases, told.summary, start_id, sources=sources)
        placed = told.slices.filter(start_id=start_id)["begin_s"].is_not_null().any()
        caption = f"{start_id}: {_PLACED if placed else _UNPLACED}"
        drawn.append(chart(figure, f"chart-start-{number}", caption))
    return drawn


def _serving_charts(diagnosis: Diagnosis) -> list[Chart]:
    recording = diagnosis.recording
    told = timeline.serving_timeline(recording)
    sizes = timeline.step_sizes(recording.engine_steps)
    drawn = []
    if len(told.samples) or len(told.bins):
        figure = charts.serving_timeline(
            told.samples,
            told.bins,
            told.rates,
            preemptions=recording.incidents.filter(kind="preemption"),
            sources=recording.sources,
            dated=any(source.dated for source in recording.sources),
        )
        drawn.append(
            chart(figure, "chart-serving", "The engine's statistics lines, and its steps where it prints them.")
        )
    if len(sizes):
        drawn.append(
            chart(charts.step_chart(sizes), "chart-steps", "Duration of the engine's steps by batch size and kind.")
        )
    return drawn
