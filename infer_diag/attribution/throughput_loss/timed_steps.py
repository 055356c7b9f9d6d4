"""The parts of the time where the log tells every engine step."""

from __future__ import annotations

from datetime import timedelta

import polars as pl

from infer_diag.attribution.clock_steps import SET_BACK_US
from infer_diag.attribution.cost.activity import BINDS_AT
from infer_diag.attribution.cost.stretches import sample_intervals
from infer_diag.attribution.intervals import MICROSECONDS, clock_tick
from infer_diag.attribution.steps import host_time
from infer_diag.attribution.streams import counted_once
from infer_diag.attribution.throughput_loss.padding import Padding, padding
from infer_diag.attribution.throughput_loss.rows import Row, refused, told
from infer_diag.attribution.throughput_loss.step_parts import StepParts, step_parts
from infer_diag.recording import Recording
from infer_diag.units import format_s

OVERLAP_RATIO = 0.02
"""Steps that last longer than their stamps span, by more than rounding, ran at once: no time lies between them."""
PAUSE_S = 30.0
"""A longer time without a step is idle, or missing from the log, unless gauges tell that requests were at work."""
_PURE = "against the median of pure decode steps at the same batch"
_NEEDS = {
    "prefill_interference": _PURE,
    "recompute": "output tokens beyond one a request, which vLLM counts so when it computes a request again, " + _PURE,
    "kv_limited": "slots left empty while requests wait and the KV pool is full; nothing tells how many would fill it",
    "underfill": "steps with fewer requests than {count}, at the cost per token that they have there",
}


def of_steps(recording: Recording) -> tuple[list[Row], float, str]:
    """(rows, whole, basis): the steps' own durations by part, and what lies between them as idle or host time."""
    steps, no_stamps = _on_one_clock(recording.engine_steps.sort("source_id", "line"))
    steps = _with_memory(recording, steps)
    limits = recording.deployments["max_running_count"].drop_nulls().unique()
    parts = step_parts(steps, int(limits[0]) if len(limits) == 1 else None)
    spent_s = float(steps["duration_s"].sum())
    rows = [*_modelled(parts, _counts_again(recording)), *_padding(padding(recording), parts)]
    gap_s, tick_s = _between(steps)
    if gap_s is not None and gap_s < -max(tick_s, OVERLAP_RATIO * spent_s):
        no_stamps = f"the steps last {format_s(-gap_s)} longer than their stamps span, so they overlap"
        gap_s = None
    if gap_s is None:
        rows += [refused("idle", no_stamps), refused("host_stall", no_stamps)]
        return rows, spent_s, f"the steps' own durations; {no_stamps}"
    rows += _gaps(recording, steps, gap_s, tick_s, parts.seconds["idle"])
    return rows, spent_s + gap_s, f"{len(steps):,} engine steps and their stamps"


