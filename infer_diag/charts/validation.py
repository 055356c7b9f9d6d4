"""How far the cost analysis is off what was planted, and how often its intervals hold it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
import polars as pl

from infer_diag.charts.cost import COST_COLOURS
from infer_diag.charts.template import dressed, label

_SYMBOLS = {"steps": "circle", "gauges": "diamond", "logs": "square"}
_SEEN = {"steps": "steps timed", "gauges": "gauges alone", "logs": "raw logs of simulated engines"}


def bias_chart(summary: pl.DataFrame, limit_log: float) -> go.Figure:
    """Mean of found − planted per scenario and cause with its 95 % interval; the band is what the method accepts.

    Frame in: `scenario`, `sight` (steps, gauges or logs), `cause`, `bias` and `bias_half` in ln units.
    """
    rows = list(summary.drop_nulls("bias").iter_rows(named=True))
    figure = go.Figure([_points(rows, sight, "bias", "bias_half", "bias_half") for sight in _SYMBOLS])
    figure.add_vrect(x0=-limit_log, x1=limit_log, fillcolor="#44aa99", opacity=0.15, line_width=0)
    dressed(figure, "Found less planted", "simulated fleets · ln units · whiskers are 95 %", height=_height(rows))
    figure.update_xaxes(title_text="ln found − ln planted", zeroline=True)
    figure.update_yaxes(autorange="reversed", automargin=True)
    return figure


def coverage_chart(summary: pl.DataFrame, accepted: Sequence[float]) -> go.Figure:
    """Share of the fleets whose interval holds the truth, with the 95 % interval of that count.

    Frame in: `scenario`, `sight`, `cause`, `covered_ratio` and how far its interval reaches below and above,
    `covered_below` and `covered_above`.
    """
    rows = list(summary.drop_nulls("covered_ratio").iter_rows(named=True))
    traces = [_points(rows, sight, "covered_ratio", "covered_above", "covered_below") for sight in _SYMBOLS]
    figure = go.Figure(traces)
    figure.add_vrect(x0=accepted[0], x1=accepted[1], fillcolor="#44aa99", opacity=0.15, line_width=0)
    dressed(figure, "Intervals that hold the truth", "simulated fleets · whiskers are 95 %", height=_height(rows))
    figure.update_xaxes(title_text="share of fleets", tickformat=".0%")
    figure.update_yaxes(autorange="reversed", automargin=True)
    return figure


def _points(rows: list[dict[str, Any]], sight: str, value: str, above: str, below: str) -> go.Scatter:
    mine = [row for row in rows if row["sight"] == sight]
    return go.Scatter(
        x=[row[value] for row in mine],
        y=[f"{label(row['scenario'].replace('_', ' '))}: {row['cause'].replace('_', ' ')}" for row in mine],
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [row[above] or 0.0 for row in mine],
            "arrayminus": [row[below] or 0.0 for row in mine],
            "thickness": 1,
        },
        mode="markers",
        marker={"symbol": _SYMBOLS[sight], "color": [COST_COLOURS[row["cause"]] for row in mine], "size": 8},
        name=_SEEN[sight],
    )


def _height(rows: list[dict[str, Any]]) -> int:
    return 180 + 20 * max(len({(row["scenario"], row["cause"]) for row in rows}), 1)
