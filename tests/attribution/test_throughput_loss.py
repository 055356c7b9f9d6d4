"""The parts of engine time add up, what a log cannot tell is refused, and planted losses are found."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import infer_diag as diag
from infer_diag import schema
from infer_diag.attribution.throughput_loss import (
    Slo,
    Usl,
    bursts_seen,
    goodput,
    length_effect,
    padding,
    saturation_knee,
    throughput_loss,
    token_budget_what_if,
)
from infer_diag.attribution.throughput_loss.change_points import anscombe, change_points
from infer_diag.attribution.throughput_loss.padding import CONTINUOUS
from infer_diag.charts.throughput_loss import budget_bars, loss_bars
from infer_diag.errors import DiagError
from infer_diag.jupyter.losses_panel import losses_panel
from infer_diag.jupyter.panels import batching_panel
from infer_diag.recording import Recording
from infer_diag.schema import EngineSteps
from infer_diag.simulators.serving import (
    SCHEDULERS,
    EngineSettings,
    Simulation,
    StepTime,
    lognormal_tokens,
    poisson_arrivals,
    simulate,
    workload,
)

STEP = StepTime(0.01, 5e-5, 2e-4)
REAL_LOG = Path(__file__).parents[2].parent / "shared/corpus/server_logs/vllm_0.15.0_gpt-oss-120b_tp4_server.log"


def run(
    scheduler: str = "vllm-v1", *, rate: float = 8.0, seed: int = 0, count: int = 400, **options: object
) -> Simulation:
    arrival_s = poisson_arrivals(rate, count / rate, seed=seed)
    prompt = lognormal_tokens(len(arrival_s), mean=200, cv=0.9, seed=seed + 1, longest=1500)
    output = lognormal_tokens(len(arrival_s), mean=60, cv=0.9, seed=seed + 2, longest=500)
    given = {"max_num_seqs": 64, "max_num_batched_tokens": 2048} | options
    return simulate(workload(arrival_s, prompt, output), EngineSettings(scheduler=scheduler, **given), STEP)  # type: ignore[arg-type]


def seconds(recording: Recording) -> dict[str, float | None]:
    told = throughput_loss(recording)
    assert told.refusal is None, told.refusal
    return dict(told.parts.select(pl.col("part").cast(pl.String), "engine_s").iter_rows())


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(SCHEDULERS), st.sampled_from([2.0, 20.0]), st.integers(0, 50))
@example("punica", 2.0, 48)
def test_parts_and_residual_are_the_whole(scheduler: str, rate: float, seed: int) -> None:
    recording = run(scheduler, rate=rate, seed=seed, count=80, kv_cache_tokens=8000, batch_size=8).recording
    told = throughput_loss(recording)
    assert told.refusal is None
    own = told.parts.filter(pl.col("adds_up"))
    assert own["engine_s"].sum() == pytest.approx(told.whole_s, rel=1e-9)
    assert own["share_ratio"].sum() == pytest.approx(1.0)
    assert (own.drop_nulls("engine_s").filter(pl.col("part") != "residual")["engine_s"] >= 0).all()
    assert own.filter(pl.col("engine_s").is_null())["status"].to_list() == ["not_identifiable"] * int(
        own["engine_s"].null_count()
    )


def test_gates_hold_in_a_simulation_and_stop_everything_where_requests_are_missing() -> None:
    recording = run(count=600).recording
    assert throughput_loss(recording).gates["verdict"].to_list() == ["holds", "holds"]
    half = recording.replace(requests=recording.requests.gather_every(2))
    told = throughput_loss(half)
    assert told.gates.filter(gate="little")["verdict"].item() == "fails"
    assert told.parts.is_empty() and "Little" in (told.refusal or "")
    doubled = recording.requests.with_columns(pl.col("prompt_tokens") * 2)
    assert "ledger" in (throughput_loss(recording.replace(requests=doubled)).refusal or "")
    # Fewer tokens than the prompts have may be the prefix cache, where the log does not tell what it held.
    unknown = doubled.with_columns(cached_tokens=pl.lit(None, pl.UInt32))
    told = throughput_loss(recording.replace(requests=unknown)).gates
    assert told.filter(gate="token_ledger")["verdict"].item() == "unchecked"


def test_requests_that_client_and_server_both_tell_stop_nothing() -> None:
    """Benchmark results beside the engine's log: each request is there twice, under two names."""
    recording = run(count=600).recording
    again = recording.requests.with_columns(request_id="client-" + pl.col("request_id"), source_id=pl.lit(1, pl.UInt32))
    both = recording.replace(requests=pl.concat([recording.requests, again]), sources=2 * recording.sources)
    told = throughput_loss(both)
    assert told.refusal is None and len(told.parts)
    assert told.gates["verdict"].cast(pl.String).to_list() == ["holds", "holds"]
    alone, twice = (goodput(each, Slo(ttft_s=1e6)) for each in (recording, both))
    assert alone.met_count == twice.met_count == alone.request_count == twice.request_count == len(again)
    unfinished = recording.requests.with_columns(pl.lit(None, pl.Float64).alias("first_token_s"))
    client_knows = both.replace(requests=pl.concat([unfinished, again]))
    assert goodput(client_knows, Slo(ttft_s=1e6)).met_ratio == 1


