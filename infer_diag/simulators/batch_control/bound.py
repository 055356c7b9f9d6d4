"""What no controller can exceed, for the very arrivals of a run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from infer_diag.simulators.batch_control.plant import Plant

Floats = NDArray[np.float64]


def most_in_slo(arrival_s: Floats, plant: Plant, *, slo_s: float) -> int:
    """The most requests that can end within `slo_s` of their arrival, whatever forms the batches.

    A batch of b takes at least b / capacity, so each request in time takes at least 1 / capacity of the server between
    its arrival and its deadline. How many such jobs of one length fit is known: in order of arrival, each that would
    end too late is left out (all windows have one length, so neither preemption nor another order helps). Real batches
    start only when all their requests are there, so the bound may not be reached.
    """
    each_s = 1.0 / plant.capacity_per_s
    ends_s, fitting = 0.0, 0
    for arrival in arrival_s.tolist():
        would_end_s = max(ends_s, arrival) + each_s
        if would_end_s <= arrival + slo_s:
            ends_s, fitting = would_end_s, fitting + 1
    return fitting


def most_served(arrival_s: Floats, plant: Plant, begin_s: float, end_s: float) -> float:
    """The most requests that can be served between two moments: capacity · length, or all that have come by its end."""
    return min(plant.capacity_per_s * (end_s - begin_s), float(np.count_nonzero(arrival_s < end_s)))
