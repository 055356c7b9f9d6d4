"""Intervals that cover under autocorrelation: the delete-block jackknife, and when a log is too short for any.

Statistics are recomputed as a whole without each block of time in turn, so reference, fits and shares vary together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import scipy

Floats = npt.NDArray[np.float64]
Verdict = Literal["refused", "provisional", "normal"]

BLOCKS = 8
PROVISIONAL_BLOCKS = 6
REFUSED_BELOW = 10.0
PROVISIONAL_BELOW = 30.0
"""Effective samples: below 10 no interval covers, from 30 on eight blocks cover 93 to 95 % (simulated AR series)."""
CONFIDENCE = 0.95
DISCOVERY_RATIO = 0.10
"""Expected share of false ones among the causes that are named over a whole fleet."""


@dataclass(frozen=True)
class Interval:
    """A value with its interval; both ends are null where the log is too short for one."""

    value: float
    lower: float | None = None
    upper: float | None = None

    @property
    def excludes_zero(self) -> bool:
        """Whether the whole interval lies on one side of 0; false without an interval."""
        return self.lower is not None and self.upper is not None and (self.lower > 0 or self.upper < 0)


def block_of(count: int, blocks: int = BLOCKS) -> npt.NDArray[np.int64]:
    """The block of each of `count` windows: contiguous and as equal as can be, j·n//m to (j+1)·n//m."""
    edges = [j * count // blocks for j in range(blocks + 1)]
    return np.repeat(np.arange(blocks), np.diff(edges))


def blocks_of_days(span_s: float, day_s: float = 86_400.0, most: int = BLOCKS) -> int | None:
    """Blocks of whole days: the most that divide the full days of the log; null below 4 full days.

    8 days give 8 blocks, 14 days 7 blocks of 2 days.
    """
    days = int(span_s // day_s)
    return next((blocks for blocks in range(most, 3, -1) if days % blocks == 0), None) if days >= 4 else None


def jackknife(full: Floats, replicates: Floats, confidence: float = CONFIDENCE) -> tuple[Floats, Floats]:
    """Lower and upper ends per statistic: full ± t · se with t of m − 1 degrees of freedom.

    se² = (m − 1)/m · Σ_j (θ_j − mean θ)², `replicates` one row per block that was left out.
    """
    m = len(replicates)
    spread = ((replicates - replicates.mean(axis=0)) ** 2).sum(axis=0)
    half = scipy.stats.t.ppf((1 + confidence) / 2, m - 1) * np.sqrt((m - 1) / m * spread)
    return full - half, full + half


def block_jackknife(
    statistic: Callable[[npt.NDArray[np.bool_]], Floats], count: int, blocks: int = BLOCKS
) -> tuple[Floats, Floats, Floats]:
    """(value, lower, upper) of a statistic of `count` windows, given as a function of which are kept."""
    owner = block_of(count, blocks)
    full = np.asarray(statistic(np.ones(count, dtype=bool)), dtype=np.float64)
    replicates = np.array([statistic(owner != j) for j in range(blocks)], dtype=np.float64)
    lower, upper = jackknife(full, replicates)
    return full, lower, upper


def p_value(value: float, lower: float, upper: float, blocks: int, confidence: float = CONFIDENCE) -> float:
    """Two-sided p that the value is 0, read off its jackknife interval; 1 where there is no spread and no value."""
    scale = scipy.stats.t.ppf((1 + confidence) / 2, blocks - 1)
    error = (upper - lower) / (2 * scale)
    if error <= 0:
        return 0.0 if value else 1.0
    return float(2 * scipy.stats.t.sf(abs(value) / error, blocks - 1))


def discovered(p_values: Sequence[float], ratio: float = DISCOVERY_RATIO) -> list[bool]:
    """Which of many tests stand when at most `ratio` of those named may be false (Benjamini and Hochberg 1995)."""
    if not p_values:
        return []
    adjusted = scipy.stats.false_discovery_control(np.clip(np.asarray(p_values), 0.0, 1.0))
    return [bool(each <= ratio) for each in adjusted]


def effective_count(series: Floats) -> float:
    """n (1 − φ)/(1 + φ) with φ the lag-1 autocorrelation, at most n; 0 for fewer than 5 values.

    The sample's φ is too low by (1 + 4φ)/n, which would pass a short log for a long one: it is put back (Marriott and
    Pope, Biometrika 41, 1954; Kendall, the same volume).
    """
    n = len(series)
    if n < 5:
        return 0.0
    centred = series - series.mean()
    power = float(centred @ centred)
    if power <= 0 or not math.isfinite(power):
        return float(n)
    sampled = float(centred[1:] @ centred[:-1]) / power
    phi = min(max((n * sampled + 1) / (n - 4), 0.0), 1.0)
    return n * (1 - phi) / (1 + phi)


def verdict(effective: float) -> Verdict:
    """What a log of so many effective samples allows: no interval, a provisional one of 6 blocks, or a normal one."""
    if effective < REFUSED_BELOW:
        return "refused"
    return "provisional" if effective < PROVISIONAL_BELOW else "normal"


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE, least: int = 5) -> Interval:
    """Mean over deployments with a t interval of G − 1 degrees of freedom; no interval below 5 deployments."""
    known = np.asarray(values, dtype=np.float64)
    mean = float(known.mean()) if len(known) else math.nan
    if len(known) < least:
        return Interval(mean)
    half = float(scipy.stats.t.ppf((1 + confidence) / 2, len(known) - 1) * known.std(ddof=1) / math.sqrt(len(known)))
    return Interval(mean, mean - half, mean + half)
