"""What another token budget of a step would have saved: decode's wait behind prefill with `max_num_batched_tokens`."""

from __future__ import annotations

from dataclasses import dataclass, field

import dataframely as dy
import numpy as np
import polars as pl
from numpy.typing import NDArray

from infer_diag.attribution.cost.jackknife import REFUSED_BELOW, block_jackknife, effective_count
from infer_diag.attribution.steps import MIN_DECODE_STEPS, decode_baseline
from infer_diag.attribution.throughput_loss.frames import TokenBudgets
from infer_diag.attribution.throughput_loss.step_parts import baselines
from infer_diag.recording import Recording

Floats = NDArray[np.float64]
MIN_MIXED = 40
"""Fewer steps with both prompts and outputs give no line through their excess."""
REACH = 2.0
"""Steps larger than so many times those of the log are beyond what a line through them tells."""
_POWERS = [1 << power for power in range(5, 20)]
FULL_RATIO = 0.95
"""A step that holds this much of its budget was cut by it."""


@dataclass(frozen=True)
class BudgetWhatIf:
    """Token budgets beside each other, or a `refusal`; `error_ratio`: median error of the model on the mixed steps.

    `removable_s` is what a mixed step costs beyond the tokens of its prompts, summed: the most that any budget saves.
    """

    budgets: dy.DataFrame[TokenBudgets] = field(default_factory=TokenBudgets.create_empty)
    stalled_s: float | None = None
    removable_s: float | None = None
    error_ratio: float | None = None
    refusal: str | None = None


def token_budget_what_if(recording: Recording) -> BudgetWhatIf:
    """What decode would have waited behind prefill with other token budgets of a step. Modelled.

    Frames in: EngineSteps, Deployments. A mixed step of n prompt tokens is c0 + c1·n longer than pure decode steps at
    its batch (non-negative least squares). With a budget T a step holds T − decode requests prompt tokens: larger
    ones are cut, and neighbours that were full are joined. c1·n is the prompts' own work, which no budget removes; a
    budget changes the number of pauses, hence c0, and how long each pause is. Budgets whose steps would be smaller than
    nearly all that ran, or more than twice as large as now, are left out.
    """
    told = recording.deployments["max_batch_tokens"].drop_nulls().unique()
    steps = recording.engine_steps.sort("source_id", "replica", "line", maintain_order=True).with_row_index("place")
    mixed, decode = (
        steps.filter((pl.col("kind") == "mixed") & (pl.col("decode_count") > 0)),
        steps.filter(kind="decode"),
    )
    if len(told) != 1:
        return BudgetWhatIf(refusal="the log does not tell one token budget (max_num_batched_tokens)")
    if len(mixed) < MIN_MIXED or len(decode) < MIN_DECODE_STEPS:
        return BudgetWhatIf(refusal=f"{len(mixed)} mixed and {len(decode)} decode steps are too few for a model")
    near = baselines(decode_baseline(decode), mixed["decode_count"].to_numpy().astype(np.float64))
    kept = mixed.filter(pl.Series(near[1]))
    if len(kept) < MIN_MIXED:
        return BudgetWhatIf(refusal="the mixed steps' batches are unlike those of the pure decode steps")
    now = int(told[0])
    tokens, batch = (kept[name].to_numpy().astype(np.float64) for name in ("prefill_tokens", "decode_count"))
    runs = _Runs(tokens, batch, kept["duration_s"].to_numpy() - near[0][near[1]], _neighbours(kept), now)
    least = float(np.percentile(tokens, 5))
    budgets = [each for each in _POWERS if least <= each <= REACH * now and each != now]
    return _compared(runs, sorted([*budgets, now]), now)


