"""Memory over time: what is reserved, used and stuck, what the holes are good for."""

from __future__ import annotations

import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from infer_diag.attribution.heap.bands import BANDS
from infer_diag.attribution.heap.view import HeapView
from infer_diag.charts.memory_map import block_map_chart, dress_map, map_subtitle, map_trace, slider, state_legend
from infer_diag.charts.template import COLOURS, INK, dressed, label
from infer_diag.units import format_bytes

_LEVELS = (
    # column, name, colour, dash
    ("reserved_bytes", "reserved", "reserved", "solid"),
    ("peak_active_bytes", "most in use between two points", "active", "dot"),
    ("active_bytes", "in use", "active", "solid"),
    ("inactive_split_bytes", "idle beside live blocks", "stuck", "solid"),
    ("largest_free_bytes", "largest hole", "largest_hole", "solid"),
)
_RATIOS = (
    ("beyond_largest_ratio", "requests larger than the largest hole", "failure", "solid"),
    ("weighted_unusable_ratio", "idle bytes that requests cannot use", "unusable", "solid"),
    ("external_frag_ratio", "1 − largest / idle (the article's)", "reserved", "dash"),
)
_BAND_FILLS = ("rgba(0,158,115,0.10)", "rgba(230,159,0,0.12)", "rgba(213,94,0,0.12)")
_PANELS = ((0.87, 1.0), (0.38, 0.66), (0.0, 0.32))
"""Where the map and the two panels of curves stand, of the height; between them the map's axis and the slider."""


def memory_figure(view: HeapView) -> go.Figure | None:
    """Map and curves with one slider, or what of both there is; null where a heap has neither."""
    if len(view.bricks) and len(view.curves):
        return memory_chart(view.bricks, view.curves, shown=view.event, status=view.status)
    if len(view.curves):
        return heap_chart(view.curves, status=view.status)
    return block_map_chart(view.bricks, status=view.status) if len(view.bricks) else None


def heap_chart(curves: pl.DataFrame, *, status: str = "recorded") -> go.Figure:
    """Levels over time, and below them three measures of how broken up the idle bytes are, with the article's bands.

    Frame in: HeapCurves of one device; its rows of scope `device` are drawn. Without stamps the axis counts events.
    """
    own = curves.filter(pl.col("scope") == "device")
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08)
    _add_curves(figure, own, 1)
    dressed(figure, "Memory over time", _subtitle(own, status), height=520)
    return figure


def memory_chart(
    bricks: pl.DataFrame, curves: pl.DataFrame, *, shown: int | None = None, status: str = "recorded"
) -> go.Figure:
    """The block map over the curves, with one slider that moves the map and a mark on the curves.

    Frames in: MapBricks and HeapCurves of one device; `shown` is the event that stands at first (the last one).
    """
    own = curves.filter(pl.col("scope") == "device")
    events = bricks["event_id"].unique(maintain_order=True).to_list()
    first = events[-1] if shown is None else shown
    now = bricks.filter(pl.col("event_id") == first)
    figure = make_subplots(rows=3, cols=1)
    for row, domain in enumerate(_PANELS, 1):
        figure.update_yaxes(domain=domain, row=row)
    figure.add_trace(map_trace(now, is_fine=True), row=1, col=1)
    for entry in state_legend(("cached", "awaiting")):
        figure.add_trace(entry, row=1, col=1)
    _add_curves(figure, own, 2)
    figure.update_xaxes(matches="x2", row=3)
    mark = len(figure.data)
    figure.add_trace(_mark(own, now), row=2, col=1)
    parts = [(number, bricks.filter(pl.col("event_id") == number)) for number in events]
    figure.frames = [
        go.Frame(name=str(number), data=[map_trace(part, is_fine=number == first), _mark(own, part)], traces=[0, mark])
        for number, part in parts
    ]
    dressed(figure, "Memory: block map and curves", map_subtitle(bricks, now, status), height=860)
    dress_map(figure)
    # Under the map: below the curves a legend of many rows, in a narrow window, would push the panels into it.
    figure.update_layout(sliders=[slider(bricks, events, first, y=_PANELS[0][0])])
    return figure


