"""What an engine did while it served: rates, queue, memory use, preemptions, requests and steps in one place."""

from __future__ import annotations

from dataclasses import dataclass

import dataframely as dy
import polars as pl

from infer_diag.attribution.arrivals import Arrivals, arrivals
from infer_diag.attribution.preemptions import Preemptions, preemptions
from infer_diag.attribution.request_totals import quantile_bounds
from infer_diag.attribution.requests import request_count, request_shares, request_stats
from infer_diag.attribution.steps import (
    DecodeStall,
    HostTime,
    Recomputed,
    StepGrowth,
    decode_stall,
    host_time,
    recomputed,
    step_growth,
    step_kinds,
)
from infer_diag.attribution.streams import counted_once, totals
from infer_diag.recording import Recording
from infer_diag.results import QuantileBounds, RequestStats, SampleStats, StepKinds

_COLUMNS = {
    "output_tokens_per_s": "output_tokens_per_s",
    "prompt_tokens_per_s": "prompt_tokens_per_s",
    "running": "running_count",
    "waiting": "waiting_count",
    "kv_usage_ratio": "kv_usage_ratio",
}

_RAN = ("scheduled_s", "first_token_s", "last_token_s", "output_tokens")


@dataclass(frozen=True, eq=False)
class Serving:
    """The serving side of a recording. `window_s`: first to last stamp of the samples, null where they have none."""

    sample_count: int
    window_s: float | None
    samples: dy.DataFrame[SampleStats]
    request_count: int | None
    requests: dy.DataFrame[RequestStats]
    bounds: dy.DataFrame[QuantileBounds]
    shares: dict[str, float | None]
    arrivals: dict[int, Arrivals]
    preemptions: Preemptions
    steps: dy.DataFrame[StepKinds]
    stall: DecodeStall
    recomputed: Recomputed | None
    growth: StepGrowth | None
    host: HostTime | None


def sample_stats(recording: Recording) -> dy.DataFrame[SampleStats]:
    """First, last, least, mean and greatest value of each measure over the serving samples that have it.

    Frame in: EngineSamples. Frame out: SampleStats, without the measures that no sample has. Samples count alike
    whatever time they stand for. Several engines side by side are added up first (`streams.totals`): counts and rates
    summed, `kv_usage_ratio` averaged.
    """
    samples = counted_once(recording)
    if samples.is_empty():
        return SampleStats.create_empty()
    whole = totals(samples)
    rows = []
    for measure, column in _COLUMNS.items():
        values = whole[column].drop_nulls().cast(pl.Float64)
        if values.is_empty():
            continue
        ends = {"first": values.first(), "last": values.last(), "min": values.min()}
        rows.append({"measure": measure, **ends, "mean": values.mean(), "max": values.max()})
    return SampleStats.validate(pl.DataFrame(rows), cast=True) if rows else SampleStats.create_empty()


def window_s(recording: Recording) -> float | None:
    """Seconds from the first to the last stamp of the serving samples.

    Null without stamps, and where sources with a real date stand beside sources without one.
    """
    samples = counted_once(recording).drop_nulls("time")
    if samples.is_empty():
        return None
    dated = {recording.sources[source].dated for source in samples["source_id"].unique()}
    if len(dated) > 1:
        return None
    return float(samples.select((pl.col("time").max() - pl.col("time").min()).dt.total_microseconds()).item()) / 1e6


def serving(recording: Recording) -> Serving | None:
    """Everything that the logs tell of serving; null where they hold no sample, step, response or request that ran."""
    told = recording.incidents.filter(pl.col("kind").cast(pl.String).is_in(["response", "kv_full"]))
    ran = recording.requests.filter(pl.any_horizontal(pl.col(*_RAN).is_not_null()))
    summed = recording.request_totals
    frames = (recording.engine_samples, recording.engine_steps, recording.request_timings, summed, told, ran)
    if all(frame.is_empty() for frame in frames):
        return None
    steps = recording.engine_steps
    return Serving(
        sample_count=len(counted_once(recording)),
        window_s=window_s(recording),
        samples=sample_stats(recording),
        request_count=request_count(recording),
        requests=request_stats(recording),
        bounds=quantile_bounds(recording),
        shares=request_shares(recording),
        arrivals=arrivals(recording.requests),
        preemptions=preemptions(recording),
        steps=step_kinds(steps),
        stall=decode_stall(steps),
        recomputed=recomputed(steps),
        growth=step_growth(steps),
        host=host_time(steps),
    )
