"""A simulated run as frames: Requests, EngineSteps, EngineSamples and Deployments, as loaders give them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

import numpy as np
import polars as pl

from infer_diag import schema
from infer_diag.recording import Recording, Source
from infer_diag.simulators.serving.samples import sampled
from infer_diag.simulators.serving.settings import EngineSettings
from infer_diag.simulators.serving.state import (
    CONTEXT_TOKENS,
    DECODE_COUNT,
    DECODE_TOKENS,
    DURATION_S,
    END_S,
    PREFILL_COUNT,
    PREFILL_TOKENS,
    REPLICA,
    ROW_OUTPUTS,
    Floats,
    Outcome,
)
from infer_diag.simulators.serving.step_time import StepTime
from infer_diag.simulators.serving.workload import Workload

_FIELDS = {
    "queued_s": "queued_s",
    "scheduled_s": "scheduled_s",
    "first_token_s": "first_s",
    "last_token_s": "last_s",
    "cached_tokens": "cached",
    "output_tokens": "emitted",
    "preemption_count": "preempted",
}

BEGIN = datetime(2000, 1, 1, tzinfo=UTC)
"""Second 0 of every simulation."""


@dataclass(frozen=True, eq=False)
class Simulation:
    """A simulated run: what was asked, of which engine, with which step times, and what came of it.

    `recording` has the frames that a log of the run would give; its one source says that they are simulated. `fits` is
    false for requests that the engine refused. `outcome` has the served ones alone, in their order.
    """

    asked: Workload
    fits: np.ndarray[tuple[int], np.dtype[np.bool_]]
    outcome: Outcome
    settings: EngineSettings
    step_time: StepTime
    sample_every_s: float

    @cached_property
    def recording(self) -> Recording:
        """The frames of the run."""
        source = Source(
            path=f"simulated {self.settings.scheduler}",
            format="simulated",
            engine=f"simulated {self.settings.scheduler}",
            notes=(f"simulated; step times are {self.step_time.origin}: {self.step_time.basis}",),
        )
        return Recording(
            sources=(source,),
            requests=self.requests,
            engine_steps=self.engine_steps,
            engine_samples=self.engine_samples,
            deployments=self.deployments,
        )

    def features(self) -> Floats:
        """Per step and engine: prompt tokens (and recomputed ones), requests in their output, tokens of context."""
        rows = self.outcome.rows.astype(np.float64)
        computed = rows[:, PREFILL_TOKENS] + rows[:, DECODE_TOKENS]
        return np.column_stack([computed - rows[:, ROW_OUTPUTS], rows[:, ROW_OUTPUTS], rows[:, CONTEXT_TOKENS]])

    @cached_property
    def requests(self) -> pl.DataFrame:
        """Frame out: Requests. `queued_s` is when the engine takes a request in, at the end of a step."""
        fared = self.outcome.requests
        served = {name: np.ascontiguousarray(fared[field]) for name, field in _FIELDS.items()}
        asked = pl.DataFrame(
            {
                "request_id": self.asked.request_ids,
                "arrival_s": self.asked.arrival_s,
                "prompt_tokens": self.asked.prompt_tokens,
                "fits": self.fits,
                "row": np.cumsum(self.fits) - 1,
            }
        )
        frame = asked.join(pl.DataFrame(served).with_row_index("row"), on="row", how="left", maintain_order="left")
        absent = [pl.when("fits").then(pl.col(name)).alias(name) for name in served]
        frame = frame.with_columns(absent).with_columns(
            pl.col("queued_s", "scheduled_s", "first_token_s", "last_token_s").fill_nan(None)
        )
        reason = pl.when(~pl.col("fits")).then(pl.lit("refused")).when(pl.col("last_token_s").is_not_null())
        return _conformed(frame.with_columns(finish_reason=reason.then(pl.lit("length"))), schema.Requests)

    @cached_property
    def engine_steps(self) -> pl.DataFrame:
        """Frame out: EngineSteps; `time` is the end of a step."""
        times, rows = self.outcome.times, self.outcome.rows
        prefill, decode = pl.col("prefill_count") > 0, pl.col("decode_count") > 0
        kind = pl.when(prefill & decode).then(pl.lit("mixed")).when(prefill).then(pl.lit("prefill"))
        frame = pl.DataFrame(
            {
                "prefill_count": rows[:, PREFILL_COUNT],
                "decode_count": rows[:, DECODE_COUNT],
                "prefill_tokens": rows[:, PREFILL_TOKENS],
                "decode_tokens": rows[:, DECODE_TOKENS],
                "duration_s": times[:, DURATION_S],
            }
        ).with_columns(kind=kind.otherwise(pl.lit("decode")), time=moments(times[:, END_S]))
        return _conformed(frame.with_columns(replica=self._replicas(rows[:, REPLICA])), schema.EngineSteps)

    @cached_property
    def engine_samples(self) -> pl.DataFrame:
        """Frame out: EngineSamples of kind interval, one per engine and `sample_every_s` seconds."""
        frame = sampled(self.outcome, self.sample_every_s)
        told = frame.with_columns(
            time=moments(frame["at_s"].to_numpy()),
            replica=self._replicas(frame["engine"].to_numpy()),
            kind=pl.lit("interval"),
        )
        return _conformed(told, schema.EngineSamples)

    @cached_property
    def deployments(self) -> pl.DataFrame:
        """Frame out: Deployments, one row."""
        settings = self.settings
        row = {
            "model": None,
            "engine": f"simulated {settings.scheduler}",
            "kv_cache_tokens": settings.kv_cache_tokens,
            "max_running_count": settings.max_num_seqs if settings.continuous else settings.batch_size,
            "max_batch_tokens": settings.max_num_batched_tokens if settings.continuous else None,
        }
        return _conformed(pl.DataFrame([row]), schema.Deployments)

    def _replicas(self, engines: np.ndarray[tuple[int], np.dtype[np.int32]]) -> pl.Series:
        if self.settings.data_parallel_size == 1:
            return pl.Series([None] * len(engines), dtype=pl.String)
        return pl.select(pl.format("DP{}", pl.Series(engines))).to_series()


def moments(seconds: Floats) -> pl.Series:
    """Times of seconds since the simulation began."""
    us = pl.Series(np.rint(seconds * 1e6).astype(np.int64))
    return (us + int(BEGIN.timestamp() * 1e6)).cast(pl.Datetime("us", "UTC"))


def _conformed(frame: pl.DataFrame, target: type) -> pl.DataFrame:
    """The frame with the columns and types of its schema; rows are numbered as lines."""
    columns = target.columns()  # type: ignore[attr-defined]
    numbered = frame.with_columns(pl.lit(0).alias("source_id"), pl.int_range(1, pl.len() + 1).alias("line"))
    absent = [pl.lit(None).alias(name) for name in columns if name not in numbered.columns]
    numbered = numbered.with_columns(absent)
    found: pl.DataFrame = target.validate(numbered.select(list(columns)), cast=True)  # type: ignore[attr-defined]
    return found
