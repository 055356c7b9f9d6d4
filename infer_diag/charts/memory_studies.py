"""Figures of what seeds and repetition say of memory: KV placements, allocators, and what a compaction seems to do."""

from __future__ import annotations

import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from infer_diag.attribution.heap.compaction import Compaction
from infer_diag.charts.template import COLOURS, INK, dressed, label
from infer_diag.simulators.memory_studies import mean_shares, medians

_SHARES = (
    ("token_ratio", "tokens", "active"),
    ("free_ratio", "kept for growth", "requested"),
    ("reserved_ratio", "reserved, used later", "cached"),
    ("internal_ratio", "reserved, never used", "awaiting"),
    ("external_ratio", "between reservations", "stuck"),
)
_PLACEMENTS = {
    "max": "contiguous, longest length",
    "pow2": "contiguous, next power of two",
    "oracle": "contiguous, exact length",
    "paged": "pages of 16 tokens",
    "paged_chunked": "pages, prompts in chunks",
}


def kv_shares_chart(runs: pl.DataFrame, published: dict[str, float]) -> go.Figure:
    """Where the KV slots go, one bar per placement, mean over the seeds; a mark is the published share of tokens.

    Frame in: that of `simulators.kv_placement.kv_placement_table`.
    """
    means = mean_shares(runs)
    names = means["placement"].to_list()
    figure = go.Figure()
    for column, name, colour in _SHARES:
        figure.add_trace(
            go.Bar(
                name=name,
                orientation="h",
                x=means[column].to_list(),
                y=[_PLACEMENTS[each] for each in names],
                marker={"color": COLOURS[colour], "line": {"width": 0}},
                hovertemplate=f"%{{y}}<br>{name}: %{{x:.1%}}<extra></extra>",
            )
        )
    figure.add_trace(
        go.Scatter(
            name="tokens, as published",
            x=list(published.values()),
            y=[_PLACEMENTS[each] for each in published],
            mode="markers",
            marker={"symbol": "line-ns", "size": 22, "line": {"width": 3, "color": INK}},
            hovertemplate="published: %{x:.1%}<extra></extra>",
        )
    )
    seeds = runs["seed_id"].n_unique()
    dressed(figure, "Where the KV slots go", f"simulated · mean of {seeds} seeds · 16,384 slots", height=360)
    figure.update_layout(barmode="stack", margin={"l": 190}, legend={"traceorder": "normal"})
    figure.update_xaxes(tickformat=".0%", range=[0, 1], title_text="share of the slots")
    figure.update_yaxes(categoryorder="array", categoryarray=[_PLACEMENTS[each] for each in names][::-1])
    return figure


def allocator_comparison_chart(runs: pl.DataFrame) -> go.Figure:
    """Failed requests beside 1 − largest / free, a dot per seed and a line at the median; the order is by failures.

    Frame in: AllocatorComparison.
    """
    order = medians(runs, "failure_count")["allocator"]
    figure = make_subplots(rows=1, cols=2, shared_yaxes=True, horizontal_spacing=0.06)
    panels = (
        ("failure_count", "failed requests", "failure"),
        ("external_frag_ratio", "1 − largest / free", "reserved"),
    )
    for place, (column, name, colour) in enumerate(panels, 1):
        figure.add_traces(_seeds_and_median(runs.drop_nulls(column), column, name, COLOURS[colour]), rows=1, cols=place)
        figure.update_traces(selector={"name": "median"}, showlegend=False, col=2)
        figure.update_xaxes(title_text=name, rangemode="tozero", row=1, col=place)
    seeds, asked = runs["seed_id"].n_unique(), int(runs["request_count"].max() or 0)  # type: ignore[arg-type]
    dressed(
        figure, "The same requests, other allocators", f"simulated · {seeds} seeds · {asked:,} requests", height=420
    )
    figure.update_yaxes(categoryorder="array", categoryarray=[label(each) for each in order][::-1])
    figure.update_layout(margin={"l": 110})
    return figure


def _seeds_and_median(runs: pl.DataFrame, column: str, name: str, colour: str) -> list[go.Scatter]:
    dots = {"color": colour, "size": 7, "opacity": 0.45}
    bars = {"symbol": "line-ns", "size": 18, "line": {"width": 3, "color": INK}}
    return [
        go.Scatter(
            name=shown,
            x=rows[column].to_list(),
            y=[label(each) for each in rows["allocator"]],
            mode="markers",
            marker=marker,
            hovertemplate=f"%{{y}}, {shown}: %{{x:.3~g}}<extra></extra>",
        )
        for shown, rows, marker in ((name, runs, dots), ("median", medians(runs, column), bars))
    ]


def sampling_chart(peaks: pl.DataFrame, *, status: str) -> go.Figure:
    """How much of the peak samples miss, by their number: the mean over where they begin, and the worst.

    Frame in: SampledPeaks of one device.
    """
    figure = go.Figure()
    for column, name, colour in (
        ("most_missed_ratio", "worst place to begin", "failure"),
        ("missed_ratio", "mean", "active"),
    ):
        figure.add_trace(
            go.Scatter(
                name=name,
                x=peaks["sample_count"].to_list(),
                y=peaks[column].to_list(),
                mode="lines+markers",
                line={"color": COLOURS[colour], "width": 1.6},
                hovertemplate=f"%{{x:,}} samples, {name}: %{{y:.1%}} missed<extra></extra>",
            )
        )
    dressed(figure, "What samples miss of the peak", label(status), height=320)
    counts = peaks["sample_count"].to_list()
    ticks = {"tickvals": counts, "ticktext": [f"{count:,}" for count in counts]}
    figure.update_xaxes(type="log", title_text="samples, evenly spaced over the events", **ticks)
    figure.update_yaxes(tickformat=".0%", rangemode="tozero", title_text="of the peak not seen")
    return figure


def compaction_chart(effects: dict[str, Compaction]) -> go.Figure:
    """What before and after say, and what is left once untreated crossings are taken off, by what was planted."""
    figure = go.Figure()
    names = list(effects)
    naive = [each.naive for each in effects.values()]
    figure.add_trace(_points("before and after", names, naive, COLOURS["failure"], None))
    bounds = [
        (each.effect, each.upper - each.effect if each.upper is not None and each.effect is not None else None)
        for each in effects.values()
    ]
    found = _points(
        "minus untreated crossings", names, [at for at, _ in bounds], COLOURS["active"], [w for _, w in bounds]
    )
    figure.add_trace(found)
    figure.add_vline(x=0, line={"color": INK, "width": 1, "dash": "dot"})
    dressed(figure, "A compaction that is triggered by a high value", "simulated · bars: 95 % intervals", height=280)
    figure.update_xaxes(title_text="change of the fragmentation ratio")
    figure.update_yaxes(autorange="reversed")
    figure.update_layout(margin={"l": 150})
    return figure


def _points(
    name: str, ys: list[str], xs: list[float | None], colour: str, widths: list[float | None] | None
) -> go.Scatter:
    return go.Scatter(
        name=name,
        x=xs,
        y=ys,
        mode="markers",
        marker={"color": colour, "size": 10},
        error_x=None if widths is None else {"type": "data", "array": widths, "thickness": 1.6},
        hovertemplate=f"%{{y}}, {name}: %{{x:.3f}}<extra></extra>",
    )
