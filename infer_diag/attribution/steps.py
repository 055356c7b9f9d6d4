"""What the engine's steps are spent on: kinds, decode that waits behind prefill, steps that slow down, host time.

Every function groups before it compares, so millions of steps cost a few passes over their columns and no copy of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import dataframely as dy
import polars as pl

from infer_diag.attribution.quantiles import median
from infer_diag.results import StepKinds

MIN_DECODE_STEPS = 20
"""Fewer pure decode steps than this give no baseline that a single slow one could not move."""
MIN_AT_BATCH = 3
"""A batch size with fewer decode steps has no median of its own; the nearest size that has one is taken."""
BATCH_TOLERANCE_RATIO = 0.25
"""How far the nearest decode batch may lie from the mixed step's: a decode step costs a + b·batch with a the larger."""
BATCH_TOLERANCE_COUNT = 4
"""The same for small batches, in requests."""
MIN_COVERED_RATIO = 0.8
"""Share of the mixed step time that needs a comparable decode batch before a sum over it means anything."""
RARE_RATIO = 0.2
"""Speculative decoding shows in most steps, preemption in few."""
MIN_STEPS_TO_COMPARE = 10
"""Steps of one batch size that the early and the late third each need for a comparison."""
GAP_S = 2.0
"""Stamps of one second cannot tell a shorter pause between steps from none."""
MIN_STRETCH_S = 30.0
"""Shorter busy stretches have too large an error from their two one-second edges."""
MIN_BUSY_COUNT = 4
"""With so many requests in a step, all of them ending there and leaving the engine idle is unlikely."""
TICK_S = 1.0
"""Stamps of most engines are whole seconds."""
_KINDS = ("prefill", "decode", "mixed", "idle")


@dataclass(frozen=True)
class DecodeStall:
    """Decode time spent waiting behind prefill in the same steps.

    `stalled_s` is null with a `reason` where the log's own decode steps give no baseline. `waited_s` counts it once per
    waiting request (request-seconds). `covered_s` is the part of `mixed_s` that has a comparable decode batch.
    """

    step_s: float
    mixed_s: float
    mixed_count: int
    decode_count: int
    stalled_s: float | None = None
    waited_s: float | None = None
    covered_s: float = 0.0
    reason: str | None = None


@dataclass(frozen=True)
class StepGrowth:
    """Decode steps of equal batch: `ratio` is the last third of the log over the first."""

    ratio: float
    step_count: int
    batch_count: int
    early_s: float
    late_s: float


@dataclass(frozen=True)
class Recomputed:
    """Tokens that requests in their output compute beyond one each, in `step_count` of `busy_count` steps."""

    tokens: int
    decode_tokens: int
    step_count: int
    busy_count: int


@dataclass(frozen=True)
class HostTime:
    """Wall clock of busy stretches that no step covers; the true value lies within `error_s` of `host_s`."""

    wall_s: float
    host_s: float
    error_s: float


def step_kinds(steps: pl.DataFrame) -> dy.DataFrame[StepKinds]:
    """Number, duration, tokens and mean batch of each kind of step that occurs, with its longest steps as evidence.

    Frame in: EngineSteps. Frame out: StepKinds; the durations add up to that of all steps.
    """
    if steps.is_empty():
        return StepKinds.create_empty()
    batch = pl.col("prefill_count").cast(pl.Int64) + pl.col("decode_count")
    summed = steps.group_by("kind").agg(
        pl.len().alias("step_count"),
        pl.col("duration_s").sum(),
        pl.col("prefill_tokens", "decode_tokens").cast(pl.UInt64).sum(),
        mean_batch_count=batch.mean(),
    )
    cited = pl.concat([_longest(steps, kind) for kind in summed["kind"].cast(pl.String)])
    joined = summed.with_columns(pl.col("kind").cast(pl.String)).join(cited, on="kind")
    return StepKinds.validate(joined.sort(pl.col("kind").cast(pl.Enum(_KINDS))), cast=True)


