"""Step times fitted to what an engine did: from its steps, from its statistics, or from the times of its requests.

Every fit is a non-negative least squares on relative errors, with large residuals weighted down (a stalled step, a
preemption at another place than in the model), so that one stall does not turn the line; a fit to steps is then scaled
so that its sums are those of the log, stalls included. Source of the solver: Lawson and Hanson, "Solving Least Squares
Problems", 1974, as scipy has it.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from infer_diag.errors import DiagError
from infer_diag.simulators.serving.step_time import StepScatter, StepTime

Floats = NDArray[np.float64]
MIN_EQUATIONS = 20
"""Fewer observations than this per fit tell little about four numbers."""
MIN_RUNNING = 2.0
"""A tick with fewer requests at work is mostly edges."""
_ROUNDS = 20
_HOST = "load a log with iteration lines (--enable-logging-iteration-details), or per-request events"


def fitted_to_steps(steps: pl.DataFrame, *, prefix_hits: bool = False) -> StepTime:
    """Step time from the engine's own steps: fixed + prompt tokens + requests in their output + pairs. Fitted.

    Frame in: EngineSteps. Pairs of prompt tokens = tokens² / (2 · prompts), as of equal whole prompts; with
    `prefix_hits` an unknown part of each prompt comes before what a step computes, and no pairs are fitted. Steps do
    not tell their context, so its share of the time lies in the other parts. Of steps with and of steps without prompts
    the modelled durations add up to the logged ones, as far as non-negative parts allow it.

    Raises:
        DiagError: fewer than 20 steps with a duration.
    """
    told = _timed(steps)
    if len(told) < MIN_EQUATIONS:
        raise DiagError(f"{len(told)} engine steps with a duration are too few for a fit", hint=_HOST)
    features, seconds = _of_steps(told), told["duration_s"].to_numpy()
    if prefix_hits:
        features[:, 3] = 0.0
    parts, error = solved(features, seconds)
    fixed_s, prefill_s, decode_s, pair_s = _summed_right(features, seconds, np.array(parts))
    basis = f"{len(told):,} engine steps"
    return StepTime(
        fixed_s,
        prefill_s,
        decode_s,
        per_pair_s=pair_s,
        origin="fitted",
        basis=basis,
        error_ratio=error,
        fitted_count=len(told),
    )


def step_scatter(steps: pl.DataFrame, step_time: StepTime) -> StepScatter:
    """How the steps of a log scatter around a step time: duration − modelled, in order, of each kind. Measured.

    Frame in: EngineSteps, in order. A kind without a step does not scatter.
    """
    told = _timed(steps)
    features = _of_steps(told)
    more_s = told["duration_s"].to_numpy() - step_time.seconds(features[:, 1], features[:, 2], 0.0, features[:, 3])
    prompts = features[:, 1] > 0
    return StepScatter(*(more_s[kind] if kind.any() else np.zeros(1) for kind in (~prompts, prompts)))


def _timed(steps: pl.DataFrame) -> pl.DataFrame:
    return steps.filter((pl.col("duration_s") > 0) & (pl.col("kind") != "idle"))


def _of_steps(told: pl.DataFrame) -> Floats:
    """1, prompt tokens and those computed again, requests in their output, and pairs of prompt tokens of each step."""
    prompts = told["prefill_tokens"].to_numpy().astype(np.float64)
    again = (told["decode_tokens"].cast(pl.Int64) - told["decode_count"]).clip(0).to_numpy().astype(np.float64)
    count = np.maximum(told["prefill_count"].to_numpy(), 1)
    pairs = prompts**2 / (2 * count) + again**2 / 2
    decode = told["decode_count"].to_numpy().astype(np.float64)
    return np.column_stack([np.ones(len(told)), prompts + again, decode, pairs])


def _summed_right(features: Floats, seconds: Floats, parts: Floats) -> list[float]:
    """The parts, scaled so that the sums of steps without and of steps with prompts are those of the log."""
    prompts = features[:, 1] > 0
    decode = features * [1.0, 0.0, 1.0, 0.0] @ parts
    work = features * [0.0, 1.0, 0.0, 1.0] @ parts
    alone = ~prompts if (~prompts).any() else prompts
    slow = seconds[alone].sum() / max((decode + work)[alone].sum(), 1e-300)
    left_s = seconds[prompts].sum() - slow * decode[prompts].sum()
    heavy = left_s / work.sum() if work.sum() > 0 else slow
    if heavy <= 0:
        # Prompts cost less than the stalls of other steps: one scale for all is left.
        slow = heavy = seconds.sum() / max((decode + work).sum(), 1e-300)
    return [float(each) for each in parts * [slow, heavy, slow, heavy]]


def fitted_to_samples(samples: pl.DataFrame, *, replicas: int = 1) -> StepTime:
    """Step time from an engine's statistics lines: what a tick's steps had to fit into it. Fitted, and rough.

    Frame in: EngineSamples with running requests and both rates. Steps of a tick = output tokens / requests running, so
    that 1 s = fixed · steps + prompt tokens + output tokens. Preempted work that is done again is not told by these
    lines and spreads over the parts.

    Raises:
        DiagError: fewer than 20 ticks with running requests and rates.
    """
    columns = ["running_count", "output_tokens_per_s", "prompt_tokens_per_s"]
    ticks = samples.drop_nulls(["time", *columns]).group_by("time").agg(pl.col(columns).sum()).sort("time")
    running = ticks["running_count"].to_numpy().astype(np.float64)
    mean = (running + np.concatenate([running[:1], running[:-1]])) / 2
    output, prompt = ticks["output_tokens_per_s"].to_numpy(), ticks["prompt_tokens_per_s"].to_numpy()
    busy = (mean >= MIN_RUNNING * replicas) & (output > 0)
    if busy.sum() < MIN_EQUATIONS:
        raise DiagError(f"{int(busy.sum())} busy statistics lines are too few for a fit of step times", hint=_HOST)
    features = np.column_stack([output / np.maximum(mean, 1.0), prompt, output / replicas])[busy]
    parts, error = solved(features, np.ones(int(busy.sum())))
    return _fitted(parts, error, int(busy.sum()), "statistics lines")


def _fitted(parts: list[float], error: float, count: int, what: str) -> StepTime:
    fixed_s, prefill_s, decode_s = parts
    basis = f"{count:,} {what}"
    return StepTime(fixed_s, prefill_s, decode_s, origin="fitted", basis=basis, error_ratio=error, fitted_count=count)


def solved(features: Floats, seconds: Floats, importance: Floats | None = None) -> tuple[list[float], float]:
    """(non-negative factors of the features' columns, median of |modelled − seconds| / seconds)."""
    from scipy.optimize import nnls

    scale = np.maximum(np.abs(features).mean(axis=0), 1e-300)
    base = np.ones(len(seconds)) if importance is None else np.sqrt(importance)
    weights = base
    for _ in range(_ROUNDS):
        factors, _residual = nnls(features / scale * (weights / seconds)[:, None], weights)
        errors = np.abs(features / scale @ factors / seconds - 1.0)
        typical = max(float(np.median(errors)), 1e-4)
        weights = base / np.sqrt(np.maximum(errors / typical, 1.0))
    return [float(each) for each in factors / scale], float(np.median(errors))
