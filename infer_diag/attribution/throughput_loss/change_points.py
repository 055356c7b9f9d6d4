"""Where the mean of a series changes: PELT, for the edges of bursts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LEAST_BINS = 8
"""Shorter segments are scatter: with them real traffic, which is no Poisson process, is full of changes."""
PENALTY = 3.0


def anscombe(counts: Floats) -> Floats:
    """2√(x + 3/8): counts of a Poisson process with a variance near 1. Source: Anscombe, Biometrika 35, 1948."""
    return np.asarray(2.0 * np.sqrt(counts + 0.375), dtype=np.float64)


def change_points(values: Floats, *, variance: float = 1.0, least: int = LEAST_BINS) -> list[int]:
    """The begins of the segments whose squared distance to their means, with a price per segment, is least.

    The price is 3 ln n · `variance`: that of a mean over many values, which is above the values' own where neighbours
    are alike. No segment is shorter than `least`. Source: Killick, Fearnhead, Eckley, "Optimal detection of
    changepoints with a linear computational cost", JASA 107, 2012 (PELT).
    """
    count = len(values)
    if count < 2 * least:
        return [0]
    price = PENALTY * np.log(count) * variance
    sums, squares = (np.concatenate([[0.0], np.cumsum(each)]) for each in (values, values**2))
    best, origin = np.full(count + 1, np.inf), np.zeros(count + 1, np.int64)
    best[0] = -price
    begins, beaten = np.array([0], np.int64), np.full(count + 1, count + 1)
    for end in range(least, count + 1):
        inside = sums[end] - sums[begins]
        cost = best[begins] + squares[end] - squares[begins] - inside**2 / (end - begins)
        chosen = int(np.argmin(cost))
        best[end], origin[end] = cost[chosen] + price, begins[chosen]
        # A begin that is beaten by a whole price stays so once its rival may begin a segment, `least` values later.
        lost = begins[cost > best[end]]
        beaten[lost] = np.minimum(beaten[lost], end)
        begins = np.append(begins[beaten[begins] > end - least], end - least + 1)
        begins = begins[np.isfinite(best[begins])]
    found, end = [], count
    while end > 0:
        end = int(origin[end])
        found.append(end)
    return found[::-1]
