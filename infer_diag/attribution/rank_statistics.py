"""Locations and shifts of few, uneven values with intervals that assume no distribution, exact for small samples.

Estimates are those of Hodges and Lehmann (1963); intervals are the orders of Walsh averages (or differences) that the
null distribution of Wilcoxon's signed-rank statistic (or of Mann and Whitney's U) cuts off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from statistics import NormalDist

LEAST = 6
"""Five values allow no distribution-free interval of 95 % (93.75 % at most); six allow one of 96.9 %."""
CONFIDENCE = 0.95
_EXACT_UP_TO = 40
"""Values per sample from which on the null distribution is taken as normal: the ends move by less than one order."""


@dataclass(frozen=True)
class Location:
    """An estimate with its interval, null where the sample is too small for one; `count` values are behind it."""

    value: float
    low: float | None
    high: float | None
    count: int


def centre(values: Sequence[float], confidence: float = CONFIDENCE) -> Location | None:
    """Hodges–Lehmann estimate (median of the means of all pairs) with the signed-rank interval; null without values."""
    known = list(values)
    if not known:
        return None
    walsh = sorted((a + b) / 2 for a, b in combinations_with_replacement(known, 2))
    cut = _signed_rank_cut(len(known), confidence) if len(known) >= LEAST else None
    return Location(_middle(walsh), *_ends(walsh, cut), len(known))


def shift(first: Sequence[float], second: Sequence[float], confidence: float = CONFIDENCE) -> Location | None:
    """How much larger the first sample is: median of all differences, with the Mann–Whitney interval.

    `count` is the size of the smaller sample; there is no interval where it is below 6, and nothing without values.
    """
    if not first or not second:
        return None
    differences = sorted(a - b for a in first for b in second)
    small = min(len(first), len(second))
    cut = _mann_whitney_cut(len(first), len(second), confidence) if small >= LEAST else None
    return Location(_middle(differences), *_ends(differences, cut), small)


def middle(values: Sequence[float], confidence: float = CONFIDENCE) -> Location | None:
    """Median with the interval between two order statistics (binomial, exact); null without a value."""
    ordered = sorted(values)
    if not ordered:
        return None
    cut = _binomial_cut(len(ordered), confidence) if len(ordered) >= LEAST else None
    return Location(_middle(ordered), *_ends(ordered, cut), len(ordered))


def _middle(ordered: Sequence[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _ends(ordered: Sequence[float], cut: int | None) -> tuple[float | None, float | None]:
    if cut is None:
        return None, None
    return ordered[cut], ordered[len(ordered) - 1 - cut]


def _signed_rank_cut(count: int, confidence: float) -> int | None:
    """Largest k with P(W ≤ k) ≤ (1 − confidence)/2; null where even k = 0 is too likely."""
    if count > _EXACT_UP_TO:
        mean, variance = count * (count + 1) / 4, count * (count + 1) * (2 * count + 1) / 24
        return _normal_cut(mean, variance, confidence)
    ways = [1]
    for rank in range(1, count + 1):
        ways = _added(ways, [0] * rank + ways)
    return _cut(ways, confidence)


def _mann_whitney_cut(first: int, second: int, confidence: float) -> int | None:
    """Largest k with P(U ≤ k) ≤ (1 − confidence)/2."""
    if max(first, second) > _EXACT_UP_TO:
        mean, variance = first * second / 2, first * second * (first + second + 1) / 12
        return _normal_cut(mean, variance, confidence)
    # Ways to reach U with i of the first and j of the second: the largest of all is one of either.
    row = [[1] for _ in range(second + 1)]
    for _ in range(first):
        following = [[1]]
        for j in range(1, second + 1):
            following.append(_added([0] * j + row[j], following[j - 1]))
        row = following
    return _cut(row[second], confidence)


def _binomial_cut(count: int, confidence: float) -> int | None:
    return _cut([math.comb(count, k) for k in range(count + 1)], confidence)


def _cut(ways: Sequence[int], confidence: float) -> int | None:
    limit, below, found = sum(ways) * (1 - confidence) / 2, 0, None
    for value, number in enumerate(ways):
        below += number
        if below > limit:
            break
        found = value
    return found


def _normal_cut(mean: float, variance: float, confidence: float) -> int:
    reach = NormalDist().inv_cdf((1 + confidence) / 2) * math.sqrt(variance)
    return max(math.floor(mean - reach - 0.5), 0)


def _added(first: Sequence[int], second: Sequence[int]) -> list[int]:
    length = max(len(first), len(second))
    padded = [[*each, *[0] * (length - len(each))] for each in (first, second)]
    return [a + b for a, b in zip(*padded, strict=True)]
