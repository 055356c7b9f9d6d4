"""What other settings would do to a deployment: its own log simulated as it was, then with the changes.

Modelled. The model's error on the log itself comes first; where it is large, or the log lacks what the model needs,
nothing is predicted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import dataframely as dy
import polars as pl

from infer_diag.attribution.quantiles import median
from infer_diag.attribution.serving_changes import Refused, changed_settings, taken_for_given
from infer_diag.errors import DiagError, UnknownNameError
from infer_diag.recording import Recording
from infer_diag.simulators.serving import (
    EngineSettings,
    Simulation,
    StepTime,
    gpu_named,
    model_named,
    replay,
    roofline,
    settings_of,
    simulate,
)
from infer_diag.simulators.serving.hardware import expert_idle_ratio
from infer_diag.simulators.serving.ledger import starvation
from infer_diag.simulators.serving.run_fit import fitted_to_run
from infer_diag.simulators.serving.state import DECODE_COUNT, PREFILL_COUNT, ROW_USED
from infer_diag.simulators.serving.step_fit import fitted_to_samples, fitted_to_steps
from infer_diag.units import format_s

MAX_ERROR_RATIO = 0.2
"""A model that misses the log's own throughput by more than this explains another deployment than the log's."""
MIN_REQUESTS = 20
_MEASURES = ("output_tokens_per_s", "ttft_s", "tpot_s", "running_count", "waiting_count", "preemption_count")
BEYOND_RATIO = 2.0
"""A step time fitted to batches of up to n requests is drawn out beyond so many times n."""
LEFT_OUT_RATIO = 0.2
"""With more requests than this left out, the simulated load is another one than the log's."""
MOST_SAMPLES = 1_000_000
_UNQUANTISED = ("auto", "bf16", "bfloat16", "fp16", "float16", "half")
_REQUESTS_HINT = (
    "load per-request arrivals, prompt and output tokens beside the engine's log: a benchmark's saved results, request "
    "traces (OTLP), or vLLM's request log with its responses' usage"
)


class WhatIfMeasures(dy.Schema):
    """One row per measure: what the log says, what the model says of it, and what it says with the changes.

    Throughput over the run, medians over requests (TTFT from when the engine takes a request in), peaks in statistics
    as far apart as the log's, and the sum of preemptions. `error_ratio` = modelled / logged − 1. `low` and `high` =
    changed / f and changed · f with f = the larger of that error and the step times' own as a factor above 1: what the
    model missed of the log, carried over; no confidence interval. Null where the model has 0 and the log has not.
    """

    measure = dy.Enum(_MEASURES)
    logged = dy.Float64(nullable=True)
    modelled = dy.Float64(nullable=True)
    error_ratio = dy.Float64(nullable=True)
    changed = dy.Float64(nullable=True)
    low = dy.Float64(nullable=True)
    high = dy.Float64(nullable=True)


@dataclass(frozen=True, eq=False)
class WhatIf:
    """The prediction; `refusal` says why there is none, and then `measures` has no changed values.

    `basis`: what the step times were fitted to. `assumptions`: what the log does not tell and the model takes for
    given, and what the changed engine would refuse.
    """

    changes: dict[str, object]
    measures: dy.DataFrame[WhatIfMeasures] = field(default_factory=WhatIfMeasures.create_empty)
    basis: str | None = None
    assumptions: tuple[str, ...] = ()
    refusal: str | None = None


def serving_what_if(recording: Recording, changes: Mapping[str, object]) -> WhatIf:
    """Throughput, TTFT, TPOT, peaks and preemptions with other settings, after the model's error on the log. Modelled.

    Frames in: Requests, Deployments, and EngineSteps or EngineSamples where requests tell no events.

    Raises:
        DiagError: a changed setting cannot be.
    """
    told = dict(changes)
    requests = _own_requests(recording)
    if len(requests) < MIN_REQUESTS:
        return WhatIf(told, refusal=f"{len(requests)} requests tell arrival and lengths; {_REQUESTS_HINT}")
    engines = set(recording.deployments["engine"].drop_nulls()) - {"vllm"}
    if engines and not all(each.startswith("simulated") for each in engines):
        return WhatIf(told, refusal=f"the log is of {', '.join(sorted(engines))}, whose scheduler is not simulated")
    try:
        return _predicted(recording, requests, told)
    except Refused as refused:
        return WhatIf(told, refusal=str(refused))


def _own_requests(recording: Recording) -> pl.DataFrame:
    """The requests of the source that tells most of them whole: clients and servers may both tell the same ones."""
    whole = recording.requests.drop_nulls(["arrival_s", "prompt_tokens", "output_tokens"])
    if whole.is_empty():
        return whole
    counted = whole.group_by("source_id").agg(pl.len(), events=pl.col("first_token_s").count())
    best = counted.sort("len", "events", "source_id", descending=[True, True, False])["source_id"][0]
    return whole.filter(source_id=best).sort("arrival_s")


