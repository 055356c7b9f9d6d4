"""What clients ask of an engine: when requests arrive and how long they are, drawn or replayed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from infer_diag.errors import DiagError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Workload:
    """Requests in order of arrival; every array has one value per request.

    `max_output_tokens` is what a client declares, for schedulers that reserve it (default: what is generated).
    `priority`: the lower comes first. `deadline_s`: when the first token should have come. `adapter`: a number, -1 for
    the base model. Requests of one `prefix_group` share their first `prefix_tokens` prompt tokens; -1 shares nothing.
    """

    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    max_output_tokens: Ints
    priority: Ints
    deadline_s: Floats
    adapter: Ints
    prefix_group: Ints
    prefix_tokens: Ints
    request_ids: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.arrival_s)

    def first(self, seconds: float) -> Workload:
        """The requests that arrive within the first seconds."""
        return self.where(self.arrival_s < seconds)

    def where(self, chosen: NDArray[np.bool_]) -> Workload:
        """The chosen requests."""
        arrays = {name: getattr(self, name)[chosen] for name in _ARRAYS}
        ids = tuple(name for name, each in zip(self.request_ids, chosen, strict=True) if each)
        return replace(self, request_ids=ids, **arrays)

    def scaled(self, rate_ratio: float) -> Workload:
        """The same requests, arriving `rate_ratio` times as fast."""
        spent = self.deadline_s - self.arrival_s
        arrival_s = self.arrival_s / rate_ratio
        return replace(self, arrival_s=arrival_s, deadline_s=arrival_s + spent)


_ARRAYS = (
    "arrival_s",
    "prompt_tokens",
    "output_tokens",
    "max_output_tokens",
    "priority",
    "deadline_s",
    "adapter",
    "prefix_group",
    "prefix_tokens",
)


def workload(
    arrival_s: ArrayLike,
    prompt_tokens: ArrayLike,
    output_tokens: ArrayLike,
    *,
    max_output_tokens: ArrayLike | None = None,
    priority: ArrayLike = 0,
    slo_s: ArrayLike = 1.0,
    adapter: ArrayLike = -1,
    prefix_group: ArrayLike = -1,
    prefix_tokens: ArrayLike = 0,
    request_ids: Sequence[str] | None = None,
) -> Workload:
    """A workload out of columns, sorted by arrival; single values hold for all requests.

    Raises:
        DiagError: no request, times that are no numbers, or a request without a prompt or an output token.
    """
    times = np.atleast_1d(np.asarray(arrival_s, dtype=np.float64))
    count = len(times)

    def column(values: ArrayLike) -> Ints:
        return np.broadcast_to(np.asarray(values, dtype=np.int64), (count,))

    prompt, output = column(prompt_tokens), column(output_tokens)
    _refuse_impossible(times, prompt, output)
    columns: dict[str, NDArray[Any]] = {
        "prompt_tokens": prompt,
        "output_tokens": output,
        "max_output_tokens": output if max_output_tokens is None else np.maximum(output, column(max_output_tokens)),
        "priority": column(priority),
        "deadline_s": times + np.broadcast_to(np.asarray(slo_s, dtype=np.float64), (count,)),
        "adapter": column(adapter),
        "prefix_group": column(prefix_group),
        "prefix_tokens": np.minimum(column(prefix_tokens), prompt),
    }
    order = np.argsort(times, kind="stable")
    names = request_ids or [f"request-{number}" for number in range(count)]
    ids = tuple(names[index] for index in order)
    return Workload(arrival_s=times[order], request_ids=ids, **{name: each[order] for name, each in columns.items()})


def _refuse_impossible(times: Floats, prompt: Ints, output: Ints) -> None:
    if not len(times) or not np.isfinite(times).all() or times.min() < 0:
        raise DiagError("a workload needs requests with arrivals of 0 s or more", hint="give one time per request")
    if prompt.min() < 1 or output.min() < 1:
        raise DiagError("a request has no prompt or no output token", hint="leave such requests out")


def replay(requests: pl.DataFrame, **options: ArrayLike) -> Workload:
    """The requests of a log or trace as they arrived, from 0 s on; those without arrival or lengths are left out.

    Frame in: Requests. Further columns as in `workload`.

    Raises:
        DiagError: no request tells its arrival, its prompt and its output tokens.
    """
    known = requests.drop_nulls(["arrival_s", "prompt_tokens", "output_tokens"])
    known = known.filter((pl.col("prompt_tokens") > 0) & (pl.col("output_tokens") > 0))
    known = known.sort("arrival_s", maintain_order=True)
    if known.is_empty():
        raise DiagError(
            "no request tells its arrival, its prompt and its output tokens",
            hint="load a trace, or a log with per-request events, beside the engine's log",
        )
    arrival_s = known["arrival_s"].to_numpy()
    lengths = (known["prompt_tokens"].to_numpy(), known["output_tokens"].to_numpy())
    return workload(arrival_s - arrival_s[0], *lengths, request_ids=known["request_id"].to_list(), **options)


def poisson_arrivals(requests_per_s: float, seconds: float, *, seed: int) -> Floats:
    """Times of a Poisson process of this rate."""
    return gamma_arrivals(requests_per_s, seconds, cv=1.0, seed=seed)


def gamma_arrivals(requests_per_s: float, seconds: float, *, cv: float, seed: int) -> Floats:
    """Times with gamma-distributed gaps of coefficient of variation `cv`: 1 is Poisson, more is burstier."""
    random = np.random.default_rng(seed)
    expected = requests_per_s * seconds
    count = int(expected + 10 * max(1.0, cv) * np.sqrt(expected) + 20)
    times: Floats = np.empty(0)
    while not len(times) or times[-1] < seconds:
        gaps = random.gamma(1 / cv**2, cv**2 / requests_per_s, count)
        times = np.concatenate([times, (times[-1] if len(times) else 0.0) + np.cumsum(gaps)])
    return times[times < seconds]


def step_arrivals(rates: Sequence[tuple[float, float]], *, seed: int) -> Floats:
    """Times of Poisson processes one after another, each (seconds, requests per second).

    `[(20, 200), (4, 850), (20, 200)]` is the article's burst.
    """
    begin_s, times = 0.0, []
    for index, (seconds, requests_per_s) in enumerate(rates):
        times.append(begin_s + poisson_arrivals(requests_per_s, seconds, seed=seed + 7919 * index))
        begin_s += seconds
    return np.concatenate(times)


def lognormal_tokens(count: int, *, mean: float, cv: float, seed: int, longest: int = 1 << 17) -> Ints:
    """Token counts of this mean and coefficient of variation before they are rounded and cut to 1 … `longest`."""
    random = np.random.default_rng(seed)
    variance = np.log1p(cv**2)
    drawn = random.lognormal(np.log(mean) - variance / 2, np.sqrt(variance), count)
    return np.clip(np.rint(drawn), 1, longest).astype(np.int64)
