"""Whether a measure grows over a process's life, by which curve, and when it would reach a threshold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from infer_diag.attribution.heap.series import autocorrelation, effective_count, t_quantile

Floats = NDArray[np.float64]
Status = Literal["modelled", "bounded", "not_identifiable"]

LEAST_SPELLS = 3
REFUSED_BELOW = 10.0
"""With fewer effective values no interval covers what it says (simulated AR series)."""
BLOCKS = 6
"""Six block means give a slope interval that covers 95 % at an autocorrelation of 0.9; raw points cover 33 %."""
NEVER_RATIO = 0.05
_REPLICATES = 400
_KAPPAS = 40
_PAIRED = 400
"""Points of a spell whose slopes are taken pair by pair; longer ones are averaged down to so many."""


@dataclass(frozen=True, eq=False)
class Spell:
    """One process's life: seconds since it began, and the measure at each."""

    uptime_s: Floats
    values: Floats


@dataclass(frozen=True)
class Growth:
    """What spells tell of a trend. Slopes are per hour; null where not told.

    `reached_s` is the uptime at which the fitted curve meets the threshold (infinite: it levels off below), `lower_s`
    and `upper_s` its 95 % interval, `never_ratio` the share of resampled fits that never meet it. Nothing is said of
    uptimes beyond the longest spell: `reached_s` and `upper_s` are null there and `lower_s` is a bound.
    """

    status: Status
    spell_count: int
    reason: str = ""
    missing_source: str = ""
    effective_count: float = 0.0
    slope_per_h: float | None = None
    lower_per_h: float | None = None
    upper_per_h: float | None = None
    curve: Literal["line", "saturating"] | None = None
    longest_s: float = 0.0
    reached_s: float | None = None
    lower_s: float | None = None
    upper_s: float | None = None
    never_ratio: float | None = None


def growth(
    spells: Sequence[Spell], *, threshold: float | None, least_spells: int = LEAST_SPELLS, seed: int = 0
) -> Growth:
    """The trend of a measure over uptime, by which curve, and when it meets `threshold`.

    Spells in, each on its own clock: uptime since the process began, since calendar time would mix restarts. Slope:
    Theil–Sen over pairs of one spell; its interval: least squares on six block means a spell, each spell about its own
    mean. Curve: a + bt or a + b(1 − e^(−t/κ)) by AICc with the effective number of values n(1 − φ)/(1 + φ). Interval of
    the uptime: residuals resampled in blocks of three correlation times, fitted anew. Fewer than three spells, or than
    ten effective values, are refused; with a lower `least_spells` what is told holds for these spells and no others.
    Without a threshold nothing is said of when it is met.
    """
    usable = [spell for spell in spells if len(spell.values) >= 2 * BLOCKS]
    if len(usable) < max(least_spells, 1):
        return Growth(
            "not_identifiable",
            len(usable),
            f"growth needs {least_spells} process lives of {2 * BLOCKS} values or more, there are {len(usable)}",
            "block maps or inactive_split_bytes over several restarts, with the uptime",
        )
    times = np.concatenate([spell.uptime_s for spell in usable]) / 3600
    values = np.concatenate([spell.values for spell in usable])
    ends = np.cumsum([len(spell.values) for spell in usable])
    fit = _best(times, values, ends)
    slope, half = _slope(usable)
    longest_s = float(max(spell.uptime_s[-1] for spell in usable))
    told = Growth(
        "modelled",
        len(usable),
        effective_count=fit.effective,
        slope_per_h=slope,
        curve="line" if fit.kappa is None else "saturating",
        longest_s=longest_s,
    )
    if fit.effective < REFUSED_BELOW:
        reason = f"the values are worth {fit.effective:.1f} independent ones, too few for an interval"
        return replace(told, status="not_identifiable", reason=reason, missing_source="a longer recording")
    told = replace(told, lower_per_h=slope - half, upper_per_h=slope + half)
    return told if threshold is None else _with_threshold(told, fit, times, values, ends, threshold, seed)


@dataclass(frozen=True, eq=False)
class _Fit:
    kappa: float | None
    fitted: Floats
    residuals: Floats
    phi: float
    effective: float
    squares: float


def _design(times: Floats, kappa: float | None) -> Floats:
    return np.column_stack([np.ones(len(times)), times if kappa is None else -np.expm1(-times / kappa)])


def _kappas(times: Floats) -> Floats:
    span = max(float(times.max()), 1e-9)
    found: Floats = np.geomspace(span / 50, span * 5, _KAPPAS)
    return found


def _fitted(times: Floats, values: Floats, ends: NDArray[np.int64], kappa: float | None) -> _Fit:
    design = _design(times, kappa)
    fitted = design @ np.linalg.lstsq(design, values, rcond=None)[0]
    residuals = values - fitted
    phi = autocorrelation(residuals, ends)
    return _Fit(kappa, fitted, residuals, phi, effective_count(len(values), phi), float((residuals**2).sum()))