def test_interference_is_the_prompts_part_of_mixed_steps() -> None:
    simulated = run(rate=12.0, count=600)
    steps = simulated.engine_steps.filter(kind="mixed")
    truth = float(steps["prefill_tokens"].sum()) * STEP.per_prefill_token_s
    assert seconds(simulated.recording)["prefill_interference"] == pytest.approx(truth, rel=0.05)


def test_recomputation_is_told_where_requests_are_preempted() -> None:
    tight = run(rate=30.0, kv_cache_tokens=6000)
    assert tight.requests["preemption_count"].sum() > 0
    found = seconds(tight.recording)
    assert found["recompute"] and found["recompute"] > 0
    assert seconds(run().recording)["recompute"] == 0


def test_a_pool_that_binds_bounds_what_it_costs() -> None:
    told = throughput_loss(run(rate=30.0, count=800, kv_cache_tokens=6000).recording).parts
    row = told.row(by_predicate=pl.col("part") == "kv_limited", named=True)
    assert row["status"] == "bounded" and row["low_s"] == 0
    assert 0 < row["engine_s"] < row["high_s"]
    roomy = throughput_loss(run(rate=30.0, count=800, kv_cache_tokens=400_000).recording).parts
    assert roomy.row(by_predicate=pl.col("part") == "kv_limited", named=True)["engine_s"] == 0


def test_little_demand_is_underfill_and_idle_not_a_limit_of_memory() -> None:
    recording = run(rate=1.0, count=150, kv_cache_tokens=200_000).recording
    told = throughput_loss(recording).parts
    found = dict(told.select(pl.col("part").cast(pl.String), "engine_s").iter_rows())
    busy = float(recording.engine_steps["duration_s"].sum())
    assert found["idle"] == pytest.approx(throughput_loss(recording).whole_s - busy, abs=15.0)  # type: ignore[operator]
    assert found["kv_limited"] in (0.0, None)


def test_steps_without_stamps_tell_no_idle_time() -> None:
    recording = run(count=100).recording
    steps = recording.engine_steps.with_columns(time=pl.lit(None, pl.Datetime("us", "UTC")))
    told = throughput_loss(recording.replace(engine_steps=steps)).parts
    assert told.filter(pl.col("part").cast(pl.String).is_in(["idle", "host_stall"]))["engine_s"].null_count() == 2


def test_statistics_alone_refuse_the_host_and_keep_the_sum() -> None:
    recording = run(rate=14.0, count=2000).recording
    bare = recording.replace(engine_steps=schema.EngineSteps.create_empty(), requests=schema.Requests.create_empty())
    told = throughput_loss(bare)
    by_part = {row["part"]: row for row in told.parts.iter_rows(named=True)}
    assert by_part["host_stall"]["status"] == "not_identifiable"
    assert by_part["decode"]["status"] == "modelled"
    assert told.parts.filter(pl.col("adds_up"))["engine_s"].sum() == pytest.approx(told.whole_s)
    assert throughput_loss(Recording()).refusal
    stepped = seconds(recording)
    assert by_part["prefill_interference"]["engine_s"] == pytest.approx(stepped["prefill_interference"], rel=0.2)
    assert by_part["decode"]["engine_s"] == pytest.approx(stepped["decode"], rel=0.2)


