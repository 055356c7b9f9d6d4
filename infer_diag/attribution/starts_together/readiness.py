"""Which probe the measured starts need, and how many of them a given probe would have killed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

HEADROOM = 1.5
"""A dozen starts show the middle and not the tail: half as long again as the longest seen is allowed."""
NINETY_NINTH_FROM = 299
"""Starts from which on the longest one bounds the 99th percentile (one-sided, 95 %): 0.99 to the 299th is below 5 %."""


@dataclass(frozen=True)
class Probe:
    """A startup (or liveness) probe as Kubernetes counts it, in whole seconds.

    The first call comes after `initial_delay_s`, the next ones every `period_s`; the container is killed by the
    `failure_threshold`-th failure in a row, so a start may last `allowed_s`.
    """

    initial_delay_s: int
    period_s: int
    failure_threshold: int

    @property
    def allowed_s(self) -> int:
        """initialDelaySeconds + (failureThreshold − 1) · periodSeconds: the call that must not fail."""
        return self.initial_delay_s + (self.failure_threshold - 1) * self.period_s


@dataclass(frozen=True)
class ProbeAdvice:
    """The probe that the starts need; `covers` says how far the starts that were seen can speak for the next one."""

    probe: Probe
    start_count: int
    shortest_s: float
    longest_s: float
    covers: str


def killed_count(spans_s: Sequence[float], probe: Probe) -> int:
    """How many of these starts (container's start to ready) the probe would have killed."""
    return sum(span > probe.allowed_s for span in spans_s)


def probe_advice(
    spans_s: Sequence[float], *, period_s: int = 5, headroom: float = HEADROOM, before_s: float = 0.0
) -> ProbeAdvice | None:
    """The startup probe that lets these starts and the next one live; null without a start.

    initialDelaySeconds: the shortest start, since no earlier call can succeed. failureThreshold: so that a start may
    last `headroom` times the longest seen. `before_s`: seconds from the container's start to the log's first line,
    which spans that begin with a line leave out. The readiness probe needs no delay of its own: it is not called
    before the startup probe has succeeded.

    Source: Kubernetes documentation, "Configure Liveness, Readiness and Startup Probes".
    """
    known = [span + before_s for span in spans_s]
    if not known:
        return None
    delay = math.floor(min(known))
    failures = max(math.ceil((headroom * max(known) - delay) / period_s) + 1, 1)
    n = len(known)
    covers = (
        f"the longest of {n} starts bounds the 99th percentile"
        if n >= NINETY_NINTH_FROM
        else f"the next start is longer than all {n} seen with probability {1 / (n + 1):.0%}; "
        f"the 99th percentile needs {NINETY_NINTH_FROM} starts"
    )
    return ProbeAdvice(Probe(delay, period_s, failures), n, min(known), max(known), covers)