def decode_stall(steps: pl.DataFrame) -> DecodeStall:
    """Seconds by which requests in their output waited because a step also computed prompts.

    Frame in: EngineSteps. Per mixed step: its duration − the median duration of pure decode steps at the nearest batch
    size, summed over the steps whose nearest size is within a quarter (or 4 requests) of their own.
    """
    mixed = steps.filter((pl.col("kind") == "mixed") & (pl.col("decode_count") > 0))
    by_batch = (
        mixed.group_by("decode_count").agg(pl.len().alias("count"), pl.col("duration_s").sum()).sort("decode_count")
    )
    decode = steps.filter(kind="decode")
    told = DecodeStall(
        step_s=float(steps["duration_s"].sum()),
        mixed_s=float(by_batch["duration_s"].sum()),
        mixed_count=len(mixed),
        decode_count=len(decode),
    )
    if mixed.is_empty():
        return _refused(told, "no step computes prompts and outputs together")
    if len(decode) < MIN_DECODE_STEPS:
        return _refused(told, f"only {len(decode)} pure decode steps to compare with")
    return _stalled(told, by_batch, decode)


def decode_baseline(decode: pl.DataFrame) -> pl.DataFrame:
    """Median duration of pure decode steps per batch size: `decode_count`, `baseline_s`, sorted.

    Frame in: EngineSteps of kind decode. Sizes with fewer than 3 steps are left out where others have more.
    """
    sizes = decode.group_by("decode_count").agg(
        pl.len().alias("count"), median(pl.col("duration_s")).alias("baseline_s")
    )
    frequent = sizes.filter(pl.col("count") >= MIN_AT_BATCH)
    chosen = sizes if frequent.is_empty() else frequent
    return chosen.select("decode_count", "baseline_s").sort("decode_count")


def step_growth(steps: pl.DataFrame) -> StepGrowth | None:
    """How much longer decode steps take late in the log than early at the same batch size; null without enough of them.

    Frame in: EngineSteps. Per engine and batch size: median of the last third of its decode steps over that of the
    first third; the ratio is their geometric mean, weighted by the steps compared. Contexts that grow, a clock that
    drops and a neighbour on the device all do this, so the ratio is measured and its cause is not.
    """
    decode = steps.lazy().filter(pl.col("kind") == "decode").sort("source_id", "line")
    engine = ["source_id", "replica"]
    third = (pl.int_range(pl.len()).over(engine) * 3) // pl.len().over(engine)
    sizes = (
        decode.with_columns(third=third)
        .group_by(*engine, "decode_count")
        .agg(
            early=(pl.col("third") == 0).sum(),
            late=(pl.col("third") == 2).sum(),
            early_s=median(pl.col("duration_s").filter(pl.col("third") == 0)),
            late_s=median(pl.col("duration_s").filter(pl.col("third") == 2)),
        )
        .filter(
            (pl.min_horizontal("early", "late") >= MIN_STEPS_TO_COMPARE)
            & (pl.col("early_s") > 0)
            & (pl.col("late_s") > 0)
        )
        .with_columns(weight=pl.min_horizontal("early", "late"))
        .sort("weight", "decode_count", descending=True)
        .collect()
    )
    if sizes.is_empty():
        return None
    weight = pl.col("weight")
    log_ratio = ((pl.col("late_s") / pl.col("early_s")).log() * weight).sum() / weight.sum()
    most = sizes.row(0, named=True)
    return StepGrowth(
        ratio=float(sizes.select(log_ratio.exp()).item()),
        step_count=int(sizes.select(weight.sum() * 2).item()),
        batch_count=most["decode_count"],
        early_s=most["early_s"],
        late_s=most["late_s"],
    )


def recomputed(steps: pl.DataFrame) -> Recomputed | None:
    """Work of preempted requests that is done again; null where no step shows it or the engine guesses tokens ahead.

    Frame in: EngineSteps. A request in its output computes one token a step; vLLM counts the tokens that a preempted
    one computes again as output tokens too. Speculative decoding computes several in nearly every step, so a surplus
    in more than one step of five is not taken for recomputation.
    """
    decoding = steps.lazy().filter(pl.col("decode_count") > 0)
    surplus = pl.col("decode_tokens").cast(pl.Int64) - pl.col("decode_count")
    told = decoding.select(
        tokens=surplus.filter(surplus > 0).sum(),
        decode_tokens=pl.col("decode_tokens").cast(pl.Int64).sum(),
        step_count=(surplus > 0).sum(),
        busy_count=pl.len(),
    ).collect()
    found = Recomputed(*(int(each or 0) for each in told.row(0)))
    return found if 0 < found.step_count <= RARE_RATIO * found.busy_count else None


