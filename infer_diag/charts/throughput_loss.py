"""Where the engines' time went, as one bar that adds up, and what other token budgets would have saved."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import polars as pl

from infer_diag.charts.template import COLOURS, INK, dressed, label
from infer_diag.units import format_count, format_ratio, format_s

LOSS_COLOURS = {
    "idle": COLOURS["idle"],
    "host_stall": "#8e5bb0",
    "idle_or_host": "#a9a3b8",
    "prefill": COLOURS["prefill"],
    "prefill_interference": COLOURS["mixed"],
    "recompute": "#b84f00",
    "padding": "#ddcc77",
    "kv_limited": "#d55e00",
    "underfill": "#88ccee",
    "decode": COLOURS["decode"],
    "residual": "#5f6570",
}
"""One colour per part."""
INSIDE_RATIO = 0.4
"""A bar that takes so much of the width holds its note."""


def loss_bars(parts: pl.DataFrame, basis: str = "") -> go.Figure:
    """One bar per part of the engines' time, in order, each beginning where the one above ends, with its interval.

    Frame in: LossParts. A part that the log cannot tell has no length and says so; waiting requests are no engine time
    and have no bar.
    """
    rows = [row for row in parts.iter_rows(named=True) if row["adds_up"]]
    begins, at = [], 0.0
    for row in rows:
        begins.append(at)
        at += row["engine_s"] or 0.0
    names = [_name(row["part"]) for row in rows]
    inside = [(row["engine_s"] or 0.0) > INSIDE_RATIO * at for row in rows]
    figure = go.Figure(
        go.Bar(
            x=[row["engine_s"] or 0.0 for row in rows],
            base=begins,
            y=names,
            orientation="h",
            marker={"color": [LOSS_COLOURS[row["part"]] for row in rows]},
            error_x=_whiskers(rows),
            text=[_note(row) if fits else "" for row, fits in zip(rows, inside, strict=True)],
            textposition="inside",
            insidetextanchor="middle",
            hovertext=[_hover(row) for row in rows],
            hoverinfo="text",
            showlegend=False,
        )
    )
    for name, begin, row, fits in zip(names, begins, rows, inside, strict=True):
        if not fits:
            figure.add_annotation(y=name, text=_note(row), **_beside(begin, row, at))
    subtitle = label(f"seconds of all engines; whiskers are intervals or bounds · {basis}" if basis else "seconds")
    dressed(figure, "Where the engines' time went", subtitle, height=150 + 30 * max(len(rows), 1))
    figure.update_xaxes(title_text="engine time", ticksuffix=" s", range=[0, at * 1.02])
    figure.update_yaxes(autorange="reversed", showgrid=False)
    return figure


def _beside(begin: float, row: dict[str, Any], whole: float) -> dict[str, Any]:
    """Where a bar's note stands: on its right while there is room, else on its left."""
    end = begin + (row["engine_s"] or 0.0)
    low, high = (row["low_s"], row["high_s"]) if _known(row) else (0.0, 0.0)
    right = end <= (1 - INSIDE_RATIO) * whole
    x = max(end, begin + high) if right else min(begin, begin + low)
    side = {"xanchor": "left", "xshift": 6} if right else {"xanchor": "right", "xshift": -6}
    return {"x": min(x, whole), "showarrow": False, "font": {"color": INK, "size": 12}, **side}


def budget_bars(budgets: pl.DataFrame) -> go.Figure:
    """Seconds that decode waits behind prefill by the token budget of a step, with the longest pause as marks.

    Frame in: TokenBudgets.
    """
    rows = list(budgets.iter_rows(named=True))
    names = [f"{row['max_batch_tokens']:,}{' (now)' if row['now'] else ''}" for row in rows]
    figure = go.Figure(
        go.Bar(
            name="decode waits behind prefill",
            x=names,
            y=[row["stalled_s"] for row in rows],
            marker={"color": [INK if row["now"] else COLOURS["mixed"] for row in rows]},
            error_y={
                "type": "data",
                "array": [_reach(row, "low_s") for row in rows],
                "arrayminus": [_reach(row, "high_s") for row in rows],
                "color": INK,
                "thickness": 1.5,
            },
            hovertext=[_budget(row) for row in rows],
            hoverinfo="text",
        )
    )
    subtitle = "modelled from the log's own steps; whiskers are 95 % intervals"
    dressed(figure, "Decode behind prefill by token budget", subtitle, height=360)
    figure.update_xaxes(title_text="max_num_batched_tokens", type="category")
    figure.update_yaxes(title_text="seconds", rangemode="tozero")
    return figure