def test_padding_is_counted_where_batches_are_whole_and_refused_elsewhere() -> None:
    static = run("static", batch_size=16)
    found = padding(static.recording)
    assert not isinstance(found, str)
    lengths = static.requests.sort("arrival_s")["prompt_tokens"].cast(pl.Int64).to_numpy()
    longest = [part.max() * len(part) for part in np.split(lengths, range(16, len(lengths), 16))]
    assert found.prompt_ratio == pytest.approx(1 - lengths.sum() / sum(longest))
    assert padding(run("vllm-v1").recording) == CONTINUOUS
    fewer = static.recording.replace(requests=static.requests.head(100))
    assert isinstance(padding(fewer), str)
    (finding,) = [each for each in diag.diagnose(static.recording).findings if each.id == "batching.padding"]
    assert finding.status == "measured" and finding.severity == "high"
    assert not [each for each in diag.diagnose(run().recording).findings if each.id == "batching.padding"]


def planted_budget(budget: int, fixed_s: float, token_s: float, seed: int = 3) -> Recording:
    """Steps of an engine whose mixed steps cost `fixed_s` + `token_s` · prompt tokens beyond decode."""
    random = np.random.default_rng(seed)
    rows = []
    for index in range(3000):
        batch = int(random.integers(20, 60))
        prompt = int(random.integers(100, budget - batch)) if index % 6 == 0 else 0
        spent = 0.01 + 1e-4 * batch + (fixed_s + token_s * prompt if prompt else 0.0) + random.normal(0, 1e-4)
        rows.append(("mixed" if prompt else "decode", 1 if prompt else 0, batch, prompt, batch, spent))
    names = ["kind", "prefill_count", "decode_count", "prefill_tokens", "decode_tokens", "duration_s"]
    frame = pl.DataFrame(rows, schema=names, orient="row").with_columns(
        source_id=pl.lit(0), line=pl.int_range(1, pl.len() + 1), time=pl.lit(None), replica=pl.lit(None)
    )
    steps = schema.EngineSteps.validate(frame.select(schema.EngineSteps.column_names()), cast=True)
    row = dict.fromkeys(schema.Deployments.column_names())
    told = pl.DataFrame([row | {"engine": "vllm", "max_batch_tokens": budget, "source_id": 0, "line": 1}])
    return Recording(
        sources=run(count=20).recording.sources,
        engine_steps=steps,
        deployments=schema.Deployments.validate(told, cast=True),
    )


def test_a_smaller_budget_costs_what_each_further_step_costs() -> None:
    told = token_budget_what_if(planted_budget(2048, 0.02, 2e-5))
    half = told.budgets.filter(max_batch_tokens=1024).row(0, named=True)
    now = told.budgets.filter(pl.col("now")).row(0, named=True)
    truth = -0.02 * (half["step_count"] - now["step_count"])
    assert half["saved_s"] == pytest.approx(truth, rel=0.05)
    assert half["low_s"] <= truth <= half["high_s"]
    assert half["longest_pause_s"] < now["longest_pause_s"]
    assert now["saved_s"] == 0


