"""How far a simulated engine is off a recorded run, with step times from the first half of the run alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import dataframely as dy
import numpy as np
import polars as pl

from infer_diag.attribution.quantiles import median
from infer_diag.recording import Recording
from infer_diag.simulators.gpu_runs import MEASURES
from infer_diag.simulators.serving import EngineSettings, Simulation, StepScatter, StepTime, replay, simulate
from infer_diag.simulators.serving.step_fit import fitted_to_steps, step_scatter

REDRAWN = 40
"""Simulations with the scatter in another order; their 2.5 and 97.5 % quantiles are the ends of what it can do."""
LONG_S = 20.0
"""A stretch of work with fewer seconds says little of the time between its steps, where stamps have a tick of 1 s."""


class RunErrors(dy.Schema):
    """One row per part of the run and measure: recorded, simulated, and `error_ratio` = simulated / recorded − 1.

    TTFT and TPOT are medians over the requests whose first (last) recorded token comes in the part, the same requests
    on both sides; output tokens count where their request ends. `running_count` is the most requests at once between
    first and last token, `waiting_count` between arrival and first token. `low_ratio` and `high_ratio`: 95 % of the
    errors when the scatter of the log's own steps falls elsewhere, which no step time can know; null without a scatter.
    """

    part = dy.Enum(("second half", "whole"))
    measure = dy.Enum(MEASURES)
    recorded = dy.Float64(nullable=True)
    simulated = dy.Float64(nullable=True)
    error_ratio = dy.Float64(nullable=True)
    low_ratio = dy.Float64(nullable=True)
    high_ratio = dy.Float64(nullable=True)


@dataclass(frozen=True, eq=False)
class Accuracy:
    """The errors, the simulated run, and the step time that it was given."""

    errors: dy.DataFrame[RunErrors]
    simulated: Simulation
    step_time: StepTime


@dataclass(frozen=True, eq=False)
class HalfFit:
    """A step time with the host's time between steps (`between_s` of each) in it, and how the half's steps scatter.

    `scatter_ratio`: standard deviation of a pure decode step's scatter / what such a step takes; near 0 on an even
    machine, about 1 where some steps take ten times as long for no reason that the log tells.
    """

    step_time: StepTime
    scatter: StepScatter
    between_s: float
    scatter_ratio: float


def first_half_fit(recording: Recording) -> HalfFit:
    """Step time fitted to the first half of a log's engine steps, with the host's time between them. Fitted.

    Frame in: EngineSteps, in order.

    Raises:
        DiagError: fewer than 20 steps with a duration in that half.
    """
    steps = recording.engine_steps.sort("source_id", "line")
    half = steps.filter(pl.col("duration_s").cum_sum() <= float(steps["duration_s"].sum()) / 2)
    hits = recording.engine_samples["prefix_hit_ratio"].max()
    fitted = fitted_to_steps(half, prefix_hits=bool(hits))
    between_s = time_between_steps(half)
    scatter = step_scatter(half, fitted)
    decode_s = half.filter(kind="decode")["duration_s"]
    spread = float(scatter.decode_s.std()) / float(decode_s.mean()) if len(decode_s) else 0.0  # type: ignore[arg-type]
    return HalfFit(replace(fitted, fixed_s=fitted.fixed_s + between_s), scatter, between_s, spread)


def time_between_steps(steps: pl.DataFrame) -> float:
    """Seconds from one step's end to the next one's begin while requests are at work, the mean; 0 where none is seen.

    Frame in: EngineSteps, in order. A stretch of work begins with a step that has nobody in its output, before which
    the engine may have been idle. Over a stretch of 20 s or more, what its stamps span beyond its steps, by least
    squares over the stretches: stamps are as coarse as a second, so a long stretch tells far more than a short one.
    """
    told = steps.filter(pl.col("kind") != "idle").drop_nulls("time")
    fresh = ((pl.col("decode_count") == 0) | (pl.col("source_id") != pl.col("source_id").shift(1))).fill_null(True)
    stretches = (
        told.with_columns(stretch=fresh.cum_sum())
        .group_by("stretch")
        .agg(
            gaps=pl.len() - 1,
            span_s=(pl.col("time").last() - pl.col("time").first()).dt.total_microseconds() / 1e6,
            steps_s=pl.col("duration_s").slice(1).sum(),
        )
        .filter(pl.col("span_s") >= LONG_S)
    )
    if stretches.is_empty():
        return 0.0
    gaps = stretches["gaps"].to_numpy().astype(np.float64)
    beyond_s = (stretches["span_s"] - stretches["steps_s"]).to_numpy()
    return max(0.0, float((gaps * beyond_s).sum() / (gaps**2).sum()))


def simulated_accuracy(
    requests: pl.DataFrame,
    settings: EngineSettings,
    step_time: StepTime,
    *,
    scatter: StepScatter | None = None,
    **options: object,
) -> Accuracy:
    """A recorded run replayed through a simulated engine: its errors over the whole run and over its second half.

    Frame in: `request_id`, `arrival_s`, `prompt_tokens`, `output_tokens`, `first_token_s` and `last_token_s` of each
    request. Halves are of the time from the first arrival to the last token. `options` as in `replay`.

    Raises:
        DiagError: as `replay` and `simulate`.
    """
    told = requests.sort("arrival_s", maintain_order=True)
    begin_s = pl.col("arrival_s").min()
    told = told.with_columns(pl.col("arrival_s", "first_token_s", "last_token_s") - begin_s)
    asked = replay(told, **options)  # type: ignore[arg-type]
    simulated = simulate(asked, settings, step_time)
    random = np.random.default_rng(0)
    drawn = [scatter.drawn(random) for _ in range(REDRAWN)] if scatter else []
    others = [simulate(asked, settings, step_time, scatter=each).requests for each in drawn]
    half_s = float(told["last_token_s"].max()) / 2  # type: ignore[arg-type]
    rows: list[dict[str, object]] = []
    for part, since_s in (("second half", half_s), ("whole", 0.0)):
        recorded, ours = (_measured(each, told, since_s) for each in (told, simulated.requests))
        scattered = [_measured(each, told, since_s) for each in others]
        for measure in MEASURES:
            real, model = recorded[measure], ours[measure]
            errors = _errors(real, model, [each[measure] for each in scattered])
            rows.append({"part": part, "measure": measure, "recorded": real, "simulated": model, **errors})
    frame = pl.DataFrame(rows, infer_schema_length=None)
    return Accuracy(RunErrors.validate(frame, cast=True), simulated, step_time)


def _errors(real: float | None, model: float | None, scattered: list[float | None]) -> dict[str, float | None]:
    known = [each / real - 1 for each in scattered if each is not None and real]
    low, high = np.percentile(known, [2.5, 97.5]) if known else (None, None)
    error = model / real - 1 if real and model is not None else None
    return {"error_ratio": error, "low_ratio": low, "high_ratio": high}


def _measured(requests: pl.DataFrame, recorded: pl.DataFrame, since_s: float) -> dict[str, float | None]:
    """The measures of the part of a run from `since_s` on; which requests are of it the recorded run says."""
    later = pl.col("output_tokens").cast(pl.Int64) - 1
    end_s = requests["last_token_s"].max()
    if end_s is None or end_s <= since_s:  # type: ignore[operator]
        return dict.fromkeys(MEASURES)
    begun, ended = (
        requests.join(recorded.filter(pl.col(event) >= since_s), on="request_id", how="semi")
        for event in ("first_token_s", "last_token_s")
    )
    decode_s = pl.col("last_token_s") - pl.col("first_token_s")
    made = requests.filter(pl.col("last_token_s") >= since_s)["output_tokens"].sum()
    return {
        "output_tokens_per_s": float(made) / (float(end_s) - since_s),  # type: ignore[arg-type]
        "ttft_s": begun.select(median(pl.col("first_token_s") - pl.col("arrival_s"))).item(),
        "tpot_s": ended.select(median(pl.when(later > 0).then(decode_s / later))).item(),
        "running_count": _most(requests, "first_token_s", "last_token_s", since_s),
        "waiting_count": _most(requests, "arrival_s", "first_token_s", since_s),
    }


def _most(requests: pl.DataFrame, begin: str, end: str, since_s: float) -> float:
    """The most requests at once between two of their events, from `since_s` on."""
    held = requests.drop_nulls([begin, end]).filter(pl.col(end) > since_s)
    changes = pl.concat([held.select(at=pl.col(begin).clip(since_s), by=1), held.select(at=pl.col(end), by=-1)])
    return float(changes.sort("at", "by").select(pl.col("by").cum_sum().max().fill_null(0)).item())
