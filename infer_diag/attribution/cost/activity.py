"""What the engine did while it was ready: idle or busy, at which batch, with memory binding or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import polars as pl

from infer_diag.attribution.cost.batch_sampling import step_variance
from infer_diag.attribution.cost.holds import Hold
from infer_diag.attribution.cost.spread import SPACINGS, merged, overlaps, spread, uncovered, window_of
from infer_diag.attribution.quantiles import median
from infer_diag.attribution.streams import counted_once
from infer_diag.recording import Recording

BINDS_AT = 0.95
"""KV use from which a queue waits for memory and not for a slot."""
_INTERVAL: dict[str, pl.DataType | type[pl.DataType]] = {
    "begin": pl.Datetime("us", "UTC"),
    "end": pl.Datetime("us", "UTC"),
}


@dataclass(frozen=True, eq=False)
class Activity:
    """Window rows of what the logs tell, and how much of the ready time they cover.

    `windows`: `window` and columns of CostWindows. `covered_gpu_s` of `ready_gpu_s` was observed. `basis`: what tells
    idle from busy.
    """

    windows: pl.DataFrame
    ready_gpu_s: float
    covered_gpu_s: float
    basis: str | None
    steps_timed: bool
    source_ids: tuple[int, ...] = field(default=())


def ready_intervals(found: Sequence[Hold]) -> pl.DataFrame:
    """`begin`, `end`, `gpu_count`, `source_id` and `replica` of every hold that came up ready."""
    rows = [(h.ready, h.end, h.gpu_count, h.source_id, h.replica) for h in found if h.ready is not None]
    kinds: dict[str, pl.DataType | type[pl.DataType]] = {
        **_INTERVAL,
        "gpu_count": pl.Int64,
        "hold_source": pl.UInt32,
        "hold_replica": pl.String,
    }
    return pl.DataFrame(rows, schema=kinds, orient="row")


def activity(recording: Recording, found: Sequence[Hold], first: datetime, width: int) -> Activity:
    """Idle, step time, batch and binding memory by window.

    Frames in: EngineSamples, EngineSteps, Requests. Idle is told by the engine's gauges; a log that prints while it
    works is silent while it is idle, a scrape that is missing tells nothing. Without gauges the requests' own intervals
    tell. A window's batch is Σ decode tokens / Σ steps, the harmonic one that the step time obeys.
    """
    ready = ready_intervals(found)
    ready_gpu_s = float(ready.select(_gpu_seconds().sum()).item() or 0.0)
    samples = sample_intervals(recording)
    if not samples.is_empty():
        pieces = _on_holds(samples, ready)
        covered = float(pieces.select(_gpu_seconds().sum()).item() or 0.0)
        told = _sampled(pieces, first, width)
        basis, sources = "gauges of the engine", samples["source_id"].unique().sort().to_list()
    elif (busy := _request_intervals(recording)).height:
        told, covered, basis = _requested(busy, ready, first, width), ready_gpu_s, "intervals of the requests"
        sources = recording.requests["source_id"].unique().sort().to_list()
    else:
        told, covered, basis, sources = pl.DataFrame(schema={"window": pl.Int64}), 0.0, None, []
    steps = _stepped(recording, found, first, width)
    if not steps.is_empty():
        told = told.drop("decode_tokens", "prefill_tokens", "step_count", "step_variance_count", strict=False)
        told = told.join(steps, on="window", how="full", coalesce=True)
    return Activity(told, ready_gpu_s, min(covered, ready_gpu_s), basis, not steps.is_empty(), tuple(sources))


@@ONHOLDS@@
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
    lines = pieces.filter(~pl.col("silent")).unique(["source_id", "line", "replica"], keep="first", maintain_order=True)
    tokens = pl.col("output_tokens_per_s") * pl.col("rate_s").fill_null(0.0)
    prompts = pl.coalesce("new_tokens", pl.col("prompt_tokens_per_s") * pl.col("rate_s").fill_null(0.0))
    batch = pl.when(pl.col("running_count") > 0).then(pl.col("running_count") / pl.col("lane_count"))
    told = lines.filter(
        pl.any_horizontal(pl.col("output_tokens_per_s", "prompt_tokens_per_s", "new_tokens").is_not_null())
    )
    told = told.sort("source_id", "replica", "time", "line").with_columns(
        tokens=tokens, prompts=prompts, steps=tokens / batch, stream=pl.struct("source_id", "replica")
    )
    working = told.filter((pl.col("tokens") > 0) & pl.col("steps").is_not_null())
    squares = working.select("source_id", "line", "replica", square=step_variance(working))
    told = told.join(squares, on=["source_id", "line", "replica"], how="left", nulls_equal=True)
    return (
        told.with_columns(window_of(pl.col("time"), first, width))
        .group_by("window")
        .agg(
            decode_tokens=pl.col("tokens").sum(),
            prefill_tokens=pl.col("prompts").sum(),
            step_count=pl.col("steps").sum(),
            step_variance_count=pl.col("square").sum(),
            cached_computed=pl.col("cached_tokens").cast(pl.Float64).sum(),
        )
        .drop("cached_computed")
    )


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


def _requested(busy: pl.DataFrame, ready: pl.DataFrame, first: datetime, width: int) -> pl.DataFrame:
    free = uncovered(merged(ready), busy) if not ready.is_empty() else ready.select("begin", "end")
    each = spread(overlaps(free, ready), first, width)
    return each.group_by("window").agg(idle_gpu_s=(pl.col("seconds") * pl.col("gpu_count")).sum())


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