def test_budgets_take_the_steps_of_each_engine_and_several_steps_of_one_line() -> None:
    """Two engines write by turns, and a JSON array holds all steps in one line: twice what one of them saves."""
    alone = planted_budget(2048, 0.02, 2e-5)
    name = pl.col("replica").cast(pl.String)
    each = [alone.engine_steps.with_columns(name.fill_null(engine)) for engine in ("DP0", "DP1")]
    turns = pl.concat([steps.with_row_index("turn") for steps in each]).sort("turn", "replica").drop("turn")
    numbered = turns.with_columns(line=pl.int_range(1, pl.len() + 1))
    saved = dict(token_budget_what_if(alone).budgets.select("max_batch_tokens", "saved_s").iter_rows())
    for steps in (numbered, turns, numbered.with_columns(line=pl.lit(1))):
        told = EngineSteps.validate(steps, cast=True)
        budgets = token_budget_what_if(alone.replace(engine_steps=told)).budgets
        for budget, both_s in budgets.select("max_batch_tokens", "saved_s").iter_rows():
            assert both_s == pytest.approx(2 * saved[budget], rel=0.01)


def test_a_budget_that_costs_nothing_by_itself_saves_nothing() -> None:
    told = token_budget_what_if(planted_budget(2048, 0.0, 2e-5))
    assert (told.budgets["saved_s"].abs() < 0.05 * (told.stalled_s or 0.0)).all()
    assert token_budget_what_if(Recording()).refusal


def requests_at(arrivals_s: np.ndarray, queue_s: float | None = None) -> Recording:  # type: ignore[type-arg]
    empty: dict[str, object] = dict.fromkeys(schema.Requests.column_names())
    rows = [
        empty
        | {"request_id": f"r{n}", "arrival_s": at, "source_id": 0, "line": n + 1}
        | ({} if queue_s is None else {"queued_s": at, "scheduled_s": at + queue_s})
        for n, at in enumerate(np.sort(arrivals_s))
    ]
    return Recording(requests=schema.Requests.validate(pl.DataFrame(rows, infer_schema_length=None), cast=True))


def test_a_planted_burst_is_found_and_coarse_stamps_say_what_they_hide() -> None:
    quiet = poisson_arrivals(2.0, 300, seed=1)
    burst = 100 + np.random.default_rng(2).random(60)
    fine = bursts_seen(requests_at(np.concatenate([quiet, burst]), queue_s=1.5))
    (row,) = fine.bursts.rows(named=True)
    assert row["begin_s"] == pytest.approx(100.0, abs=0.15) and row["end_s"] == pytest.approx(101.0, abs=0.15)
    assert row["request_count"] >= 60 and row["queue_s"] == pytest.approx(1.5 * row["request_count"])
    assert bursts_seen(requests_at(quiet)).bursts.is_empty()
    assert bursts_seen(requests_at(np.floor(quiet))).resolution_s == pytest.approx(4.0)
    samples = run(count=100).recording.replace(requests=schema.Requests.create_empty())
    told = bursts_seen(samples)
    assert told.refusal and told.resolution_s == pytest.approx(4.0)


def test_requests_of_a_burst_that_were_never_scheduled_are_no_wait_of_zero() -> None:
    planted = np.sort(np.concatenate([np.arange(0.0, 300.0, 1.0), 150.0 + np.arange(60) * 0.01]))
    whole = requests_at(planted, queue_s=2.0)
    last = pl.when(pl.col("arrival_s").is_between(150.3, 150.7)).then(None).otherwise(pl.col("scheduled_s"))
    cut = whole.replace(requests=whole.requests.with_columns(scheduled_s=last))
    rows = [burst_row(each) for each in (whole, cut)]
    assert rows[0]["status"] == "measured" and rows[1]["status"] == "bounded"
    assert rows[1]["engine_s"] < rows[0]["engine_s"] and "at least" in rows[1]["basis"]


def burst_row(recording: Recording) -> dict[str, object]:
    steps = run(rate=12.0).recording
    told = throughput_loss(recording.replace(engine_steps=steps.engine_steps, sources=steps.sources))
    return told.parts.row(by_predicate=pl.col("part") == "burst_queueing", named=True)


def cheapest(values: np.ndarray, price: float, least: int) -> tuple[float, list[int]]:
    """The least cost of any segmentation, and its begins: every one is tried."""
    best: list[tuple[float, list[int]]] = [(-price, [])]
    for end in range(1, len(values) + 1):
        ways = [
            (best[begin][0] + float(((values[begin:end] - values[begin:end].mean()) ** 2).sum()) + price, begin)
            for begin in range(max(0, end - least + 1))
        ]
        cost, begin = min(ways, default=(np.inf, 0))
        best.append((cost, [*best[begin][1], begin]))
    return best[-1]


