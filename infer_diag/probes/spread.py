"""Median and interquartile range of repeated measurements."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

WIDE = 0.3
"""An interquartile range above this share of the median says that the repetitions do not agree."""


@dataclass(frozen=True)
class Spread:
    """Median and linear quartiles of `count` values, in their unit; the quartiles are null for fewer than four."""

    count: int
    p50: float
    q1: float | None
    q3: float | None

    @property
    def is_wide(self) -> bool | None:
        """Whether the values scatter too much for their median to be quoted alone; null where that is unknown."""
        if self.q1 is None or self.q3 is None:
            return None
        return self.q3 - self.q1 > WIDE * abs(self.p50)


def spread(values: Sequence[float]) -> Spread | None:
    """Median and linear quartiles (numpy's default definition) of the values; None without any."""
    if not values:
        return None
    if len(values) < 4:
        return Spread(len(values), statistics.median(values), None, None)
    q1, p50, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(len(values), p50, q1, q3)