def _best(times: Floats, values: Floats, ends: NDArray[np.int64]) -> _Fit:
    """The line or the best saturating curve, by AICc with the larger of their effective numbers of values."""
    line = _fitted(times, values, ends, None)
    curves = [_fitted(times, values, ends, float(kappa)) for kappa in _kappas(times)]
    bent = min(curves, key=lambda fit: fit.squares)
    count = max(line.effective, bent.effective)

    def score(fit: _Fit, free: int) -> float:
        if count <= free + 1:
            return math.inf
        rest = max(fit.squares / len(values), 1e-30)
        return count * math.log(rest) + 2 * free + 2 * free * (free + 1) / (count - free - 1)

    # Of a fit so slow that it is a line within the recording, the line says the same with one parameter less.
    return bent if score(bent, 4) < score(line, 3) else line


def _slope(spells: Sequence[Spell]) -> tuple[float, float]:
    """(Theil–Sen's slope per hour, half its 95 % interval from block means)."""
    slopes, xs, ys = [], [], []
    for spell in spells:
        hours = spell.uptime_s / 3600
        x, y = _block_means(hours, spell.values, min(_PAIRED, len(hours)))
        one, other = np.triu_indices(len(x), 1)
        apart = x[other] > x[one]
        slopes.append((y[other] - y[one])[apart] / (x[other] - x[one])[apart])
        x, y = _block_means(hours, spell.values, BLOCKS)
        xs.append(x - x.mean())
        ys.append(y - y.mean())
    x, y = np.concatenate(xs), np.concatenate(ys)
    spread = float((x**2).sum())
    along = float((x * y).sum()) / spread
    freedom = len(x) - len(spells) - 1
    error = math.sqrt(float(((y - along * x) ** 2).sum()) / freedom / spread)
    return float(np.median(np.concatenate(slopes))), t_quantile(freedom) * error


def _block_means(x: Floats, y: Floats, blocks: int) -> tuple[Floats, Floats]:
    edges = np.array([len(x) * place // blocks for place in range(blocks)])
    counts = np.diff(np.append(edges, len(x)))
    return np.add.reduceat(x, edges) / counts, np.add.reduceat(y, edges) / counts


def _with_threshold(
    told: Growth,
    fit: _Fit,
    times: Floats,
    values: Floats,
    ends: NDArray[np.int64],
    threshold: float,
    seed: int,
) -> Growth:
    """The uptime at which the curve meets the threshold, as far as the spells reach."""
    point = _crossings(times, values[:, None], fit.kappa is not None, threshold)[0]
    again = _crossings(times, _resampled(fit, ends, seed), fit.kappa is not None, threshold)
    never = float(np.isinf(again).mean())
    lower, upper = (float(np.sort(again)[int(place * (len(again) - 1))]) * 3600 for place in (0.025, 0.975))
    reached, longest = float(point) * 3600, told.longest_s
    inside = reached <= longest or math.isinf(reached)
    bounded = not inside or never > NEVER_RATIO or upper > longest
    return replace(
        told,
        status="bounded" if bounded else "modelled",
        reached_s=reached if inside else None,
        lower_s=min(lower, longest),
        upper_s=None if bounded else upper,
        never_ratio=never,
        reason=f"{never:.0%} of the resampled fits never reach {threshold:g}" if never > NEVER_RATIO else "",
    )


def _crossings(times: Floats, columns: Floats, bent: bool, threshold: float) -> Floats:
    """Hours at which the curve fitted to each column meets the threshold; infinite where it never does."""
    best, found = np.full(columns.shape[1], np.inf), np.full(columns.shape[1], np.inf)
    for kappa in _kappas(times) if bent else (None,):
        design = _design(times, kappa)
        level, rise = np.linalg.lstsq(design, columns, rcond=None)[0]
        squares = ((columns - design @ np.stack([level, rise])) ** 2).sum(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            part = (threshold - level) / rise
            hours = part if kappa is None else -kappa * np.log1p(-part)
        reached = np.where(level >= threshold, 0.0, np.where((rise > 0) & np.isfinite(hours), hours, np.inf))
        better = squares < best
        best, found = np.where(better, squares, best), np.where(better, reached, found)
    return found


def _resampled(fit: _Fit, ends: NDArray[np.int64], seed: int) -> Floats:
    """The fitted curve with its residuals drawn anew in blocks, each spell from its own; one column a replicate."""
    generator = np.random.default_rng(seed)
    length = 1 if fit.phi <= 0 else max(1, math.ceil(-3 / math.log(fit.phi)))
    columns = np.empty((len(fit.fitted), _REPLICATES))
    for begin, end in zip([0, *ends[:-1]], ends, strict=True):
        count = int(end - begin)
        block = min(length, count)
        starts = generator.integers(0, count - block + 1, size=(-(-count // block), _REPLICATES))
        places = (starts[:, None, :] + np.arange(block)[None, :, None]).reshape(-1, _REPLICATES)[:count]
        centred = fit.residuals[begin:end] - fit.residuals[begin:end].mean()
        columns[begin:end] = fit.fitted[begin:end, None] + centred[places]
    return columns


def zero_failure_upper_per_h(observed_h: float) -> float | None:
    """3 / hours: with no failure seen, the rate is below this with 95 % confidence; null where nothing was observed."""
    return 3 / observed_h if observed_h > 0 else None
