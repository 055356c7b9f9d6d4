"""How far a simulated engine is off a recorded run, with step times from the first half of the run alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import dataframely as dy
import polars as pl

from infer_diag.attribution.quantiles import median
from infer_diag.attribution.throughput_loss import throughput_loss
from infer_diag.recording import Recording
from infer_diag.simulators.serving import EngineSettings, Simulation, StepTime, replay, simulate
from infer_diag.simulators.serving.step_fit import fitted_to_steps

MEASURES = ("output_tokens_per_s", "ttft_s", "tpot_s")


class RunErrors(dy.Schema):
    """One row per part of the run and measure: recorded, simulated, and `error_ratio` = simulated / recorded − 1.

    TTFT and TPOT are medians over the requests whose first (last) token comes in the part; output tokens count where
    their request ends.
    """

    part = dy.Enum(("second half", "whole"))
    measure = dy.Enum(MEASURES)
    recorded = dy.Float64(nullable=True)
    simulated = dy.Float64(nullable=True)
    error_ratio = dy.Float64(nullable=True)


@dataclass(frozen=True, eq=False)
class Accuracy:
    """The errors, the simulated run, and the step time that it was given."""

    errors: dy.DataFrame[RunErrors]
    simulated: Simulation
    step_time: StepTime


@dataclass(frozen=True)
class HalfFit:
    """A step time, and by how much the steps that it was fitted to took longer together than the typical ones it tells.

    `slow_ratio` = Σ durations / Σ modelled. The fit is of typical steps; where now and then one takes ten times as
    long, which the log does not explain, their sum is more. `step_time` is stretched by it, so that sums agree.
    """

    step_time: StepTime
    slow_ratio: float


def first_half_fit(recording: Recording) -> HalfFit:
    """Step time fitted to the first half of a log's engine steps, with the host's time between them. Fitted.

    Frame in: EngineSteps, in order. The host's time is that which no step covers while requests are at work, per step,
    where the stamps tell it.

    Raises:
        DiagError: fewer than 20 steps with a duration in that half.
    """
    steps = recording.engine_steps.sort("source_id", "line")
    half = steps.filter(pl.col("duration_s").cum_sum() <= float(steps["duration_s"].sum()) / 2)
    fitted = fitted_to_steps(half)
    busy = half.filter(pl.col("kind") != "idle")
    again = (busy["decode_tokens"].cast(pl.Int64) - busy["decode_count"]).clip(0)
    computed = busy["prefill_tokens"].cast(pl.Int64) + again
    modelled = float(fitted.seconds(computed.to_numpy(), busy["decode_count"].to_numpy(), 0.0).sum())
    slow = float(busy["duration_s"].sum()) / modelled
    parts = throughput_loss(recording.replace(engine_steps=half)).parts
    host = parts.filter(pl.col("part") == "host_stall")["engine_s"].drop_nulls()
    stretched = replace(
        fitted,
        fixed_s=fitted.fixed_s * slow + float(host.sum()) / len(half),
        per_prefill_token_s=fitted.per_prefill_token_s * slow,
        per_decode_s=fitted.per_decode_s * slow,
    )
    return HalfFit(stretched, slow)


def simulated_accuracy(
    requests: pl.DataFrame, settings: EngineSettings, step_time: StepTime, **options: object
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
    simulated = simulate(replay(told, **options), settings, step_time)  # type: ignore[arg-type]
    half_s = float(told["last_token_s"].max()) / 2  # type: ignore[arg-type]
    rows = []
    for part, since_s in (("second half", half_s), ("whole", 0.0)):
        recorded, ours = _measured(told, since_s), _measured(simulated.requests, since_s)
        for measure in MEASURES:
            real, model = recorded[measure], ours[measure]
            error = model / real - 1 if real and model is not None else None
            rows.append({"part": part, "measure": measure, "recorded": real, "simulated": model, "error_ratio": error})
    frame = pl.DataFrame(rows, infer_schema_length=None)
    return Accuracy(RunErrors.validate(frame, cast=True), simulated, step_time)


def _measured(requests: pl.DataFrame, since_s: float) -> dict[str, float | None]:
    later = pl.col("output_tokens").cast(pl.Int64) - 1
    if requests["last_token_s"].max() is None or requests["last_token_s"].max() <= since_s:  # type: ignore[operator]
        return dict.fromkeys(MEASURES)
    begun, ended = (
        requests.filter(pl.col("first_token_s") >= since_s),
        requests.filter(pl.col("last_token_s") >= since_s),
    )
    decode_s = pl.col("last_token_s") - pl.col("first_token_s")
    span_s = float(requests["last_token_s"].max()) - since_s  # type: ignore[arg-type]
    return {
        "output_tokens_per_s": float(ended["output_tokens"].sum()) / span_s,
        "ttft_s": begun.select(median(pl.col("first_token_s") - pl.col("arrival_s"))).item(),
        "tpot_s": ended.select(median(pl.when(later > 0).then(decode_s / later))).item(),
    }