def host_time(steps: pl.DataFrame) -> HostTime | None:
    """Time between steps while several requests were at work, from stamped steps; null without long enough stretches.

    Frame in: EngineSteps. Stretch: consecutive steps of an engine with 4 requests or more each whose stamps lie at most
    2 s apart, at least 30 s long. host = (last − first stamp) − the durations of all its steps but the first; the error
    is the tick of one second that the two stamps may have.
    """
    engine = ["source_id", "replica"]
    busy = pl.col("prefill_count").cast(pl.Int64) + pl.col("decode_count") >= MIN_BUSY_COUNT
    pause_s = pl.col("time").diff().over(engine).dt.total_microseconds() / 1e6
    stretches = (
        steps.lazy()
        .drop_nulls("time")
        .sort("source_id", "line")
        .with_columns(busy=busy, stretch=((pause_s > GAP_S).fill_null(False) | ~busy).cum_sum().over(engine))
        .filter("busy")
        .group_by(*engine, "stretch")
        .agg(
            wall_s=(pl.col("time").last() - pl.col("time").first()).dt.total_microseconds() / 1e6,
            inside_s=pl.col("duration_s").sum() - pl.col("duration_s").first(),
        )
        .filter(pl.col("wall_s") >= MIN_STRETCH_S)
        .collect()
    )
    if stretches.is_empty():
        return None
    wall_s, inside_s = float(stretches["wall_s"].sum()), float(stretches["inside_s"].sum())
    return HostTime(wall_s, wall_s - inside_s, error_s=TICK_S * len(stretches))


def _longest(steps: pl.DataFrame, kind: str) -> pl.DataFrame:
    keys = ["duration_s", "source_id", "line"]
    of_kind = steps.lazy().filter(pl.col("kind") == kind).select(keys)
    # The third longest duration first: a sort by three keys of millions of rows costs ten times as much.
    longest = of_kind.filter(pl.col("duration_s") >= pl.col("duration_s").top_k(3).min())
    top = longest.sort(keys, descending=[True, False, False]).head(3).collect()
    source = top["source_id"][0]
    return pl.DataFrame(
        {"kind": [kind], "source_id": [source], "lines": [top.filter(source_id=source)["line"].to_list()]},
        schema={"kind": pl.String, "source_id": pl.UInt32, "lines": pl.List(pl.UInt32)},
    )


def _refused(told: DecodeStall, reason: str) -> DecodeStall:
    return DecodeStall(told.step_s, told.mixed_s, told.mixed_count, told.decode_count, reason=reason)


def _stalled(told: DecodeStall, by_batch: pl.DataFrame, decode: pl.DataFrame) -> DecodeStall:
    near = by_batch.with_columns(pl.col("decode_count").cast(pl.Int64)).join_asof(
        decode_baseline(decode).select(pl.col("decode_count").cast(pl.Int64), "baseline_s", batch="decode_count"),
        on="decode_count",
        strategy="nearest",
    )
    tolerance = pl.max_horizontal(pl.col("decode_count") * BATCH_TOLERANCE_RATIO, pl.lit(float(BATCH_TOLERANCE_COUNT)))
    covered = near.filter((pl.col("decode_count") - pl.col("batch").cast(pl.Int64)).abs() <= tolerance)
    covered_s = float(covered["duration_s"].sum())
    if covered_s < MIN_COVERED_RATIO * told.mixed_s:
        return _refused(told, "the mixed steps' batches are unlike those of the pure decode steps")
    excess = pl.col("duration_s") - pl.col("count") * pl.col("baseline_s")
    sums = covered.select(stalled_s=excess.sum(), waited_s=(excess * pl.col("decode_count")).sum()).row(0)
    stalled_s, waited_s = (max(0.0, float(each)) for each in sums)
    return DecodeStall(told.step_s, told.mixed_s, told.mixed_count, told.decode_count, stalled_s, waited_s, covered_s)
