"""Whether failures come in avalanches: more clustered than chance, and than the load, explains."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from infer_diag.attribution.heap.series import chi_square_tail

LEAST_EVENTS = 20
LEAST_WINDOWS = 10
_P_VALUE = 0.01


@dataclass(frozen=True)
class Avalanche:
    """Σ(x − μ)²/μ against χ², where μ follows the load if it is known.

    `fano_ratio` is the dispersion over its degrees of freedom (1 for independent failures), `branching_ratio` = 1 −
    1/√fano how many failures each one would trigger if triggering alone explained it (rough), `is_clustered` null where
    it is not identifiable.
    """

    status: Literal["modelled", "association", "not_identifiable"]
    event_count: int
    reason: str = ""
    missing_source: str = ""
    fano_ratio: float | None = None
    p_value: float | None = None
    branching_ratio: float | None = None
    is_clustered: bool | None = None


def avalanche(counts: ArrayLike, load: ArrayLike | None = None) -> Avalanche:
    """Whether failures (failed allocations, retries) per window of equal length cluster beyond chance and load.

    Counts in, and the load (arrivals, tokens) of the same windows. Without load: μ is the mean, and what is found is an
    association, since bursts of long requests look the same. With it: μ_i = load_i · Σcounts/Σload. Fewer than 20
    failures or ten windows are refused. Stamps finer than the windows would let a self-exciting process be fitted; that
    needs 100 failures and is not done here.
    """
    seen = np.asarray(counts, np.float64)
    total = int(seen.sum())
    if total < LEAST_EVENTS or len(seen) < LEAST_WINDOWS:
        return Avalanche(
            "not_identifiable",
            total,
            f"{total} failures in {len(seen)} windows; {LEAST_EVENTS} and {LEAST_WINDOWS} are the least",
            "a longer recording of failed allocations",
        )
    expected = np.full(len(seen), seen.mean())
    if load is not None:
        weights = np.asarray(load, np.float64)
        expected = weights * seen.sum() / weights.sum()
        if (seen[expected <= 0] > 0).any():
            return Avalanche("not_identifiable", total, "failures in windows without load", "load of every window")
    possible = expected > 0
    freedom = int(possible.sum()) - 1
    dispersion = float(((seen - expected)[possible] ** 2 / expected[possible]).sum())
    fano, tail = dispersion / freedom, chi_square_tail(dispersion, freedom)
    return Avalanche(
        "association" if load is None else "modelled",
        total,
        "" if load is not None else "the load is unknown, and bursts of it look the same",
        "" if load is not None else "arrivals in the same windows",
        fano,
        tail,
        max(0.0, 1 - 1 / math.sqrt(fano)) if fano > 0 else 0.0,
        tail < _P_VALUE,
    )
