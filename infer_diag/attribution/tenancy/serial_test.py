"""Whether allocations wait for each other on one lock or one per tenant, and whether bursts or load make them wait."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from infer_diag.attribution.cost.jackknife import Interval, jackknife
from infer_diag.attribution.tenancy.serial_lock import poisson_mean_wait_s, serial_waits

LEAST_QUEUED = 30
"""Allocations at position 2 or later that the slope needs."""
SIMULATIONS = 199
BLOCKS = 8
_SEED = 20_240_215

Floats = npt.NDArray[np.float64]
Lock = Literal["one for all", "one per tenant", "none", "undetermined"]
Arrivals = Literal["burst", "steady", "undetermined"]


@dataclass(frozen=True)
class AllocationVerdict:
    """What the stamps say; an interval is null where there are too few, and `reason` says what is missing.

    `slope` and `intercept` of wait on the number of allocations ahead: one lock gives about one service and about 0.
    `other_slope` is what an allocation of another tenant ahead adds, at an equal number of the own tenant's.
    `burst_p`: chance that Poisson arrivals of the same number and lengths would wait so long on one lock. Arrivals that
    over the whole record come faster than one lock serves are one burst (`poisson_wait_s` is infinite): they cannot be
    steady.
    """

    lock: Lock
    arrivals: Arrivals
    allocation_count: int
    queued_count: int
    mean_wait_s: float | None
    service_s: float | None
    slope: Interval | None = None
    intercept: Interval | None = None
    other_slope: Interval | None = None
    poisson_wait_s: float | None = None
    burst_p: float | None = None
    reason: str | None = None


def allocation_test(allocations: pl.DataFrame) -> AllocationVerdict:
    """Tells a lock over all tenants from one per tenant or none, and bursts from steady load.

    Frame in: Allocations; each node has a plugin and a queue of its own. Position: allocations of the node that came
    before and had not ended. Wait (begin − arrival) is regressed on the position of the own and of other tenants, with
    intervals by a jackknife over 8 blocks in the order of arrival. It needs the moment at which the plugin began to
    serve: a latency alone cannot tell a lock from a slow allocation. Without the tenant of every allocation a lock over
    all and one per tenant cannot be told apart. Source: attribution by queue position; M/D/1.
    """
    count = len(allocations)
    if (why := _unusable(allocations)) is not None:
        return AllocationVerdict("undetermined", "undetermined", count, 0, None, None, reason=why)
    placed = _placed(allocations)
    wait = placed["wait_s"].to_numpy()
    service = placed["service_s"].to_numpy()
    mean, usual = float(wait.mean()), float(np.median(service))
    queued = int((placed["ahead"] >= 2).sum())
    if queued < LEAST_QUEUED:
        why = f"{queued} allocations had two or more ahead of them; {LEAST_QUEUED} are needed"
        return AllocationVerdict("undetermined", "undetermined", count, queued, mean, usual, reason=why)
    fitted = _regressed(placed, ["ahead"])
    assert fitted is not None, "the first of each node has nobody ahead and the queued ones have two"
    intercept, slope = fitted
    tenants = None if allocations["tenant"].null_count() else _regressed(placed, ["own", "others"])
    p, steady = _burst_p(placed)
    lock = _lock(slope, tenants, usual)
    return AllocationVerdict(
        lock=lock,
        arrivals="undetermined" if lock == "none" else "burst" if p <= 0.05 or math.isinf(steady) else "steady",
        allocation_count=count,
        queued_count=queued,
        mean_wait_s=mean,
        service_s=usual,
        slope=slope,
        intercept=intercept,
        other_slope=tenants[2] if tenants is not None else None,
        poisson_wait_s=steady,
        burst_p=p,
    )


def _unusable(allocations: pl.DataFrame) -> str | None:
    """Why the stamps can tell of no wait at all; null where they can."""
    if not len(allocations) or allocations["begin_s"].null_count():
        return "no stamp tells when an allocation began to be served, so waiting cannot be told from working"
    backwards = allocations.filter((pl.col("begin_s") < pl.col("arrival_s")) | (pl.col("end_s") < pl.col("begin_s")))
    if backwards.is_empty():
        return None
    return f"{len(backwards)} allocations were served before they came, or ended before they began: clocks disagree"


def _placed(allocations: pl.DataFrame) -> pl.DataFrame:
    """Columns `node, arrival_s, wait_s, service_s, own, others, ahead`, in the order of arrival."""
    named = allocations.with_columns(pl.col("node").fill_null(""), pl.col("tenant").fill_null(""))
    ordered = named.sort("arrival_s", "begin_s", maintain_order=True)
    parts = []
    for node in ordered.partition_by("node", maintain_order=True):
        ahead = _ahead(node)
        own = np.zeros(len(node), dtype=np.int64)
        tenants = node["tenant"].to_numpy()
        for tenant in node["tenant"].unique():
            mine = tenants == tenant
            own[mine] = _ahead(node.filter(pl.col("tenant") == tenant))
        parts.append(node.with_columns(own=pl.Series(own), others=pl.Series(ahead - own), ahead=pl.Series(ahead)))
    return (
        pl.concat(parts)
        .with_columns(
            (pl.col("begin_s") - pl.col("arrival_s")).alias("wait_s"),
            (pl.col("end_s") - pl.col("begin_s")).alias("service_s"),
        )
        .sort("arrival_s", maintain_order=True)
    )


def _ahead(ordered: pl.DataFrame) -> npt.NDArray[np.int64]:
    """How many came before and had not ended when each came; rows in the order in which they were served."""
    ends = np.sort(ordered["end_s"].to_numpy())
    ended = np.searchsorted(ends, ordered["arrival_s"].to_numpy(), side="right")
    ahead: npt.NDArray[np.int64] = np.maximum(np.arange(len(ordered)) - ended, 0)
    return ahead


def _regressed(placed: pl.DataFrame, positions: list[str]) -> list[Interval] | None:
    """Intercept and slopes with intervals; null where the positions cannot be told apart."""
    columns = [placed[name].to_numpy().astype(np.float64) for name in positions]
    design = np.column_stack([np.ones(len(placed)), *columns])
    if np.linalg.matrix_rank(design) < design.shape[1]:
        return None
    wait = placed["wait_s"].to_numpy()
    block = np.arange(len(placed)) * BLOCKS // len(placed)
    full = np.linalg.lstsq(design, wait, rcond=None)[0]
    without = [np.linalg.lstsq(design[block != j], wait[block != j], rcond=None)[0] for j in range(BLOCKS)]
    low, high = jackknife(full, np.array(without))
    return [Interval(*map(float, ends)) for ends in zip(full, low, high, strict=True)]


def _lock(slope: Interval, tenants: list[Interval] | None, service_s: float) -> Lock:
    """A lock makes each allocation ahead cost about a service; half of one is taken as the border to none at all.

    Undetermined where a slope's interval holds both 0 and the border, or where the tenants cannot be told apart.
    """
    if tenants is None:  # A lock per tenant makes the allocations ahead cost a part of a service on average.
        return "none" if _matters(slope, service_s) is False and not slope.excludes_zero else "undetermined"
    own, others = (_matters(each, service_s) for each in tenants[1:])
    if others:
        return "one for all"
    if None in (own, others):
        return "undetermined"
    return "one per tenant" if own else "none"


def _matters(slope: Interval, service_s: float) -> bool | None:
    """Whether an allocation ahead costs half a service or more; null where the interval allows both answers."""
    border = 0.5 * service_s
    if slope.value >= border and slope.excludes_zero:
        return True
    return False if slope.upper is not None and slope.upper < border else None


def _burst_p(placed: pl.DataFrame) -> tuple[float, float]:
    """Chance that as many arrivals spread at random wait as long on one lock, and what they would wait on average.

    Given their number, Poisson arrivals lie evenly over the time; each node keeps its number and its services.
    """
    rng = np.random.default_rng(_SEED)
    seen, drawn, expected = 0.0, np.zeros(SIMULATIONS), 0.0
    for node in placed.partition_by("node", maintain_order=True):
        arrival, service = node["arrival_s"].to_numpy(), node["service_s"].to_numpy()
        span = float(arrival[-1] - arrival[0])
        seen += float(serial_waits(arrival, service).sum())
        for number in range(SIMULATIONS):
            came = np.sort(rng.random(len(node))) * span
            drawn[number] += float(serial_waits(came, rng.permutation(service)).sum())
        rate = (len(node) - 1) / span if span > 0 else np.inf
        expected += len(node) * poisson_mean_wait_s(rate, float(service.mean()))
    p = float((1 + (drawn >= seen).sum()) / (1 + SIMULATIONS))
    return p, expected / len(placed)
