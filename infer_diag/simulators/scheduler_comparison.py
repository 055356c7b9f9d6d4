"""Schedulers beside each other on the same requests: what real traffic takes from their throughput, and who waits.

Simulated. Even traffic: equal requests at equal distances. Real-like traffic: the same number of requests with the same
mean lengths, drawn from lognormal distributions, at gamma-distributed distances. Both are offered faster than any of
the schedulers serves them, so that throughput is capacity and not demand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import dataframely as dy
import numpy as np
import polars as pl
import scipy
from numpy.typing import NDArray

from infer_diag.errors import DiagError
from infer_diag.simulators.serving import (
    EngineSettings,
    Simulation,
    StepTime,
    Workload,
    gamma_arrivals,
    lognormal_tokens,
    simulate,
    workload,
)
from infer_diag.simulators.serving.ledger import starvation, token_ledger
from infer_diag.simulators.serving.state import END_S, ROW_EMITTED

Floats = NDArray[np.float64]
CONFIDENCE = 0.95
BEGIN_SHARE, END_SHARE = 0.1, 0.8
"""What is measured of a run: below, the batch still fills up; above, it runs empty."""


class SchedulerRuns(dy.Schema):
    """One row per scheduler: means over the seeds, `decay_ratio` with the t interval over them.

    Throughput is that while a tenth to four fifths of the output tokens are delivered. `decay_ratio` = 1 − real / even,
    paired by seed. Waits and starvation are of the real-like runs, the worst of all seeds.
    """

    scheduler = dy.String(primary_key=True)
    even_tokens_per_s = dy.Float64(min=0)
    real_tokens_per_s = dy.Float64(min=0)
    decay_ratio = dy.Float64()
    low_ratio = dy.Float64()
    high_ratio = dy.Float64()
    padding_ratio = dy.Float64(min=0, max=1, description="of the computed tokens")
    preemption_count = dy.Float64(min=0)
    longest_wait_s = dy.Float64(min=0)
    overtaken_count = dy.Int64(min=0, description="the most later requests that began before one that was there")
    starved_count = dy.Int64(min=0, description="requests overtaken by more others than the engine has places")
    jain_ratio = dy.Float64(min=0, max=1, description="1 where all requests are served at one speed")
    seed_count = dy.UInt32()


@dataclass(frozen=True)
class Traffic:
    """Requests offered to every scheduler: mean lengths and their CV, arrivals per second and the CV of their gaps.

    The defaults are those of Azure's conversation trace of 2023 (mean prompt 1,155 and output 211 tokens; whole-length
    CV 0.81). `declared_tokens`: the most that a client lets a request generate, which reserving schedulers hold room
    for. A share `urgent_ratio` of the requests should begin within `urgent_s`, the others within `patient_s`.
    """

    request_count: int = 600
    requests_per_s: float = 20.0
    prompt_tokens: float = 1155.0
    prompt_cv: float = 0.95
    output_tokens: float = 211.0
    output_cv: float = 0.78
    longest_prompt_tokens: int = 7000
    declared_tokens: int = 1024
    gap_cv: float = 2.0
    urgent_ratio: float = 0.2
    urgent_s: float = 1.0
    patient_s: float = 20.0
    adapters: int = 8

    def even(self, seed: int) -> Workload:
        """Equal requests at equal distances."""
        arrival_s = np.arange(self.request_count) / self.requests_per_s
        return self._asked(arrival_s, *(np.full(self.request_count, n) for n in self._means()), seed=seed)

    def real(self, seed: int) -> Workload:
        """As many requests of the same mean lengths and rate, drawn."""
        span_s = self.request_count / self.requests_per_s
        arrival_s = gamma_arrivals(self.requests_per_s, 3 * span_s, cv=self.gap_cv, seed=seed)[: self.request_count]
        arrival_s *= span_s / max(float(arrival_s[-1]), 1e-9)
        count = len(arrival_s)
        prompt = lognormal_tokens(count, mean=self.prompt_tokens, cv=self.prompt_cv, seed=seed + 1)
        output = lognormal_tokens(count, mean=self.output_tokens, cv=self.output_cv, seed=seed + 2)
        cut = np.minimum(prompt, self.longest_prompt_tokens), np.minimum(output, self.declared_tokens)
        # Cutting the tail, and the luck of a draw, would change the load: both runs shall ask for the same tokens.
        scaled = [
            np.maximum(1, np.rint(each * mean / each.mean())) for each, mean in zip(cut, self._means(), strict=True)
        ]
        limits = self.longest_prompt_tokens, self.declared_tokens
        return self._asked(
            arrival_s, *(np.minimum(e, limit) for e, limit in zip(scaled, limits, strict=True)), seed=seed
        )

    def _means(self) -> tuple[int, int]:
        return round(self.prompt_tokens), round(self.output_tokens)

    def _asked(self, arrival_s: Floats, prompt: Floats, output: Floats, *, seed: int) -> Workload:
        random = np.random.default_rng(seed + 3)
        urgent = random.random(len(arrival_s)) < self.urgent_ratio
        ranks = np.arange(1, self.adapters + 1) ** -1.5
        return workload(
            arrival_s,
            prompt,
            output,
            max_output_tokens=self.declared_tokens,
            slo_s=np.where(urgent, self.urgent_s, self.patient_s),
            adapter=random.choice(self.adapters, len(arrival_s), p=ranks / ranks.sum()),
        )


@dataclass(frozen=True)
class Engine:
    """What all schedulers share: the step times, and settings by scheduler on top of the common ones."""

    step_time: StepTime
    common: EngineSettings
    of_scheduler: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    def settings(self, scheduler: str) -> EngineSettings:
        """The settings of a scheduler."""
        own = dict(self.of_scheduler.get(scheduler, {}))
        return replace(self.common, scheduler=str(own.pop("scheduler", scheduler)), **own)  # type: ignore[arg-type]


def compared_schedulers(
    schedulers: Sequence[str], engine: Engine, traffic: Traffic, *, seeds: Sequence[int]
) -> dy.DataFrame[SchedulerRuns]:
    """Each scheduler on even and on real-like traffic, every seed with the same requests for all. Simulated.

    Frame out: SchedulerRuns, in the order given. Names are those of `EngineSettings`, or of `engine.of_scheduler`,
    whose entry then says which `scheduler` it changes.

    Raises:
        DiagError: fewer than 2 seeds.
    """
    if len(seeds) < 2:
        raise DiagError("one seed gives no interval", hint="give 2 seeds or more")
    rows = [_row(scheduler, engine, traffic, seeds) for scheduler in schedulers]
    return SchedulerRuns.validate(pl.DataFrame(rows), cast=True)


def throughput_by_cv(
    schedulers: Sequence[str], engine: Engine, traffic: Traffic, cvs: Sequence[float], *, seeds: Sequence[int]
) -> pl.DataFrame:
    """Output tokens per second at equal load and mean lengths, by the CV of both lengths. Simulated.

    Frame out: `scheduler`, `cv`, `output_tokens_per_s` (mean over the seeds), and `change_ratio` against the first CV
    with `low_ratio` and `high_ratio`, its t interval over the seeds (null for the first CV).
    """
    rows = []
    for scheduler in schedulers:
        settings, first = engine.settings(scheduler), None
        for cv in cvs:
            asked = [replace(traffic, prompt_cv=cv, output_cv=cv).real(seed) for seed in seeds]
            rates = np.array([delivered_tokens_per_s(simulate(each, settings, engine.step_time)) for each in asked])
            first = rates if first is None else first
            change = (None, None, None) if first is rates else _interval(rates / first - 1)
            rows.append((scheduler, cv, float(rates.mean()), *change))
    names = ["cv", "output_tokens_per_s", "change_ratio", "low_ratio", "high_ratio"]
    return pl.DataFrame(rows, schema={"scheduler": pl.String} | dict.fromkeys(names, pl.Float64), orient="row")


def delivered_tokens_per_s(simulated: Simulation) -> float:
    """Output tokens per second while a tenth to four fifths of them are delivered: no ramp and no last stragglers.

    Raises:
        DiagError: one step delivers all of these.
    """
    times, made = simulated.outcome.times[:, END_S], np.cumsum(simulated.outcome.rows[:, ROW_EMITTED], dtype=np.int64)
    order = np.argsort(times, kind="stable")
    whole = float(made[-1])
    begin_s, end_s = np.interp(
        [BEGIN_SHARE * whole, END_SHARE * whole], np.maximum.accumulate(made[order]), times[order]
    )
    if not end_s > begin_s:
        raise DiagError("the run is too short for a throughput: one step delivers most of it", hint="ask for more")
    return (END_SHARE - BEGIN_SHARE) * whole / float(end_s - begin_s)


def _row(scheduler: str, engine: Engine, traffic: Traffic, seeds: Sequence[int]) -> dict[str, object]:
    settings = engine.settings(scheduler)
    even = np.array([delivered_tokens_per_s(simulate(traffic.even(s), settings, engine.step_time)) for s in seeds])
    runs = [simulate(traffic.real(seed), settings, engine.step_time) for seed in seeds]
    real = np.array([delivered_tokens_per_s(each) for each in runs])
    decay, low, high = _interval(1 - real / even)
    waits, ledgers = [starvation(each) for each in runs], [token_ledger(each) for each in runs]
    computed = sum(each.computed_tokens for each in ledgers)
    return {
        "scheduler": scheduler,
        "even_tokens_per_s": float(even.mean()),
        "real_tokens_per_s": float(real.mean()),
        "decay_ratio": decay,
        "low_ratio": low,
        "high_ratio": high,
        "padding_ratio": sum(each.padding_tokens for each in ledgers) / computed,
        "preemption_count": float(np.mean([each.outcome.requests["preempted"].sum() for each in runs])),
        "longest_wait_s": max(each.longest_wait_s for each in waits),
        "overtaken_count": max(each.overtaken_count for each in waits),
        "starved_count": max(each.starved_count for each in waits),
        "jain_ratio": min(each.jain_ratio for each in waits),
        "seed_count": len(seeds),
    }


def _interval(values: Floats) -> tuple[float, float, float]:
    """Mean and the ends of its t interval."""
    mean = float(values.mean())
    reach = float(scipy.stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))
    return mean, mean - reach, mean + reach
