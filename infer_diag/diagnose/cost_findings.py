"""What the cost of a fleet or a deployment says in words: the causes that stand, what mends each, what is missing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import polars as pl

from infer_diag.attribution.cost.entries import BILL, GAUGES, REQUEST_LOG, STEP_LOG, Entry
from infer_diag.diagnose.finding import Finding, Severity, Status, ranked
from infer_diag.fleet import Broken
from infer_diag.units import format_ratio

if TYPE_CHECKING:
    from infer_diag.attribution.cost.analysis import Costs
    from infer_diag.diagnose.cost import FleetDiagnosis

Row = dict[str, Any]
HIGH_RATIO, MEDIUM_RATIO = 0.15, 0.05
"""Share of a deployment's cost that a cause is worth when fixed alone, or by its part where it overlaps."""
MOST_EVIDENCE = 8
_DEAREST = 3

NAMES = {
    "cold_start": "cold start",
    "batching": "batching",
    "fragmentation": "memory (KV room, OOM restarts, recomputation)",
    "idle": "idle GPUs",
    "undelivered": "work that nobody received",
    "residual": "what the model does not explain",
    "hardware": "model and hardware",
    "price": "price",
    "mix": "prompt tokens per output token",
    "prefix_cache": "prefix hits",
}
_REMEDIES = {
    "cold_start": "Shorten the starts (their phases stand in the deployment's own diagnosis) or start less often.",
    "batching": "Let more requests run together: fewer replicas for the same load, or a higher sequence limit.",
    "fragmentation": "Give the KV pool more room or restart less after failed allocations.",
    "idle": "Hold fewer GPUs while nothing runs: scale in sooner, or share the GPUs.",
    "undelivered": "Find out why requests end without an answer; their tokens are paid for.",
    "residual": "Time the engine's steps and look at clocks, throttling and neighbours: no cause here explains it.",
}
_ENTRIES = {
    "cold_start": ("cold", "starts"),
    "batching": ("step", "computed_decode"),
    "fragmentation": ("cold_after_oom", "recomputed", "computed_decode"),
    "idle": ("idle",),
    "undelivered": ("undelivered_output",),
    "residual": ("held", "computed_decode"),
}
_NEXT = (
    ("held", BILL),
    ("delivered_output", REQUEST_LOG),
    ("idle", GAUGES),
    ("cold", BILL),
    ("step", STEP_LOG),
)


def findings(analysed: Costs, broken: tuple[Broken, ...]) -> tuple[Finding, ...]:
    """One finding per deployment and cause that costs more than the reference and stands over the whole fleet."""
    made = [_finding(analysed, row) for row in _standing(analysed.bars).iter_rows(named=True)]
    made += [_refused(name, reason) for name, reason in analysed.refused.items()]
    made += [
        Finding("cost.broken", "low", f"`{each.name}` could not be analysed: {each.reason}.", "not_identifiable")
        for each in broken
    ]
    return ranked(made)


def fleet_lines(diagnosis: FleetDiagnosis) -> list[str]:
    """The fleet and its dearest deployments, a line each."""
    told, rows = diagnosis.costs, diagnosis.costs.deployments
    lines = [
        f"{len(diagnosis.names)} deployments, {len(rows) - len(told.refused)} compared ({told.reference}), "
        f"{len(told.refused)} not comparable, {len(diagnosis.broken)} not readable"
    ]
    dearest = rows.filter(pl.col("cost_ratio").is_not_null()).sort("cost_ratio", "deployment", descending=[True, False])
    return lines + [deployment_line(row) for row in dearest.head(_DEAREST).iter_rows(named=True)]


def deployment_line(row: Row) -> str:
    """A deployment's cost and ratio with its interval, in one line."""
    cost, ratio = row["dollars_per_million_tokens"], row["cost_ratio"]
    money = f"${cost:.4g} per 1M output tokens" if cost is not None else f"{row['gpu_s_per_million_tokens']:.4g} GPU-s"
    if row["status"] == "bounded":
        money = f"at least {money}"
    ends = row["ratio_lower_ratio"], row["ratio_upper_ratio"]
    spread = f" ({ends[0]:.3g} to {ends[1]:.3g})" if None not in ends else " (no interval)"
    return f"{row['deployment']}: {money}, {ratio:.3g} times {row['reference']}{spread}"


def next_log(ledger: Mapping[str, Entry]) -> str | None:
    """The one log to switch on next: what the first amount that is no measurement lacks; null where nothing lacks."""
    for name, log in _NEXT:
        entry = ledger[name]
        if entry.status != "measured":
            return entry.missing or log
    return None


def _standing(bars: pl.DataFrame) -> pl.DataFrame:
    stands = pl.col("blamed") & pl.col("discovered") & (pl.col("lower_ratio") > 0)
    return bars.filter(stands).sort("saves_ratio", "deployment", "cause", descending=[True, False, False])


def _finding(analysed: Costs, row: Row) -> Finding:
    deployment = analysed.deployments.row(by_predicate=pl.col("deployment") == row["deployment"], named=True)
    cause, worth = row["cause"], max(row["saves_ratio"], 0.0)
    part = 1 - math.exp(-row["log_ratio"])
    weight = max(worth, part)
    severity: Severity = "high" if weight >= HIGH_RATIO else "medium" if weight >= MEDIUM_RATIO else "low"
    share = (
        "" if row["share_ratio"] is None else f", {format_ratio(row['share_ratio'])} of the difference (in logarithms)"
    )
    sentence = (
        f"`{row['deployment']}` costs {deployment['cost_ratio']:.3g} times {deployment['reference']}; {NAMES[cause]} "
        f"makes it {_factor(row)}{share}"
    )
    if cause == "residual":
        # What has no name has no remedy that saves something, and steps behind what has one.
        severity = "medium" if severity == "high" else severity
    else:
        sentence += f". Fixing this alone saves {_saves(row)}"
    status: Status = row["status"]
    return Finding(f"cost.{cause}", severity, f"{sentence}.", status, _evidence(analysed, row), _REMEDIES[cause])


def _factor(row: Row) -> str:
    low, middle, high = (math.exp(row[name]) for name in ("lower_ratio", "log_ratio", "upper_ratio"))
    return f"{middle:.3g} times dearer ({low:.3g} to {high:.3g})"


def _saves(row: Row) -> str:
    ends = row["saves_lower_ratio"], row["saves_upper_ratio"]
    shown = f" ({format_ratio(ends[0])} to {format_ratio(ends[1])})" if None not in ends else ""
    return f"{format_ratio(row['saves_ratio'])} of its cost{shown}"


def _evidence(analysed: Costs, row: Row) -> tuple[str, ...]:
    told = analysed.ledger.filter(deployment=row["deployment"])
    lists = [told.filter(entry=name)["evidence"].explode().drop_nulls() for name in _ENTRIES[row["cause"]]]
    return tuple(dict.fromkeys(place for places in lists for place in places))[:MOST_EVIDENCE]


def _refused(name: str, reason: str) -> Finding:
    return Finding("cost.not_comparable", "info", f"`{name}` has no comparison: {reason}.", "not_identifiable")
