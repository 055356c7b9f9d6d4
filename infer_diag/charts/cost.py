"""What a deployment's tokens cost beside its reference, and the causes of a whole fleet on one map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
import polars as pl

from infer_diag.charts.template import INK, dressed, label, status_words
from infer_diag.units import format_ratio

COST_COLOURS = {
    "cold_start": "#0072b2",
    "batching": "#e69f00",
    "fragmentation": "#8e5bb0",
    "idle": "#8a8f98",
    "undelivered": "#d55e00",
    "residual": "#5f6570",
    "hardware": "#88ccee",
    "price": "#ddcc77",
    "mix": "#a9dcd3",
    "prefix_cache": "#a97cc6",
}
"""One colour per cause; what is never blamed is pale."""
_END = "#44aa99"
_SCALE = [(0.0, "#2e8bc4"), (0.5, "rgba(128,134,144,0.10)"), (1.0, "#d55e00")]


def cost_waterfall(steps: pl.DataFrame) -> go.Figure:
    """From the reference's cost to the deployment's, a bar per cause with its 95 % interval.

    Frame in: CostSteps of one deployment. A cause that the logs cannot tell has no length and says so.
    """
    rows = list(steps.iter_rows(named=True))
    unit = rows[0]["unit"] if rows else ""
    figure = go.Figure(
        go.Bar(
            x=[row["end_count"] - row["begin_count"] for row in rows],
            base=[row["begin_count"] for row in rows],
            y=[_name(row) for row in rows],
            orientation="h",
            marker={"color": [COST_COLOURS.get(row["cause"] or "", _END) for row in rows]},
            error_x=_whiskers(rows),
            hovertext=[_hover(row) for row in rows],
            hoverinfo="text",
            textposition="none",
            showlegend=False,
        )
    )
    name = label(rows[-1]["label"]) if rows else "nothing to compare"
    origin = f"{status_words(row['status'] for row in rows)} · {unit} · bars add up, whiskers are 95 % intervals"
    dressed(figure, f"Why {name} costs what it costs", origin, height=150 + 28 * max(len(rows), 1))
    figure.update_yaxes(autorange="reversed", automargin=True)
    figure.update_xaxes(title_text=unit, rangemode="tozero")
    return figure


def cost_heatmap(bars: pl.DataFrame, deployments: Sequence[str], causes: Sequence[str]) -> go.Figure:
    """Causes of every deployment: ln contribution by colour, red dearer and blue cheaper than the reference.

    Frame in: CostBars. Rows in the order of `deployments`. A cell without a value is one that the logs cannot tell.
    """
    cells = {(row["deployment"], row["cause"]): row for row in bars.iter_rows(named=True)}
    told = [[cells.get((name, cause), {}) for cause in causes] for name in deployments]
    values = [[cell.get("log_ratio") for cell in line] for line in told]
    limit = max((abs(value) for line in values for value in line if value is not None), default=1.0) or 1.0
    figure = go.Figure(
        go.Heatmap(
            z=values,
            x=[cause.replace("_", " ") for cause in causes],
            y=[label(name) for name in deployments],
            zmin=-limit,
            zmax=limit,
            zmid=0.0,
            colorscale=_SCALE,
            colorbar={"title": {"text": "ln"}, "thickness": 12, "outlinewidth": 0},
            hovertext=[[_cell(cell) for cell in line] for line in told],
            hoverinfo="text",
            xgap=2,
            ygap=2,
        )
    )
    dressed(
        figure,
        "Causes over the fleet",
        f"{status_words(bars['status'].cast(pl.String))} · part of ln(cost / reference); empty: the logs cannot tell",
        height=190 + 24 * max(len(deployments), 1),
    )
    figure.update_yaxes(autorange="reversed", automargin=True, showgrid=False)
    figure.update_xaxes(side="top", showgrid=False, tickangle=-30)
    return figure


def _whiskers(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    known = [row["lower_count"] is not None and row["upper_count"] is not None for row in rows]
    return {
        "type": "data",
        "symmetric": False,
        "array": [row["upper_count"] - row["end_count"] if k else 0 for row, k in zip(rows, known, strict=True)],
        "arrayminus": [row["end_count"] - row["lower_count"] if k else 0 for row, k in zip(rows, known, strict=True)],
        "color": INK,
        "thickness": 1.2,
        "width": 4,
    }


def _name(row: dict[str, Any]) -> str:
    text = label(row["label"])
    return f"{text} (cannot tell)" if row["cause"] is not None and row["status"] == "not_identifiable" else text


def _hover(row: dict[str, Any]) -> str:
    if row["cause"] is None:
        return f"<b>{label(row['label'])}</b><br>{row['end_count']:.4g} {row['unit']}"
    step = row["end_count"] - row["begin_count"]
    lines = [f"<b>{label(row['label'])}</b> · {row['status'].replace('_', ' ')}", f"{step:+.4g} {row['unit']}"]
    if row["saves_ratio"] is not None:
        lines.append(f"fixing it alone saves {format_ratio(row['saves_ratio'])}")
    if row["missing"]:
        lines.append(f"missing: {label(row['missing'])}")
    return "<br>".join(lines)


def _cell(cell: dict[str, Any]) -> str:
    if not cell:
        return "no comparison"
    head = f"<b>{label(cell['deployment'])}</b> · {cell['cause'].replace('_', ' ')}"
    if cell["log_ratio"] is None:
        return f"{head}<br>cannot tell: {label(cell['missing'] or '')}"
    ends = cell["lower_ratio"], cell["upper_ratio"]
    spread = f" ({ends[0]:.3f} to {ends[1]:.3f})" if None not in ends else ""
    saves = format_ratio(cell["saves_ratio"])
    return f"{head}<br>ln {cell['log_ratio']:+.3f}{spread}<br>fixing it alone saves {saves}<br>{cell['status']}"
