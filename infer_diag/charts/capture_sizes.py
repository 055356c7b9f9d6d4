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
    dressed(
        figure,
        "Graphs against padding",
        "exact optimum for every number of graphs, up to the last that pads at all · modelled",
        height=420,
    )
    figure.update_layout(showlegend=False)
    figure.update_xaxes(title_text="captured graphs", rangemode="tozero")
    figure.update_yaxes(title_text="padding tokens per replayed step", type="log")
    return figure


def floors_chart(floors: pl.DataFrame) -> go.Figure:
    """The least time of a decode step by model and GPU, with the published step of each batch as a dotted line.

    Columns in: `model, gpu, batch_count, context_tokens, floor_s, article_s`.
    """
    figure = go.Figure()
    colours = (COLOURS["idle"], COLOURS["decode"], COLOURS["graph_capture"])
    for gpu, colour in zip(floors["gpu"].unique(maintain_order=True), colours, strict=False):
        rows = floors.filter(pl.col("gpu") == gpu).to_dicts()
        figure.add_trace(
            go.Bar(
                name=label(gpu),
                x=_places(rows),
                y=[row["floor_s"] for row in rows],
                marker={"color": colour},
                text=[format_s(row["floor_s"]) for row in rows],
            )
        )
    for row in floors.unique("batch_count", keep="first", maintain_order=True).to_dicts():
        own = floors.filter(pl.col("batch_count") == row["batch_count"]).to_dicts()
        figure.add_trace(
            go.Scatter(
                name=f"the article, batch {row['batch_count']}: {format_s(row['article_s'])}",
                x=_places(own),
                y=[row["article_s"]] * len(own),
                mode="lines+markers",
                line={"dash": "dot", "color": COLOURS["failure"]},
                marker={"symbol": "line-ew-open", "size": 40},
            )
        )
    dressed(figure, "What a step cannot be faster than", "weights and KV cache read once · bounded", height=440)
    figure.update_layout(barmode="group", legend={"traceorder": "normal"})
    figure.update_yaxes(title_text="step", tickformat="~s", ticksuffix="s", rangemode="tozero")
    return figure


def _places(rows: list[dict[str, object]]) -> list[list[str]]:
    """The two rows of a category axis: batch and model."""
    return [
        [f"batch {row['batch_count']} × {row['context_tokens']}" for row in rows],
        [label(str(row["model"])) for row in rows],
    ]


def _trace(name: str, plans: pl.DataFrame, mode: str, colour: str) -> go.Scatter:
    rows = plans.to_dicts()
    return go.Scatter(
        name=name,
        mode=mode,
        x=[row["graph_count"] for row in rows],
        y=[row["padding_tokens"] or None for row in rows],
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
