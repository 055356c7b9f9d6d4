"""Where the engines' time went, as the lines of a panel and as a panel of its own."""

from __future__ import annotations

from typing import Any

import polars as pl

from infer_diag.attribution.throughput_loss import (
    USEFUL,
    BudgetWhatIf,
    Knee,
    ThroughputLoss,
    saturation_knee,
    throughput_loss,
    token_budget_what_if,
)
from infer_diag.charts.throughput_loss import loss_bars
from infer_diag.jupyter.panel import Panel
from infer_diag.recording import Recording
from infer_diag.units import format_ratio, format_s

MOST = 4
"""Parts that a panel of other things names."""


def loss_lines(recording: Recording) -> list[str]:
    """The parts that most engine time was lost to, one a line; nothing where no part is told."""
    told = throughput_loss(recording)
    if told.refusal is not None and len(told.gates.filter(pl.col("verdict") == "fails")):
        return [f"engine time: not attributed: {told.refusal}"]
    return [f"engine time: {line}" for line in _lost(told)[:MOST]]


def losses_panel(recording: Recording) -> Panel:
    """Every part of the engines' time with how it was obtained; parts and residual add up to the whole."""
    told = throughput_loss(recording)
    if told.refusal is not None:
        return Panel("Engine time", f"not identifiable: {told.refusal}", frame=told.gates)
    gates = ", ".join(f"{row['gate'].replace('_', ' ')} {row['verdict']}" for row in told.gates.iter_rows(named=True))
    sentence = f"{format_s(told.whole_s)} by {told.basis}; gates: {gates}"
    details = [_line(row) for row in told.parts.iter_rows(named=True) if row["engine_s"]]
    details += _unknown(told)
    details += budget_lines(token_budget_what_if(recording)) + knee_lines(saturation_knee(recording))
    return Panel("Engine time", sentence, tuple(details), told.parts, loss_bars(told.parts, told.basis))


def budget_lines(told: BudgetWhatIf) -> list[str]:
    """The token budget of a step that would have saved most, or that none would, in one line."""
    others = told.budgets.filter(~pl.col("now")).drop_nulls("low_s")
    if others.is_empty():
        return []
    best = others.sort("saved_s", "max_batch_tokens", descending=[True, False]).row(0, named=True)
    now = told.budgets.filter(pl.col("now")).row(0, named=True)
    if round(best["saved_s"], 1) <= 0:
        return ["no other token budget would have saved a tenth of a second (modelled)"]
    saved, low, high = (format_s(round(best[name], 1)) for name in ("saved_s", "low_s", "high_s"))
    if best["low_s"] <= 0:
        budget = f"{best['max_batch_tokens']:,}"
        return [f"no other token budget would surely have saved: {budget} tokens {saved} ({low} to {high})"]
    pause = f"{format_s(now['longest_pause_s'])} → {format_s(best['longest_pause_s'])}"
    return [
        f"max_num_batched_tokens {best['max_batch_tokens']:,} for {now['max_batch_tokens']:,} would have saved {saved} "
        f"({low} to {high}) of {format_s(told.stalled_s)}; longest pause {pause} (modelled)"
    ]


def knee_lines(told: Knee) -> list[str]:
    """From which batch on more requests at once hardly pay, or that the log does not show it; nothing without steps."""
    if told.levels.is_empty():
        return []
    if told.knee_count is None or told.low_count is None:
        return [f"knee of the throughput: {told.reason}"]
    ends = f"{told.low_count} to {told.high_count}" if told.high_count else f"{told.low_count} or more"
    return [f"knee of the throughput: {told.knee_count} requests at once ({ends}), modelled"]


def _unknown(told: ThroughputLoss) -> list[str]:
    """The parts that the log cannot tell with what they lack, those that lack the same together, in one line."""
    by_basis: dict[str, list[str]] = {}
    for row in told.parts.filter(pl.col("engine_s").is_null()).iter_rows(named=True):
        by_basis.setdefault(row["basis"], []).append(_name(row["part"]))
    lacking = [f"{', '.join(names)} ({basis})" for basis, names in by_basis.items()]
    return [f"not identifiable: {'; '.join(lacking)}"] if lacking else []


def _lost(told: ThroughputLoss) -> list[str]:
    rows = [
        row
        for row in told.parts.iter_rows(named=True)
        if row["adds_up"] and row["part"] not in USEFUL and (row["share_ratio"] or 0.0) >= 0.005
    ]
    return [_line(row) for row in sorted(rows, key=lambda row: -row["engine_s"])]


def _line(row: dict[str, Any]) -> str:
    share = "" if row["share_ratio"] is None else f" ({format_ratio(round(row['share_ratio'], 4))})"
    ends = ""
    if row["low_s"] is not None and row["high_s"] is not None and row["high_s"] > row["low_s"]:
        ends = f", {format_s(round(row['low_s'], 1))} to {format_s(round(row['high_s'], 1))}"
    return f"{_name(row['part'])} {format_s(round(row['engine_s'], 2))}{share}{ends}, {row['status']}"


def _name(part: str) -> str:
    return part.replace("_", " ").replace("kv", "KV")
