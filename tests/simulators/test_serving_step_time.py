"""Step times: what a roofline says, and whether fits find the parts that a simulated engine has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer_diag.errors import DiagError, UnknownNameError
from infer_diag.simulators.serving import (
    GPUS,
    MODELS,
    EngineSettings,
    StepScatter,
    StepTime,
    gpu_named,
    lognormal_tokens,
    model_named,
    roofline,
    simulate,
    workload,
)
from infer_diag.simulators.serving.hardware import expert_idle_ratio
from infer_diag.simulators.serving.run_fit import fitted_to_run
from infer_diag.simulators.serving.step_fit import fitted_to_samples, fitted_to_steps, step_scatter

TRUTH = StepTime(0.012, 6e-5, 1.5e-4)
COUNT = 300
ASKED = workload(
    np.cumsum(np.random.default_rng(1).exponential(0.1, COUNT)),
    lognormal_tokens(COUNT, mean=400, cv=1.0, seed=2, longest=1500),
    lognormal_tokens(COUNT, mean=150, cv=0.8, seed=3, longest=600),
)
RUN = simulate(ASKED, EngineSettings(max_num_seqs=64, kv_cache_tokens=100_000), TRUTH)


def assert_near(found: StepTime, rel: float) -> None:
    assert found.origin == "fitted"
    assert found.fixed_s == pytest.approx(TRUTH.fixed_s, rel=rel)
    assert found.per_prefill_token_s == pytest.approx(TRUTH.per_prefill_token_s, rel=rel)
    assert found.per_decode_s == pytest.approx(TRUTH.per_decode_s, rel=rel)


def test_steps_give_the_parts_back() -> None:
    found = fitted_to_steps(RUN.engine_steps)
    assert_near(found, 1e-6)
    assert found.error_ratio == pytest.approx(0.0, abs=1e-6)
    assert f"{len(RUN.engine_steps):,}" in found.basis


STALLED = RUN.engine_steps.with_columns(
    duration_s=RUN.engine_steps["duration_s"].scatter(range(0, len(RUN.engine_steps), 50), 2.0)
)


def modelled_s(steps: pl.DataFrame, step_time: StepTime) -> float:
    prompts = steps["prefill_tokens"].to_numpy()
    pairs = prompts**2 / (2 * np.maximum(steps["prefill_count"].to_numpy(), 1))
    return float(step_time.seconds(prompts, steps["decode_count"].to_numpy(), 0.0, pairs).sum())


def test_stalls_are_in_the_sum_and_do_not_turn_the_line() -> None:
    found = fitted_to_steps(STALLED)
    for prompts in (True, False):
        steps = STALLED.filter((pl.col("prefill_tokens") > 0) == prompts)
        assert modelled_s(steps, found) == pytest.approx(float(steps["duration_s"].sum()), rel=1e-6)
    assert found.per_decode_s / found.fixed_s == pytest.approx(TRUTH.per_decode_s / TRUTH.fixed_s, rel=0.05)


def test_prompts_that_see_each_other_take_their_pairs() -> None:
    truth = StepTime(0.012, 6e-5, 1.5e-4, per_pair_s=2e-8)
    steps = simulate(ASKED, EngineSettings(max_num_seqs=64, async_scheduling=False), truth).engine_steps
    assert fitted_to_steps(steps).per_pair_s == pytest.approx(truth.per_pair_s, rel=0.25)
    assert fitted_to_steps(steps, prefix_hits=True).per_pair_s == 0.0


def test_scatter_is_what_the_step_time_leaves() -> None:
    found = step_scatter(STALLED, TRUTH)
    prompts = (STALLED["prefill_tokens"] > 0).sum()
    assert (len(found.decode_s), len(found.prompt_s)) == (len(STALLED) - prompts, prompts)
    total = float(found.decode_s.sum() + found.prompt_s.sum())
    assert total == pytest.approx(float(STALLED["duration_s"].sum()) - modelled_s(STALLED, TRUTH), rel=1e-9)
    drawn = found.drawn(np.random.default_rng(1))
    assert set(drawn.decode_s) <= set(found.decode_s) and len(drawn.decode_s) == len(found.decode_s)


def test_the_log_s_own_scatter_gives_its_durations_back() -> None:
    settings = EngineSettings(max_num_seqs=64, kv_cache_tokens=100_000)
    found = simulate(
        workload([0.0], [700], [5]), settings, TRUTH, scatter=StepScatter(np.array([0.1, -1.0]), np.ones(1))
    )
    decode_s = TRUTH.fixed_s + TRUTH.per_decode_s
    wanted = [1 + TRUTH.fixed_s + 700 * TRUTH.per_prefill_token_s, *(2 * [decode_s + 0.1, decode_s / 4])]
    assert found.engine_steps["duration_s"].to_list() == pytest.approx(wanted)


def test_a_scatter_without_numbers_is_refused() -> None:
    for wrong in (np.array([]), np.array([np.nan])):
        with pytest.raises(DiagError):
            StepScatter(wrong, np.zeros(1))


def test_events_of_requests_give_the_parts_back() -> None:
    settings = EngineSettings(max_num_seqs=64, kv_cache_tokens=100_000)
    assert_near(fitted_to_run(RUN.requests, settings), 0.1)


def test_statistics_give_a_rough_fit() -> None:
    found = fitted_to_samples(RUN.engine_samples)
    batch = np.array([8.0, 24.0])
    assert found.decode_s(batch, 500) == pytest.approx(TRUTH.decode_s(batch, 500), rel=0.25)
    assert found.error_ratio is not None and found.error_ratio > 0


def test_too_little_is_refused_with_the_log_that_would_do() -> None:
    with pytest.raises(DiagError, match="logging-iteration-details"):
        fitted_to_steps(RUN.engine_steps.head(5))
    with pytest.raises(DiagError, match="per-request events"):
        fitted_to_samples(RUN.engine_samples.head(5))
    with pytest.raises(DiagError, match="per-request events"):
        fitted_to_run(RUN.requests.head(3), EngineSettings())


def test_a_roofline_is_memory_bound_in_decode_and_compute_bound_in_prefill() -> None:
    model, gpu = model_named("Llama-3.1-8B"), gpu_named("H100-SXM")
    found = roofline(model, gpu, host_s=0.0, memory_share=1.0, compute_share=1.0)
    # 8.03e9 parameters less a table of 128,256 x 4,096 that is looked up, 2 bytes each, at 3.35 TB/s.
    assert float(found.seconds(0, 1, 0)) == pytest.approx(2 * (8.03e9 - 0.525e9) / 3.35e12, rel=0.01)
    # A prompt's tokens pass the layers; the output layer, as large as the table, is for sampled tokens.
    assert float(found.seconds(4096, 0, 0)) == pytest.approx(2 * (8.03e9 - 2 * 0.525e9) * 4096 / 989e12, rel=0.01)
    # Attention follows the matrix products: the KV of 100,000 tokens comes on top.
    apart = float(found.seconds(4096, 0, 100_000)) - float(found.seconds(4096, 0, 0))
    assert apart == pytest.approx(100_000 * 131_072 / 3.35e12, rel=0.01)
    assert model.kv_bytes_per_token == 128 * 1024
    assert model_named("Llama-2-13B").kv_bytes_per_token == 819_200
    assert model_named("Qwen2-7B").kv_bytes_per_token == 57_344


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA H200", "H200-SXM"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA A10", "A10"),
    ],
)
def test_a_driver_s_name_is_understood(written: str, name: str) -> None:
    assert gpu_named(written).name == name


@pytest.mark.parametrize("written", ["A100", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA A10G", "TPU v5e", ""])
def test_a_name_that_leaves_it_open_is_refused(written: str) -> None:
    with pytest.raises(UnknownNameError):
        gpu_named(written)


def test_models_are_found_in_paths_and_quantised_ones_are_not() -> None:
    assert model_named("meta-llama/Meta-Llama-3.1-8B-Instruct").name == "Llama-3.1-8B"
    assert model_named("meta-llama/Llama-2-70b-hf").name == "Llama-2-70B"
    for name in ("Llama-3.1-8B-Instruct-FP8", "TheBloke/Llama-2-7B-AWQ", "openai/gpt-oss-120b"):
        with pytest.raises(UnknownNameError):
            model_named(name)
    assert expert_idle_ratio("Qwen/Qwen3-30B-A3B-Instruct-2507") == 1 - 8 / 128
    assert expert_idle_ratio("meta-llama/Llama-3.1-8B") == expert_idle_ratio(None) == 0.0


@given(st.sampled_from(sorted(GPUS)), st.sampled_from(sorted(MODELS)), st.integers(0, 8192), st.integers(1, 512))
def test_more_work_never_takes_less_time(gpu: str, model: str, prefill: int, batch: int) -> None:
    found = roofline(MODELS[model], GPUS[gpu])
    least = float(found.seconds(prefill, batch, batch * 500))
    assert 0 < least <= float(found.seconds(prefill + 1, batch, batch * 500))
    assert least <= float(found.seconds(prefill, batch + 1, (batch + 1) * 500))
    assert least <= float(found.seconds(prefill, batch, batch * 501))


def test_only_the_experts_that_are_awake_are_read() -> None:
    found = StepTime(0.01, 0.0, 0.0, experts_s=0.01, expert_idle_ratio=0.5)
    assert found.seconds(0, np.array([0, 1, 2]), 0).tolist() == [0.01, 0.015, 0.0175]


def test_the_loop_takes_the_same_time_as_the_formula() -> None:
    full = StepTime(0.01, 5e-5, 1e-4, 1e-7, 2e-9, 0.002, 0.003, 0.9)
    whole = StepTime(*full.parameters[:8], overlapped=True)
    for step_time in (full, whole, replace(whole, attention_apart=True)):
        run = simulate(workload([0.0], [700], [4]), EngineSettings(async_scheduling=False), step_time)
        wanted = [float(step_time.seconds(700, 0, 700, 700 * 701 / 2))]
        wanted += [float(step_time.seconds(0, 1, 700 + index)) for index in (1, 2, 3)]
        assert run.engine_steps["duration_s"].to_list() == pytest.approx(wanted)


def test_parts_that_cannot_be_are_refused() -> None:
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(DiagError):
            StepTime(wrong, 0.0, 0.0)
