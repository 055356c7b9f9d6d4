"""Shares of jitter with their intervals, and waits of a burst beside those of steady arrivals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
import polars as pl

from infer_diag.charts.template import COLOURS, dressed, label
from infer_diag.units import format_ratio


def jitter_chart(shares: pl.DataFrame) -> go.Figure:
    """One bar per factor with its 95 % interval; a factor that cannot be told has no bar and its reason instead.

    Frame in: JitterShares.
    """
    rows = shares.to_dicts()
    known = [row for row in rows if row["share_ratio"] is not None]
    ends = [(row["high_ratio"], row["low_ratio"]) if row["high_ratio"] is not None else None for row in known]
    figure = go.Figure(
        go.Bar(
            orientation="h",
            y=[label(row["factor"]) for row in known],
            x=[row["share_ratio"] for row in known],
            marker={"color": COLOURS["decode"]},
            text=[format_ratio(row["share_ratio"]) for row in known],
            textposition="inside",
            insidetextanchor="start",
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [end[0] - row["share_ratio"] if end else 0 for end, row in zip(ends, known, strict=True)],
                "arrayminus": [row["share_ratio"] - end[1] if end else 0 for end, row in zip(ends, known, strict=True)],
            },
        )
    )
    for row in rows:
        if row["share_ratio"] is None:
            figure.add_annotation(
                x=0, y=label(row["factor"]), text=label(row["reason"] or ""), showarrow=False, xanchor="left"
            )
    count = rows[0]["start_count"] if rows else 0
    dressed(figure, "Who makes starts uneven", f"shares of the variance of ln(duration) · {count:,} starts", height=300)
    figure.update_xaxes(range=[0, 1], tickformat=".0%")
    order = [label(row["factor"]) for row in rows]
    figure.update_yaxes(
        type="category", categoryorder="array", categoryarray=order, autorange="reversed", showgrid=False
    )
    return figure


def waits_chart(curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], line_s: float, unit: str) -> go.Figure:
    """Mean waits over the load, one curve a model (x, seconds), with a published wait as a dotted line.

    `unit` names the x axis.
    """
    figure = go.Figure()
    for (name, (x, y)), colour in zip(curves.items(), ("decode", "failure", "kv"), strict=False):
        figure.add_trace(
            go.Scatter(name=label(name), x=list(x), y=list(y), mode="lines+markers", line={"color": COLOURS[colour]})
        )
    figure.add_hline(y=line_s, line={"dash": "dot", "color": COLOURS["idle"]})
    dressed(figure, "What allocations wait on one lock", "modelled: one server, constant service", height=360)
    figure.update_xaxes(title_text=label(unit), rangemode="tozero")
    figure.update_yaxes(title_text="mean wait", ticksuffix=" s", rangemode="tozero")
    return figure