@given(st.lists(st.integers(0, 9), min_size=6, max_size=40), st.integers(2, 4))
def test_no_segmentation_is_cheaper_than_the_one_found(counts: list[int], least: int) -> None:
    values = anscombe(np.array(counts, dtype=float))
    found = change_points(values, least=least)
    wanted, _ = cheapest(values, 3.0 * np.log(len(values)), least)
    ends = [*found[1:], len(values)]
    cost = sum(float(((values[b:e] - values[b:e].mean()) ** 2).sum()) for b, e in zip(found, ends, strict=True))
    assert cost + 3.0 * np.log(len(values)) * (len(found) - 1) == pytest.approx(wanted, abs=1e-9)
    assert all(e - b >= least for b, e in zip(found, ends, strict=True)) or found == [0]


def test_quiet_traffic_rarely_looks_like_a_burst() -> None:
    alarms = [len(bursts_seen(requests_at(poisson_arrivals(5.0, 200, seed=seed))).bursts) > 0 for seed in range(60)]
    assert sum(alarms) <= 2


def test_the_knee_is_refused_from_a_few_levels_and_found_from_many() -> None:
    low = saturation_knee(run(rate=1.0, count=60).recording)
    assert low.knee_count is None and low.reason
    high = saturation_knee(run(rate=60.0, count=1500, max_num_seqs=200).recording, tpot_s=0.02)
    # fixed 10 ms, 0.2 ms a request: half of the first request's gain is left at b = ((a + c)·√2 − a)/c
    assert high.knee_count == pytest.approx((0.0102 * 2**0.5 - 0.01) / 2e-4, abs=3)
    assert high.low_count is not None and high.low_count <= high.knee_count
    assert high.within_slo_count is not None and 44 <= high.within_slo_count <= 50


def decode_steps(law: Usl, most: int, *, noise: float, count: int = 3000) -> Recording:
    """Pure decode steps at every batch size up to `most`, their times scattered."""
    random = np.random.default_rng(3)
    batch = random.integers(1, most + 1, count)
    seconds = law.alone_s + law.each_s * batch + law.pair_s * batch * (batch - 1)
    rows = pl.DataFrame({"decode_count": batch, "duration_s": seconds * np.exp(random.normal(0, noise, count))})
    columns = dict.fromkeys(("source_id", "prefill_count", "prefill_tokens"), pl.lit(0))
    rows = rows.with_columns(decode_tokens="decode_count", kind=pl.lit("decode"), line=pl.int_range(1, pl.len() + 1))
    rows = rows.with_columns(**columns, time=pl.lit(None), replica=pl.lit(None))
    return Recording(engine_steps=EngineSteps.validate(rows.select(list(EngineSteps.columns())), cast=True))


def test_the_law_of_a_saturating_engine_comes_back() -> None:
    gamma, alpha, beta = 79.9, 0.0302, 3.98e-4
    law = Usl((1 - alpha) / gamma, alpha / gamma, beta / gamma)
    found = saturation_knee(decode_steps(law, 128, noise=0.03))
    assert found.law is not None
    assert (found.law.alpha, found.law.beta) == (pytest.approx(alpha, rel=0.1), pytest.approx(beta, rel=0.1))
    assert found.peak_count == pytest.approx(49.4, rel=0.05)
    assert found.low_count is not None and found.high_count is not None
    assert found.low_count <= (law.knee(128) or 0) <= found.high_count
    # The same engine seen up to 16 requests does not tell where its throughput peaks.
    assert saturation_knee(decode_steps(law, 16, noise=0.03)).peak_count is None


def test_a_knee_at_the_edge_of_the_levels_has_no_upper_end() -> None:
    found = saturation_knee(decode_steps(Usl(0.012, 1e-4, 0.0), 54, noise=0.6))
    assert found.high_count is None
    assert found.reason and "knee is above" in found.reason


