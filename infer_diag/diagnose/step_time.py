"""Findings on what the engine's time goes into: prefill beside decode, steps that slow down, time between steps."""

from __future__ import annotations

import polars as pl

from infer_diag.attribution.serving import Serving
from infer_diag.attribution.streams import Stream
from infer_diag.diagnose.bursts import LONG_DRAIN_S
from infer_diag.diagnose.evidence import cited, ends
from infer_diag.diagnose.finding import Finding, Severity
from infer_diag.diagnose.pool import SUSTAINED_COUNT
from infer_diag.diagnose.queueing import KV_ROOM_RATIO
from infer_diag.diagnose.remedies import setting
from infer_diag.diagnose.wording import pool_use, seconds_between, spread, top
from infer_diag.recording import Recording
from infer_diag.units import format_count, format_ratio, format_s

STALL_RATIOS: tuple[tuple[float, Severity], ...] = ((0.25, "high"), (0.1, "medium"), (0.03, "low"))
"""Share of all step time that decode waits behind prefill: a quarter rules every token's latency; 3 % is noise."""
PREFILL_BOUND_RATIO = 0.5
"""Prefill takes more than everything else together."""
FULL_BATCH_RATIO = 0.95
"""The last chunk of a prompt rarely ends on the budget exactly."""
FULL_SHARE = 0.8
"""So many of the prefill batches have to be full before the budget is what limits admission."""
SLOWER_RATIO = 1.3
"""Steps at one batch size scatter by some ten per cent."""
HOST_RATIOS: tuple[tuple[float, Severity], ...] = ((0.3, "high"), (0.15, "medium"), (0.05, "low"))
"""Share of the busy time outside every step: one part in twenty is more than stamps and rounding explain."""


def prefill_starves_decode(recording: Recording, serving: Serving) -> Finding | None:
    """Requests in their output wait because their step also computes prompts (modelled against pure decode steps)."""
    stall = serving.stall
    if stall.stalled_s is None or not stall.step_s:
        return None
    share = stall.stalled_s / stall.step_s
    severity = next((grade for least, grade in STALL_RATIOS if share >= least), None)
    if severity is None:
        return None
    each_s = stall.stalled_s / stall.mixed_count
    sentence = (
        f"In {stall.mixed_count:,} mixed steps, {format_s(stall.mixed_s)} of {format_s(stall.step_s)} of step time, "
        f"requests in their output wait {format_s(stall.stalled_s)} ({format_ratio(share)}) behind prefill, "
        f"{format_s(each_s)} per step: the steps' durations less those of pure decode steps at the same batch."
    )
    rows = recording.engine_steps.filter(pl.col("kind") == "mixed").top_k(
        5, by=["duration_s", "line"], reverse=[False, True]
    )
    engine, budget = (
        recording.sources[rows["source_id"][0]].engine,
        recording.deployments["max_batch_tokens"].drop_nulls().unique(),
    )
    now = f" ({format_count(budget[0])} now)" if len(budget) == 1 else ""
    remedy = (
        f"Lower {setting(engine, 'token_budget')}{now}: each pause gets shorter and first tokens come later. Reused "
        "prefixes or prefill on replicas of its own remove the work itself."
    )
    return Finding("batching.prefill_starves_decode", severity, sentence, "modelled", cited(recording, rows), remedy)


def prefill_bound_steps(recording: Recording, serving: Serving) -> Finding | None:
    """More than half of the step time goes into prompts: pure prefill steps and what prompts add to mixed ones."""
    stall = serving.stall
    kinds = dict(serving.steps.select(pl.col("kind").cast(pl.String), "duration_s").iter_rows())
    prefill_s = kinds.get("prefill", 0.0) + (stall.stalled_s or 0.0)
    if not stall.step_s or prefill_s < PREFILL_BOUND_RATIO * stall.step_s:
        return None
    sentence = (
        f"Prompts take {format_s(prefill_s)} of {format_s(stall.step_s)} of step time "
        f"({format_ratio(prefill_s / stall.step_s)})."
    )
    rows = recording.engine_steps.filter(pl.col("kind").is_in(["prefill", "mixed"])).top_k(
        5, by=["duration_s", "line"], reverse=[False, True]
    )
    status = "modelled" if stall.stalled_s else "measured"
    return Finding("batching.prefill_bound", "medium", sentence, status, cited(recording, rows), _PREFIXES)  # type: ignore[arg-type]