def scheduler_bars(runs: pl.DataFrame, published: dict[str, float] | None = None) -> go.Figure:
    """One bar per scheduler: the share of its throughput that real traffic takes, with its interval over the seeds.

    Frame in: SchedulerRuns. `published`: shares by scheduler that others have told, drawn as marks.
    """
    rows = list(runs.iter_rows(named=True))
    names = [label(row["scheduler"]) for row in rows]
    figure = go.Figure(
        go.Bar(
            name="simulated",
            x=[row["decay_ratio"] for row in rows],
            y=names,
            orientation="h",
            marker={"color": COLOURS["ours"]},
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [row["high_ratio"] - row["decay_ratio"] for row in rows],
                "arrayminus": [row["decay_ratio"] - row["low_ratio"] for row in rows],
                "color": INK,
                "thickness": 1.5,
            },
            hovertext=[_scheduler(row) for row in rows],
            hoverinfo="text",
        )
    )
    if published:
        figure.add_trace(_published(published))
    subtitle = f"simulated, {rows[0]['seed_count']} seeds · whiskers are 95 % intervals · below 0: more" if rows else ""
    dressed(figure, "What real traffic takes from throughput", subtitle, height=190 + 30 * max(len(rows), 1))
    figure.update_xaxes(tickformat=".0%", title_text="less throughput than with even traffic")
    figure.update_yaxes(autorange="reversed", showgrid=False)
    return figure


def _published(shares: dict[str, float]) -> go.Scatter:
    return go.Scatter(
        name="published",
        x=list(shares.values()),
        y=[label(name) for name in shares],
        mode="markers",
        marker={"color": COLOURS["published"], "size": 11, "symbol": "diamond", "line": {"color": INK, "width": 1}},
        hovertemplate="published: %{x:.1%}<extra></extra>",
    )


def _scheduler(row: dict[str, Any]) -> str:
    return (
        f"<b>{label(row['scheduler'])}</b><br>{format_count(row['even_tokens_per_s'])} → "
        f"{format_count(row['real_tokens_per_s'])} output tokens/s<br>padding {format_ratio(row['padding_ratio'])}, "
        f"{format_count(row['preemption_count'])} preemptions<br>longest wait {format_s(row['longest_wait_s'])}, "
        f"{format_count(row['starved_count'])} starved"
    )


def _name(part: str) -> str:
    return part.replace("_", " ").replace("kv", "KV")


def _note(row: dict[str, Any]) -> str:
    if row["engine_s"] is None:
        return "not identifiable"
    share = "" if row["share_ratio"] is None else f" ({format_ratio(round(row['share_ratio'], 4))})"
    return f"{format_s(round(row['engine_s'], 2))}{share}"


def _hover(row: dict[str, Any]) -> str:
    ends = "" if row["low_s"] is None or row["high_s"] is None else f"<br>{_ends(row['low_s'], row['high_s'])}"
    status = row["status"].replace("_", " ")
    return f"<b>{_name(row['part'])}</b> · {status}<br>{_note(row)}{ends}<br>{label(row['basis'])}"


def _ends(low: float, high: float) -> str:
    return f"{format_s(round(low, 2))} to {format_s(round(high, 2))}"


def _whiskers(rows: list[dict[str, Any]]) -> dict[str, Any]:
    over = [max(0.0, row["high_s"] - row["engine_s"]) if _known(row) else None for row in rows]
    under = [max(0.0, row["engine_s"] - row["low_s"]) if _known(row) else None for row in rows]
    return {"type": "data", "symmetric": False, "array": over, "arrayminus": under, "color": INK, "thickness": 1.5}


def _known(row: dict[str, Any]) -> bool:
    return None not in (row["engine_s"], row["low_s"], row["high_s"]) and row["high_s"] > row["low_s"]


def _reach(row: dict[str, Any], end: str) -> float:
    return 0.0 if row[end] is None else abs(row["saved_s"] - row[end])


def _budget(row: dict[str, Any]) -> str:
    ends = "" if row["low_s"] is None else f" ({format_s(row['low_s'])} to {format_s(row['high_s'])})"
    return (
        f"<b>{row['max_batch_tokens']:,} tokens a step</b><br>decode waits {format_s(row['stalled_s'])}"
        f"<br>saves {format_s(row['saved_s'])}{ends}<br>longest pause {format_s(row['longest_pause_s'])}"
        f"<br>{format_count(row['step_count'])} steps with both"
    )