def test_goodput_counts_what_never_finished_as_missed() -> None:
    recording = run(count=200).recording
    all_good = goodput(recording, Slo(ttft_s=1e6, tpot_s=1e6))
    assert all_good.met_ratio == 1 and (all_good.low_ratio or 0) > 0.97
    lost = recording.requests.with_columns(last_token_s=pl.when(pl.int_range(pl.len()) % 4 > 0).then("last_token_s"))
    told = goodput(recording.replace(requests=lost), Slo(tpot_s=1e6))
    assert told.met_ratio == pytest.approx(0.75, abs=0.01)
    assert told.unfinished_count == pytest.approx(len(lost) / 4, abs=1)
    assert goodput(Recording(), Slo(ttft_s=1)).refusal
    with pytest.raises(DiagError):
        Slo()


def test_length_variance_is_an_association_and_short_logs_are_refused() -> None:
    assert "days" in (length_effect(run().recording).refusal or "")
    told = length_effect(confounded(), window_s=100.0, least_days=0.0)
    assert told.refusal is None and told.status == "association"
    assert told.unadjusted_slope_ratio is not None and told.unadjusted_slope_ratio > 0
    assert told.low_ratio is not None and told.high_ratio is not None
    assert told.low_ratio < -0.15 < told.high_ratio
    assert "running batch" in told.not_adjusted and "offered load" in told.adjusted


def confounded() -> Recording:
    """Windows of 100 s in which load raises throughput and CV, and a unit of CV costs 0.15 of ln throughput.

    A backlog is served in order of arrival: how many end in a window is what the plant says.
    """
    random = np.random.default_rng(5)
    empty: dict[str, object] = dict.fromkeys(schema.Requests.column_names())
    arrived: list[tuple[float, int]] = []
    rows: list[dict[str, object]] = []
    for window in range(160):
        load = random.normal()
        cv = max(0.8 + 0.2 * load + random.normal(0, 0.2), 0.1)
        count = round(200 * np.exp(0.25 * load))
        prompt = lognormal_tokens(count, mean=1000, cv=cv, seed=window)
        lengths = prompt + 100
        served = round(170 * np.exp(0.25 * load - 0.15 * lengths.std(ddof=1) / lengths.mean() + random.normal(0, 0.01)))
        arrived += list(zip(window * 100.0 + np.linspace(0, 99, count), map(int, prompt), strict=True))
        for done in range(min(served, len(arrived))):
            at, tokens = arrived.pop(0)
            ends = window * 100.0 + 99.1 + done * 1e-4
            rows.append(
                empty
                | {"request_id": f"r{len(rows)}", "arrival_s": at, "scheduled_s": ends - 0.05, "last_token_s": ends}
                | {"prompt_tokens": tokens, "output_tokens": 100, "source_id": 0, "line": len(rows) + 1}
            )
    return Recording(requests=schema.Requests.validate(pl.DataFrame(rows, infer_schema_length=None), cast=True))


def test_a_panel_tells_the_losses_and_the_one_for_serving_names_the_largest() -> None:
    recording = planted_budget(2048, 0.02, 2e-5)
    told = losses_panel(recording)
    assert told.frame is not None and told.figure is not None and len(told.lines) <= 12
    assert any(line.startswith("prefill interference") for line in told.lines)
    assert any("token budget" in line or "max_num_batched_tokens" in line for line in told.lines)
    assert "engine time: prefill interference" in batching_panel(diag.diagnose(run(rate=12.0).recording)).text
    half = run(count=600).recording
    stopped = losses_panel(half.replace(requests=half.requests.gather_every(2)))
    assert stopped.figure is None and "Little" in stopped.sentence
    assert "not identifiable" in losses_panel(Recording()).sentence


def test_a_panel_names_what_each_unknown_part_lacks() -> None:
    recording = run(rate=12.0).recording
    lines = losses_panel(recording.replace(engine_steps=recording.engine_steps.clear())).lines
    unknown = next(line for line in lines if line.startswith("not identifiable: "))
    assert "host stall" in unknown and "--enable-logging-iteration-details" in unknown


