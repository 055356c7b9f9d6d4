"""Controllers of the batch size: each a function of what the server has seen, and of what it keeps between calls.

A controller is asked whenever the server is free and requests wait. It names the largest batch that it allows; the
server takes that many of the waiting requests, oldest first, or all of them where fewer wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from infer_diag.simulators.batch_control.plant import Plant

WINDOW_S = 2.0
"""The sliding window over which the article's formula is given its rate."""
SHORT_S, LONG_S = 0.1, 0.5
"""Two windows whose difference is a slope; the longer one is the article's sampling period."""
LEAD_S = 0.5
"""How far ahead the slope-aware controller looks."""
ARTICLE_LATENCY_MS = 100.0
_EWMA = 0.3
_TREND = 0.3
_STEP, _BACK_OFF = 4.0, 0.9
_GAIN, _INTEGRAL, _DERIVATIVE = 60.0, 120.0, 2.0


@dataclass(frozen=True)
class LastBatch:
    """The batch that ended last: what was allowed, what it held, how long it ran, its slowest request."""

    allowed_count: int
    count: int
    duration_s: float
    response_s: float


@dataclass(frozen=True)
class Seen:
    """What a server knows when it may start a batch."""

    now_s: float
    arrival_s: NDArray[np.float64]
    waiting_count: int
    last: LastBatch | None
    plant: Plant
    slo_s: float

    def rate_per_s(self, window_s: float) -> float:
        """Arrivals per second over the last `window_s` seconds, or since the start where that is shorter."""
        window_s = min(window_s, self.now_s) or window_s
        before = int(np.searchsorted(self.arrival_s, self.now_s - window_s, side="right"))
        return (len(self.arrival_s) - before) / window_s


Memory = dict[str, float]
Controller = Callable[[Seen, Memory], float]


def article_batch(qps: float, latency_ms: float = ARTICLE_LATENCY_MS) -> int:
    """The article's formula as it stands: max(1, min(128, qps · latencyMs / 100)), cut to a whole number.

    A rate times a time in milliseconds is a number of requests only after a division by 1000; by 100 it is ten times
    too many, and at the default of 100 ms it is the rate itself.
    """
    return int(max(1.0, min(128.0, qps * latency_ms / 100)))


def corrected_batch(qps: float, latency_s: float) -> float:
    """Little's law, L = λ · W: the requests in the server at this rate and this time in it."""
    return qps * latency_s


def article(seen: Seen, memory: Memory) -> float:
    """The article's formula with its static latency of 100 ms and the rate of a 2 s window."""
    return article_batch(seen.rate_per_s(WINDOW_S))


def article_table(seen: Seen, memory: Memory) -> float:
    """What the article's table prints, whatever computes it: 32 at 200/s and less, 12 at 850/s and more.

    The rate is that of the article's sampling period of 500 ms.
    """
    return float(np.interp(seen.rate_per_s(LONG_S), (200.0, 850.0), (32.0, 12.0)))


def corrected(seen: Seen, memory: Memory) -> float:
    """λ · W with the unit right, W being the smoothed response time (waiting included) of the last batches."""
    return corrected_batch(seen.rate_per_s(WINDOW_S), _smoothed_response(seen, memory))


def corrected_batch_time(seen: Seen, memory: Memory) -> float:
    """λ · t with the smoothed time of a batch alone: it serves what arrives, and works off no backlog."""
    batch_s = seen.plant.seconds[1] if seen.last is None else seen.last.duration_s
    return corrected_batch(seen.rate_per_s(WINDOW_S), _ewma(memory, "batch_s", float(batch_s)))


def aimd(seen: Seen, memory: Memory) -> float:
    """Four more after each batch that kept to half the SLO, a tenth less after one that did not.

    Half, because a request may wait for one batch before its own. Source: Crankshaw et al., "Clipper", NSDI 2017.
    """
    if seen.last is None:
        return _kept(memory, 1.0)
    return _additive(seen, memory, seen.last.duration_s <= seen.slo_s / 2)


