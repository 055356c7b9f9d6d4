"""The batch that traffic asked for, where memory lets only a part of it run; and the batch that memory allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from infer_diag.attribution.cost.mechanisms import POINTS
from infer_diag.attribution.cost.step_time import LinearSteps, StepCurve

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Demand = Literal["low", "point", "high"]

BOUND_RATIO = 0.01
"""Share of the decode tokens that memory has to bind before a cap is read off the batches run then."""
ROUTED_RATIO = 1 / 3
"""Share of the decode tokens that memory binds where a replica gets as much as it can carry."""
ALWAYS_RATIO = 0.9
"""Share of a window's busy time in which memory binds, from which it binds throughout."""
SERVED_RATIO = 1.02
"""Arriving output tokens over those computed, up to which no backlog builds up."""


@dataclass(frozen=True, eq=False)
class Load:
    """What ran and waited, window by window; `bound` is the share of the busy time in which memory binds.

    `offered` tokens arrived, `busy_s` one replica worked; null where the logs cannot tell.
    """

    batch: Floats
    decode: Floats
    prefill: Floats
    bound: Floats
    waiting: Floats
    offered: Floats | None = None
    busy_s: Floats | None = None


def demanded(load: Load, curve: StepCurve, context: float, demand: Demand) -> Floats:
    """The batch that traffic and settings asked for: as run, and more where memory bound and requests waited.

    Where memory binds, the demand lies between what ran and what ran or waited, since what waits may be backlog. The
    point is what the arrivals need where they are told. A queue that stays while memory binds all the time and no more
    arrives than is served limits itself, so what waits is demand; else the geometric middle is taken. `high` asks for
    as much also where memory does not bind, in the measure that `routed` says.
    """
    batch, bound = load.batch, load.bound
    most = batch + bound * load.waiting
    if demand == "low":
        return batch
    if demand == "high":
        weight = load.decode * bound
        asked = np.log(np.maximum(batch + load.waiting, 1e-9))
        usual = np.exp(float(weight @ asked) / max(float(weight.sum()), 1e-9))
        return most * (np.maximum(most, usual) / np.maximum(most, 1e-9)) ** (routed(load) * (1 - bound))
    limited: Floats = batch * (most / np.maximum(batch, 1e-9)) ** ((1 + bound) / 2)
    if load.offered is None or load.busy_s is None or not isinstance(curve, LinearSteps):
        return limited
    per_token = float(load.prefill.sum() / load.decode.sum()) * curve.prefill_token_s
    needed = np.clip(curve.batch_for(load.offered / np.maximum(load.busy_s, 1e-9), context, per_token), batch, most)
    stays = (bound >= ALWAYS_RATIO) & (load.offered <= SERVED_RATIO * load.decode)
    return np.where(bound > 0, np.where(stays, limited, needed), batch)


def routed(load: Load) -> float:
    """How far a lull may be memory's doing: a router or autoscaler that knows what a replica carries gives it no more.

    Then memory binds for much of the time: 1 from a third of the tokens on, below that with the square of their share.
    """
    total = float(load.decode.sum())
    return min(1.0, float(load.decode @ load.bound) / (ROUTED_RATIO * total)) ** 2 if total > 0 else 0.0


def cap(load: Load, good: Mask, context: float, pool_tokens: float | None, demand: Demand) -> float:
    """The batch that memory allows: as run where it binds, else what the pool holds, else none is known to bind.

    Where the `high` demand is read, lulls are memory's doing as far as `routed` says, and the mean batch the limit.
    """
    weight = load.decode * load.bound * good
    if weight.sum() >= BOUND_RATIO * load.decode[good].sum() and weight.sum() > 0:
        binding = _harmonic(load.batch, weight)
        share = routed(load) if demand == "high" else 0.0
        return float(binding ** (1 - share) * _harmonic(load.batch, load.decode * good) ** share)
    return max(pool_tokens / context, float(load.batch[good].max())) if pool_tokens and context > 0 else np.inf


def _harmonic(batch: Floats, weight: Floats) -> float:
    used = weight > 0
    return float(weight[used].sum() / (weight[used] / batch[used]).sum())


def quantiles(values: Floats, weights: Floats) -> Floats:
    """Weighted quantiles at the middle of POINTS equal shares; a window split in two changes none."""
    order = np.argsort(values, kind="stable")
    passed = np.cumsum(weights[order])
    place = np.searchsorted(passed / passed[-1], (np.arange(POINTS) + 0.5) / POINTS)
    found: Floats = values[order][np.minimum(place, len(values) - 1)]
    return found