def _predicted(recording: Recording, requests: pl.DataFrame, changes: dict[str, object]) -> WhatIf:
    try:
        settings = settings_of(recording.deployments)
    except DiagError as unknown:
        raise Refused(str(unknown)) from unknown
    peak = _peak(recording, "running_count") or 0.0
    counted = settings.data_parallel_size
    if peak > settings.max_num_seqs * counted:
        settings = replace(settings, data_parallel_size=math.ceil(peak / settings.max_num_seqs))
    other_settings = changed_settings(settings, changes)
    assumptions = [*_left_out(recording, requests), *taken_for_given(recording, requests, settings, other_settings)]
    if settings.data_parallel_size > counted:
        assumptions.append(f"{peak:,.0f} requests ran at once, so {settings.data_parallel_size} engines ran")
    step_time = _step_time(recording, requests, settings)
    asked = replay(requests)
    every_s = max(_spacing_s(recording), float(asked.arrival_s[-1]) / MOST_SAMPLES)
    now = simulate(asked, settings, step_time, sample_every_s=every_s)
    told, modelled = _logged(recording, requests), _simulated(now)
    error = _error(told["output_tokens_per_s"], modelled["output_tokens_per_s"])
    changed, refusal = None, None
    if error is None or abs(error) > MAX_ERROR_RATIO:
        missed = "cannot be checked" if error is None else f"is off by {error:+.0%}"
        refusal = f"the model does not explain this deployment: its throughput {missed}"
    else:
        other = simulate(asked, other_settings, step_time, sample_every_s=every_s)
        changed = _simulated(other)
        assumptions += _differences(now, other)
    basis = f"{step_time.origin}: {step_time.basis}"
    return WhatIf(
        changes, _measures(told, modelled, changed, step_time.error_ratio or 0.0), basis, tuple(assumptions), refusal
    )


def _left_out(recording: Recording, requests: pl.DataFrame) -> list[str]:
    """That some requests of the source do not tell what the model needs; too many of them are refused."""
    everyone = recording.requests.filter(source_id=requests["source_id"][0])
    begun = everyone.filter(pl.col("output_tokens").is_null() | (pl.col("output_tokens") > 0))
    missing = len(begun) - len(requests.filter(pl.col("output_tokens") > 0))
    if missing <= 0:
        return []
    told = f"{missing:,} of {len(begun):,} requests do not tell arrival and both lengths"
    if missing > LEFT_OUT_RATIO * len(begun):
        raise Refused(f"{told}, so the load is not known; {_REQUESTS_HINT}")
    return [f"{told} and are left out, so the load is a little less than it was"]


def _spacing_s(recording: Recording) -> float:
    """How far apart the log's statistics are, the median: peaks of sparser ones are lower."""
    told = recording.engine_samples.drop_nulls(["time", "running_count"]).sort("source_id", "replica", "time")
    gaps = told.select(gap=pl.col("time").diff().over("source_id", "replica").dt.total_microseconds() / 1e6)
    spacing = gaps.filter(pl.col("gap") > 0).select(median(pl.col("gap"))).item() if len(told) > 1 else None
    return float(spacing) if spacing else 1.0


def _differences(now: Simulation, other: Simulation) -> list[str]:
    """What a reader has to know of the changed run before its figures."""
    told = []
    refused = int((~other.fits).sum()) - int((~now.fits).sum())
    if refused > 0:
        told.append(f"{refused:,} of {len(other.fits):,} requests no longer fit the engine and are left out")
    ran, runs = (int(each.outcome.rows[:, [PREFILL_COUNT, DECODE_COUNT]].sum(axis=1).max()) for each in (now, other))
    if runs > BEYOND_RATIO * ran:
        told.append(f"steps of up to {runs:,} requests are beyond the {ran:,} whose step times the log shows")
    starved = starvation(other)
    if starved.starved_count:
        wait = format_s(starved.longest_wait_s)
        told.append(f"{starved.starved_count:,} requests starve, the longest waits {wait}")
    held, pool = int(other.outcome.rows[:, ROW_USED].max()), other.settings.pool_blocks
    if pool is not None and held > pool:
        told.append(f"padded batches hold up to {held / pool:.1f} times the KV pool, which whole batches do not heed")
    if now.settings.limits(1).depth > 1 and not (other.settings.continuous and other.settings.limits(1).depth > 1):
        told.append("steps are no longer planned ahead, and what the host then adds to each is not modelled")
    return told


