"""A simulated log asked what other settings would do: the truth of the changed run is known."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import polars as pl
import pytest

from infer_diag.attribution.serving_changes import READ_BY, UNTOLD, changes_of
from infer_diag.attribution.serving_what_if import serving_what_if
from infer_diag.errors import DiagError
from infer_diag.jupyter.grammar import grammar
from infer_diag.jupyter.magic import Magic
from infer_diag.jupyter.session import Session
from infer_diag.jupyter.what_if_panel import what_if_panel
from infer_diag.recording import Recording
from infer_diag.simulators.serving import (
    SCHEDULERS,
    EngineSettings,
    StepTime,
    lognormal_tokens,
    settings_of,
    simulate,
    workload,
)

STEP = StepTime(0.012, 6e-5, 1.2e-4, 0.0)
ENGINE = EngineSettings(max_num_seqs=16, max_num_batched_tokens=2048, kv_cache_tokens=50_000)
COUNT = 150
ASKED = workload(
    np.cumsum(np.random.default_rng(1).exponential(0.05, COUNT)),
    lognormal_tokens(COUNT, mean=300, cv=1.0, seed=2, longest=1500),
    lognormal_tokens(COUNT, mean=120, cv=0.8, seed=3, longest=600),
)


def recording(**changes: object) -> Recording:
    return simulate(ASKED, ENGINE, STEP).recording.replace(**changes)


def measures(told: Recording, changes: dict[str, object]) -> dict[str, dict[str, float]]:
    found = serving_what_if(told, changes)
    assert found.refusal is None
    return {row["measure"]: row for row in found.measures.iter_rows(named=True)}


@pytest.mark.parametrize("source", ["events", "steps"])
def test_the_changed_run_is_predicted(source: str) -> None:
    told = recording()
    if source == "steps":
        hidden = [pl.lit(None, pl.Float64).alias(name) for name in ("scheduled_s", "first_token_s", "queued_s")]
        told = told.replace(requests=told.requests.with_columns(hidden))
    found = measures(told, {"max_num_seqs": 64})
    assert abs(found["output_tokens_per_s"]["error_ratio"]) < 0.02
    truth = simulate(ASKED, EngineSettings(max_num_seqs=64, max_num_batched_tokens=2048, kv_cache_tokens=50_000), STEP)
    tokens = truth.requests["output_tokens"].sum()
    span = truth.requests["last_token_s"].max() - truth.requests["queued_s"].min()  # type: ignore[operator]
    assert found["output_tokens_per_s"]["changed"] == pytest.approx(tokens / span, rel=0.03)
    assert found["running_count"]["changed"] > found["running_count"]["modelled"] == 16
    assert found["output_tokens_per_s"]["low"] <= found["output_tokens_per_s"]["changed"]


def test_nothing_changed_predicts_the_model_of_the_log() -> None:
    found = measures(recording(), {"max_num_seqs": 16})
    assert all(row["changed"] == row["modelled"] for row in found.values())


def test_a_log_without_requests_names_what_is_missing() -> None:
    empty = recording(requests=recording().requests.with_columns(output_tokens=pl.lit(None, pl.UInt32)))
    found = serving_what_if(empty, {"max_num_seqs": 64})
    assert found.measures.is_empty()
    assert found.refusal is not None and "per-request arrivals" in found.refusal
    assert "not identifiable" in what_if_panel(empty, "max_num_seqs=64").lines[1]


def test_a_log_without_settings_names_what_is_missing() -> None:
    told = recording(deployments=recording().deployments.clear())
    found = serving_what_if(told, {"max_num_seqs": 64})
    assert found.refusal is not None and "start-up log" in found.refusal


def test_a_log_without_any_step_times_names_what_is_missing() -> None:
    told = recording()
    hidden = [pl.lit(None, pl.Float64).alias(name) for name in ("scheduled_s", "first_token_s", "queued_s")]
    bare = told.replace(
        requests=told.requests.with_columns(hidden),
        engine_steps=told.engine_steps.clear(),
        engine_samples=told.engine_samples.clear(),
    )
    found = serving_what_if(bare, {"max_num_seqs": 64})
    assert found.refusal is not None and "iteration lines" in found.refusal


def test_a_model_that_misses_the_log_predicts_nothing() -> None:
    """Steps that took half as long as the requests show: a host that stalls, which the model does not have."""
    told = recording()
    hidden = [pl.lit(None, pl.Float64).alias(name) for name in ("scheduled_s", "first_token_s", "queued_s")]
    halved = told.replace(
        requests=told.requests.with_columns(hidden),
        engine_steps=told.engine_steps.with_columns(pl.col("duration_s") / 2),
    )
    found = serving_what_if(halved, {"max_num_seqs": 64})
    assert found.refusal is not None and "does not explain" in found.refusal
    assert found.measures["changed"].null_count() == len(found.measures)
    assert found.measures["error_ratio"].count() > 0


def test_another_engine_is_refused() -> None:
    told = recording(deployments=recording().deployments.with_columns(engine=pl.lit("sglang")))
    found = serving_what_if(told, {"max_num_seqs": 64})
    assert found.refusal is not None and "sglang" in found.refusal


def test_requests_that_the_changed_engine_refuses_are_told() -> None:
    found = serving_what_if(recording(), {"kv_cache_tokens": 800})
    assert any("no longer fit" in note for note in found.assumptions)


def test_changes_are_read_by_the_names_of_the_settings() -> None:
    assert changes_of("max_num_seqs=512, chunked_prefill=off,scheduler=orca") == {
        "max_num_seqs": 512,
        "chunked_prefill": False,
        "scheduler": "orca",
    }
    assert changes_of("enable_prefix_caching=on") == {"prefix_caching": True}
    assert changes_of("bucket_tokens=256/512") == {"bucket_tokens": (256, 512)}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "max_num_seqs",
        "max_num_seqs=many",
        "max_num_seqs=1e3",
        "max_num_seqs=5,max_num_seqs=7",
        "chunked_prefill=maybe",
        "max_seqs=5",
        "bucket_tokens=5/a",
    ],
)
def test_changes_that_cannot_be_are_one_line(text: str) -> None:
    with pytest.raises(DiagError) as caught:
        changes_of(text)
    assert "\n" not in str(caught.value)


def test_the_panel_shows_the_error_first() -> None:
    lines = what_if_panel(recording(), "max_num_seqs=64").lines
    assert "modelled" in lines[0]
    assert "the model's error on this log" in lines[1]
    assert any("with the changes" in line for line in lines[2:])


def test_the_magic_takes_the_changes_of_a_recording() -> None:
    session = Session({"prod": recording()})
    magic = Magic(grammar(session), session)
    shown = magic.run("batching prod --what-if max_num_seqs=64,chunked_prefill=off")
    assert shown.lines[0] == "What if max_num_seqs = 64, chunked_prefill = False (modelled)"
    code = magic.run("batching prod --what-if max_num_seqs=64 --code").lines
    assert code[-1] == "what_if_panel(recording, 'max_num_seqs=64')"
    with pytest.raises(DiagError, match="no setting named"):
        magic.run("batching prod --what-if max_seqs=64")


@pytest.mark.parametrize("name", ["prefix_caching", "order", "aging", "max_adapters"])
def test_a_setting_whose_effect_the_log_cannot_tell_is_refused(name: str) -> None:
    """Simulated, each would change nothing: requests without prefixes, priorities and adapters are all alike."""
    value = {"prefix_caching": False, "order": "priority", "aging": 2.0, "max_adapters": 1}[name]
    found = serving_what_if(recording(), {name: value})
    assert found.refusal is not None and "does not tell" in found.refusal and found.measures.is_empty()


@pytest.mark.parametrize(
    "changes",
    [
        {"batch_size": 64},
        {"scheduler": "orca", "chunked_prefill": False},
        {"scheduler": "static", "max_num_seqs": 64},
        {"scheduler": "bucketed"},
        {"resort_s": 1.0},
    ],
)
def test_a_setting_that_the_scheduler_does_not_read_is_one_line(changes: dict[str, object]) -> None:
    with pytest.raises(DiagError):
        serving_what_if(recording(), changes)


def test_every_setting_is_read_by_a_scheduler_or_rests_on_what_is_untold() -> None:
    read = {name for names in READ_BY.values() for name in names}
    assert set(READ_BY) == set(SCHEDULERS)
    assert {each.name for each in fields(EngineSettings)} - {"scheduler"} == read | set(UNTOLD)
    assert not read & set(UNTOLD)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_what_a_scheduler_is_said_to_read_is_all_that_changes_its_run(scheduler: str) -> None:
    base = EngineSettings(scheduler=scheduler, max_num_seqs=16, kv_cache_tokens=50_000, bucket_tokens=(100, 300))
    other = {"max_num_seqs": 4, "max_num_batched_tokens": 4096, "kv_cache_tokens": 8_000, "batch_size": 5}
    other |= {"chunked_prefill": False, "long_prefill_token_threshold": 64, "resort_s": 1.0, "swap_block_s": 1.0}
    before = simulate(ASKED, base, STEP).requests
    for name in other.keys() - set(READ_BY[scheduler]):
        assert simulate(ASKED, replace(base, **{name: other[name]}), STEP).requests.equals(before), name  # type: ignore[arg-type]


def test_many_requests_without_lengths_are_refused_and_few_are_told() -> None:
    requests = recording().requests
    hidden = [
        requests.with_columns(output_tokens=pl.when(pl.col("line") % n != 0).then("output_tokens")) for n in (2, 10)
    ]
    many, few = (serving_what_if(recording(requests=each), {"max_num_seqs": 64}) for each in hidden)
    assert many.refusal is not None and "75 of 150 requests" in many.refusal
    assert any("15 of 150 requests" in note for note in few.assumptions)


def test_a_larger_batch_than_any_that_ran_is_told() -> None:
    found = serving_what_if(recording(), {"max_num_seqs": 64})
    assert any("beyond the 16" in note for note in found.assumptions)
    assert not any("beyond" in note for note in serving_what_if(recording(), {"max_num_seqs": 20}).assumptions)


def test_what_orca_is_told_and_a_batch_size_that_nobody_chose_are_said() -> None:
    orca, static = (serving_what_if(recording(), {"scheduler": each}).assumptions for each in ("orca", "static"))
    assert any("longest output is not told" in note for note in orca)
    assert any("batches of 32 requests" in note for note in static)


def test_what_the_model_missed_is_carried_over_as_a_factor() -> None:
    """TPOT logged twice as long as the steps say: the changed one is likely twice as long too, not 1.5 times."""
    told = recording()
    hidden = [pl.lit(None, pl.Float64).alias(name) for name in ("scheduled_s", "queued_s")]
    twice = pl.col("last_token_s") - 2 * (pl.col("last_token_s") - pl.col("first_token_s"))
    few = pl.when(pl.col("line") % 10 == 0).then(twice)  # too few for step times, which come from the steps then
    found = measures(
        told.replace(requests=told.requests.with_columns(*hidden, first_token_s=few)), {"max_num_seqs": 20}
    )
    row = found["tpot_s"]
    assert row["error_ratio"] == pytest.approx(-0.5, abs=0.05)
    assert row["high"] == pytest.approx(row["changed"] * row["logged"] / row["modelled"])
    assert row["low"] < row["changed"]


def test_peaks_are_of_statistics_as_far_apart_as_those_of_the_log() -> None:
    told = recording()
    sparse = told.engine_samples.filter(pl.col("line") % 8 == 0)
    found = measures(told.replace(engine_samples=sparse), {"max_num_seqs": 16})
    assert found["waiting_count"]["logged"] == sparse["waiting_count"].max()
    assert abs(found["waiting_count"]["error_ratio"]) < 0.03


def test_published_constants_are_of_all_gpus_and_of_plain_weights_alone() -> None:
    told = recording()
    hidden = [pl.lit(None, pl.Float64).alias(name) for name in ("scheduled_s", "first_token_s", "queued_s")]
    bare = told.replace(
        requests=told.requests.with_columns(hidden),
        engine_steps=told.engine_steps.clear(),
        engine_samples=told.engine_samples.clear(),
    )
    named = told.deployments.with_columns(
        model=pl.lit("meta-llama/Llama-2-70b-hf"), gpu=pl.lit("NVIDIA H100 80GB HBM3")
    )
    four = named.with_columns(gpu_count=pl.lit(4, pl.UInt32))
    one, many = (serving_what_if(bare.replace(deployments=each), {"max_num_seqs": 64}) for each in (named, four))
    assert "1 x H100-SXM" in (one.basis or "") and "4 x H100-SXM" in (many.basis or "")
    tpot = [each.measures.filter(measure="tpot_s")["modelled"][0] for each in (one, many)]
    assert tpot[0] > 3 * tpot[1]
    packed = serving_what_if(bare.replace(deployments=four.with_columns(precision=pl.lit("fp8"))), {"max_num_seqs": 64})
    assert packed.refusal is not None and "nothing tells how long steps take" in packed.refusal


def test_engines_that_the_log_counts_are_simulated_side_by_side() -> None:
    two = recording().deployments.with_columns(data_parallel_count=pl.lit(2, pl.UInt32))
    assert settings_of(two).data_parallel_size == 2
    found = serving_what_if(recording(deployments=two), {"max_num_seqs": 20})
    assert any("run in step" in note for note in found.assumptions)
    assert not any("at once" in note for note in found.assumptions)
    whole = serving_what_if(recording(deployments=two), {"scheduler": "static"})
    assert whole.refusal is not None and "2 engines ran" in whole.refusal


def test_several_configurations_and_batches_beyond_the_pool_are_told() -> None:
    told = recording()
    other = told.deployments.with_columns(max_batch_tokens=pl.lit(4096, pl.UInt32))
    found = serving_what_if(told.replace(deployments=pl.concat([other, told.deployments])), {"max_num_seqs": 20})
    assert any("several configurations" in note for note in found.assumptions)
    wide = serving_what_if(told, {"scheduler": "static", "batch_size": 150})
    assert any("times the KV pool" in note for note in wide.assumptions)
