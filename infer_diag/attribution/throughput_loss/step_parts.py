"""What engine steps spent their time on, in parts that add up to it exactly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from infer_diag.attribution.cost.jackknife import REFUSED_BELOW, block_jackknife, effective_count
from infer_diag.attribution.steps import (
    BATCH_TOLERANCE_COUNT,
    BATCH_TOLERANCE_RATIO,
    MIN_DECODE_STEPS,
    RARE_RATIO,
    decode_baseline,
)

Floats = NDArray[np.float64]
LEVELS = 8
"""Batch sizes that decode has to have run at before its cost at another one means anything."""
CHUNKS = 64
"""Stretches of the log whose share of mixed steps says how many independent ones there are."""
NAMES = ("idle", "prefill", "prefill_interference", "recompute", "kv_limited", "underfill", "decode")


@dataclass(frozen=True)
class StepParts:
    """Seconds of each part of the steps with the ends of its interval (null: the log is too short for one).

    `kv_high_s`: `kv_limited` against the sequence limit where no step reached it, along a line through the baselines.
    `reasons`: parts that these steps cannot tell, and why; their seconds are in `decode`. `reference_count`: the batch
    that underfill is measured against; `limit_reached` is false where no step ran at the engine's limit.
    """

    seconds: dict[str, float]
    low: dict[str, float | None]
    high: dict[str, float | None]
    reasons: dict[str, str]
    reference_count: int
    limit_reached: bool
    kv_high_s: float | None = None


def step_parts(steps: pl.DataFrame, limit_count: int | None) -> StepParts:
    """The time of steps by part: interference and recompute against pure decode steps, underfill against a full batch.

    Frame in: EngineSteps with `bound` (memory binds) and `queued` (requests wait), null where nothing tells. Modelled:
    the baseline of a batch size is the median of its pure decode steps; underfill of a step of b requests =
    baseline(b) − b/B · baseline(B) with B the sequence limit, or the largest batch that ran. The interval is that of a
    delete-block jackknife over 8 stretches, the baselines recomputed without each.
    """
    arrays = _arrays(steps)
    reasons: dict[str, str] = {}
    reference = _reference(steps, limit_count, reasons)
    if not _few_surplus(arrays):
        reasons["recompute"] = "most steps compute more than one output token a request, as speculative decoding does"

    def parts(keep: NDArray[np.bool_]) -> Floats:
        return _parts(arrays, steps, keep, reference, reasons)

    everything = np.ones(len(steps), bool)
    seconds = parts(everything)
    low, high = _interval(parts, arrays, seconds, float(arrays["spent"].sum()))
    told = [name for name in NAMES if name not in reasons]
    return StepParts(
        dict(zip(NAMES, map(float, seconds), strict=True)),
        {name: low[NAMES.index(name)] if low is not None else None for name in told},
        {name: high[NAMES.index(name)] if high is not None else None for name in told},
        reasons,
        reference,
        limit_count is not None and reference >= limit_count,
        _beyond(arrays, steps, limit_count, reference),
    )


def _beyond(arrays: dict[str, Floats], steps: pl.DataFrame, limit_count: int | None, reference: int) -> float | None:
    """`kv_limited` against the limit, up to twice the largest batch that ran; null where that was reached."""
    if not reference or limit_count is None or limit_count <= reference:
        return None
    curve, wanted = decode_baseline(steps.filter(kind="decode")), min(limit_count, 2 * reference)
    sizes, seconds = curve["decode_count"].to_numpy().astype(np.float64), curve["baseline_s"].to_numpy()
    slope, fixed = np.polyfit(sizes, seconds, 1)
    memory = (np.nan_to_num(arrays["bound"]) > 0) & (arrays["kind"] >= 2)
    batch = arrays["decode_count"][memory]
    lost = baselines(curve, batch)[0] - batch / wanted * max(fixed + slope * wanted, float(seconds.max()))
    return float(np.maximum(lost, 0.0).sum())


def _arrays(steps: pl.DataFrame) -> dict[str, NDArray[np.float64]]:
    number = {name: pl.col(name).cast(pl.Float64) for name in ("prefill_tokens", "decode_tokens", "decode_count")}
    kind = (
        pl.col("kind")
        .cast(pl.String)
        .replace_strict({"idle": 0, "prefill": 1, "decode": 2, "mixed": 3}, return_dtype=pl.Float64)
    )
    told = steps.select(kind=kind, spent="duration_s", bound=pl.col("bound").cast(pl.Float64), **number)
    return {name: told[name].to_numpy() for name in told.columns}


def _reference(steps: pl.DataFrame, limit_count: int | None, reasons: dict[str, str]) -> int:
    """The batch that underfill is measured against, 0 and a reason where the baselines are too few."""
    decode = steps.filter(kind="decode")
    levels = decode_baseline(decode)["decode_count"].to_list() if len(decode) else []
    if len(decode) < MIN_DECODE_STEPS:
        for name in ("prefill_interference", "kv_limited", "underfill"):
            reasons[name] = f"{len(decode)} pure decode steps are too few to compare with"
        return 0
    if len(levels) < LEVELS:
        for name in ("kv_limited", "underfill"):
            reasons[name] = f"decode ran at {len(levels)} batch sizes; below {LEVELS} no curve tells a fuller batch"
        return 0
    largest = int(max(levels))
    if steps["bound"].is_null().all():
        reasons["kv_limited"] = "needs KV use and the queue at the same instant; it is in underfill"
    return min(largest, limit_count) if limit_count else largest


def _few_surplus(arrays: dict[str, Floats]) -> bool:
    decoding = arrays["decode_count"] > 0
    surplus = (arrays["decode_tokens"] > arrays["decode_count"]) & decoding
    return bool(surplus.sum() <= RARE_RATIO * max(int(decoding.sum()), 1))


def _parts(
    arrays: dict[str, Floats], steps: pl.DataFrame, keep: NDArray[np.bool_], reference: int, reasons: dict[str, str]
) -> Floats:
    """Seconds of NAMES over the kept steps; they add up to the kept steps' time."""
    kind, spent, batch = (arrays[name][keep] for name in ("kind", "spent", "decode_count"))
    found = dict.fromkeys(NAMES, 0.0)
    found["idle"], found["prefill"] = float(spent[kind == 0].sum()), float(spent[kind == 1].sum())
    decoding = kind >= 2
    found["decode"] = float(spent[decoding].sum())
    curve = decode_baseline(steps.filter(pl.Series(keep) & (pl.col("kind") == "decode"))) if decoding.any() else None
    if curve is None or curve.is_empty() or "prefill_interference" in reasons:
        return np.array([found[name] for name in NAMES])
    base, near = baselines(curve, batch)
    surplus = np.maximum(arrays["decode_tokens"][keep] - batch, 0.0) * ("recompute" not in reasons)
    beyond = np.where(decoding & near & ((kind == 3) | (surplus > 0)), spent - base, 0.0)
    again = np.divide(surplus, surplus + arrays["prefill_tokens"][keep], out=np.zeros_like(surplus), where=surplus > 0)
    found["recompute"] = max(0.0, float((beyond * again).sum()))
    found["prefill_interference"] = max(0.0, float((beyond * (1 - again)).sum()))
    found["decode"] -= found["recompute"] + found["prefill_interference"]
    if reference and "underfill" not in reasons:
        whole = baselines(curve, np.array([float(reference)]))[0][0]
        lost = np.maximum(base - batch / reference * whole, 0.0) * (decoding & (batch < reference))
        memory = np.nan_to_num(arrays["bound"][keep]) > 0
        found["kv_limited"], found["underfill"] = float(lost[memory].sum()), float(lost[~memory].sum())
        found["decode"] -= found["kv_limited"] + found["underfill"]
    return np.array([found[name] for name in NAMES])


