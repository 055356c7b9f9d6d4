"""What the engine did while it was ready: idle or busy, at which batch, with memory binding or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import polars as pl

from infer_diag.attribution.cost.batch_sampling import step_variance
from infer_diag.attribution.cost.holds import Hold
from infer_diag.attribution.cost.in_flight import batches
from infer_diag.attribution.cost.lanes import Lanes
from infer_diag.attribution.cost.ready_time import ready_intervals, told_stretches
from infer_diag.attribution.cost.spread import merged, overlaps, spread, uncovered, window_of
from infer_diag.recording import Recording

BINDS_AT = 0.95
"""KV use from which a queue waits for memory and not for a slot."""
_STREAM = ("source_id", "replica", "lane")


@dataclass(frozen=True, eq=False)
class Activity:
    """Window rows of what the logs tell, and how much of the ready time they cover.

    `windows`: `window` and columns of CostWindows. `covered_gpu_s` of `ready_gpu_s` was observed. `basis`: what tells
    idle from busy; `of_requests`: their intervals do, which tell of all replicas together.
    """

    windows: pl.DataFrame
    ready_gpu_s: float
    covered_gpu_s: float
    basis: str | None
    steps_timed: bool
    source_ids: tuple[int, ...] = field(default=())
    of_requests: bool = False


def activity(recording: Recording, told: Lanes, found: Sequence[Hold], first: datetime, width: int) -> Activity:
    """Idle, step time, batch and binding memory by window.

    Frames in: EngineSamples, EngineSteps, Requests. Idle is told by the engine's gauges; a log that prints while it
    works is silent while it is idle, a scrape that is missing tells nothing. Without gauges the requests' own intervals
    tell. A window's batch is Σ decode tokens / Σ steps, the harmonic one that the step time obeys.
    """
    ready = ready_intervals(found)
    ready_gpu_s = float(ready.select(_gpu_seconds().sum()).item() or 0.0)
    pieces = told_stretches(recording, told, found)
    if not pieces.is_empty():
        covered = float(pieces.select(_gpu_seconds().sum()).item() or 0.0)
        windows = _sampled(pieces, first, width)
        basis, sources = "gauges of the engine", pieces["source_id"].unique().sort().to_list()
    elif (busy := _request_intervals(recording)).height:
        windows, covered = _requested(recording, busy, ready, first, width)
        told_batches = batches(recording, told, ready["lane"].n_unique(), first, width)
        windows = windows.join(told_batches, on="window", how="full", coalesce=True)
        basis = "intervals of the requests"
        sources = recording.requests["source_id"].unique().sort().to_list()
    else:
        windows, covered, basis, sources = pl.DataFrame(schema={"window": pl.Int64}), 0.0, None, []
    steps = _stepped(recording, found, first, width)
    if not steps.is_empty():
        windows = windows.drop("decode_tokens", "prefill_tokens", "step_count", "step_variance_count", strict=False)
        windows = windows.join(steps, on="window", how="full", coalesce=True)
    timed, of_requests = not steps.is_empty(), pieces.is_empty()
    return Activity(windows, ready_gpu_s, min(covered, ready_gpu_s), basis, timed, tuple(sources), of_requests)


def _gpu_seconds() -> pl.Expr:
    return (pl.col("end") - pl.col("begin")).dt.total_microseconds() / 1e6 * pl.col("gpu_count")


def _sampled(pieces: pl.DataFrame, first: datetime, width: int) -> pl.DataFrame:
    lanes = pl.col("lane_count")
    # A prefill batch counts what runs beside its own sequences.
    begun = pl.when(pl.col("kind").cast(pl.String) == "prefill").then("new_count").fill_null(0)
    running = (pl.col("running_count").fill_null(0) + begun.fill_null(0)) / lanes
    waiting = pl.col("waiting_count").fill_null(0) / lanes
    known = pl.col("running_count").is_not_null() | pl.col("silent")
    full = (pl.col("kv_usage_ratio") >= BINDS_AT) | (pl.col("preemption_count").fill_null(0) > 0)
    rows = pieces.with_columns(
        running=running,
        waiting=waiting,
        busy=known & ~pl.col("silent") & ((running > 0) | (waiting > 0)),
        bound=(waiting > 0) & full.fill_null(False),
    )
    each = spread(
        rows.with_columns(whole_s=(pl.col("end") - pl.col("begin")).dt.total_microseconds() / 1e6), first, width
    )
    gpu_s = pl.col("seconds") * pl.col("gpu_count")
    busy_s, bound_s = pl.col("seconds").filter("busy").sum(), pl.col("seconds").filter("busy", "bound").sum()
    told = each.group_by("window").agg(
        idle_gpu_s=gpu_s.filter(known & ~pl.col("busy")).sum(),
        unknown_s=pl.col("seconds").filter(~known).sum(),
        running_count=(pl.col("running") * pl.col("seconds")).filter("busy").sum() / busy_s,
        waiting_count=(pl.col("waiting") * pl.col("seconds")).filter("busy", "bound").sum() / bound_s,
        bound_ratio=bound_s / busy_s,
        context_ratio=(pl.col("kv_usage_ratio") / pl.col("running") * pl.col("seconds"))
        .filter(pl.col("busy") & (pl.col("running") > 0))
        .sum()
        / pl.col("seconds").filter(pl.col("busy") & (pl.col("running") > 0)).sum(),
    )
    means = ("running_count", "waiting_count", "bound_ratio", "context_ratio")
    told = told.with_columns(pl.col(means).fill_nan(None)).with_columns(pl.col("bound_ratio").clip(0.0, 1.0))
    return told.join(_rated(pieces, first, width), on="window", how="full", coalesce=True)


def _rated(pieces: pl.DataFrame, first: datetime, width: int) -> pl.DataFrame:
    """Tokens by the printed rates: each is of the stretch before its line.

    A gauge tells the batch at its line and not over the stretch: `step_variance_count` is how far that is off.
    """
    lanes = pl.col("lane_count")
    tokens = pl.col("output_tokens_per_s") * pl.col("rate_s").fill_null(0.0) / lanes
    prompts = pl.coalesce("new_tokens", pl.col("prompt_tokens_per_s") * pl.col("rate_s").fill_null(0.0)) / lanes
    batch = pl.when(pl.col("running_count") > 0).then(pl.col("running_count") / lanes)
    told = pieces.filter(
        "rated", pl.any_horizontal(pl.col("output_tokens_per_s", "prompt_tokens_per_s", "new_tokens").is_not_null())
    ).with_columns(tokens=tokens, prompts=prompts, steps=tokens / batch, stream=pl.struct(_STREAM))
    works = (pl.col("tokens") > 0) & pl.col("steps").is_not_null()
    working = told.filter(works).sort("stream", "time", "line")
    working = working.with_columns(step_variance(working).alias("variance"))
    return (
        pl.concat([working, told.filter(~works.fill_null(False))], how="diagonal")
        .with_columns(window_of(pl.col("time"), first, width))
        .group_by("window")
        .agg(
            decode_tokens=_known_sum("tokens"),
            prefill_tokens=_known_sum("prompts"),
            step_count=_known_sum("steps"),
            step_variance_count=pl.col("variance").sum(),
        )
    )


def _known_sum(name: str) -> pl.Expr:
    """A sum of what is known; null, and no zero, where nothing is."""
    return pl.when(pl.col(name).count() > 0).then(pl.col(name).sum())


def _request_intervals(recording: Recording) -> pl.DataFrame:
    rows = []
    for source_id, part in recording.requests.partition_by("source_id", as_dict=True).items():
        zero = recording.first_time or recording.sources[source_id[0]].first_time
        if zero is not None:
            at = [(pl.lit(zero) + pl.duration(microseconds=(pl.col(name) * 1e6).round())) for name in ("_b", "_e")]
            began = pl.coalesce("scheduled_s", "queued_s", "arrival_s")
            rows.append(
                part.with_columns(_b=began, _e="last_token_s").drop_nulls(["_b", "_e"]).select(begin=at[0], end=at[1])
            )
    # A finished request's own time, less what it waited, says when it was at work.
    lasted = pl.duration(microseconds=((pl.col("e2e_s") - pl.col("queue_s").fill_null(0.0)) * 1e6).round())
    ended = recording.request_timings.drop_nulls(["time", "e2e_s"])
    rows.append(ended.select(begin=pl.col("time") - lasted, end="time"))
    return merged(pl.concat(rows))


def _requested(
    recording: Recording, busy: pl.DataFrame, ready: pl.DataFrame, first: datetime, width: int
) -> tuple[pl.DataFrame, float]:
    """Idle time between requests, and the GPU-seconds over which the sources of requests tell of them at all."""
    asked = pl.concat([recording.requests.select("source_id"), recording.request_timings.select("source_id")])
    sources = [recording.sources[source_id] for source_id in asked["source_id"].unique().sort()]
    spans = pl.DataFrame(
        [(source.first_time, source.last_time) for source in sources if source.first_time and source.last_time],
        schema={"begin": busy.schema["begin"], "end": busy.schema["end"]},
        orient="row",
    )
    told = overlaps(merged(spans), ready) if len(spans) else ready.clear()
    covered = float(told.select(_gpu_seconds().sum()).item() or 0.0)
    free = uncovered(merged(told), busy) if len(told) else told.select("begin", "end")
    idle = pl.concat([overlaps(free, ready).with_columns(weight=1), told.with_columns(weight=0)], how="diagonal")
    each = spread(idle, first, width)
    gpu_s = pl.col("seconds") * pl.col("gpu_count") * pl.col("weight")
    return each.group_by("window").agg(idle_gpu_s=gpu_s.sum()), covered


def _stepped(recording: Recording, found: Sequence[Hold], first: datetime, width: int) -> pl.DataFrame:
    steps = recording.engine_steps.drop_nulls("time").filter(pl.col("kind") != "idle")
    if steps.is_empty() or not found:
        return pl.DataFrame()
    gpus = found[0].gpu_count
    decodes = pl.col("decode_count") > 0
    return (
        steps.with_columns(window_of(pl.col("time"), first, width))
        .group_by("window")
        .agg(
            step_gpu_s=pl.col("duration_s").sum() * gpus,
            decode_tokens=pl.col("decode_tokens").cast(pl.Float64).sum(),
            prefill_tokens=pl.col("prefill_tokens").cast(pl.Float64).sum(),
            step_count=decodes.cast(pl.Float64).sum(),
        )
    )
