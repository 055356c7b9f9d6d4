"""What padding is left with so many captured graphs, beside the lists that engines and others use."""

from __future__ import annotations

import plotly.graph_objects as go
import polars as pl

from infer_diag.charts.template import COLOURS, INK, dressed, label
from infer_diag.units import format_bytes, format_count, format_ratio, format_s


def capture_chart(frontier: pl.DataFrame, references: pl.DataFrame) -> go.Figure:
    """Mean padding of a replayed step over the number of graphs: the best lists as a line, others as points.

    Frames in: CapturePlans. A list that covers fewer steps pads fewer as well, so its share of steps stands beside it.
    """
    figure = go.Figure()
    figure.add_trace(_trace("best lists", frontier, "lines+markers", COLOURS["decode"]))
    for name in references["plan"].to_list():
        row = references.filter(pl.col("plan") == name)
        point = _trace(label(name), row, "markers+text", COLOURS["failure"])
        covered = format_ratio(row["covered_ratio"][0])
        figure.add_trace(point.update(text=[f"{label(name)} ({covered} of steps)"], textposition="top right"))
    dressed(figure, "Graphs against padding", "exact optimum for every number of graphs · modelled", height=420)
    figure.update_layout(showlegend=False)
    figure.update_xaxes(title_text="captured graphs", rangemode="tozero")
    figure.update_yaxes(title_text="padding tokens per replayed step", type="log")
    return figure


def _trace(name: str, plans: pl.DataFrame, mode: str, colour: str) -> go.Scatter:
    rows = plans.to_dicts()
    return go.Scatter(
        name=name,
        mode=mode,
        x=[row["graph_count"] for row in rows],
        y=[row["padding_tokens"] for row in rows],
        marker={"color": colour, "size": 6 if mode.startswith("lines") else 11},
        line={"color": colour},
        textfont={"color": INK},
        cliponaxis=False,
        customdata=[_hover(row) for row in rows],
        hovertemplate="%{customdata}<extra></extra>",
    )


def _hover(row: dict[str, object]) -> str:
    sizes = row["sizes"] if isinstance(row["sizes"], list) else []
    listed = ", ".join(map(str, sizes[:12])) + (" …" if len(sizes) > 12 else "")
    told = {name: value if isinstance(value, int | float) else None for name, value in row.items()}
    words = [
        f"<b>{label(str(row['plan']))}</b>: {listed}",
        f"{format_count(told['graph_count'])} graphs, {format_ratio(told['covered_ratio'])} of the steps replay",
        f"padding {format_count(told['padding_tokens'])} tokens a step",
    ]
    if told["capture_s"] is not None:
        words.append(f"capture {format_s(told['capture_s'])}, {format_bytes(told['graph_bytes'])}")
    return "<br>".join(words)
