"""What an engine's statistics would say every so many seconds of a simulated run."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from infer_diag.simulators.serving.state import (
    END_S,
    REPLICA,
    ROW_EMITTED,
    ROW_PREEMPTED,
    ROW_RUNNING,
    ROW_SWAPPED,
    ROW_USED,
    ROW_WAITING,
    Floats,
    Ints,
    Outcome,
)


def sampled(outcome: Outcome, every_s: float) -> pl.DataFrame:
    """One row per engine and tick: counts as of the last step that ended, rates over the time since the tick before.

    Prompt tokens count when the prompt's first output comes, those found in the cache with them, as vLLM counts them.
    """
    end_s = float(outcome.times[-1, END_S])
    ticks = np.arange(1, max(1, int(np.ceil(end_s / every_s))) + 1, dtype=np.float64) * every_s
    engines = range(int(outcome.rows[:, REPLICA].max()) + 1)
    return pl.concat([_of_engine(outcome, engine, ticks, every_s) for engine in engines]).sort("at_s", "engine")


def _of_engine(outcome: Outcome, engine: int, ticks: Floats, every_s: float) -> pl.DataFrame:
    mine = outcome.rows[:, REPLICA] == engine
    rows = outcome.rows[mine]
    ended = np.searchsorted(outcome.times[mine, END_S], ticks, side="right")

    def now(column: int) -> NDArray[np.int32]:
        return np.where(ended > 0, rows[np.maximum(ended - 1, 0), column], 0)

    def added(column: int) -> Ints:
        return _per_tick(rows[:, column], ended)

    fared = outcome.requests
    own = np.flatnonzero((fared["replica"] == engine) & ~np.isnan(fared["first_s"]))
    own = own[np.argsort(fared["first_s"][own], kind="stable")]
    begun = np.searchsorted(fared["first_s"][own], ticks, side="right")
    prompt, found = _per_tick(fared["prompt"][own], begun), _per_tick(fared["cached"][own], begun)
    used = now(ROW_USED) / outcome.pool_blocks if outcome.pool_blocks else np.full(len(ticks), np.nan)
    return pl.DataFrame(
        {
            "at_s": ticks,
            "engine": np.full(len(ticks), engine, np.int32),
            "running_count": now(ROW_RUNNING),
            "waiting_count": now(ROW_WAITING),
            "swapped_count": now(ROW_SWAPPED),
            "kv_usage_ratio": used,
            "prompt_tokens_per_s": prompt / every_s,
            "output_tokens_per_s": added(ROW_EMITTED) / every_s,
            "preemption_count": added(ROW_PREEMPTED),
            "prefix_hit_ratio": np.divide(found, prompt, out=np.full(len(ticks), np.nan), where=prompt > 0),
        }
    ).with_columns(pl.col("kv_usage_ratio", "prefix_hit_ratio").fill_nan(None))


def _per_tick(values: NDArray[np.int32] | Ints, until: Ints) -> Ints:
    """Sums of the values between one tick and the next, where `until` counts those up to each tick."""
    whole = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])[until]
    return np.diff(whole, prepend=0)
