"""Serving over time, and how long a step takes at each batch size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from infer_diag.charts.template import COLOURS, INK, MANY_POINTS, dressed, file_name, label
from infer_diag.recording import Source
from infer_diag.units import format_s

_MOST_LISTED = 4
_KINDS = ("prefill", "mixed", "decode", "idle")
_SYMBOLS = {"prefill": "square", "mixed": "diamond", "decode": "circle", "idle": "x"}
_DASHES = ("solid", "dot", "dash", "dashdot")
_MEASURES = (
    # panel, column, name, colour
    ("rate", "output_tokens_per_s", "output tokens/s", "decode"),
    ("rate", "prompt_tokens_per_s", "prompt tokens/s", "prefill"),
    ("load", "running_count", "running", "running"),
    ("load", "waiting_count", "waiting", "waiting"),
    ("kv", "kv_usage_ratio", "KV cache used", "kv"),
)
_PANELS = {
    "rate": "tokens per second",
    "load": "requests",
    "kv": "KV cache used",
    "steps": "step time per interval",
}


def serving_timeline(
    samples: pl.DataFrame,
    bins: pl.DataFrame | None = None,
    rates: pl.DataFrame | None = None,
    *,
    preemptions: pl.DataFrame | None = None,
    sources: Sequence[Source] = (),
    dated: bool = True,
) -> go.Figure:
    """Stacked panels over one time axis: token rates, running and waiting, KV use, and step time by kind.

    Frames in: EngineSamples; StepBins and StepRates as `attribution.timeline` makes them; `preemptions` rows of
    Incidents. Panels without data are left out. Without any stamp the axis counts lines. `dated=False` hides a date
    that the log does not print. Engines (source and replica) get a line each.
    More than 20,000 samples are drawn with WebGL.
    """
    axis = "time" if samples["time"].is_not_null().any() or samples.is_empty() else "line"
    placed = samples.filter(pl.col(axis).is_not_null())
    has_bins, has_rates = bins is not None and len(bins) > 0, rates is not None and len(rates) > 0
    row_of = _panel_rows(placed, has_bins=has_bins, has_rates=has_rates)
    figure = make_subplots(rows=max(len(row_of), 1), cols=1, shared_xaxes=True, vertical_spacing=0.05)
    if rates is not None and has_rates:
        _add_rates(figure, rates, row_of["rate"])
    _add_samples(figure, placed, axis, row_of, sources)
    _add_preemptions(figure, placed, preemptions, axis, row_of)
    if bins is not None and has_bins:
        _add_steps(figure, bins, row_of["steps"])
    subtitle = _subtitle(samples, bins if has_bins else None, axis)
    dressed(figure, "Serving over time", subtitle, height=170 + 165 * max(len(row_of), 1))
    figure.update_layout(barmode="stack", bargap=0, hovermode="x unified")
    _dress_axes(figure, row_of, axis, dated=dated)
    return figure


def step_chart(sizes: pl.DataFrame) -> go.Figure:
    """Duration of a step against the size of its batch, by kind: the median as marks, the 95th percentile as a line.

    Frame in: StepSizes.
    """
    figure = go.Figure()
    for kind in _KINDS:
        rows = sizes.filter(pl.col("kind") == kind)
        if len(rows):
            figure.add_traces(_step_traces(kind, rows))
    subtitle = "measured · median as marks, 95th percentile dotted · from the iteration lines"
    dressed(figure, "How long a step takes", subtitle, height=380)
    figure.update_xaxes(title_text="requests in the batch", rangemode="tozero")
    figure.update_yaxes(title_text="duration of a step", rangemode="tozero", tickformat="~s", ticksuffix="s")
    return figure


def _step_traces(kind: str, rows: pl.DataFrame) -> tuple[go.Scatter, go.Scatter]:
    hover = [
        f"<b>{kind}</b> · batch from {row['batch_count']}<br>{row['step_count']:,} steps"
        f"<br>median {format_s(row['p50_duration_s'])}, p95 {format_s(row['p95_duration_s'])}"
        for row in rows.iter_rows(named=True)
    ]
    colour = COLOURS[kind]
    high = go.Scatter(
        name=f"{kind}, p95",
        legendgroup=kind,
        showlegend=False,
        x=rows["batch_count"].to_list(),
        y=rows["p95_duration_s"].to_list(),
        mode="lines",
        line={"color": colour, "width": 1, "dash": "dot"},
        hoverinfo="skip",
    )
    middle = go.Scatter(
        name=kind,
        legendgroup=kind,
        x=rows["batch_count"].to_list(),
        y=rows["p50_duration_s"].to_list(),
        mode="lines+markers",
        line={"color": colour, "width": 1.5},
        marker={"color": colour, "size": 7, "symbol": _SYMBOLS[kind]},
        hovertext=hover,
        hoverinfo="text",
    )
    return high, middle


def _panel_rows(samples: pl.DataFrame, *, has_bins: bool, has_rates: bool) -> dict[str, int]:
    """The row of each panel that has something to show, from the top."""
    shown = {panel for panel, column, _, _ in _MEASURES if samples[column].is_not_null().any()}
    shown |= ({"steps"} if has_bins else set()) | ({"rate"} if has_rates else set())
    return {panel: row for row, panel in enumerate((name for name in _PANELS if name in shown), start=1)}


def _add_samples(
    figure: go.Figure, samples: pl.DataFrame, axis: str, row_of: dict[str, int], sources: Sequence[Source]
) -> None:
    scatter = go.Scattergl if len(samples) > MANY_POINTS else go.Scatter
    engines = samples.select("source_id", "replica").unique(maintain_order=True).rows()
    for number, (source_id, replica) in enumerate(engines):
        own = samples.filter((pl.col("source_id") == source_id) & pl.col("replica").eq_missing(replica))
        for panel, column, name, colour in _MEASURES:
            rows = own.filter(pl.col(column).is_not_null())
            if rows.is_empty():
                continue
            figure.add_trace(
                scatter(
                    name=f"{name} · {_engine(source_id, replica, sources)}" if len(engines) > 1 else name,
                    legendgroup=name,
                    showlegend=number < _MOST_LISTED,
                    x=rows[axis].to_list(),
                    y=rows[column].to_list(),
                    mode="lines+markers" if len(rows) < 80 else "lines",
                    line={"color": COLOURS[colour], "width": 1.8, "dash": _DASHES[number % len(_DASHES)]},
                    marker={"size": 5},
                    hovertemplate="%{y:,.3~g}" if panel != "kv" else "%{y:.1%}",
                ),
                row=row_of[panel],
                col=1,
            )


def _engine(source_id: int, replica: str | None, sources: Sequence[Source]) -> str:
    file = file_name(sources[source_id].path) if source_id < len(sources) else f"source {source_id + 1}"
    return file if replica is None else f"{file} {label(replica)}"


def _add_rates(figure: go.Figure, rates: pl.DataFrame, row: int) -> None:
    for column, name, colour in (
        ("output_tokens_per_s", "output tokens/s, summed from steps", "decode"),
        ("prompt_tokens_per_s", "prompt tokens/s, summed from steps", "prefill"),
    ):
        figure.add_trace(
            go.Scatter(
                name=name,
                x=rates["time"].to_list(),
                y=rates[column].to_list(),
                mode="lines",
                connectgaps=False,
                opacity=0.75,
                line={"color": COLOURS[colour], "width": 1, "shape": "hvh"},
                hovertemplate="%{y:,.3~g}",
            ),
            row=row,
            col=1,
        )


def _add_preemptions(
    figure: go.Figure, samples: pl.DataFrame, incidents: pl.DataFrame | None, axis: str, row_of: dict[str, int]
) -> None:
    counted = samples.filter(pl.col("preemption_count") > 0)[axis].to_list()
    said = [] if incidents is None else incidents[axis].drop_nulls().to_list()
    times = said or counted
    panel = "kv" if "kv" in row_of else "load"
    if times and panel in row_of:
        figure.add_trace(
            go.Scatter(
                name="requests preempted",
                x=times,
                y=[1.0 if panel == "kv" else 0.0] * len(times),
                mode="markers",
                marker={"symbol": "triangle-down", "size": 10, "color": COLOURS["preemption"]},
                hovertemplate="preempted",
            ),
            row=row_of[panel],
            col=1,
        )


def _add_steps(figure: go.Figure, bins: pl.DataFrame, row: int) -> None:
    for kind in _KINDS:
        rows = bins.filter(pl.col("kind") == kind)
        if len(rows):
            figure.add_trace(
                go.Bar(
                    name=f"{kind} steps",
                    x=rows["time"].to_list(),
                    y=rows["duration_s"].to_list(),
                    customdata=rows["step_count"].to_list(),
                    marker={"color": COLOURS[kind], "line": {"width": 0}},
                    hovertemplate="%{y:.3~g} s in %{customdata:,} steps",
                ),
                row=row,
                col=1,
            )


def _subtitle(samples: pl.DataFrame, bins: pl.DataFrame | None, axis: str) -> str:
    words = ["measured"]
    if len(samples):
        words.append(f"{len(samples):,} statistics lines")
    if bins is not None:
        words.append(f"steps summed over {format_s(bins['width_s'][0])}")
    if axis == "line":
        words.append("the log has no clock: the axis counts lines")
    return " · ".join(words)


def _dress_axes(figure: go.Figure, row_of: dict[str, int], axis: str, *, dated: bool) -> None:
    for panel, row in row_of.items():
        options: dict[str, Any] = {"title_text": _PANELS[panel], "rangemode": "tozero", "row": row, "col": 1}
        if panel == "kv":
            options |= {"tickformat": ".0%", "range": [0, 1.06]}
        if panel == "steps":
            options |= {"ticksuffix": " s"}
        figure.update_yaxes(**options)
    if axis == "time" and not dated:
        figure.update_xaxes(tickformat="%H:%M:%S", hoverformat="%H:%M:%S")
    figure.update_xaxes(showspikes=True, spikemode="across", spikethickness=1, spikecolor=INK, spikedash="dot")
    if axis == "line":
        figure.update_xaxes(title_text="line of the log", row=max(row_of.values(), default=1), col=1)