def baselines(curve: pl.DataFrame, batch: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """(median duration of pure decode steps at the nearest batch size, whether that is near enough)."""
    sizes, seconds = curve["decode_count"].to_numpy().astype(np.float64), curve["baseline_s"].to_numpy()
    after = np.clip(np.searchsorted(sizes, batch), 0, len(sizes) - 1)
    before = np.maximum(after - 1, 0)
    nearest = np.where(np.abs(sizes[before] - batch) < np.abs(sizes[after] - batch), before, after)
    tolerance = np.maximum(batch * BATCH_TOLERANCE_RATIO, BATCH_TOLERANCE_COUNT)
    return seconds[nearest], np.abs(sizes[nearest] - batch) <= tolerance


def _interval(
    parts: Callable[[NDArray[np.bool_]], Floats], arrays: dict[str, Floats], seconds: Floats, whole_s: float
) -> tuple[list[float] | None, list[float] | None]:
    """Ends of the parts' intervals; none where the log holds fewer than 10 independent stretches."""
    spent, mixed = arrays["spent"], np.where(arrays["kind"] == 3, arrays["spent"], 0.0)
    if len(spent) < 4 * CHUNKS or not whole_s:
        return None, None
    sums = [[each.sum() for each in np.array_split(values, CHUNKS)] for values in (mixed, spent)]
    shares = np.array(sums[0]) / np.maximum(np.array(sums[1]), 1e-12)
    if effective_count(shares) < REFUSED_BELOW:
        return None, None

    def shares_of(keep: NDArray[np.bool_]) -> Floats:
        found: Floats = parts(keep) / max(float(spent[keep].sum()), 1e-12)
        return found

    _, lower, upper = block_jackknife(shares_of, len(spent))
    return list(np.maximum(lower, 0.0) * whole_s), list(np.minimum(upper, 1.0) * whole_s)