def prefill_bound_batches(recording: Recording, stream: Stream) -> Finding | None:
    """Prefill batches are full to their token budget while requests wait and the KV pool has room."""
    rows = stream.samples.filter(
        (pl.col("kind") == "prefill")
        & (pl.col("waiting_count") > 0)
        & (pl.col("new_tokens") > 0)
        & (pl.col("kv_usage_ratio").fill_null(0) < KV_ROOM_RATIO)
    )
    if len(rows) < SUSTAINED_COUNT:
        return None
    largest = top(rows["new_tokens"]) or 0.0
    stated = rows["max_batch_tokens"].null_count() == 0
    budget = pl.col("max_batch_tokens") * FULL_BATCH_RATIO if stated else pl.lit(largest)
    full = rows.filter(pl.col("new_tokens") >= budget)
    if len(full) < FULL_SHARE * len(rows):
        return None
    length_s = seconds_between(full)
    severity: Severity = "medium" if length_s is not None and length_s >= LONG_DRAIN_S else "low"
    admitted = full["new_count"].drop_nulls()
    each = "" if admitted.is_empty() else f", {spread(admitted, format_count)} requests each,"
    sentence = (
        f"{len(full):,} of {len(rows):,} prefill batches with a queue are full at {format_count(largest)} "
        f"tokens{each} while {spread(full['waiting_count'], format_count)} requests wait{pool_use(full)}: the prefill "
        "budget sets the pace of admission."
    )
    remedy = (
        f"Raise {setting(stream.engine, 'token_budget')} if the device is not busy in these batches; otherwise "
        "prompts are the work, and reused prefixes or another replica shorten the queue."
    )
    evidence = cited(recording, ends(full, by="waiting_count"))
    return Finding("batching.prefill_bound", severity, sentence, "measured", evidence, remedy)


def slow_steps(recording: Recording, serving: Serving) -> Finding | None:
    """Decode steps of the same batch take longer late in the log than early."""
    growth = serving.growth
    if growth is None or growth.ratio < SLOWER_RATIO:
        return None
    sentence = (
        f"Decode steps take {growth.ratio:.3g} times as long late in the log as early at the same batch "
        f"({format_s(growth.early_s)} → {format_s(growth.late_s)} at {format_count(growth.batch_count)} requests, "
        f"{growth.step_count:,} steps compared)."
    )
    remedy = (
        "Longer contexts, a lower clock of the device and a neighbour on it all do this; the log does not tell which. "
        "Compare with the device's clock and with the contexts' lengths."
    )
    rows = recording.engine_steps.filter(
        (pl.col("kind") == "decode") & (pl.col("decode_count") == growth.batch_count)
    ).top_k(5, by=["duration_s", "line"], reverse=[False, True])
    return Finding("batching.slow_steps", "low", sentence, "measured", cited(recording, rows), remedy)


def host_stall(recording: Recording, serving: Serving) -> Finding | None:
    """One part in twenty or more of the busy time lies between the steps, beyond the error of the stamps."""
    host = serving.host
    if host is None:
        return None
    least = (host.host_s - host.error_s) / host.wall_s
    severity = next((grade for share, grade in HOST_RATIOS if least >= share), None)
    if severity is None:
        return None
    sentence = (
        f"While requests were at work, {format_s(host.host_s)} of {format_s(host.wall_s)} "
        f"({format_ratio(host.host_s / host.wall_s)}, ± {format_s(host.error_s)}) lie between the engine's steps: "
        "time of the host, not of the device."
    )
    remedy = (
        "Look at the CPU of the engine process (cores and their limit, tokenisation, structured output, logging of "
        "every step itself); overlapped scheduling hides such time."
    )
    rows = recording.engine_steps.sort("source_id", "line")
    return Finding(
        "batching.host_stall", severity, sentence, "bounded", cited(recording, ends(rows, by="duration_s"), 2), remedy
    )


_PREFIXES = "Reuse prefixes (system prompts first and unchanged), shorten prompts, or give prefill replicas of its own."
