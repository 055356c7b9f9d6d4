"""The block map: what stands at every address of a heap, in one heatmap that zooms down to bytes, with a slider."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from infer_diag.attribution.heap.frames import BRICK_STATES
from infer_diag.charts.template import COLOURS, dressed, label
from infer_diag.units import format_bytes, format_s

NAMES = {
    "active": "in use",
    "awaiting": "freed, a stream still uses it",
    "stuck": "idle beside live blocks",
    "cached": "idle segment, may go back",
}
_NAMED = 60
"""Characters of a requester's end; thousands of them stand in one figure."""
_EDGE = (len(BRICK_STATES), len(BRICK_STATES) + 1)
_SEGMENT_GREYS = ("#9aa0a8", "#6f757d")
_STEPS = len(BRICK_STATES) + 2


def block_map_chart(bricks: pl.DataFrame, *, shown: int | None = None, status: str = "recorded") -> go.Figure:
    """Blocks and holes in the order of their addresses; below them, in turns light and dark, the segments.

    Frame in: MapBricks; of several events each is a step of the slider, and `shown` is the one that stands at first
    (the last one). The axis counts bytes of the heap without the space between segments.
    """
    figure = make_subplots(rows=1, cols=1)
    events = bricks["event_id"].unique(maintain_order=True).to_list()
    if not events:
        return dressed(figure, "Block map", "no block is recorded", height=120)
    first = events[-1] if shown is None else shown
    own = bricks.filter(pl.col("event_id") == first)
    figure.add_trace(map_trace(own, is_fine=True))
    figure.add_traces(state_legend())
    dressed(figure, "Block map", map_subtitle(bricks, own, status), height=300)
    dress_map(figure)
    if len(events) > 1:
        steps = [(number, bricks.filter(pl.col("event_id") == number)) for number in events]
        figure.frames = [
            go.Frame(name=str(number), data=[map_trace(part, is_fine=number == first)], traces=[0])
            for number, part in steps
        ]
        figure.update_layout(sliders=[slider(bricks, events, first)], margin={"b": 96})
    return figure


def dress_map(figure: go.Figure) -> None:
    """Axes of the first panel, where the map stands."""
    figure.update_xaxes(
        title_text="bytes of the heap, in the order of addresses", tickformat="~s", ticksuffix="B", row=1
    )
    figure.update_yaxes(
        range=[-0.5, 1.5], tickvals=[0, 1], ticktext=["segments", "blocks"], fixedrange=True, showgrid=False, row=1
    )


def map_subtitle(bricks: pl.DataFrame, own: pl.DataFrame, status: str) -> str:
    """How many blocks of which device, and whether small ones share a brick."""
    blocks = int(own["block_count"].sum())
    gpu = own["gpu"][0]
    words = [label(status), f"{blocks:,} blocks and holes" + (f" of GPU {label(gpu)}" if gpu is not None else "")]
    if blocks > len(own):
        words.append(f"drawn as {len(own):,} bricks: the smallest neighbours share one")
    if bricks["event_id"].n_unique() > 1:
        words.append("coarser while the slider moves")
    return " · ".join(words)


def map_trace(own: pl.DataFrame, *, is_fine: bool) -> go.Heatmap:
    """The heatmap of one moment: a row of blocks over a row of segments."""
    codes = {state: place for place, state in enumerate(BRICK_STATES)}
    states = own["state"].cast(pl.String).replace_strict(codes, return_dtype=pl.UInt8).to_numpy()
    turns = (own["segment_id"] != own["segment_id"].shift()).fill_null(False).cast(pl.UInt32).cum_sum() % 2
    edges = np.append(own["begin_bytes"].to_numpy(), own["begin_bytes"][-1] + own["size_bytes"][-1]).astype(np.float64)
    names = {name: label(name[-_NAMED:]) for name in own["requester"].drop_nulls().unique()}
    texts = [_hover(row, names, is_fine=is_fine) for row in own.iter_rows(named=True)]
    return go.Heatmap(
        x=edges,
        y=[0, 1],
        z=np.stack([turns.to_numpy().astype(np.uint8) + _EDGE[0], states]).astype(np.uint8),
        text=[[""] * len(texts), texts],
        hovertemplate="%{text}<extra></extra>",
        zmin=-0.5,
        zmax=_STEPS - 0.5,
        colorscale=_scale(),
        showscale=False,
    )


def state_legend(states: Sequence[str] = BRICK_STATES) -> list[go.Scatter]:
    """Entries of a legend that name the colours of the map, beside those that other traces name."""
    return [
        go.Scatter(
            name=NAMES[state],
            x=[None],
            y=[None],
            mode="markers",
            marker={"symbol": "square", "size": 10, "color": COLOURS[state]},
        )
        for state in reversed(states)
    ]


def _scale() -> list[tuple[float, str]]:
    colours = [*(COLOURS[state] for state in BRICK_STATES), *_SEGMENT_GREYS]
    return [(edge / _STEPS, colour) for place, colour in enumerate(colours) for edge in (place, place + 1)]


def _hover(row: dict[str, Any], names: dict[str, str], *, is_fine: bool) -> str:
    state = NAMES[row["state"]]
    if row["block_count"] > 1:
        text = f"<b>{row['block_count']:,} neighbours, mostly {state}</b><br>{format_bytes(row['size_bytes'])}"
        return f"{text}, {format_bytes(row['live_bytes'])} of it in use"
    text = f"<b>{state}</b><br>{format_bytes(row['size_bytes'])}"
    if not is_fine:
        return text
    if row["state"] == "active" and row["requested_bytes"] is not None:
        text += f", {row['requested_bytes']:,} bytes asked for"
    if row["allocated_event_id"] is not None:
        text += f" by event {row['allocated_event_id']}"
    named = [f"{row['segment_kind']} segment" if row["segment_kind"] else "segment", f"{row['segment_id']:#x}"]
    named += [f"stream {label(row['stream'])}"] if row["stream"] is not None else []
    named += [f"private pool {label(row['pool'])}"] if row["pool"] is not None else []
    asked = f"<br>asked for in {names[row['requester']]}" if row["requester"] is not None else ""
    return f"{text}<br>{' '.join(named)}{asked}"


def slider(bricks: pl.DataFrame, events: list[int], first: int, y: float = 0) -> dict[str, Any]:
    """A slider with a step per event, below `y` of the panels; works wherever plotly.js runs, without a kernel."""
    times = dict(bricks.select("event_id", "time_s").iter_rows())
    return {
        "active": events.index(first),
        "currentvalue": {"prefix": "state after ", "font": {"size": 12}},
        "pad": {"t": 54},
        "len": 1,
        "x": 0,
        "y": y,
        "steps": [
            {
                "label": _moment(number, times[number]),
                "method": "animate",
                "args": [
                    [str(number)],
                    {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}},
                ],
            }
            for number in events
        ],
    }


def _moment(number: int, time_s: float | None) -> str:
    if number < 0:
        return "the begin"
    return f"event {number:,}" + (f", {format_s(time_s)}" if time_s is not None else "")
