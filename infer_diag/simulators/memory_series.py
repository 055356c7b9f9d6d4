"""Series of which the truth is known, to try methods on: a ratio that triggers compactions, failures in avalanches."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TRIGGER_RATIO = 0.72
WINDOW = 4
WASHOUT = 20
"""Two correlation times of the ratio."""
_LEVEL, _PHI, _SPREAD = 0.5, 0.9, 0.06


def triggered_compactions(
    effect: float, *, seed: int = 0, processes: int = 60, samples: int = 1000
) -> tuple[list[Floats], list[tuple[int, int]]]:
    """(series of the ratio, one per process; (series, sample) of each compaction), with a planted `effect`.

    The ratio is an AR(1) process about 0.5 with φ = 0.9 and innovations of 0.06. Where it rises above 0.72 a coin
    decides whether a compaction follows, which shifts the ratio by `effect` for the next `WASHOUT` + `WINDOW` samples.
    """
    draw = np.random.default_rng(seed)
    series, treated = [], []
    for number in range(processes):
        noise, values, level = draw.normal(0, _SPREAD, samples), np.empty(samples), 0.0
        shift, until, last = np.zeros(samples), 0, _LEVEL
        for place in range(samples):
            level = _PHI * level + noise[place]
            values[place] = _LEVEL + level + shift[place]
            if values[place] >= TRIGGER_RATIO > last and place >= until:
                until = place + WASHOUT + WINDOW + 1
                if draw.random() < 0.5:
                    shift[place + 1 : until] = effect
                    treated.append((number, place))
            last = values[place]
        series.append(values)
    return series, treated


def failure_counts(branching: float, *, seed: int = 0, windows: int = 432, per_window: float = 0.05) -> Ints:
    """Failures per window: the first of each cluster at random, and every failure triggers `branching` more on average.

    What is triggered falls into the same window or the next one. Branching 0 gives independent failures.
    """
    draw = np.random.default_rng(seed)
    counts: Ints = np.zeros(windows, np.int64)
    fresh = draw.poisson(per_window * (1 - branching), windows)
    while fresh.sum():
        counts += fresh
        triggered = draw.poisson(branching * fresh)
        late = draw.binomial(triggered, 0.5)
        fresh = triggered - late + np.append([0], late[:-1])
    return counts
