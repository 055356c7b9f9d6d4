"""Two recorded vLLM runs, simulated with their settings and with step times fitted to their first half."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import polars as pl
import pytest

import infer_diag as diag
from infer_diag.errors import DiagError
from infer_diag.simulators import gpu_runs
from infer_diag.simulators.serving import EngineSettings, Simulation, replay, settings_of, simulate
from infer_diag.simulators.serving.hardware import expert_idle_ratio, gpu_named, model_named
from infer_diag.simulators.serving.run_fit import fitted_to_run
from infer_diag.simulators.serving.step_time import roofline

RUNS = Path(__file__).parents[2].parent / "shared" / "corpus" / "vllm_runs"
NAMES = ("llmservingsim_RTX4090_Llama-3.1-8B", "llmservingsim_RTXPRO6000_Qwen3-30B-A3B-Instruct-2507")
pytestmark = pytest.mark.skipif(not RUNS.exists(), reason="the recorded runs are not beside this checkout")

LIMITS = {"throughput": 0.03, "ttft": 0.05, "tpot": 0.05, "running": 0.05, "waiting": 0.05}


@dataclass(frozen=True)
class Run:
    requests: pl.DataFrame
    samples: pl.DataFrame
    settings: EngineSettings
    model: str
    gpu: str | None
    half_s: float


@cache
def recorded(name: str) -> Run:
    meta = json.loads((RUNS / f"{name}_meta.json").read_text())
    requests = diag.load(str(RUNS / f"{name}_requests.jsonl")).requests
    begin = requests["queued_s"].min()
    requests = requests.with_columns(pl.col("^.*_s$") - begin)
    deployments = diag.load(str(RUNS / f"{name}_meta.json")).deployments
    settings = settings_of(
        deployments,
        data_parallel_size=meta["engine_kwargs"]["data_parallel_size"],
    )
    samples = diag.load(str(RUNS / f"{name}_timeseries.csv")).engine_samples
    return Run(requests, samples, settings, meta["model"], deployments["gpu"][0], requests["last_token_s"].max() / 2)  # type: ignore[operator]


@cache
def simulated(name: str) -> Simulation:
    run = recorded(name)
    known = roofline(model_named(run.model), gpu_named(run.gpu)).per_context_token_s if run.gpu else None
    step_time = fitted_to_run(
        run.requests,
        run.settings,
        until_s=run.half_s,
        expert_idle_ratio=expert_idle_ratio(run.model),
        per_context_token_s=known,
    )
    return simulate(replay(run.requests), run.settings, step_time)


def measures(requests: pl.DataFrame, samples: pl.DataFrame, since_s: float) -> dict[str, float]:
    """Output tokens per second of the part from `since_s` on, medians over requests that end there, peaks at its ticks.

    TTFT counts from when the engine takes a request in: the runs tell arrival on another clock.
    """
    ticks = samples.group_by("time").agg(pl.col("running_count", "waiting_count", "output_tokens_per_s").sum())
    ticks = ticks.sort("time").slice(round(since_s))
    later = requests["output_tokens"].cast(pl.Int64) - 1
    each = requests.with_columns(
        ttft=pl.col("first_token_s") - pl.col("queued_s"),
        tpot=(pl.col("last_token_s") - pl.col("first_token_s")) / later,
    )
    end_s = float(requests["last_token_s"].max())  # type: ignore[arg-type]
    return {
        "throughput": float(ticks["output_tokens_per_s"].sum()) / (end_s - round(since_s)),
        "ttft": float(each.filter(pl.col("first_token_s") >= since_s)["ttft"].median()),  # type: ignore[arg-type]
        "tpot": float(each.filter(pl.col("last_token_s") >= since_s)["tpot"].median()),  # type: ignore[arg-type]
        "running": float(ticks["running_count"].max()),  # type: ignore[arg-type]
        "waiting": float(ticks["waiting_count"].max()),  # type: ignore[arg-type]
    }


def errors_of(name: str, model: Simulation, part: str) -> dict[str, float]:
    run = recorded(name)
    since_s = run.half_s if part == "second half" else 0.0
    real = measures(run.requests, run.samples, since_s)
    ours = measures(model.requests, model.engine_samples, since_s)
    return {measure: ours[measure] / real[measure] - 1 for measure in real}


def told(name: str, step_time: str, part: str) -> list[float]:
    """The errors that travel with the package."""
    run = gpu_runs.RTX_4090 if name == NAMES[0] else gpu_runs.RTX_PRO_6000
    return gpu_runs.gpu_run_errors().filter(run=run, step_time=step_time, part=part)["error_ratio"].to_list()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("part", ["whole", "second half"])
def test_a_run_is_met_within_the_limits(name: str, part: str) -> None:
    errors = errors_of(name, simulated(name), part)
    assert {measure: error for measure, error in errors.items() if abs(error) > LIMITS[measure]} == {}
    assert list(errors.values()) == pytest.approx(told(name, gpu_runs.FITTED, part), abs=0.005)


def test_a_fit_before_outputs_have_ended_is_refused() -> None:
    """In the first quarter of this run nothing ends: prompts alone would make every later step a tenth too long."""
    run = recorded(NAMES[1])
    with pytest.raises(DiagError, match="0 outputs have ended"):
        fitted_to_run(run.requests, run.settings, until_s=run.half_s / 2)


def test_the_fit_says_what_it_is_fitted_on() -> None:
    step_time = simulated(NAMES[0]).step_time
    assert step_time.origin == "fitted"
    assert "spans" in step_time.basis
    assert step_time.error_ratio is not None and step_time.error_ratio < 0.05


def test_published_constants_alone_meet_the_run_within_five_per_cent() -> None:
    """A roofline knows neither the share of the peak that kernels reach nor the host: it is a guess and says so."""
    run = recorded(NAMES[0])
    guess = roofline(model_named(run.model), gpu_named("NVIDIA GeForce RTX 4090"))
    assert guess.origin == "roofline"
    errors = errors_of(NAMES[0], simulate(replay(run.requests), run.settings, guess), "whole")
    assert {measure: error for measure, error in errors.items() if abs(error) > 0.05} == {}
    assert list(errors.values()) == pytest.approx(told(NAMES[0], gpu_runs.CONSTANTS, "whole"), abs=0.005)