def aimd_on_response(seen: Seen, memory: Memory) -> float:
    """The same rule, but judged by the response time: it takes waiting for a sign that batches are too large."""
    return _kept(memory, 1.0) if seen.last is None else _additive(seen, memory, seen.last.response_s <= seen.slo_s)


def slope_aware(seen: Seen, memory: Memory) -> float:
    """(q + lead · dq/dt) · W: Holt's smoothed level and slope of the rate, the slope from two windows.

    Source: C. C. Holt, 1957, reprinted in the International Journal of Forecasting 20(1), 2004.
    """
    long = seen.rate_per_s(LONG_S)
    slope = _ewma(memory, "slope", 2 * (seen.rate_per_s(SHORT_S) - long) / (LONG_S - SHORT_S), _TREND)
    ahead = max(_ewma(memory, "level", long, 0.5) + LEAD_S * slope, 0.0)
    return corrected_batch(ahead, _smoothed_response(seen, memory))


def pid(seen: Seen, memory: Memory) -> float:
    """Proportional, integral and derivative of (SLO / 2 − batch time), in requests per second of error.

    Anti-windup: the integral stands still while the limit is at an end of its range and the error pushes further, and
    while batches stay below what is allowed, since they then tell nothing about the limit.
    """
    if seen.last is None:
        memory.update(integral=1.0, error_s=0.0)
        return 1.0
    error_s, passed_s = seen.slo_s / 2 - seen.last.duration_s, seen.last.duration_s
    slope = (error_s - memory["error_s"]) / passed_s if memory["error_s"] else 0.0
    wanted = memory["integral"] + _GAIN * error_s + _DERIVATIVE * slope
    at_the_end = (wanted >= seen.plant.limit_count and error_s > 0) or (wanted <= 1 and error_s < 0)
    if seen.last.count >= seen.last.allowed_count and not at_the_end:
        memory["integral"] += _INTEGRAL * error_s * passed_s
    memory["error_s"] = error_s
    return wanted


def table_limit(seen: Seen, memory: Memory) -> float:
    """The largest batch with 2 · t(b) ≤ SLO: a request that just missed a batch still makes the next one in time.

    Source: Shen et al., "Nexus", SOSP 2019.
    """
    return seen.plant.largest_within(seen.slo_s / 2)


def fixed_limit(count: int) -> Controller:
    """A controller that always allows this many."""

    def fixed(seen: Seen, memory: Memory) -> float:
        return count

    return fixed


@dataclass(frozen=True)
class Policy:
    """A controller by name, and whether requests that would miss the SLO anyway are dropped before each batch."""

    name: str
    limit: Controller
    early_drop: bool = False


POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy("article formula", article),
        Policy("article table", article_table),
        Policy("corrected", corrected),
        Policy("corrected, batch time", corrected_batch_time),
        Policy("AIMD", aimd),
        Policy("AIMD on response", aimd_on_response),
        Policy("slope-aware", slope_aware),
        Policy("PID", pid),
        Policy("greedy", table_limit),
        Policy("early drop", table_limit, early_drop=True),
    )
}
"""By name, in the order in which tables show them; the oracle is chosen in hindsight and stands in `comparison`."""


def _ewma(memory: Memory, name: str, value: float, share: float = _EWMA) -> float:
    memory[name] = value if name not in memory else memory[name] + share * (value - memory[name])
    return memory[name]


def _smoothed_response(seen: Seen, memory: Memory) -> float:
    response_s = float(seen.plant.seconds[1]) if seen.last is None else seen.last.response_s
    return _ewma(memory, "response_s", response_s)


def _kept(memory: Memory, limit: float) -> float:
    memory["limit"] = limit
    return limit


def _additive(seen: Seen, memory: Memory, kept_to_it: bool) -> float:
    if not kept_to_it:
        return _kept(memory, max(memory["limit"] * _BACK_OFF, 1.0))
    return _kept(memory, min(memory["limit"] + _STEP, float(seen.plant.limit_count)))
