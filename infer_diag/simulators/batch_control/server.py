"""A server with one queue that runs one batch after another, as large as a controller allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from infer_diag.errors import DiagError
from infer_diag.simulators.batch_control.controllers import LastBatch, Memory, Policy, Seen
from infer_diag.simulators.batch_control.plant import Plant

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Row = tuple[float, float, int, int, int, int, float]


@dataclass(frozen=True, eq=False)
class Run:
    """One simulated run; the arrays before `begin_s` have one value per request, those from it on one per batch.

    `finish_s` is NaN for a request that no batch took before the horizon. A batch that runs at the horizon runs on, and
    its requests have a finish beyond it.
    """

    arrival_s: Floats
    finish_s: Floats
    dropped: NDArray[np.bool_]
    begin_s: Floats
    duration_s: Floats
    limit_count: Ints
    batch_count: Ints
    waiting_count: Ints
    dropped_count: Ints
    oldest_wait_s: Floats
    horizon_s: float
    slo_s: float

    @property
    def response_s(self) -> Floats:
        """Arrival to the end of the batch, NaN for those without one before the horizon."""
        return np.where(self.finish_s <= self.horizon_s, self.finish_s - self.arrival_s, np.nan)

    def served_within(self, begin_s: float, end_s: float) -> float:
        """Requests served between two moments; a batch across one counts for the share of its time that lies between.

        So no rate over an interval can exceed what the plant serves at its best.
        """
        ends = self.begin_s + self.duration_s
        inside = np.clip(np.minimum(ends, end_s) - np.maximum(self.begin_s, begin_s), 0.0, None)
        return float((self.batch_count * inside / self.duration_s).sum()) if len(ends) else 0.0


def run_policy(arrival_s: Floats, plant: Plant, policy: Policy, *, slo_s: float, horizon_s: float) -> Run:
    """A run of requests in order of arrival under a policy: first come, first served, and never idle while they wait.

    Early drop: before each batch the oldest requests go that could not end within `slo_s` of their arrival even in this
    batch; the batch may become smaller by that, and so faster. No batch starts at the horizon or later.

    Raises:
        DiagError: arrivals that are not in order or below 0, or an SLO or a horizon that is not above 0.
    """
    times = _checked(arrival_s, slo_s, horizon_s)
    finish_s, dropped = np.full(len(times), np.nan), np.zeros(len(times), dtype=bool)
    memory: Memory = {}
    rows: list[Row] = []
    last: LastBatch | None = None
    head, now_s, gone = 0, 0.0, 0
    while head < len(times) and (now_s := max(now_s, float(times[head]))) < horizon_s:
        arrived = int(np.searchsorted(times, now_s, side="right"))
        seen = Seen(now_s, times[:arrived], arrived - head, last, plant, slo_s)
        limit = int(min(max(policy.limit(seen, memory), 1), plant.limit_count))
        first = _first_kept(times, head, arrived, now_s, limit, plant, slo_s) if policy.early_drop else head
        dropped[head:first] = True
        gone, head = gone + first - head, first
        if head == arrived:
            continue
        count = min(limit, arrived - head)
        duration_s, waited_s = float(plant.seconds[count]), now_s - float(times[head])
        rows.append((now_s, duration_s, limit, count, arrived - head, gone, waited_s))
        finish_s[head : head + count] = now_s = now_s + duration_s
        gone = 0
        last = LastBatch(limit, count, duration_s, waited_s + duration_s)
        head += count
    return Run(times, finish_s, dropped, *_columns(rows), horizon_s=horizon_s, slo_s=slo_s)


def _checked(arrival_s: Floats, slo_s: float, horizon_s: float) -> Floats:
    """The arrivals before the horizon."""
    if slo_s <= 0 or horizon_s <= 0:
        raise DiagError("an SLO and a horizon are seconds above 0")
    times = np.asarray(arrival_s, dtype=np.float64)
    if len(times) and (not np.isfinite(times).all() or times[0] < 0 or (np.diff(times) < 0).any()):
        raise DiagError("arrivals are seconds from 0 on, in order")
    return times[times < horizon_s]


def _columns(rows: Sequence[Row]) -> tuple[Floats, Floats, Ints, Ints, Ints, Ints, Floats]:
    """The columns of `Run` from `begin_s` to `oldest_wait_s`."""
    columns = np.array(rows, dtype=np.float64).reshape(-1, 7).T
    limits, sizes, waiting, lost = columns[2:6].astype(np.int64)
    return columns[0], columns[1], limits, sizes, waiting, lost, columns[6]


def _first_kept(times: Floats, head: int, arrived: int, now_s: float, limit: int, plant: Plant, slo_s: float) -> int:
    """The oldest waiting request that ends in time if the batch starts with it; `arrived` where none does."""
    sizes = np.minimum(arrived - np.arange(head, arrived), limit)
    in_time = times[head:arrived] + slo_s >= now_s + plant.seconds[sizes]
    return head + int(np.argmax(in_time)) if in_time.any() else arrived
