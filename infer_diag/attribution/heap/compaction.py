"""What a compaction (a restart, an emptied cache) did, beside crossings of the same level that nobody treated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from infer_diag.attribution.heap.series import t_quantile

Floats = NDArray[np.float64]

LEAST_PAIRS = 6
ENOUGH_PAIRS = 20


@dataclass(frozen=True)
class Compaction:
    """`naive` is the mean change from before to after a treatment, `control` that around untreated crossings.

    A trigger at a high value is followed by a fall whatever is done (regression to the mean), so only their difference
    `effect` is an effect, with its 95 % interval; without controls the status is `association` and it is null.
    """

    status: Literal["modelled", "association", "not_identifiable"]
    treated_count: int
    control_count: int
    reason: str = ""
    missing_source: str = ""
    is_provisional: bool = False
    naive: float | None = None
    control: float | None = None
    effect: float | None = None
    lower: float | None = None
    upper: float | None = None


def compaction_effect(
    series: Sequence[Floats], treated: Sequence[tuple[int, int]], *, threshold: float, window: int, washout: int
) -> Compaction:
    """The effect of treatments on a measure sampled at even steps.

    Series in (one a process), `treated` as (series, sample) of each treatment, `threshold` the level that triggers it.
    Change = mean of `window` samples from `washout` after the moment − mean of `window` samples up to it. Controls are
    crossings of the threshold from below with no treatment within `washout` + `window` samples on either side. Fewer
    than six treatments, or controls, are refused, fewer than 20 provisional. `washout` should be two correlation times.
    """
    moments = [(which, at) for which, at in treated if _fits(series[which], at, window, washout)]
    found = np.array([_change(series[which], at, window, washout) for which, at in moments])
    controls = _controls(series, treated, threshold, window, washout)
    counts = len(found), len(controls)
    if len(found) < LEAST_PAIRS:
        reason = f"{len(found)} treatments with a window on both sides; {LEAST_PAIRS} are the least"
        return Compaction("not_identifiable", *counts, reason, "stamps of more compactions")
    naive = float(found.mean())
    if len(controls) < LEAST_PAIRS:
        reason = f"before and after, not causal: {len(controls)} untreated crossings of {threshold:g}"
        return Compaction(
            "association", *counts, reason, "untreated crossings, or compactions by schedule", naive=naive
        )
    effect = naive - float(controls.mean())
    half = t_quantile(max(min(counts) - 1, 4)) * math.sqrt(
        sum(part.var(ddof=1) / len(part) for part in (found, controls))
    )
    return Compaction(
        "modelled",
        *counts,
        is_provisional=min(counts) < ENOUGH_PAIRS,
        naive=naive,
        control=float(controls.mean()),
        effect=effect,
        lower=effect - half,
        upper=effect + half,
    )


def _fits(values: Floats, at: int, window: int, washout: int) -> bool:
    return at - window >= -1 and at + washout + window < len(values)


def _change(values: Floats, at: int, window: int, washout: int) -> float:
    after = values[at + washout + 1 : at + washout + 1 + window]
    return float(after.mean() - values[at - window + 1 : at + 1].mean())


def _controls(
    series: Sequence[Floats], treated: Sequence[tuple[int, int]], threshold: float, window: int, washout: int
) -> Floats:
    """The changes around crossings that nobody treated."""
    changes = [
        _change(values, at, window, washout)
        for which, values in enumerate(series)
        for at in _untreated(values, [at for each, at in treated if each == which], threshold, window, washout)
    ]
    return np.array(changes)


def _untreated(values: Floats, treated: list[int], threshold: float, window: int, washout: int) -> list[int]:
    """Upward crossings that no treatment touches, each far enough from the last that their windows are apart."""
    crossings = np.flatnonzero((values[1:] >= threshold) & (values[:-1] < threshold)) + 1
    kept: list[int] = []
    for at in crossings.tolist():
        near = any(abs(moment - at) <= washout + window for moment in treated)
        apart = not kept or at - kept[-1] > washout + window
        if not near and apart and _fits(values, at, window, washout):
            kept.append(at)
    return kept