def _step_time(recording: Recording, requests: pl.DataFrame, settings: EngineSettings) -> StepTime:
    """Fitted to the requests' events, else to the engine's steps, else to its statistics, else from constants."""
    constants, model = _constants(recording), recording.deployments["model"].drop_nulls()
    idle = expert_idle_ratio(model[-1] if len(model) else None)
    hits = bool(recording.engine_samples["prefix_hit_ratio"].max())
    known = constants.per_context_token_s if constants else None
    fits: tuple[Callable[[], StepTime], ...] = (
        lambda: fitted_to_run(requests, settings, expert_idle_ratio=idle, per_context_token_s=known),
        lambda: fitted_to_steps(recording.engine_steps, prefix_hits=hits),
        lambda: fitted_to_samples(recording.engine_samples, replicas=settings.data_parallel_size),
    )
    for fit in fits:
        try:
            return fit()
        except DiagError:
            continue
    if constants is None:
        raise Refused(
            "nothing tells how long steps take: load iteration lines (--enable-logging-iteration-details), statistics "
            "lines, or per-request events, or a start-up log that names a known model and GPU"
        )
    return constants


def _constants(recording: Recording) -> StepTime | None:
    """A roofline of the log's model and GPUs, one where none is counted; null for others and for quantised weights."""
    told = recording.deployments.select(pl.col("model", "gpu", "gpu_count", "precision").drop_nulls().last())
    model, gpu, count, precision = told.row(0)
    if precision is not None and precision.casefold() not in _UNQUANTISED:
        return None
    try:
        return roofline(model_named(model or ""), gpu_named(gpu or ""), gpu_count=count or 1)
    except UnknownNameError:
        return None


def _peak(recording: Recording, column: str) -> float | None:
    """The most that all engines together had at one of the statistics' times."""
    told = recording.engine_samples.drop_nulls(["time", column])
    at_once = told.group_by("source_id", "time").agg(pl.col(column).cast(pl.Int64).sum())
    return None if at_once.is_empty() else float(at_once[column].max())  # type: ignore[arg-type]


def _of_requests(requests: pl.DataFrame) -> dict[str, float | None]:
    later = pl.col("output_tokens").cast(pl.Int64) - 1
    begun = pl.coalesce("queued_s", "arrival_s")
    done = requests.filter(pl.col("last_token_s").is_not_null())
    told = requests.select(
        ttft_s=median(pl.col("first_token_s") - begun),
        tpot_s=median(pl.when(later > 0).then((pl.col("last_token_s") - pl.col("first_token_s")) / later)),
    ).row(0, named=True)
    span = done.select(pl.col("last_token_s").max() - begun.min()).item() if len(done) else None
    tokens = int(done["output_tokens"].sum())
    return {**told, "output_tokens_per_s": tokens / span if span else None}


def _logged(recording: Recording, requests: pl.DataFrame) -> dict[str, float | None]:
    told = _of_requests(requests)
    if told["output_tokens_per_s"] is None:
        rates = recording.engine_samples.drop_nulls(["time", "output_tokens_per_s"])
        summed = rates.group_by("time").agg(pl.col("output_tokens_per_s").sum())
        told["output_tokens_per_s"] = summed.select(pl.col("output_tokens_per_s").mean()).item()
    preempted = recording.engine_samples["preemption_count"].drop_nulls()
    if not len(preempted):
        preempted = requests["preemption_count"].drop_nulls()
    told["preemption_count"] = float(preempted.sum()) if len(preempted) else None
    return told | {name: _peak(recording, name) for name in ("running_count", "waiting_count")}


def _simulated(simulated: Simulation) -> dict[str, float | None]:
    served = simulated.requests.filter(pl.col("finish_reason") == "length")
    told = _of_requests(served)
    told["preemption_count"] = float(served["preemption_count"].sum())
    recording = simulated.recording
    return told | {name: _peak(recording, name) for name in ("running_count", "waiting_count")}


def _error(logged: float | None, modelled: float | None) -> float | None:
    return modelled / logged - 1 if logged and modelled is not None else None


def _measures(
    logged: dict[str, float | None],
    modelled: dict[str, float | None],
    changed: dict[str, float | None] | None,
    fit_error_ratio: float,
) -> dy.DataFrame[WhatIfMeasures]:
    rows = []
    for name in _MEASURES:
        error, after = _error(logged[name], modelled[name]), changed[name] if changed else None
        factor = None if error is None or error <= -1 else max(1 + error, 1 / (1 + error), 1 + fit_error_ratio)
        rows.append(
            {
                "measure": name,
                "logged": logged[name],
                "modelled": modelled[name],
                "error_ratio": error,
                "changed": after,
                "low": None if factor is None or after is None else after / factor,
                "high": None if factor is None or after is None else after * factor,
            }
        )
    return WhatIfMeasures.validate(pl.DataFrame(rows, infer_schema_length=None), cast=True)
