"""A diagnosis as panels: what a notebook shows of each side of it."""

from __future__ import annotations

from typing import Any

import polars as pl

from infer_diag import charts
from infer_diag.attribution import timeline
from infer_diag.attribution.cold_start import StartFrames
from infer_diag.attribution.rank_statistics import LEAST
from infer_diag.attribution.starts_together import starts_together
from infer_diag.diagnose import Diagnosis
from infer_diag.diagnose.finding import Finding
from infer_diag.diagnose.starts_together import together_lines
from infer_diag.diagnose.summary import overview
from infer_diag.errors import UnknownNameError
from infer_diag.jupyter.losses_panel import loss_lines
from infer_diag.jupyter.panel import Panel
from infer_diag.units import format_count, format_ratio, format_s

_MOST_DETAILS = 9
_MEASURES = {
    "output_tokens_per_s": ("output tokens/s", format_count),
    "prompt_tokens_per_s": ("prompt tokens/s", format_count),
    "running": ("requests running", format_count),
    "waiting": ("requests waiting", format_count),
    "kv_usage_ratio": ("KV cache used", format_ratio),
}


def summary_panel(diagnosis: Diagnosis) -> Panel:
    """What was read and what weighs most, with every finding in the table."""
    read = overview(diagnosis)
    found = diagnosis.text().splitlines()[len(read) :]
    return Panel(read[0], "\n".join(read[1:]), tuple(found), findings_frame(diagnosis.findings))


def findings_frame(findings: tuple[Finding, ...]) -> pl.DataFrame:
    """One row per finding, the gravest first: severity, id, sentence, remedy, evidence."""
    names = ("severity", "id", "sentence", "remedy", "evidence")
    rows = [[getattr(finding, name) for name in names] for finding in findings]
    kinds = {name: pl.List(pl.String) if name == "evidence" else pl.String for name in names}
    return pl.DataFrame([[*row[:-1], list(row[-1])] for row in rows], schema=kinds, orient="row")


def cold_start_panel(diagnosis: Diagnosis, start: str | None = None) -> Panel:
    """One start over time, or all starts beside each other where there are several and none is named.

    Logs without a start give a panel that says so and has no figure.

    Raises:
        UnknownNameError: no start has this name.
    """
    summary = diagnosis.cold_start.summary
    if summary.is_empty() and start is None:
        return Panel("Cold start", "these logs show no engine start; a log from the process's first line on does")
    ids = summary["start_id"].to_list()
    if start is not None and start not in ids:
        raise UnknownNameError("start", start, ids)
    return _all_starts(diagnosis) if start is None and len(ids) > 1 else _one_start(diagnosis, start or ids[0])


def batching_panel(diagnosis: Diagnosis) -> Panel:
    """Serving over time: token rates, queue, KV use, the time of the steps, and what most engine time was lost to.

    Logs without serving give a panel that says so and has no figure.
    """
    served, recording = diagnosis.batching, diagnosis.recording
    if served is None:
        return Panel("Serving", "these logs show no serving; a log with the engine's statistics lines does")
    told = timeline.serving_timeline(recording)
    figure = charts.serving_timeline(
        told.samples,
        told.bins,
        told.rates,
        preemptions=recording.incidents.filter(kind="preemption"),
        sources=recording.sources,
        dated=any(source.dated for source in recording.sources),
    )
    lines = [_measure(row) for row in served.samples.iter_rows(named=True)] + loss_lines(recording)
    drawn = figure if len(told.samples) or len(told.bins) else None
    return Panel("Serving", _gravest(diagnosis, "batching."), tuple(lines), served.samples, drawn)


def _one_start(diagnosis: Diagnosis, start: str) -> Panel:
    told = diagnosis.cold_start
    row = told.summary.row(by_predicate=pl.col("start_id") == start, named=True)
    slices = told.slices.filter(start_id=start)
    longest = slices.filter(pl.col("duration_s") > 0).sort("duration_s", descending=True, maintain_order=True)
    lines = [_slice(diagnosis, part) for part in longest.head(_MOST_DETAILS).iter_rows(named=True)]
    if len(longest) > _MOST_DETAILS:
        lines.append(f"… and {len(longest) - _MOST_DETAILS} shorter parts")
    figure = charts.cold_start_timeline(
        told.slices, told.phases, told.summary, start, sources=diagnosis.recording.sources
    )
    return Panel(f"Cold start {start}", _start_sentence(row), tuple(lines), slices, figure)


def _all_starts(diagnosis: Diagnosis) -> Panel:
    told = diagnosis.cold_start
    rows = list(told.summary.iter_rows(named=True))
    ready = sum(row["outcome"] == "ready" for row in rows)
    lines = [f"{row['start_id']}: {_start_sentence(row)}" for row in rows]
    if ready < LEAST:
        figure = charts.cold_start_bars(told.slices, told.summary)
        return Panel(
            f"{len(rows):,} cold starts", f"{ready:,} of them came up ready", tuple(lines), told.summary, figure
        )
    frames = StartFrames(told.phases, told.slices, told.summary)
    together = starts_together({"here": diagnosis.recording}, frames={"here": frames})
    figure = charts.starts_together_chart(together.starts, together.parts)
    sentence = f"{ready:,} of them came up ready; {'; '.join(together_lines(together))}"
    return Panel(f"{len(rows):,} cold starts", sentence, tuple(lines), together.starts, figure)


def _start_sentence(row: dict[str, Any]) -> str:
    words = [f"{row['outcome']}, span {format_s(row['span_s'])}"]
    if row["unlogged_s"]:
        words.append(f"of which no line explains {format_s(row['unlogged_s'])}")
    caches = {name: row[f"{name}_cache"] for name in ("compile", "engine", "weights") if row[f"{name}_cache"]}
    return ", ".join([*words, *(f"{name} cache {how}" for name, how in caches.items())])


def _slice(diagnosis: Diagnosis, part: dict[str, Any]) -> str:
    if part["phase"] is not None:
        what = part["phase"].replace("_", " ")
    else:
        what = "text is missing" if part["reason"] == "cut" else "no line says what"
        what += f" (after {_side(part['after'], 'the begin')}, before {_side(part['before'], 'the end')})"
    lines = [diagnosis.recording.evidence(part["source_id"], line) for line in part["lines"][:1]]
    return f"{format_s(part['duration_s']):>10}  {what}" + (f"  {lines[0].rsplit('/', 1)[-1]}" if lines else "")


def _side(name: str | None, end: str) -> str:
    return (name or end).replace("_", " ")


def _measure(row: dict[str, Any]) -> str:
    name, written = _MEASURES[row["measure"]]
    return f"{name}: mean {written(row['mean'])}, from {written(row['min'])} to {written(row['max'])}"


def _gravest(diagnosis: Diagnosis, area: str) -> str:
    return next((each.sentence for each in diagnosis.findings if each.id.startswith(area)), "no finding")
