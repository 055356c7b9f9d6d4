"""The parts of the time where the log tells statistics and no single step."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
from numpy.typing import NDArray

from infer_diag.attribution.cost.activity import BINDS_AT
from infer_diag.attribution.cost.jackknife import REFUSED_BELOW, block_jackknife, effective_count
from infer_diag.attribution.cost.stretches import sample_intervals
from infer_diag.attribution.streams import counted_once
from infer_diag.attribution.throughput_loss.rows import Row, refused, told
from infer_diag.errors import DiagError
from infer_diag.recording import Recording
from infer_diag.simulators.serving.step_fit import fitted_to_samples

Floats = NDArray[np.float64]
MAX_ERROR_RATIO = 0.2
"""Step times that miss their own statistics by more than this explain another deployment."""
MAX_LOG_RATIO = 0.2
"""The same of their sum and the busy time: several engines told as one, or much that the lines do not tell."""
LEVELS = 8
_STEPS = "needs the time of every step (--enable-logging-iteration-details) or the GPU's activity"
_NAMES = ("prefill_interference", "kv_limited", "underfill", "decode")


def of_statistics(recording: Recording) -> tuple[list[Row], float, str]:
    """(rows, whole, basis): idle by the gauges, the busy time by step times that the statistics lines are fitted to.

    Steps of a tick = output tokens / requests running; each costs its fixed time, prompt tokens and output tokens cost
    theirs. underfill = fixed time of the steps that the same tokens would not need at the sequence limit, or at the
    most that ran. Modelled, with a delete-block jackknife over the ticks.
    """
    samples = sample_intervals(recording)
    held = ((pl.col("end") - pl.col("begin")).dt.total_microseconds() / 1e6).alias("held_s")
    rows = samples.with_columns(held).filter(pl.col("kind").is_in(["interval", "scrape"]))
    whole_s = float(rows["held_s"].sum())
    known = pl.col("running_count").is_not_null() | pl.col("silent")
    idle = pl.col("silent") | ((pl.col("running_count") == 0) & (pl.col("waiting_count").fill_null(0) == 0))
    rows = rows.with_columns(idle=idle.fill_null(False), known=known)
    idle_s = float(rows.filter("idle")["held_s"].sum())
    usual_s = float(rows.filter(~pl.col("silent"))["held_s"].median() or 0.0)  # type: ignore[arg-type]
    edges = int((rows["idle"] != rows["idle"].shift(1, fill_value=False)).sum())
    error_s = edges * usual_s / 2
    found = [
        told("idle", idle_s, "measured", "gauges: nothing runs or waits", max(0.0, idle_s - error_s), idle_s + error_s),
        refused("host_stall", f"{_STEPS}; it is in the residual"),
        refused("recompute", "needs the tokens that preempted requests compute again"),
        refused("padding", "no line tells padded from real tokens"),
        refused("prefill", f"{_STEPS}; it is in prefill interference"),
    ]
    return found + _busy(recording, rows), whole_s, f"{len(samples):,} statistics lines or scrapes"


def _busy(recording: Recording, rows: pl.DataFrame) -> list[Row]:
    rated = rows.drop_nulls(["running_count", "output_tokens_per_s", "prompt_tokens_per_s"])
    rated = rated.filter((pl.col("running_count") > 0) & (pl.col("output_tokens_per_s") > 0))
    engines = rows.select(pl.struct("source_id", "replica").n_unique()).item()
    try:
        step_time = fitted_to_samples(counted_once(recording), replicas=engines)
    except DiagError as error:
        return [refused(name, str(error)) for name in _NAMES]
    if (step_time.error_ratio or 0.0) > MAX_ERROR_RATIO:
        missed = f"step times miss the statistics lines that they are fitted to by {step_time.error_ratio:.0%}"
        return [refused(name, missed) for name in _NAMES]
    limits = recording.deployments["max_running_count"].drop_nulls().unique()
    levels = rated["running_count"].n_unique()
    columns = {name: rated[name].to_numpy().astype(np.float64) for name in ("running_count", "held_s")}
    output, prompt = (
        rated[name].to_numpy() * columns["held_s"] for name in ("output_tokens_per_s", "prompt_tokens_per_s")
    )
    most = float(limits[0]) if len(limits) == 1 else float(columns["running_count"].max())
    reference = min(most, float(columns["running_count"].max()))
    spare = step_time.fixed_s * output * np.maximum(1 / columns["running_count"] - 1 / reference, 0.0)
    full = (pl.col("kv_usage_ratio") >= BINDS_AT) | (pl.col("preemption_count").fill_null(0) > 0)
    bound = rated.select((full & (pl.col("waiting_count") > 0)).fill_null(False)).to_series().to_numpy()
    decode = (step_time.fixed_s / reference + step_time.per_decode_s) * output
    each = np.stack([step_time.per_prefill_token_s * prompt, spare * bound, spare * ~bound, decode])
    busy_s = float(columns["held_s"].sum())
    if abs(math.log(max(float(each.sum()), 1e-12) / busy_s)) > MAX_LOG_RATIO:
        missed = (
            f"step times add up to {each.sum():.3g} s of {busy_s:.3g} busy seconds: the model does not explain them"
        )
        return [refused(name, missed) for name in _NAMES]
    return _rows(each, levels, most > reference, bool(rated["kv_usage_ratio"].is_null().all()), step_time.basis)


def _rows(each: Floats, levels: int, below_limit: bool, pool_unknown: bool, basis: str) -> list[Row]:
    low: list[float | None] = [None] * len(_NAMES)
    high = list(low)
    if effective_count(each.sum(axis=0)) >= REFUSED_BELOW:
        count = each.shape[1]
        _, lower, upper = block_jackknife(lambda keep: each[:, keep].sum(axis=1) * count / keep.sum(), count)
        low, high = [max(0.0, float(value)) for value in lower], [float(value) for value in upper]
    rows = []
    for index, name in enumerate(_NAMES):
        value, about = float(each[index].sum()), f"step times fitted to {basis}"
        if name in ("kv_limited", "underfill") and levels < LEVELS:
            rows.append(
                refused(name, f"running stood at {levels} levels; below {LEVELS} no curve tells a fuller batch")
            )
        elif name == "kv_limited" and pool_unknown:
            rows.append(refused(name, "needs KV use and the queue at the same instant; it is in underfill"))
        elif name == "kv_limited" or (name == "underfill" and below_limit):
            rows.append(told(name, value, "bounded", about, 0.0 if name == "kv_limited" else low[index], high[index]))
        else:
            rows.append(told(name, value, "modelled", about, low[index], high[index]))
    return rows