def _on_one_clock(steps: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """(the steps, without stamps where these go back by more than buffers do; why they have none)."""
    stamped = steps.drop_nulls("time")
    back = (pl.col("time").cum_max() - pl.col("time")).over("source_id", "replica").dt.total_microseconds().max()
    back_us = stamped.select(back).item() or 0
    if len(stamped) == len(steps) and back_us <= SET_BACK_US:
        return steps, ""
    why = "not all of the steps have stamps" if len(stamped) else "the steps have no stamps"
    if back_us > SET_BACK_US:
        why = f"the steps' stamps go back by {format_s(back_us / MICROSECONDS)}"
    return steps.with_columns(time=pl.lit(None, steps.schema["time"])), why


def _with_memory(recording: Recording, steps: pl.DataFrame) -> pl.DataFrame:
    """The steps with `bound`: whether the last sample before them shows a queue in front of a full pool."""
    told_by = counted_once(recording).drop_nulls(["time", "waiting_count", "kv_usage_ratio"]).sort("time")
    if told_by.is_empty() or steps["time"].null_count() == len(steps):
        return steps.with_columns(bound=pl.lit(None, pl.Boolean))
    full = (pl.col("kv_usage_ratio") >= BINDS_AT) | (pl.col("preemption_count").fill_null(0) > 0)
    states = told_by.group_by("time").agg(bound=((pl.col("waiting_count") > 0) & full).any()).sort("time")
    placed = steps.with_row_index("place").sort("time")
    # A statistics line tells of the moment at which it is printed: steps up to it belong to it.
    joined = placed.join_asof(states, on="time", strategy="forward")
    return joined.sort("place").drop("place")


def _counts_again(recording: Recording) -> bool:
    """Whether every engine counts the tokens of a preempted request that it computes again as output tokens."""
    engines = {recording.sources[source].engine for source in recording.engine_steps["source_id"].unique()}
    return all(engine == "vllm" or engine.startswith("simulated") for engine in engines)


def _modelled(parts: StepParts, counts_again: bool) -> list[Row]:
    seconds = parts.seconds
    rows = []
    for name, basis in _NEEDS.items():
        if name in parts.reasons:
            rows.append(refused(name, parts.reasons[name]))
            continue
        if name == "recompute" and not counts_again and not seconds[name]:
            rows.append(refused(name, "the steps do not tell tokens that preempted requests compute again"))
            continue
        bounded, low = name == "kv_limited", parts.low[name]
        about = basis.format(count=parts.reference_count)
        if name == "underfill" and not parts.limit_reached:
            about += ", the most that ran; a fuller batch was never seen, so this is a lower bound"
            bounded = True
        high = parts.high[name]
        if name == "kv_limited" and parts.kv_high_s is not None:
            high = max(high or 0.0, parts.kv_high_s)
        status = "measured" if name == "recompute" and not seconds[name] else "bounded" if bounded else "modelled"
        low = 0.0 if name == "kv_limited" else low
        rows.append(told(name, seconds[name], status, about, low, high))
    return rows


def _padding(found: Padding | str, parts: StepParts) -> list[Row]:
    """Padding is a part of prompt and decode steps, which lose it."""
    prompts, prefill_s, decode_s = "steps that compute prompts alone", parts.seconds["prefill"], parts.seconds["decode"]
    rest = "decode steps and the decode in mixed ones, less the parts above"
    if isinstance(found, str):
        prefill = told("prefill", prefill_s, "measured", prompts)
        return [prefill, refused("padding", found), told("decode", decode_s, "modelled", rest)]
    basis = f"{found.ratio:.1%} of the computed tokens are padding, at the steps' own time per token"
    # Slots that no request ever had are underfill; only the rest of decode is shared with padded rows.
    of_prompts, of_outputs = found.prompt_ratio * prefill_s, found.output_ratio * decode_s
    return [
        told("padding", of_prompts + of_outputs, "measured", basis),
        told("prefill", prefill_s - of_prompts, "measured", f"{prompts}, less padding"),
        told("decode", decode_s - of_outputs, "modelled", rest),
    ]


def _between(steps: pl.DataFrame) -> tuple[float | None, float]:
    """(seconds that no step covers from the begin of each engine's first step to the end of its last, tick)."""
    if steps["time"].null_count():
        return None, 0.0
    spans = steps.group_by("source_id", "replica").agg(
        wall_s=(pl.col("time").max() - pl.col("time").min()).dt.total_microseconds() / 1e6,
        first_s=pl.col("duration_s").first(),
        spent_s=pl.col("duration_s").sum(),
    )
    times = steps["time"].dt.timestamp("us").head(100_000).to_list()
    tick_s = clock_tick(times) / MICROSECONDS * len(spans)
    gap_s = float(spans.select((pl.col("wall_s") + pl.col("first_s") - pl.col("spent_s")).sum()).item())
    return gap_s, tick_s


def _gaps(recording: Recording, steps: pl.DataFrame, gap_s: float, tick_s: float, idle_steps_s: float) -> list[Row]:
    """Idle and host time between the steps, each with what tells it; together where nothing tells them apart."""
    gauged, host = _idle_by_gauges(recording, steps), host_time(steps)
    if gauged is None and host is None:
        low, high = (max(0.0, each) + idle_steps_s for each in (gap_s - tick_s, gap_s + tick_s))
        basis = "time that no step covers; idle and host are not told apart without gauges or long busy stretches"
        return [
            refused("idle", "needs the number of running and waiting requests; it is in idle or host"),
            refused("host_stall", "needs stamps over 30 s of busy steps; it is in idle or host"),
            told("idle_or_host", max(0.0, gap_s) + idle_steps_s, "bounded", basis, low, high),
        ]
    if gauged is not None:
        idle_s, error_s = min(gauged[0], max(gap_s, 0.0)), gauged[1]
        left = gap_s - idle_s - _untold_s(recording, steps)
        basis = "time between steps while requests were at work"
        ends = max(0.0, idle_s - error_s), min(idle_s + error_s, max(gap_s, 0.0) + tick_s) + idle_steps_s
        return [
            told("idle", idle_s + idle_steps_s, "measured", "gauges: nothing runs or waits", *ends),
            told("host_stall", max(left, 0.0), "bounded", *_ends(basis, max(left, 0.0), error_s + tick_s)),
        ]
    assert host is not None
    busy_s = min(max(host.host_s, 0.0), max(gap_s, 0.0))
    left = max(gap_s - busy_s, 0.0)
    basis = f"time between the steps of busy stretches of {host.wall_s:.0f} s together"
    return [
        told("host_stall", busy_s, "bounded", *_ends(basis, busy_s, host.error_s)),
        told(
            "idle",
            left + idle_steps_s,
            "bounded",
            *_ends("what no step and no host time covers", left, host.error_s + tick_s),
        ),
    ]


def _untold_s(recording: Recording, steps: pl.DataFrame) -> float:
    """Seconds of long pauses between steps in which no gauge tells either: lines are missing, or the clock leapt."""
    engine = ("source_id", "replica")
    begin = pl.col("time").shift(1).over(engine)
    lasted = pl.duration(microseconds=pl.col("duration_s") * MICROSECONDS)
    pauses = steps.select(pause_end=pl.col("time") - lasted, pause_begin=begin).drop_nulls()
    pauses = pauses.filter(
        (pl.col("pause_end") - pl.col("pause_begin")).dt.total_microseconds() > PAUSE_S * MICROSECONDS
    )
    if pauses.is_empty():
        return 0.0
    known = sample_intervals(recording).filter(pl.col("kind").is_in(["interval", "scrape"]))
    told = pauses.with_row_index("pause").join_where(
        known.select("begin", "end"), pl.col("begin") < pl.col("pause_end"), pl.col("end") > pl.col("pause_begin")
    )
    inside = pl.min_horizontal("end", "pause_end") - pl.max_horizontal("begin", "pause_begin")
    covered = told.group_by("pause").agg(told_us=inside.dt.total_microseconds().sum())
    whole_us = (pl.col("pause_end") - pl.col("pause_begin")).dt.total_microseconds()
    left = pauses.with_row_index("pause").join(covered, on="pause", how="left")
    return float(left.select((whole_us - pl.col("told_us").fill_null(0)).clip(0).sum()).item()) / MICROSECONDS


def _ends(basis: str, value: float, error_s: float) -> tuple[str, float, float]:
    return basis, max(0.0, value - error_s), value + error_s


def _idle_by_gauges(recording: Recording, steps: pl.DataFrame) -> tuple[float, float] | None:
    """(idle seconds within the steps' window, error of a sample's spacing at each edge); null without gauges."""
    samples = sample_intervals(recording)
    known = samples.filter(
        (pl.col("running_count").is_not_null() & pl.col("waiting_count").is_not_null()) | pl.col("silent")
    )
    known = known.filter(pl.col("kind").is_in(["interval", "scrape"]))
    if len(known) < 2:
        return None
    first, last = steps["time"].min(), steps["time"].max()
    inside = known.with_columns(pl.max_horizontal("begin", pl.lit(first)), pl.min_horizontal("end", pl.lit(last)))
    inside = inside.filter(pl.col("end") > pl.col("begin")).sort("source_id", "replica", "begin")
    idle = ((pl.col("running_count") == 0) & (pl.col("waiting_count") == 0)) | pl.col("silent")
    rows = inside.with_columns(idle=idle.fill_null(False), held=pl.col("end") - pl.col("begin"))
    spacing = rows.filter(~pl.col("silent"))["held"].median()
    edges = int((rows["idle"] != rows["idle"].shift(1, fill_value=False)).sum())
    spacing_s = spacing.total_seconds() if isinstance(spacing, timedelta) else 0.0
    return float(rows.filter("idle").select(pl.col("held").sum().dt.total_microseconds()).item() or 0) / 1e6, (
        edges * spacing_s / 2
    )
