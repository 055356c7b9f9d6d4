"""What the probes of storage and of a pipeline's start found: the page cache, ways of reading, floors, phases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from infer_diag.charts.template import COLOURS, INK, dressed, label, phase_name
from infer_diag.units import format_bytes, format_count, format_ratio, format_s

SEQUENCES = {"stepwise": "one call after the other", "article": "the article's order, on a warm cache"}
_STATES = ("cold", "warm")


def cache_steps_chart(steps: pl.DataFrame, *, basis: str = "measured", place: str = "this machine") -> go.Figure:
    """How much of the file is cached after each call: bars are the last repetition, dots are every one.

    Frame in: `probes.frames.CacheSteps`. Where the kernel does not tell, the bar is absent and its text says so.
    """
    figure = make_subplots(
        rows=2,
        cols=1,
        row_heights=[5, 3],
        vertical_spacing=0.2,
        shared_xaxes=True,
        subplot_titles=[*SEQUENCES.values()],
    )
    for row, sequence in enumerate(SEQUENCES, 1):
        part = steps.filter(pl.col("sequence") == sequence).sort("repeat_id", "step_id")
        figure.add_trace(_cache_bars(part.filter(pl.col("repeat_id") == pl.col("repeat_id").max())), row=row, col=1)
        figure.add_trace(_cache_dots(part), row=row, col=1)
    size = format_bytes(steps["file_bytes"].max() if len(steps) else None)  # type: ignore[arg-type]
    said = f"{basis} on {label(place)} · file of {size} · {steps['repeat_id'].n_unique()} repetitions as dots"
    dressed(figure, "The page cache after each call", said, height=430)
    figure.update_annotations(x=0, xanchor="left", font={"size": 12})
    figure.update_layout(showlegend=False, margin={"t": 96})
    figure.update_xaxes(tickformat=".0%", range=[0, 1.12], tickvals=[0, 0.25, 0.5, 0.75, 1])
    figure.update_xaxes(title_text="share of the file in the page cache", row=2)
    figure.update_yaxes(autorange="reversed", showgrid=False)
    return figure


def read_rates_chart(rates: pl.DataFrame, *, basis: str = "measured", place: str = "this machine") -> go.Figure:
    """Bytes per second of each way of reading, cold and warm: the median as a dot, the quartiles as a line.

    Frame in: `probes.frames.ReadRates`.
    """
    figure = go.Figure()
    names = [name.replace("_", " ") for name in rates["method"].unique(maintain_order=True).sort()]
    for state in _STATES:
        rows = rates.filter(pl.col("cache") == state)
        methods = [name.replace("_", " ") for name in rows["method"]]
        figure.add_trace(
            _spans(f"{state}, quartiles", rows["q1_bytes_per_s"], rows["q3_bytes_per_s"], methods, COLOURS[state])
        )
        figure.add_trace(
            go.Scatter(
                name=f"{state} page cache",
                x=rows["p50_bytes_per_s"].to_list(),
                y=methods,
                mode="markers",
                marker={"color": COLOURS[state], "size": 13, "line": {"width": 1, "color": INK}},
                hovertext=[_rate(row, state) for row in rows.to_dicts()],
                hoverinfo="text",
            )
        )
    runs = format_count(rates["run_count"].max() if len(rates) else None)  # type: ignore[arg-type]
    said = (
        f"{basis} on {label(place)} · median of up to {runs} runs; a line shows quartiles where there are four or more"
    )
    dressed(figure, "Ways of reading a file", said, height=340)
    figure.update_xaxes(title_text="bytes per second", tickformat="~s", ticksuffix="B/s", rangemode="tozero")
    figure.update_yaxes(categoryorder="array", categoryarray=names, autorange="reversed")
    return figure


def load_floors_chart(
    floors: pl.DataFrame, article_s: dict[str, float], *, basis: str = "measured", place: str = "this machine"
) -> go.Figure:
    """The least time that a model's bytes take at the fastest cold rate, beside the whole starts that are published.

    Frame in: `probes.frames.LoadFloors`. `article_s` is the published seconds by name.
    """
    rows = floors.sort("size_bytes").to_dicts()
    named = [f"{label(row['model'])}<br>{row['size_bytes'] / 1e9:.3g} GB" for row in rows]
    figure = go.Figure()
    for symbol, (name, seconds) in zip(("diamond", "square", "cross"), article_s.items(), strict=False):
        figure.add_trace(
            go.Scatter(
                name=f"the article's whole start: {label(name)}, {format_s(seconds)}",
                x=[seconds] * len(named),
                y=named,
                mode="markers",
                marker={"color": COLOURS["published"], "size": 12, "symbol": symbol},
                hoverinfo="name",
            )
        )
    figure.add_trace(
        go.Scatter(
            name="reading alone, at the fastest cold rate",
            x=[row["floor_s"] for row in rows],
            y=named,
            mode="markers+text",
            marker={"color": COLOURS["ours"], "size": 14},
            text=[f"  {format_s(row['floor_s'])}" for row in rows],
            textposition="middle right",
            cliponaxis=False,
            hovertext=[f"{format_s(row['floor_s'])} at {format_bytes(row['bytes_per_s'])}/s" for row in rows],
            hoverinfo="text",
        )
    )
    dressed(figure, "Reading alone, at the rate of this storage", f"{basis} on {label(place)}", height=340)
    figure.update_xaxes(type="log", title_text="seconds, logarithmic", ticksuffix=" s", dtick=1)
    figure.update_layout(margin={"r": 72}, legend={"traceorder": "reversed"})
    return figure


def pipeline_phases_chart(phases: pl.DataFrame, *, basis: str, place: str) -> go.Figure:
    """Wall time of each phase of a pipeline's starts, and beside it how long the processor worked.

    Frame in: `probes.frames.PipelinePhases` with a column `start`, the name of each start. Less processor than wall
    time: the start waited for storage; more of it: several threads worked. Phases that never ended are left out.
    """
    figure = make_subplots(rows=1, cols=2, shared_yaxes=True, subplot_titles=["wall time", "processor time"])
    names = [phase_name(name) for name in phases["phase"].unique(maintain_order=True)]
    for start, colour in zip(phases["start"].unique(maintain_order=True), _start_colours(), strict=False):
        rows = phases.filter((pl.col("start") == start) & pl.col("duration_s").is_not_null()).to_dicts()
        for column, measure in enumerate(("duration_s", "cpu_s"), 1):
            bars = go.Bar(
                name=label(start),
                orientation="h",
                y=[phase_name(row["phase"]) for row in rows],
                x=[row[measure] for row in rows],
                marker={"color": colour},
                hovertext=[_phase(row) for row in rows],
                hoverinfo="text",
                legendgroup=start,
                showlegend=column == 1,
            )
            figure.add_trace(bars, row=1, col=column)
    dressed(figure, "A pipeline's start, phase by phase", f"{basis} on {label(place)}", height=440)
    figure.update_annotations(font={"size": 12})
    figure.update_layout(barmode="group", legend={"traceorder": "normal"}, margin={"t": 96})
    figure.update_xaxes(ticksuffix=" s", rangemode="tozero", matches="x")
    figure.update_yaxes(categoryorder="array", categoryarray=names, autorange="reversed", showgrid=False)
    return figure


def _cache_bars(rows: pl.DataFrame) -> go.Bar:
    return go.Bar(
        name="last repetition",
        orientation="h",
        y=_calls(rows),
        x=rows["resident_ratio"].to_list(),
        marker={"color": COLOURS["cached"]},
        text=[
            "the kernel does not tell" if ratio is None else f" {format_ratio(ratio)}"
            for ratio in rows["resident_ratio"]
        ],
        textposition="outside",
        cliponaxis=False,
        hovertext=[
            f"{label(row['call'])}: {format_bytes(row['resident_bytes'])} cached"
            f"<br>the call took {format_s(row['duration_s'])}"
            for row in rows.to_dicts()
        ],
        hoverinfo="text",
    )


def _cache_dots(rows: pl.DataFrame) -> go.Scatter:
    return go.Scatter(
        name="every repetition",
        mode="markers",
        y=_calls(rows),
        x=rows["resident_ratio"].to_list(),
        marker={"color": COLOURS["ours"], "size": 7, "opacity": 0.6},
        hoverinfo="skip",
    )


def _calls(rows: pl.DataFrame) -> list[str]:
    """The place in the sequence goes first, because one call occurs twice."""
    return [f"{place} · {label(call)}" for place, call in rows.select("step_id", "call").iter_rows()]


def _spans(
    name: str, low: Iterable[float | None], high: Iterable[float | None], y: Sequence[str], colour: str
) -> go.Scatter:
    """Lines from `low` to `high` in each row; where one is null there is none."""
    pairs = list(zip(low, high, y, strict=True))
    return go.Scatter(
        name=name,
        x=list(chain.from_iterable((one, other, None) for one, other, _ in pairs)),
        y=list(chain.from_iterable((row, row, None) for _, _, row in pairs)),
        mode="lines",
        line={"color": colour, "width": 5},
        opacity=0.55,
        showlegend=False,
        hoverinfo="skip",
    )


def _rate(row: dict[str, object], state: str) -> str:
    def told(column: str) -> str:
        value = row[column]
        return f"{format_bytes(value)}/s" if isinstance(value, float) else "unknown"

    return (
        f"{label(str(row['method'])).replace('_', ' ')}, {state}: {told('p50_bytes_per_s')}"
        f"<br>quartiles {told('q1_bytes_per_s')} to {told('q3_bytes_per_s')}, {row['run_count']} runs"
    )


def _phase(row: dict[str, object]) -> str:
    seconds, worked, peak = (row[name] for name in ("duration_s", "cpu_s", "peak_bytes"))
    told = f"{phase_name(str(row['phase']))}: {format_s(seconds)}"  # type: ignore[arg-type]
    told += f"<br>processor time {format_s(worked)}"  # type: ignore[arg-type]
    return told if peak is None else f"{told}<br>peak memory until its end {format_bytes(peak)}"  # type: ignore[arg-type]


def _start_colours() -> tuple[str, ...]:
    return tuple(COLOURS[name] for name in ("cold", "warm", "idle", "mixed"))
