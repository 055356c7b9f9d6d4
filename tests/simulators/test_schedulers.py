"""Schedulers beside each other: seeds and intervals, what re-sorting costs, and starvation that is always told."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import cache
from queue import PriorityQueue

import numpy as np
import polars as pl
import pytest

import infer_diag as diag
from infer_diag import samples
from infer_diag.attribution.simulated_accuracy import HalfFit, first_half_fit, simulated_accuracy, time_between_steps
from infer_diag.charts.throughput_loss import scheduler_bars
from infer_diag.errors import DiagError
from infer_diag.report.claims_schedulers import length_claims, printed_claims, scheduler_claims
from infer_diag.simulators.scheduler_comparison import (
    Engine,
    Traffic,
    compared_schedulers,
    delivered_tokens_per_s,
    throughput_by_cv,
)
from infer_diag.simulators.serving import (
    EngineSettings,
    StepTime,
    gpu_named,
    model_named,
    poisson_arrivals,
    roofline,
    settings_of,
    simulate,
    workload,
)
from infer_diag.simulators.serving.ledger import starvation

COMMON = EngineSettings(max_num_seqs=128, max_num_batched_tokens=8192, kv_cache_tokens=172_000, batch_size=128)
ENGINE = Engine(
    roofline(model_named("Llama-3.1-8B"), gpu_named("A100-SXM-40GB")),
    COMMON,
    {
        "punica": {"adapter_step_s": 2e-4, "adapter_token_s": 2e-6},
        "bucketed": {"bucket_tokens": (500, 1000, 2000, 4000)},
        "re-sorting for nothing": {"scheduler": "orca-article", "resort_s": 0.0},
    },
)
NAMES = ("vllm-v1", "vllm-v0", "orca", "orca-article", "re-sorting for nothing", "punica", "static", "bucketed")
TRAFFIC = Traffic(request_count=400, requests_per_s=16.0)


@cache
def table() -> dict[str, dict[str, float]]:
    told = compared_schedulers(NAMES, ENGINE, TRAFFIC, seeds=range(4))
    return {row["scheduler"]: row for row in told.iter_rows(named=True)}


def test_every_policy_has_a_row_with_an_interval() -> None:
    rows = table()
    assert tuple(rows) == NAMES
    assert all(row["low_ratio"] <= row["decay_ratio"] <= row["high_ratio"] for row in rows.values())
    assert all(row["seed_count"] == 4 for row in rows.values())
    with pytest.raises(DiagError):
        compared_schedulers(NAMES, ENGINE, TRAFFIC, seeds=[1])


def test_the_same_seeds_give_the_same_table() -> None:
    again = compared_schedulers(["vllm-v1", "static"], ENGINE, TRAFFIC, seeds=range(4))
    for row in again.iter_rows(named=True):
        assert row == table()[row["scheduler"]]


def test_real_traffic_ruins_whole_batches_and_costs_continuous_ones_little() -> None:
    rows = table()
    assert rows["vllm-v1"]["padding_ratio"] == 0 and rows["static"]["padding_ratio"] > 0.5
    assert rows["vllm-v1"]["high_ratio"] < 0.15
    assert rows["static"]["low_ratio"] > 0.7
    assert rows["static"]["decay_ratio"] > rows["bucketed"]["decay_ratio"] > rows["vllm-v0"]["decay_ratio"]


def test_re_sorting_costs_time_and_helps_nobody_in_the_tail() -> None:
    paid, free, plain = (table()[name] for name in ("orca-article", "re-sorting for nothing", "orca"))
    assert paid["real_tokens_per_s"] < 0.99 * free["real_tokens_per_s"]
    assert free["real_tokens_per_s"] == pytest.approx(plain["real_tokens_per_s"], rel=0.02)
    assert paid["longest_wait_s"] > plain["longest_wait_s"]


def test_traffic_asks_for_the_same_tokens_even_and_real() -> None:
    for seed in range(3):
        even, real = TRAFFIC.even(seed), TRAFFIC.real(seed)
        assert len(even) == len(real)
        assert real.arrival_s[-1] == pytest.approx(even.arrival_s[-1], rel=0.01)
        for name in ("prompt_tokens", "output_tokens"):
            assert getattr(real, name).mean() == pytest.approx(getattr(even, name).mean(), rel=0.02)
            assert getattr(real, name).std() > 0 == getattr(even, name).std()
        assert real.output_tokens.max() <= TRAFFIC.declared_tokens


def test_length_variance_costs_padded_batches_and_hardly_a_continuous_one() -> None:
    told = throughput_by_cv(["vllm-v1", "static"], ENGINE, TRAFFIC, [0.5, 0.89], seeds=range(4))
    change = dict(told.filter(cv=0.89).select("scheduler", "change_ratio").iter_rows())
    assert change["static"] < -0.3
    assert -0.12 < change["vllm-v1"] < 0.05
    assert told.filter(cv=0.5)["change_ratio"].null_count() == 2


def test_throughput_of_equal_requests_is_what_the_step_time_allows() -> None:
    """64 requests that always run together: each step of them gives 64 tokens."""
    step = StepTime(0.02, 0.0, 1e-3)
    asked = workload(np.zeros(640), 10, 500)
    run = simulate(asked, EngineSettings(scheduler="orca", max_num_seqs=64), step)
    assert delivered_tokens_per_s(run) == pytest.approx(64 / (0.02 + 64 * 1e-3), rel=0.03)


def impatient(order: str, slo_s: object = 1.0, priority: object = 0) -> pl.DataFrame:
    arrival_s = poisson_arrivals(30.0, 60, seed=4)
    count = len(arrival_s)
    mark = np.arange(count) == 20
    asked = workload(
        arrival_s,
        100,
        50,
        priority=np.where(mark, 5, 0) if priority else 0,
        slo_s=np.where(mark, 1e4, 1.0) if slo_s else 1.0,
    )
    run = simulate(asked, EngineSettings(max_num_seqs=4, order=order), StepTime(0.02, 1e-4, 1e-3))
    told = starvation(run)
    return pl.DataFrame(
        [{"starved": told.starved_count, "overtaken": told.overtaken_count, "wait": told.longest_wait_s}]
    )


@pytest.mark.parametrize(("order", "slo", "priority"), [("priority", False, True), ("deadline", True, False)])
def test_who_is_starved_is_reported(order: str, slo: bool, priority: bool) -> None:
    told = impatient(order, slo, priority).row(0, named=True)
    assert told["starved"] >= 1
    assert told["overtaken"] > 100
    fair = impatient("fcfs", slo, priority).row(0, named=True)
    assert fair["starved"] == 0 and fair["overtaken"] == 0
    assert fair["wait"] < told["wait"]


def test_aging_ends_what_deadlines_alone_starve() -> None:
    mild = workload_with_one_patient(aging=0.0), workload_with_one_patient(aging=1e4)
    assert mild[0].overtaken_count > 4 * mild[1].overtaken_count


def workload_with_one_patient(aging: float):  # type: ignore[no-untyped-def]
    arrival_s = poisson_arrivals(30.0, 60, seed=4)
    asked = workload(arrival_s, 100, 50, slo_s=np.where(np.arange(len(arrival_s)) == 20, 1e4, 1.0))
    settings = EngineSettings(max_num_seqs=4, order="aging", aging=aging)
    return starvation(simulate(asked, settings, StepTime(0.02, 1e-4, 1e-3)))


def test_claims_stand_beside_the_articles() -> None:
    told = compared_schedulers(NAMES, ENGINE, TRAFFIC, seeds=range(4))
    claims = list(scheduler_claims(told, "here"))
    assert [claim.article for claim in claims[:3]] == ["−12.3 %", "−19.1 %", "−28.6 %"]
    assert all(claim.how == "simulated" and claim.where == "here" for claim in claims)
    vllm = told.row(by_predicate=pl.col("scheduler") == "vllm-v1", named=True)
    assert f"{-100 * vllm['decay_ratio']:+.1f}".replace("-", "−") in (claims[0].ours or "")
    assert "throughput" in (claims[3].ours or "")
    for name in ("peek_top_k", "reheapify"):
        assert name in claims[3].correction and not hasattr(PriorityQueue, name)
    about_lengths = length_claims(
        padded_change=-0.38,
        static_change=-0.5,
        continuous_change=-0.03,
        aligned_ratio=0.003,
        faults=("a", "b"),
        where="here",
    )
    assert [claim.ours for claim in about_lengths] == [
        "−38.0 % useful tokens in padded batches of 32; throughput −50.0 % in those of 128, −3.0 % in continuous ones",
        "adds 0.30 % to the tokens",
        "2 TypeErrors",
    ]


def test_the_printed_figures_are_held_to_what_memory_allows() -> None:
    rate, latency, prefetch, blocks = printed_claims()
    assert "6.95 ms, 7.14 ms, 7.64 ms" in (rate.ours or "")
    floors_ms = [float(each) for each in re.findall(r"([\d.]+) ms \(", rate.ours or "")]
    # 7.62e9 weights of 2 B less a table of 152,064 · 3,584 that is looked up, and 56 KiB a token of KV.
    read_gb = 2 * (7.62 - 0.545) + 128 * 2048 * 57_344 / 1e9
    assert floors_ms == pytest.approx([read_gb / 4.8, read_gb / 3.35, read_gb / 2.039], rel=0.005)
    assert latency.ours == "time for 49, 60, 68 outputs at the printed rates"
    assert prefetch.ours is None
    assert "0.36 %" in (blocks.ours or "") and "74 tokens" in blocks.correction


def test_a_chart_draws_every_scheduler_and_the_published_shares() -> None:
    told = compared_schedulers(["vllm-v1", "static"], ENGINE, TRAFFIC, seeds=range(2))
    ours, theirs = scheduler_bars(told, {"vllm-v1": 0.123}).to_dict()["data"]
    assert list(ours["x"]) == told["decay_ratio"].to_list()
    assert list(theirs["x"]) == [0.123]


@cache
def met(name: str) -> tuple[HalfFit, dict[tuple[str, str], dict[str, float]]]:
    """A recorded run on a CPU, simulated with step times from its first half: the fit, and the errors."""
    client = pl.read_ndjson(samples.path(f"captured/{name}/client.jsonl")).rename({"send_s": "arrival_s"})
    log = diag.load(f"sample:captured/{name}/server.log" + (".gz" if name.startswith("steady") else ""))
    fit = first_half_fit(log)
    # vLLM's defaults on a CPU: this budget, and no step planned ahead. Prompts of 700 tokens share 256.
    settings = settings_of(log.deployments, max_num_batched_tokens=2048, block_tokens=128, async_scheduling=False)
    shared = np.where(client["prompt_tokens"].to_numpy() >= 700, 0, -1)
    options = {"prefix_group": shared, "prefix_tokens": 256}
    told = simulated_accuracy(client, settings, fit.step_time, scatter=fit.scatter, **options)
    return fit, {(row["part"], row["measure"]): row for row in told.errors.iter_rows(named=True)}


STEADY = ("steady_plain", "steady_kv_preempts", "steady_long_short_bursts")


@pytest.mark.parametrize("name", STEADY)
def test_a_run_of_even_steps_is_met(name: str) -> None:
    fit, errors = met(name)
    assert fit.scatter_ratio < 0.2
    for part in ("whole", "second half"):
        assert abs(errors[part, "output_tokens_per_s"]["error_ratio"]) < 0.03
    for measure in ("ttft_s", "tpot_s"):
        assert abs(errors["whole", measure]["error_ratio"]) < 0.05
    for measure in ("running_count", "waiting_count"):
        row = errors["whole", measure]
        assert abs(row["simulated"] - row["recorded"]) <= 1


@pytest.mark.parametrize("name", ["plain", "kv_preempts", "long_short_bursts"])
def test_a_run_of_uneven_steps_is_told_to_be_one(name: str) -> None:
    fit, errors = met(name)
    even = met(f"steady_{name}")[1]["whole", "ttft_s"]
    assert fit.scatter_ratio > 0.9
    for (part, measure), row in errors.items():
        if part == "whole" and measure == "output_tokens_per_s":
            assert abs(row["error_ratio"]) < 0.1
        assert row["low_ratio"] <= row["high_ratio"]
    # What the machine's unevenness can do to a median is far more than what an even one can.
    reaches = [(1 + row["high_ratio"]) / (1 + row["low_ratio"]) for row in (errors["whole", "ttft_s"], even)]
    assert reaches[0] > reaches[1]


def test_a_simulated_run_meets_itself() -> None:
    run = simulate(TRAFFIC.real(1), COMMON, ENGINE.step_time)
    told = simulated_accuracy(run.requests, COMMON, ENGINE.step_time, max_output_tokens=TRAFFIC.declared_tokens)
    assert told.errors["error_ratio"].abs().max() < 1e-9  # type: ignore[operator]


def test_the_time_between_steps_is_that_of_long_stretches_of_work() -> None:
    begin, count = datetime(2026, 1, 1, tzinfo=UTC), 4000
    ends = np.cumsum(np.full(count, 0.011)) + np.where(np.arange(count) >= count // 2, 60.0, 0.0)
    steps = pl.DataFrame(
        {
            "time": [begin + timedelta(seconds=float(np.floor(end))) for end in ends],
            "decode_count": [0 if place in (0, count // 2) else 4 for place in range(count)],
        }
    ).with_columns(source_id=0, kind=pl.lit("decode"), duration_s=0.01)
    assert time_between_steps(steps) == pytest.approx(0.001, abs=4e-4)
    assert time_between_steps(steps.head(100)) == 0.0