@dataclass(frozen=True)
class _Runs:
    """Mixed steps: prompt tokens, batch, seconds beyond decode, and the run of full neighbours that each is in."""

    tokens: Floats
    batch: Floats
    excess_s: Floats
    run: NDArray[np.int64]
    budget: int

    def fit(self, keep: NDArray[np.bool_]) -> tuple[float, float]:
        """(c0, c1) of the kept steps."""
        from scipy.optimize import nnls

        # Plain squares, so that the model's sum is that of the log: relative errors would leave out slow steps.
        features = np.column_stack([np.ones(int(keep.sum())), self.tokens[keep]])
        scale = features.mean(axis=0)
        found, _ = nnls(features / scale, self.excess_s[keep])
        return float(found[0] / scale[0]), float(found[1] / scale[1])

    def cut(self, budget: int, keep: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """(number of steps that each run becomes, prompt tokens of the largest of them)."""
        runs, place = np.unique(self.run[keep], return_inverse=True)
        tokens = np.bincount(place, self.tokens[keep], minlength=len(runs))
        before = np.bincount(place, minlength=len(runs)).astype(np.float64)
        batch = np.bincount(place, self.batch[keep], minlength=len(runs)) / before
        room = np.maximum(budget - batch, 1.0)
        count = np.ceil(tokens / room) if budget < self.budget else np.minimum(np.ceil(tokens / room), before)
        count = before if budget == self.budget else np.maximum(count, 1.0)
        largest = np.zeros(len(runs))
        np.maximum.at(largest, place, self.tokens[keep])
        return count, largest if budget == self.budget else np.minimum(tokens, np.minimum(room, tokens))


def _neighbours(kept: pl.DataFrame) -> NDArray[np.int64]:
    """A number for each mixed step, the same for one after another of an engine."""
    apart = pl.col("place").diff() != 1
    other = (pl.col("source_id") != pl.col("source_id").shift()) | pl.col("replica").ne_missing(
        pl.col("replica").shift()
    )
    return kept.select((apart | other).fill_null(True).cum_sum()).to_series().to_numpy().astype(np.int64)


def _compared(runs: _Runs, budgets: list[int], now: int) -> BudgetWhatIf:
    full = runs.tokens + runs.batch >= FULL_RATIO * now
    # Only a step that was cut by the budget goes on in the next one; others would not be joined by a larger budget.
    begins = np.concatenate([[True], (np.diff(runs.run) != 0) | ~full[:-1]])
    runs = _Runs(runs.tokens, runs.batch, runs.excess_s, np.cumsum(begins), now)

    def saved(keep: NDArray[np.bool_]) -> Floats:
        fixed_s, _ = runs.fit(keep)
        mine = runs.cut(now, keep)[0].sum()
        scale = len(keep) / max(int(keep.sum()), 1)
        return np.array([fixed_s * (mine - runs.cut(each, keep)[0].sum()) * scale for each in budgets])

    everything = np.ones(len(runs.tokens), bool)
    fixed_s, token_s = runs.fit(everything)
    value, lower, upper = block_jackknife(saved, len(everything))
    enough = effective_count(runs.excess_s) >= REFUSED_BELOW
    stalled_s = fixed_s * len(everything) + token_s * float(runs.tokens.sum())
    rows = []
    for index, budget in enumerate(budgets):
        count, largest = runs.cut(budget, everything)
        pauses = np.repeat(fixed_s + token_s * largest, count.astype(np.int64))
        rows.append(
            {
                "max_batch_tokens": budget,
                "now": budget == now,
                "stalled_s": stalled_s - value[index],
                "saved_s": value[index],
                "low_s": lower[index] if enough else None,
                "high_s": upper[index] if enough else None,
                "p99_pause_s": float(np.percentile(pauses, 99)),
                "longest_pause_s": float(pauses.max()),
                "step_count": int(count.sum()),
            }
        )
    modelled = fixed_s + token_s * runs.tokens
    error = float(np.median(np.abs(modelled / np.maximum(runs.excess_s, 1e-9) - 1.0)))
    frame = TokenBudgets.validate(pl.DataFrame(rows, infer_schema_length=None), cast=True)
    return BudgetWhatIf(frame, float(runs.excess_s.sum()), fixed_s * len(everything), error)
