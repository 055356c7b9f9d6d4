"""A deployment's traffic through its engine, run by run of it, and what that cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from infer_diag.simulators.fleet.plan import Plan
from infer_diag.simulators.fleet.sessions import Wear, wear
from infer_diag.simulators.fleet.starts import Life, first_life, next_life
from infer_diag.simulators.fleet.traffic import traffic
from infer_diag.simulators.serving import Simulation, Workload, simulate
from infer_diag.simulators.serving.state import (
    DECODE_COUNT,
    DURATION_S,
    END_S,
    PREFILL_COUNT,
    PREFILL_TOKENS,
    ROW_CACHED,
    ROW_EMITTED,
    ROW_NEW,
    ROW_PREEMPTED,
    ROW_RUNNING,
    ROW_USED,
    ROW_WAITING,
)

Floats = NDArray[np.float64]
_STEP_COLUMNS = {
    "prefill_count": PREFILL_COUNT,
    "decode_count": DECODE_COUNT,
    "prefill_tokens": PREFILL_TOKENS,
    "cached_tokens": ROW_CACHED,
    "new_count": ROW_NEW,
    "preempted_count": ROW_PREEMPTED,
    "running_count": ROW_RUNNING,
    "waiting_count": ROW_WAITING,
    "used_blocks": ROW_USED,
    "output_tokens": ROW_EMITTED,
}
_CONTEXT_TOKENS = 5
_SHORT_S = 60.0


@dataclass(frozen=True, eq=False)
class Part:
    """One life of the engine with what it served; times are seconds since BEGIN.

    `requests`: request_id, arrival_s, scheduled_s, first_s, last_s (null where it never came), prompt_tokens,
    output_tokens (as far as they came), cached_tokens, preempted_count, done. `steps`: one row per step, up to the end.
    """

    life: Life
    requests: pl.DataFrame
    steps: pl.DataFrame
    pool_blocks: int | None
    wear: Wear | None = None


@dataclass(frozen=True, eq=False)
class Run:
    """A deployment as it ran, and the plan of it with the causes that were at work."""

    plan: Plan
    parts: tuple[Part, ...]

    @property
    def held_gpu_s(self) -> float:
        """GPU-seconds from acquired to released, within the logs."""
        return sum(part.life.ended_s - begin for part, begin in zip(self.parts, self._begins, strict=True)) * self._gpus

    @property
    def cold_gpu_s(self) -> float:
        """Of these, before the engine was ready."""
        return (
            sum(
                min(part.life.ready_s, part.life.ended_s) - begin
                for part, begin in zip(self.parts, self._begins, strict=True)
            )
            * self._gpus
        )

    @property
    def idle_gpu_s(self) -> float:
        """Ready, with no step under way and nothing waiting."""
        ready_s = sum(max(part.life.ended_s - part.life.ready_s, 0.0) for part in self.parts)
        busy_s = sum(float(part.steps["duration_s"].sum()) for part in self.parts)
        return max(ready_s - busy_s, 0.0) * self._gpus

    @property
    def output_tokens(self) -> int:
        """Delivered: of requests that came to their end."""
        return sum(int(part.requests.filter("done")["output_tokens"].sum()) for part in self.parts)

    @property
    def log_cost(self) -> float:
        """ln of $ per 1M delivered output tokens, p·H/Y."""
        return math.log(self.plan.price_per_gpu_h * self.held_gpu_s / 3600 / self.output_tokens * 1e6)

    @property
    def _gpus(self) -> int:
        return self.plan.gpu_count

    @property
    def _begins(self) -> list[float]:
        """A container that starts again in its pod has held the GPU since the one before it ended."""
        begins = [part.life.acquired_s for part in self.parts]
        return [
            self.parts[number - 1].life.ended_s if part.life.restart else begins[number]
            for number, part in enumerate(self.parts)
        ]


def run(plan: Plan) -> Run:
    """The deployment as planned, causes included that the plan already carries. Simulated."""
    asked = traffic(plan)
    parts: list[Part] = []
    life: Life | None = first_life(plan)
    while life is not None:
        parts.append(_part(plan, asked, life))
        life = next_life(plan, parts[-1].life, len(parts))
    return Run(plan, tuple(parts))


def _part(plan: Plan, asked: Workload, life: Life) -> Part:
    mine = (asked.arrival_s >= life.ready_s) & (asked.arrival_s < life.closes_s)
    if not mine.any():
        return Part(life, _NO_REQUESTS, _NO_STEPS, None)
    here = asked.where(mine)
    shifted = replace(here, arrival_s=here.arrival_s - life.ready_s, deadline_s=here.deadline_s - life.ready_s)
    done = simulate(shifted, plan.settings(), plan.step_time(), sample_every_s=_SHORT_S)
    worn = wear(plan, done, life) if plan.session_cache_ratio else None
    if worn is not None and worn.failed_s is not None:
        life = replace(life, ended_s=worn.failed_s, closes_s=worn.failed_s, ends="oom")
    return Part(life, _requests(done, life), _steps(done, life), done.outcome.pool_blocks, worn)


_NO_REQUESTS = pl.DataFrame(
    schema={
        "request_id": pl.String,
        "arrival_s": pl.Float64,
        "scheduled_s": pl.Float64,
        "first_s": pl.Float64,
        "last_s": pl.Float64,
        "prompt_tokens": pl.Int64,
        "output_tokens": pl.Int64,
        "cached_tokens": pl.Int64,
        "preempted_count": pl.Int64,
        "done": pl.Boolean,
    }
)
_NO_STEPS = pl.DataFrame(
    schema={
        "end_s": pl.Float64,
        "duration_s": pl.Float64,
        **dict.fromkeys([*_STEP_COLUMNS, "context_tokens"], pl.Int32),
    }
)


def _requests(done: Simulation, life: Life) -> pl.DataFrame:
    told = done.requests
    moved = told.select(
        "request_id",
        *((pl.col(name) + life.ready_s).alias(name) for name in ("arrival_s", "scheduled_s")),
        (pl.col("first_token_s") + life.ready_s).alias("first_s"),
        (pl.col("last_token_s") + life.ready_s).alias("last_s"),
        *(pl.col(name).cast(pl.Int64) for name in ("prompt_tokens", "output_tokens", "cached_tokens")),
        pl.col("preemption_count").cast(pl.Int64).alias("preempted_count"),
        (pl.col("finish_reason") != "refused").fill_null(True).alias("fits"),
    ).filter(pl.col("fits") & (pl.col("arrival_s") < life.ended_s))
    ended = (pl.col("last_s") <= life.ended_s).fill_null(False)
    spent = (life.ended_s - pl.col("first_s")) / (pl.col("last_s") - pl.col("first_s"))
    came = pl.when(pl.col("first_s") > life.ended_s).then(0).otherwise(1 + (pl.col("output_tokens") - 1) * spent)
    late = [
        pl.when(pl.col(name) <= life.ended_s).then(name).alias(name) for name in ("scheduled_s", "first_s", "last_s")
    ]
    return (
        moved.with_columns(
            pl.when(ended).then("output_tokens").otherwise(came.floor().cast(pl.Int64)).alias("output_tokens"),
            done=ended,
        )
        .with_columns(late)
        .select(_NO_REQUESTS.columns)
    )


def _steps(done: Simulation, life: Life) -> pl.DataFrame:
    times, rows = done.outcome.times, done.outcome.rows
    upto = int(np.searchsorted(times[:, END_S] + life.ready_s, life.ended_s, side="right"))
    frame = {"end_s": times[:upto, END_S] + life.ready_s, "duration_s": times[:upto, DURATION_S]}
    return pl.DataFrame(
        {
            **frame,
            **{name: rows[:upto, column] for name, column in _STEP_COLUMNS.items()},
            "context_tokens": rows[:upto, _CONTEXT_TOKENS],
        }
    )


def ticks(part: Part, every_s: float, origin_s: float | None = None) -> pl.DataFrame:
    """What the engine's counters say every so often: one row per tick from `origin_s` (when it was ready) to its end.

    Gauges are as of the last step that ended; `*_tokens`, `preempted_count` and `cached_tokens` are sums since then.
    """
    begin_s = part.life.ready_s if origin_s is None else origin_s
    at = np.arange(begin_s + every_s, part.life.ended_s, every_s)
    steps = part.steps
    place = np.searchsorted(steps["end_s"].to_numpy(), at, side="right")
    columns: dict[str, NDArray[np.float64] | NDArray[np.int64]] = {"at_s": at}
    for name in ("running_count", "waiting_count", "used_blocks"):
        columns[name] = np.where(place > 0, steps[name].to_numpy()[np.maximum(place - 1, 0)] if len(steps) else 0, 0)
    for name in ("output_tokens", "prefill_tokens", "preempted_count", "cached_tokens"):
        columns[name] = np.concatenate([[0], np.cumsum(steps[name].to_numpy(), dtype=np.int64)])[place]
    columns["step_count"] = place
    return pl.DataFrame(columns)
