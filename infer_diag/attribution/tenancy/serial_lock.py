"""One server that serves allocations one after another: what a burst waits, and what steady arrivals wait."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from infer_diag.errors import DiagError

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Waits:
    """Mean and longest wait of a group of allocations, in seconds."""

    mean_s: float
    last_s: float


def burst_waits(count: int, service_s: float) -> Waits:
    """Waits of `count` allocations that come at once and are served in turn: mean (k − 1)·s/2, last (k − 1)·s.

    Raises:
        DiagError: no allocation, or a negative length.
    """
    if count < 1 or service_s < 0:
        raise DiagError("a burst has one allocation or more, of 0 seconds or more each")
    return Waits((count - 1) * service_s / 2, (count - 1) * service_s)


def poisson_mean_wait_s(rate_per_s: float, service_s: float) -> float:
    """Mean wait of Poisson arrivals at a constant service (M/D/1): ρ·s/(2(1 − ρ)) with ρ = λ·s; infinite from 1 on."""
    load = rate_per_s * service_s
    return load * service_s / (2 * (1 - load)) if load < 1 else math.inf


def poisson_load_for(wait_s: float, service_s: float) -> float:
    """The load ρ at which Poisson arrivals wait so long on average: 2w/(s + 2w); the arrival rate is ρ/s.

    Raises:
        DiagError: a service or wait that is not above 0.
    """
    if wait_s <= 0 or service_s <= 0:
        raise DiagError("the load behind a wait needs a wait and a service above 0 seconds")
    return 2 * wait_s / (service_s + 2 * wait_s)


def serial_waits(arrivals_s: Sequence[float] | Floats, services_s: Sequence[float] | Floats) -> Floats:
    """The wait of each allocation, in order of arrival, behind those before it (Lindley's recursion).

    W₁ = 0, Wᵢ = max(0, Wᵢ₋₁ + Sᵢ₋₁ − (Aᵢ − Aᵢ₋₁)).
    """
    arrivals = np.asarray(arrivals_s, dtype=np.float64)
    served = np.concatenate([[0.0], np.cumsum(np.asarray(services_s, dtype=np.float64))[:-1]])
    waits: Floats = served + np.maximum.accumulate(arrivals - served) - arrivals
    return np.maximum(waits, 0.0)