def _add_curves(figure: go.Figure, own: pl.DataFrame, row: int) -> None:
    axis = "time_s" if own["time_s"].null_count() < len(own) else "event_id"
    for place, lines in ((row, _LEVELS), (row + 1, _RATIOS)):
        for column, name, colour, dash in lines:
            if own[column].null_count() < len(own):
                figure.add_trace(_line(own, axis, column, name, COLOURS[colour], dash), row=place, col=1)
    failed = own.filter("is_failure")
    if len(failed):
        figure.add_trace(
            go.Scatter(
                name="failed allocation",
                x=failed[axis].to_numpy(),
                y=failed["reserved_bytes"].to_numpy(),
                mode="markers",
                marker={"symbol": "x", "size": 8, "color": COLOURS["failure"]},
                hovertemplate="allocation failed<extra></extra>",
            ),
            row=row,
            col=1,
        )
    for band, fill in zip(BANDS, _BAND_FILLS, strict=True):
        figure.add_hrect(y0=band.lower_ratio, y1=band.upper_ratio, fillcolor=fill, line_width=0, row=row + 1, col=1)
    figure.update_yaxes(title_text="bytes", tickformat="~s", ticksuffix="B", rangemode="tozero", row=row)
    figure.update_yaxes(title_text="share", tickformat=".0%", range=[0, 1.02], row=row + 1)
    title = "seconds since the first event" if axis == "time_s" else "events (the recording has no clock)"
    figure.update_xaxes(title_text=title, row=row + 1)


def _line(own: pl.DataFrame, axis: str, column: str, name: str, colour: str, dash: str) -> go.Scatter:
    is_ratio = column.endswith("_ratio")
    return go.Scatter(
        name=name,
        x=own[axis].to_numpy(),
        y=own[column].to_numpy(),
        mode="lines",
        line={"color": colour, "width": 1.6, "dash": dash, "shape": "hv"},
        connectgaps=False,
        hovertemplate=f"{name}: " + ("%{y:.1%}" if is_ratio else "%{y:.4~s}B") + "<extra></extra>",
    )


def _mark(own: pl.DataFrame, now: pl.DataFrame) -> go.Scatter:
    axis = "time_s" if own["time_s"].null_count() < len(own) else "event_id"
    top = own["reserved_bytes"].max() or 0
    return go.Scatter(
        name="the map's moment",
        x=[now[axis][0]] * 2,
        y=[0, top],
        mode="lines",
        line={"color": INK, "width": 1, "dash": "dot"},
        hoverinfo="skip",
    )


def _subtitle(own: pl.DataFrame, status: str) -> str:
    words = [label(status), f"{len(own):,} instants"]
    if own["basis"].eq("touched").any():
        words.append("segments are not recorded: what is idle is a lower bound")
    words.append("bands: " + ", ".join(f"{band.name} {band.action}" for band in BANDS))
    return " · ".join(words)


def hole_chart(sizes: pl.DataFrame, *, status: str = "recorded") -> go.Figure:
    """Idle bytes by size of hole, and beside them how often the recording asks for such sizes.

    Frame in: HoleSizes.
    """
    figure = make_subplots(specs=[[{"secondary_y": True}]])
    for kind in sizes["segment_kind"].cast(pl.String).unique(maintain_order=True):
        rows = sizes.filter(pl.col("segment_kind").cast(pl.String).eq_missing(pl.lit(kind, pl.String)))
        figure.add_trace(
            go.Bar(
                name=f"idle in {kind} segments" if kind else "idle",
                x=[format_bytes(size) for size in rows["size_bytes"]],
                y=rows["idle_bytes"].to_list(),
                customdata=rows["hole_count"].to_list(),
                marker={"color": COLOURS["cached" if kind == "small" else "stuck"], "line": {"width": 0}},
                hovertemplate="%{customdata:,} holes from %{x}, %{y:.4~s}B<extra></extra>",
            )
        )
    asked = sizes.filter(pl.col("request_count").is_not_null())
    if len(asked):
        figure.add_trace(
            go.Scatter(
                name="requests of such sizes",
                x=[format_bytes(size) for size in asked["size_bytes"]],
                y=asked["request_count"].to_list(),
                mode="markers",
                marker={"color": COLOURS["active"], "size": 7, "symbol": "diamond"},
                hovertemplate="%{y:,} requests from %{x}<extra></extra>",
            ),
            secondary_y=True,
        )
    order = [format_bytes(size) for size in sizes["size_bytes"].unique().sort()]
    dressed(figure, "Holes by size", f"{label(status)} · each bar up to the next power of two", height=360)
    figure.update_layout(barmode="stack")
    figure.update_xaxes(title_text="size of the hole, from", categoryorder="array", categoryarray=order)
    figure.update_yaxes(title_text="idle bytes", tickformat="~s", ticksuffix="B", rangemode="tozero", secondary_y=False)
    figure.update_yaxes(title_text="requests", rangemode="tozero", showgrid=False, tickmode="auto", secondary_y=True)
    return figure
