"""Many starts beside each other: every part's scatter, with cold caches and with warm ones."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import polars as pl

from infer_diag.charts.template import COLOURS, dressed, label, phase_name
from infer_diag.schema import PHASES

_STATES = {"cold": COLOURS["weights_load"], "warm": COLOURS["graph_capture"], None: COLOURS["gap"]}
_SPAN = "span"


def starts_together_chart(starts: pl.DataFrame, parts: pl.DataFrame) -> go.Figure:
    """One box per part and state of the caches, every start a point in it; the whole span in the first row.

    Frames in: StartsTogether, StartParts. Starts that never became ready are left out.
    """
    ready = starts.filter(pl.col("outcome") == "ready")
    spans = ready.drop_nulls("span_s").select(
        "deployment", "start_id", "caches", pl.lit(_SPAN).alias("part"), pl.col("span_s").alias("duration_s")
    )
    own = parts.join(ready, on=["deployment", "start_id"], how="semi", maintain_order="left")
    points = pl.concat([spans, own.select(spans.columns)])
    figure = go.Figure()
    for state, colour in _STATES.items():
        rows = points.filter(pl.col("caches").eq_missing(pl.lit(state))).to_dicts()
        if rows:
            figure.add_trace(_box(f"caches {state}" if state else "caches not told", rows, colour))
    told = set(points["part"].to_list())
    order = [part for part in (_SPAN, *PHASES, "unlogged") if part in told]
    subtitle = f"{len(ready):,} starts that became ready · parts do not overlap and add up to the span · measured"
    dressed(figure, "Starts together", subtitle, height=200 + 46 * len(order))
    figure.update_layout(boxmode="group", legend={"traceorder": "normal"})
    figure.update_xaxes(ticksuffix=" s", rangemode="tozero")
    figure.update_yaxes(
        type="category",
        categoryorder="array",
        categoryarray=[_part_name(part) for part in order],
        autorange="reversed",
        showgrid=False,
    )
    return figure


def _box(name: str, rows: list[dict[str, Any]], colour: str) -> go.Box:
    return go.Box(
        name=name,
        orientation="h",
        x=[row["duration_s"] for row in rows],
        y=[_part_name(row["part"]) for row in rows],
        text=[f"{label(row['deployment'])} · {label(row['start_id'])}" for row in rows],
        boxpoints="all",
        pointpos=0,
        jitter=0.4,
        marker={"color": colour, "size": 5, "opacity": 0.8},
        line={"color": colour, "width": 1.5},
        fillcolor="rgba(0,0,0,0)",
        hoverinfo="x+text",
    )


def _part_name(part: str) -> str:
    return {"span": "whole start", "unlogged": "no line explains"}.get(part, phase_name(part))
