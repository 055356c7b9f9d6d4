"""Step times fitted to a run of requests: what its steps held is taken from a simulation, how long they took from it.

Requests tell when their tokens came and not what ran beside them. So the run is simulated with the step times so far,
every span that the log tells is written as a sum over the simulated steps in it, and those sums are solved for the step
times; after a few rounds both agree.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from infer_diag.errors import DiagError
from infer_diag.simulators.serving.result import Simulation
from infer_diag.simulators.serving.settings import EngineSettings
from infer_diag.simulators.serving.simulate import simulate
from infer_diag.simulators.serving.state import END_S
from infer_diag.simulators.serving.step_fit import MIN_EQUATIONS, solved
from infer_diag.simulators.serving.step_time import StepTime
from infer_diag.simulators.serving.workload import Workload, replay

Floats = NDArray[np.float64]
ROUNDS = 12
MIN_OUTPUTS = 10
"""Fewer outputs that have ended leave the time of decode to the prompts beside it: fits then miss by a tenth."""
_CONTEXT = 3


def fitted_to_run(
    requests: pl.DataFrame,
    settings: EngineSettings,
    *,
    until_s: float = np.inf,
    expert_idle_ratio: float = 0.0,
    per_context_token_s: float | None = None,
) -> StepTime:
    """Step time from the events of a run up to `until_s` (seconds after the first arrival). Fitted.

    Frame in: Requests with scheduled, first-token and last-token times. `expert_idle_ratio` of a mixture of experts is
    1 − experts per token / experts: its weights are then a part of their own. Where the pool is full all the time the
    run cannot tell the context's part from the fixed one: give `per_context_token_s` from published constants
    (`roofline`) where model and GPU are known.

    Raises:
        DiagError: fewer than 20 spans between events, or fewer than 10 outputs that have ended by then.
    """
    told = _told(requests, until_s)
    asked = replay(requests).first(until_s) if np.isfinite(until_s) else replay(requests)
    _refuse_few_outputs(told, asked)
    step_time = StepTime(
        0.02,
        5e-5,
        1e-4,
        per_context_token_s or 0.0,
        experts_s=0.01 if expert_idle_ratio else 0.0,
        expert_idle_ratio=expert_idle_ratio,
    )
    for _ in range(ROUNDS):
        simulated = simulate(asked, settings, step_time)
        features, seconds, importance = _equations(simulated, told, expert_idle_ratio)
        parts, error = _solved(features, seconds, importance, per_context_token_s)
        step_time = _moved(step_time, parts)
    basis = f"{len(seconds):,} spans between events of {len(asked):,} requests"
    if per_context_token_s is not None:
        basis += ", the context's part from published constants"
    return replace(step_time, origin="fitted", basis=basis, error_ratio=error, fitted_count=len(seconds))


def _refuse_few_outputs(told: pl.DataFrame, asked: Workload) -> None:
    ended = int((told["decode_s"] > 0).sum())
    if ended < MIN_OUTPUTS <= int((asked.output_tokens > 1).sum()):
        raise DiagError(
            f"{ended} outputs have ended, which do not tell what a step with outputs takes",
            hint="fit to a longer part of the run",
        )


def _told(requests: pl.DataFrame, until_s: float) -> pl.DataFrame:
    """The spans of each request that had ended by then, in order of arrival."""
    events = ["scheduled_s", "first_token_s", "last_token_s"]
    rows = requests.drop_nulls(["arrival_s", "prompt_tokens", "output_tokens"])
    rows = rows.filter((pl.col("prompt_tokens") > 0) & (pl.col("output_tokens") > 0)).sort(
        "arrival_s", maintain_order=True
    )
    begin = rows["arrival_s"].min()
    rows = rows.with_columns(pl.col("arrival_s", *events) - begin).filter(pl.col("arrival_s") < until_s)
    first = pl.when(pl.col("first_token_s") <= until_s).then("first_token_s")
    last = pl.when(pl.col("last_token_s") <= until_s).then("last_token_s")
    return rows.select(
        prefill_s=first - pl.col("scheduled_s"),
        decode_s=last - pl.col("first_token_s"),
    )


def _equations(simulated: Simulation, told: pl.DataFrame, expert_idle_ratio: float) -> tuple[Floats, Floats, Floats]:
    """(sums over the simulated steps of each span, seconds that the log tells of it, weight of the equation).

    Prompts and outputs weigh the same as a kind, however many equations each has.
    """
    ends, summed = _summed(simulated, expert_idle_ratio)
    fared, told = simulated.outcome.requests, told.filter(pl.Series(simulated.fits))
    at = {name: np.searchsorted(ends, fared[name] + 1e-9, side="left") for name in ("scheduled_s", "first_s", "last_s")}
    prefill, decode = told["prefill_s"].to_numpy(), told["decode_s"].to_numpy()
    blocks = [(summed[at["first_s"]] - summed[at["scheduled_s"]], prefill)]
    blocks.append((summed[at["last_s"]] - summed[at["first_s"]], decode))
    kept = []
    for features, seconds in blocks:
        known = np.isfinite(seconds) & (seconds > 0) & (features[:, 0] > 0)
        if known.any():
            kept.append((features[known], seconds[known], np.full(int(known.sum()), 1.0 / known.sum())))
    count = sum(len(seconds) for _, seconds, _ in kept)
    if count < MIN_EQUATIONS:
        raise DiagError(
            f"{count} spans between events of requests are too few for a fit of step times",
            hint="load a log or a trace with per-request events",
        )
    features, seconds, importance = (np.concatenate(each) for each in zip(*kept, strict=True))
    return features, seconds, importance


def _summed(simulated: Simulation, expert_idle_ratio: float) -> tuple[Floats, Floats]:
    """(ends of the steps, sums of their features before each end)."""
    ends, group = np.unique(simulated.outcome.times[:, END_S], return_inverse=True)
    each = simulated.features()
    # Engines that run in step wait for the slowest: its features are those of the step.
    spent = simulated.step_time.seconds(*(each[:, column] for column in range(3)))
    order = np.lexsort((spent, group))
    last = np.concatenate([group[order][1:] != group[order][:-1], [True]])
    slowest = each[order[last]]
    columns = [np.ones(len(ends)), *(slowest[:, column] for column in range(3))]
    if expert_idle_ratio:
        columns.append(1.0 - expert_idle_ratio ** (slowest[:, 0] + slowest[:, 1]))
    summed = np.vstack([np.zeros(len(columns)), np.cumsum(np.column_stack(columns), axis=0)])
    return ends, summed


def _solved(
    features: Floats, seconds: Floats, importance: Floats, per_context_token_s: float | None
) -> tuple[list[float], float]:
    """The factors of all columns; that of the context is solved for, or is the given one."""
    if per_context_token_s is None:
        return solved(features, seconds, importance)
    # What contexts take leaves at least a tenth of a span to the rest, or a short span would weigh without bound.
    rest_s = np.maximum(seconds - per_context_token_s * features[:, _CONTEXT], 0.1 * seconds)
    parts, error = solved(np.delete(features, _CONTEXT, axis=1), rest_s, importance)
    return [*parts[:_CONTEXT], per_context_token_s, *parts[_CONTEXT:]], error


def _moved(step_time: StepTime, parts: list[float]) -> StepTime:
    """Half the way to the solution: the whole way would swing, since the simulated spans move with it."""
    names = ("fixed_s", "per_prefill_token_s", "per_decode_s", "per_context_token_s", "experts_s")
    found = dict(zip(names, parts, strict=False))
    return replace(step_time, **{name: (getattr(step_time, name) + part) / 2 for name, part in found.items()})
