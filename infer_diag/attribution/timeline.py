"""Serving over time, thinned to what a chart can show: the charts only draw what stands here."""

from __future__ import annotations

from dataclasses import dataclass

import dataframely as dy
import polars as pl

from infer_diag.attribution.quantiles import quantile
from infer_diag.recording import Recording
from infer_diag.results import StepBins, StepRates, StepSizes

_WIDTHS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
_SAMPLES_PER_POINT = 10


@dataclass(frozen=True)
class ServingTimeline:
    """What the serving chart draws: samples, and engine steps summed by interval (empty without stamped steps)."""

    samples: pl.DataFrame
    bins: pl.DataFrame
    rates: pl.DataFrame


def serving_timeline(recording: Recording, points: int = 2000) -> ServingTimeline:
    """Samples as they are and steps summed over at most `points` intervals of one common width.

    Frame in: EngineSamples, EngineSteps. Frames out: EngineSamples (means per interval and engine where there are
    more than ten rows per point), StepBins, StepRates. Widths are whole seconds, because log stamps often are; a step
    belongs to the interval of its stamp. Steps without a stamp have no place in time and are left out.
    """
    steps = _on_one_calendar(recording, recording.engine_steps).filter(pl.col("time").is_not_null())
    samples = _thinned(_on_one_calendar(recording, recording.engine_samples), points)
    if steps.is_empty():
        return ServingTimeline(samples, StepBins.create_empty(), StepRates.create_empty())
    width_s = _width_s(steps, points)
    begin = pl.col("time").dt.truncate(f"{width_s}s")
    sums = (
        steps.lazy()
        .group_by(begin.alias("begin"), "kind")
        .agg(
            step_count=pl.len().cast(pl.UInt32),
            duration_s=pl.col("duration_s").sum(),
            prefill_tokens=pl.col("prefill_tokens").cast(pl.UInt64).sum(),
            decode_tokens=pl.col("decode_tokens").cast(pl.UInt64).sum(),
        )
        .sort("begin", "kind")
        .collect()
    )
    return ServingTimeline(samples, _bins(sums, width_s), _rates(sums, width_s))


def step_sizes(steps: pl.DataFrame, ranges: int = 64) -> dy.DataFrame[StepSizes]:
    """Duration of the engine steps by kind and batch size.

    Frame in: EngineSteps. Frame out: StepSizes. Batch is `prefill_count + decode_count`, in ranges of equal width, at
    most `ranges` of them; the quantiles are linear.
    """
    busy = steps.lazy().with_columns(batch=_batch()).filter((pl.col("kind") != "idle") & (pl.col("batch") > 0))
    largest = busy.select(pl.col("batch").max()).collect().item()
    if not largest:
        return StepSizes.create_empty()
    width = -(-largest // ranges)
    duration = pl.col("duration_s")
    sizes = busy.group_by("kind", batch_count=(pl.col("batch") - 1) // width * width + 1).agg(
        step_count=pl.len().cast(pl.UInt32),
        p50_duration_s=quantile(duration, 0.5),
        p95_duration_s=quantile(duration, 0.95),
    )
    return sizes.sort("kind", "batch_count").collect().pipe(StepSizes.validate)


def _on_one_calendar(recording: Recording, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows without those of undated sources where dated ones stand beside them: one axis cannot hold both."""
    dated = [number for number, source in enumerate(recording.sources) if source.dated]
    if not dated or len(dated) == len(recording.sources):
        return rows
    real = rows.filter(pl.col("source_id").is_in(dated))
    return rows if real.is_empty() else real


def _batch() -> pl.Expr:
    return pl.col("prefill_count") + pl.col("decode_count")


def _width_s(frame: pl.DataFrame, points: int) -> int:
    first, last = frame.select(first=pl.col("time").min(), last=pl.col("time").max()).row(0)
    least = (last - first).total_seconds() / points
    return next((width for width in _WIDTHS_S if width >= least), int(-(-least // _WIDTHS_S[-1]) * _WIDTHS_S[-1]))


def _middle(width_s: int) -> pl.Expr:
    return pl.col("begin") + pl.duration(microseconds=width_s * 500_000)


def _bins(sums: pl.DataFrame, width_s: int) -> dy.DataFrame[StepBins]:
    return sums.select(
        _middle(width_s).alias("time"), pl.lit(float(width_s)).alias("width_s"), "kind", "step_count", "duration_s"
    ).pipe(StepBins.validate)


def _rates(sums: pl.DataFrame, width_s: int) -> dy.DataFrame[StepRates]:
    """Tokens per second by interval; intervals without a step stay null, so that a line breaks there."""
    per_interval = sums.group_by("begin", maintain_order=True).agg(
        prompt_tokens_per_s=pl.col("prefill_tokens").sum() / width_s,
        output_tokens_per_s=pl.col("decode_tokens").sum() / width_s,
    )
    return (
        per_interval.upsample("begin", every=f"{width_s}s")
        .select(_middle(width_s).alias("time"), "prompt_tokens_per_s", "output_tokens_per_s")
        .pipe(StepRates.validate)
    )


def _thinned(samples: pl.DataFrame, points: int) -> pl.DataFrame:
    timed = samples.filter(pl.col("time").is_not_null())
    if len(samples) <= points * _SAMPLES_PER_POINT or timed.is_empty():
        return samples
    means = [pl.col(name).mean() for name, dtype in samples.schema.items() if dtype.is_numeric() and name not in _EXACT]
    return (
        timed.with_columns(pl.col("time").dt.truncate(f"{_width_s(timed, points)}s"))
        .group_by("source_id", "replica", "kind", "time")
        .agg(*means, pl.col("line").first(), pl.col("preemption_count").sum())
        .sort("source_id", "replica", "time", "kind")
    )


_EXACT = ("source_id", "line", "preemption_count")
