"""Layouts of a KV cache: sectors that loads touch, banks, occupancy, the L2, and what a GPU read per second."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import polars as pl

from infer_diag.charts.buttons import add_buttons
from infer_diag.charts.template import COLOURS, INK, dressed, label
from infer_diag.units import format_bytes, format_count, format_ratio

_LINES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#8e5bb0")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "x")
_SHADES = [[0.0, "#c8501e"], [0.5, "#efd9a2"], [1.0, "#5fa8d6"]]


def layout_reads_chart(reads: pl.DataFrame) -> go.Figure:
    """Share of each sector that is used, by layout and by how the lanes walk; buttons choose tensor and load.

    Frame in: `simulators.kv_layout.frames.LayoutReads`.
    """
    cases = reads.select("tensor", "load_bytes").unique(maintain_order=True).rows()
    figure = go.Figure()
    for place, (tensor, width) in enumerate(cases):
        part = reads.filter((pl.col("tensor") == tensor) & (pl.col("load_bytes") == width))
        readers = part["reader"].unique(maintain_order=True).to_list()
        rows = [part.filter(pl.col("layout") == name).to_dicts() for name in part["layout"].unique(maintain_order=True)]
        figure.add_trace(
            go.Heatmap(
                visible=place == 0,
                x=[label(name).replace("along ", "along<br>").replace(" per", "<br>per") for name in readers],
                y=[label(row[0]["layout"]) for row in rows],
                z=[[cell["efficiency_ratio"] for cell in row] for row in rows],
                text=[[_used(cell) for cell in row] for row in rows],
                texttemplate="%{text}",
                textfont={"color": "black"},
                customdata=[[_touched(cell) for cell in row] for row in rows],
                hovertemplate="%{y}, %{x}<br>%{customdata}<extra></extra>",
                zmin=0,
                zmax=1,
                colorscale=_SHADES,
                xgap=2,
                ygap=2,
                showscale=False,
            )
        )
    dressed(figure, "How much of each sector is used", "modelled: counted from a warp's addresses", height=400)
    names = [f"{tensor}, {width} B a lane" for tensor, width in cases]
    add_buttons(figure, names, 1)
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_xaxes(showgrid=False, title_text="how the lanes walk")
    return figure


def width_chart(widths: pl.DataFrame) -> go.Figure:
    """Share of each sector that is used, by elements of a head, for lanes that follow the layout.

    Frame in: `simulators.kv_layout.frames.WidthReads`.
    """
    figure = go.Figure()
    for place, layout in enumerate(widths["layout"].unique(maintain_order=True)):
        rows = widths.filter(pl.col("layout") == layout).to_dicts()
        figure.add_trace(
            go.Scatter(
                name=label(layout),
                x=[row["head_dim_count"] for row in rows],
                y=[row["efficiency_ratio"] for row in rows],
                mode="lines+markers",
                line={"color": _LINES[place], "dash": _DASHES[place], "width": 2},
                marker={"symbol": _SYMBOLS[place], "size": 8},
                hovertext=[
                    f"{label(layout)}, head_dim {row['head_dim_count']}: {format_ratio(row['efficiency_ratio'])}"
                    f"<br>widest load {row['load_bytes']} B"
                    for row in rows
                ],
                hoverinfo="text",
            )
        )
    dressed(figure, "Head widths and wasted sectors", "modelled, two bytes an element", height=360)
    figure.update_xaxes(title_text="head_dim")
    figure.update_yaxes(title_text="used of each sector", tickformat=".0%", range=[0.7, 1.03])
    return figure


def bank_chart(conflicts: pl.DataFrame) -> go.Figure:
    """How many times as long a warp's load from shared memory takes, by row width and arrangement.

    Frame in: `simulators.kv_layout.frames.BankConflicts`. Buttons choose rows or columns.
    """
    accesses = ("column", "row")
    arrangements = conflicts["arrangement"].unique(maintain_order=True).to_list()
    figure = go.Figure()
    for access in accesses:
        for place, arrangement in enumerate(arrangements):
            chosen = (pl.col("access") == access) & (pl.col("arrangement") == arrangement)
            rows = conflicts.filter(chosen).to_dicts()
            figure.add_trace(
                go.Bar(
                    name=label(arrangement),
                    visible=access == accesses[0],
                    x=[f"{row['row_bytes']} B" for row in rows],
                    y=[row["conflict_count"] for row in rows],
                    text=["–" if row["conflict_count"] is None else f"{row['conflict_count']}×" for row in rows],
                    textposition="outside",
                    cliponaxis=False,
                    marker={"color": _LINES[place]},
                    hoverinfo="x+name+text",
                )
            )
    width = conflicts["load_bytes"][0] if len(conflicts) else 0
    dressed(figure, "Bank conflicts in shared memory", f"modelled, {width} B a lane", height=380)
    add_buttons(figure, ["one place of 32 rows", "along a row"], len(arrangements))
    figure.update_layout(barmode="group")
    figure.update_xaxes(title_text="bytes of a row (a token of one head)")
    figure.update_yaxes(title_text="times as long", rangemode="tozero")
    return figure


def occupancy_chart(occupancies: pl.DataFrame) -> go.Figure:
    """Warps on an SM over the most it holds, by registers of a thread and shared memory of a block.

    Frame in: `simulators.kv_layout.frames.Occupancies`, of one SM and one number of threads.
    """
    registers = occupancies["register_count"].unique(maintain_order=True).to_list()
    rows = [occupancies.filter(pl.col("register_count") == each).to_dicts() for each in registers]
    figure = go.Figure(
        go.Heatmap(
            x=[str(cell["shared_bytes"] >> 10) for cell in rows[0]],
            y=[str(each) for each in registers],
            z=[[cell["occupancy_ratio"] for cell in row] for row in rows],
            text=[[f"{cell['occupancy_ratio']:.0%}" for cell in row] for row in rows],
            texttemplate="%{text}",
            textfont={"color": "black"},
            customdata=[
                [f"{cell['block_count']} blocks<br>limited by {cell['limited_by']}" for cell in row] for row in rows
            ],
            hovertemplate="%{y} registers, %{x} KiB shared<br>%{text}, %{customdata}<extra></extra>",
            zmin=0,
            zmax=1,
            colorscale=_SHADES,
            xgap=2,
            ygap=2,
            showscale=False,
        )
    )
    first = occupancies.row(0, named=True)
    dressed(
        figure,
        "What occupancy depends on",
        f"modelled: {label(first['sm'])}, blocks of {first['thread_count']} threads",
        height=400,
    )
    figure.update_xaxes(title_text="shared memory of a block, KiB", showgrid=False, type="category", tickangle=0)
    figure.update_yaxes(title_text="registers of a thread", showgrid=False, type="category", autorange="reversed")
    return figure


def l2_chart(hits: pl.DataFrame) -> go.Figure:
    """Bytes that a decode step asks of the L2 and of device memory, by the order of the thread blocks.

    Frame in: `simulators.kv_layout.frames.L2Hits`. Buttons choose the layout.
    """
    layouts = hits["layout"].unique(maintain_order=True).to_list()
    figure = go.Figure()
    for place, layout in enumerate(layouts):
        rows = hits.filter(pl.col("layout") == layout).to_dicts()
        for column, name, colour in (
            ("access_bytes", "asked of the L2", "cached"),
            ("memory_bytes", "from device memory", "ours"),
        ):
            figure.add_trace(
                go.Bar(
                    name=name,
                    visible=place == 0,
                    x=[_wrapped(label(row["order"])) for row in rows],
                    y=[row[column] for row in rows],
                    marker={"color": COLOURS[colour]},
                    text=[_l2_text(row, column) for row in rows],
                    textposition="outside",
                    cliponaxis=False,
                    hovertext=[format_bytes(row[column]) for row in rows],
                    hoverinfo="name+text",
                )
            )
    group = hits["group_count"][0] if len(hits) else 0
    dressed(
        figure,
        "One decode step through the L2",
        f"simulated, one layer · {group} query heads per KV head · bound 1 − 1/{group}",
        height=420,
    )
    add_buttons(figure, [label(layout) for layout in layouts], 2)
    figure.update_layout(barmode="group")
    figure.update_yaxes(title_text="bytes", tickformat="~s", ticksuffix="B", rangemode="tozero")
    return figure


def layout_rates_chart(rates: pl.DataFrame, *, basis: str, place: str) -> go.Figure:
    """Bytes per second that each layout's kernel reads, with quartiles, beside a copy on the same device.

    Frame in: `probes.frames.KvLayoutRates`.
    """
    rows = rates.to_dicts()
    figure = go.Figure(
        go.Bar(
            x=[label(row["layout"]) for row in rows],
            y=[row["p50_bytes_per_s"] for row in rows],
            marker={"color": [COLOURS["published" if row["layout"] == "copy" else "ours"] for row in rows]},
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [_above(row) for row in rows],
                "arrayminus": [_below(row) for row in rows],
                "color": INK,
            },
            text=[f"{format_bytes(row['p50_bytes_per_s'])}/s" for row in rows],
            textposition="inside",
            hovertext=[f"{label(row['layout'])}: {format_ratio(row['of_copy_ratio'])} of a copy's" for row in rows],
            hoverinfo="text",
        )
    )
    dressed(figure, "Reading a KV cache", f"{basis} on {label(place)} · median and quartiles", height=360)
    figure.update_yaxes(title_text="bytes per second", tickformat="~s", ticksuffix="B/s", rangemode="tozero")
    return figure


def _above(row: dict[str, Any]) -> float:
    return 0.0 if row["q3_bytes_per_s"] is None else float(row["q3_bytes_per_s"] - row["p50_bytes_per_s"])


def _below(row: dict[str, Any]) -> float:
    return 0.0 if row["q1_bytes_per_s"] is None else float(row["p50_bytes_per_s"] - row["q1_bytes_per_s"])


def _used(cell: dict[str, Any]) -> str:
    return "not in one load" if cell["efficiency_ratio"] is None else format_ratio(cell["efficiency_ratio"])


def _touched(cell: dict[str, Any]) -> str:
    told = f"{format_bytes(cell['run_bytes'])} of a head side by side"
    if cell["sector_count"] is None:
        return f"{told}<br>its elements do not lie side by side"
    return f"{told}<br>{format_count(cell['sector_count'])} sectors, {format_count(cell['line_count'])} lines a load"


def _l2_text(row: dict[str, Any], column: str) -> str:
    return format_bytes(row[column]) if column == "memory_bytes" else f"hits<br>{format_ratio(row['hit_ratio'])}"


def _wrapped(text: str) -> str:
    return (
        text.replace(" side by side", "<br>side by side")
        .replace(" apart", "<br>apart")
        .replace(" per KV", "<br>per KV")
    )