def test_stamps_that_go_back_tell_no_idle_and_no_host_time() -> None:
    """The clock is set back by an hour: what its span exceeds the steps by is no time of the host."""
    recording = run(rate=12.0).recording
    steps = recording.engine_steps
    back = pl.when(pl.col("line") > len(steps) // 2).then(pl.col("time") - timedelta(hours=1)).otherwise("time")
    told = throughput_loss(recording.replace(engine_steps=steps.with_columns(time=back)))
    assert told.whole_s == pytest.approx(steps["duration_s"].sum()) and "go back by 1 h" in told.basis
    refused = told.parts.filter(pl.col("part").is_in(["idle", "host_stall", "kv_limited"]))
    assert len(refused) == 3 and refused["engine_s"].null_count() == 3


def test_engines_that_write_without_names_are_no_negative_rest() -> None:
    """Two engines' steps as if of one: they last twice as long as their stamps span."""
    recording = run(rate=12.0).recording
    steps = recording.engine_steps
    twice = (
        pl.concat([steps, steps]).sort("time").with_columns(line=pl.int_range(1, 2 * len(steps) + 1, dtype=pl.UInt32))
    )
    told = throughput_loss(recording.replace(engine_steps=twice, requests=recording.requests.clear()))
    assert told.whole_s == pytest.approx(2 * steps["duration_s"].sum()) and "overlap" in told.basis
    assert told.parts["engine_s"].min() >= 0  # type: ignore[operator]


def test_steps_that_are_idle_lie_within_their_own_interval() -> None:
    recording = run(rate=12.0).recording
    idle = recording.engine_steps.head(50).with_columns(kind=pl.lit("idle", EngineSteps.kind.dtype))
    told = throughput_loss(Recording(engine_steps=idle, sources=recording.sources))
    row = told.parts.row(by_predicate=pl.col("part") == "idle_or_host", named=True)
    assert row["low_s"] <= row["engine_s"] <= row["high_s"]


def test_a_hole_in_the_log_is_no_host_time() -> None:
    """An hour of lines is lost while requests are at work: neither steps nor gauges tell of it."""
    recording = run(rate=12.0).recording
    steps, samples = recording.engine_steps, recording.engine_samples
    moment = steps["time"][len(steps) // 2]
    later = pl.when(pl.col("time") > moment).then(pl.col("time") + timedelta(hours=1)).otherwise("time")
    torn = recording.replace(engine_steps=steps.with_columns(later), engine_samples=samples.with_columns(later))
    parts = {row["part"]: row for row in throughput_loss(torn).parts.iter_rows(named=True)}
    assert parts["host_stall"]["engine_s"] < 60
    assert parts["residual"]["engine_s"] == pytest.approx(3600, abs=60)


def test_charts_draw_the_frames_sums() -> None:
    told = throughput_loss(run().recording)
    drawn = loss_bars(told.parts, told.basis).to_dict()["data"][0]["x"]
    assert sum(drawn) == pytest.approx(told.whole_s)
    budgets = token_budget_what_if(planted_budget(2048, 0.02, 2e-5)).budgets
    assert list(budget_bars(budgets).to_dict()["data"][0]["y"]) == budgets["stalled_s"].to_list()


@pytest.mark.skipif(not REAL_LOG.exists(), reason="the corpus is not beside this checkout")
def test_a_real_log_of_every_step() -> None:
    recording = diag.load(str(REAL_LOG))
    found = seconds(recording)
    assert found["prefill_interference"] == pytest.approx(29.9, abs=0.5)
    told = token_budget_what_if(recording)
    assert told.stalled_s == pytest.approx(29.9, abs=0.5)
    smaller = told.budgets.filter(max_batch_tokens=4096).row(0, named=True)
    larger = told.budgets.filter(max_batch_tokens=16384).row(0, named=True)
    assert smaller["high_s"] < 0 < larger["low_s"]
    assert datetime(2000, 1, 1, tzinfo=UTC) + timedelta(0) < recording.engine_steps["time"].min()  # type: ignore[operator]
