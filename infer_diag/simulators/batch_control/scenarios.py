"""Arrivals to hold a controller against: steady, bursty, the article's step, or those of a log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from infer_diag.errors import DiagError
from infer_diag.simulators.serving import gamma_arrivals, poisson_arrivals, step_arrivals

STEADY_PER_S, BURST_PER_S = 200.0, 850.0
"""Requests per second before and after the article's burst, and in it."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scenario:
    """Arrivals by seed, how long they go on, and when the burst is, if there is one."""

    name: str
    arrivals: Callable[[int], Floats]
    horizon_s: float
    burst: tuple[float, float] | None = None
    is_drawn: bool = True
    """Whether another seed gives other arrivals; those of a log are what they are."""


def poisson(requests_per_s: float = STEADY_PER_S, seconds: float = 60.0) -> Scenario:
    """Poisson arrivals."""
    name = f"Poisson, {requests_per_s:g}/s"
    return Scenario(name, lambda seed: poisson_arrivals(requests_per_s, seconds, seed=seed), seconds)


def gamma(cv: float, requests_per_s: float = STEADY_PER_S, seconds: float = 60.0) -> Scenario:
    """Gaps from a gamma distribution with this coefficient of variation: above 1 they come in bunches."""
    name = f"Gamma, CV {cv:g}, {requests_per_s:g}/s"
    return Scenario(name, lambda seed: gamma_arrivals(requests_per_s, seconds, cv=cv, seed=seed), seconds)


def step(before_s: float = 20.0, burst_s: float = 5.0, after_s: float = 35.0) -> Scenario:
    """The article's burst: 200 requests per second, 850, and 200 again, each a Poisson process."""
    rates = [(before_s, STEADY_PER_S), (burst_s, BURST_PER_S), (after_s, STEADY_PER_S)]
    return Scenario(
        f"{STEADY_PER_S:g} → {BURST_PER_S:g} → {STEADY_PER_S:g}/s",
        lambda seed: step_arrivals(rates, seed=seed),
        before_s + burst_s + after_s,
        (before_s, before_s + burst_s),
    )


def replayed(
    requests: pl.DataFrame,
    *,
    mean_per_s: float | None = None,
    copies: int = 1,
    tail_s: float = 10.0,
    name: str = "replay",
) -> Scenario:
    """The arrivals of a log or trace, from 0 s on; `tail_s` after the last one the run ends.

    `mean_per_s` brings them to that rate, copies not counted, by stretching or squeezing all of time; `copies`
    lets every arrival stand for so many requests at once, as more clients of the same habits would bring.

    Frame in: Requests; those without an arrival are left out.

    Raises:
        DiagError: fewer than two requests tell their arrival, they all arrive at once, or a rate or the copies are not
            above 0.
    """
    times = requests["arrival_s"].drop_nulls().sort().to_numpy()
    if len(times) < 2 or times[-1] <= times[0]:
        raise DiagError(
            "a replay needs two requests that arrive at different times",
            hint="load a trace, or a log with per-request events",
        )
    if (mean_per_s is not None and mean_per_s <= 0) or copies < 1 or tail_s < 0:
        raise DiagError("a mean rate is requests per second above 0, and there is one copy at least")
    times = times - times[0]
    own_per_s = (len(times) - 1) / times[-1]
    times = np.repeat(times * (own_per_s / mean_per_s if mean_per_s else 1.0), copies)
    return Scenario(name, lambda seed: times.copy(), float(times[-1]) + max(tail_s, 1e-6), is_drawn=False)
