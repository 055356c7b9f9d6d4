"""How long a batch takes: the plant that a controller of the batch size steers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from infer_diag.errors import DiagError
from infer_diag.simulators.serving import StepTime

ARTICLE_POINTS = ((32, 198.0), (12, 104.0))
"""(requests in a batch, requests served per second) in the article's table: steady state and burst."""
ARTICLE_LIMIT = 128
"""The largest batch that the article's formula allows."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Plant:
    """Seconds of a batch by its size: `seconds[b]` for b requests, `seconds[0]` unused.

    Raises:
        DiagError: fewer than one size, or a time that is not a positive number.
    """

    seconds: Floats
    basis: str
    capacity_per_s: float = field(init=False)
    """The most that it can serve, whatever decides on the batch: max b / t(b)."""

    def __post_init__(self) -> None:
        times = self.seconds[1:]
        if not len(times) or not np.isfinite(times).all() or times.min() <= 0:
            raise DiagError("a plant needs seconds above 0 for every batch of one request and more")
        object.__setattr__(self, "capacity_per_s", float((np.arange(1, len(times) + 1) / times).max()))

    @property
    def limit_count(self) -> int:
        """The largest batch."""
        return len(self.seconds) - 1

    def largest_within(self, seconds: float) -> int:
        """The largest batch that takes no longer than this; 1 where none is short enough."""
        fits = np.flatnonzero(self.seconds[1:] <= seconds)
        return int(fits[-1]) + 1 if len(fits) else 1

    def rates_per_s(self) -> Floats:
        """b / t(b) for b = 1 … `limit_count`: what a server that always fills batches of b serves."""
        return np.asarray(np.arange(1, self.limit_count + 1) / self.seconds[1:], dtype=np.float64)


def affine(fixed_s: float, per_request_s: float, *, limit_count: int = ARTICLE_LIMIT, basis: str = "given") -> Plant:
    """t(b) = `fixed_s` + `per_request_s` · b, for batches up to `limit_count`.

    Raises:
        DiagError: a time is not a positive number.
    """
    return Plant(fixed_s + per_request_s * np.arange(limit_count + 1, dtype=np.float64), basis)


def through_points(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """(seconds of an empty batch, seconds per request) of the line through two points (batch, served per second).

    t(b) = b / X(b), since a server that always has work starts a batch when the one before it ends.

    Raises:
        DiagError: there are not two points with different batches.
    """
    if len({batch for batch, _ in points}) != 2 or len(points) != 2:
        raise DiagError("a line needs two points with different batches")
    (large, large_rate), (small, small_rate) = points
    large_s, small_s = large / large_rate, small / small_rate
    slope = (large_s - small_s) / (large - small)
    return small_s - slope * small, slope


def article_plant() -> Plant:
    """The plant that the article's table implies: t(32) = 32/198 s and t(12) = 12/104 s. Modelled."""
    fixed_s, per_request_s = through_points(ARTICLE_POINTS)
    return affine(fixed_s, per_request_s, basis="the line through the article's two rows")


def of_step_time(step: StepTime, *, prompt_tokens: int, output_tokens: int, limit_count: int = ARTICLE_LIMIT) -> Plant:
    """The plant of a server that runs a batch of equal requests to its end: one prefill, then one step per token.

    t(b) = s(b prompts) + Σ over tokens of s(b requests with the context so far); `step` is a roofline or a fit.

    Raises:
        DiagError: a request has no prompt or no output token.
    """
    if prompt_tokens < 1 or output_tokens < 1:
        raise DiagError("a request has no prompt or no output token")
    batch = np.arange(limit_count + 1, dtype=np.float64)
    pairs = batch * prompt_tokens * (prompt_tokens + 1) / 2
    prefill = step.seconds(batch * prompt_tokens, 0.0, 0.0, pairs)
    contexts = prompt_tokens + np.arange(1, output_tokens, dtype=np.float64)
    decode = step.seconds(0.0, batch[:, None], batch[:, None] * contexts[None, :]).sum(axis=1)
    return Plant(prefill + decode, f"{step.origin}: {step.basis}")
