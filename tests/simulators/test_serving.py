"""Every simulated run obeys what holds of any run, whatever the policy; and each policy does what it is known for."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infer_diag.errors import DiagError
from infer_diag.simulators.serving import (
    SCHEDULERS,
    EngineSettings,
    Simulation,
    StepTime,
    Workload,
    gamma_arrivals,
    lognormal_tokens,
    poisson_arrivals,
    replay,
    simulate,
    step_arrivals,
    workload,
)
from infer_diag.simulators.serving.ledger import little, starvation, token_ledger
from infer_diag.simulators.serving.simulate import continuous

STEP = StepTime(0.01, 5e-5, 1e-4, 1e-7)


def drawn(seed: int, *, count: int = 60, rate: float = 20.0, **options: object) -> Workload:
    random = np.random.default_rng(seed)
    arrival_s = np.cumsum(random.exponential(1 / rate, count))
    prompt = lognormal_tokens(count, mean=150, cv=1.2, seed=seed, longest=700)
    output = lognormal_tokens(count, mean=40, cv=1.0, seed=seed + 1, longest=200)
    return workload(arrival_s, prompt, output, **options)  # type: ignore[arg-type]


@st.composite
def runs(draw: st.DrawFn) -> tuple[Workload, EngineSettings]:
    seed = draw(st.integers(0, 10_000))
    scheduler = draw(st.sampled_from(SCHEDULERS))
    adapters = draw(st.sampled_from([0, 3]))
    random = np.random.default_rng(seed)
    asked = drawn(
        seed,
        count=draw(st.integers(1, 60)),
        rate=draw(st.sampled_from([2.0, 20.0, 500.0])),
        priority=random.integers(0, 3, 1)[0],
        adapter=-1 if not adapters else int(random.integers(0, adapters)),
        prefix_group=draw(st.sampled_from([-1, 0])),
        prefix_tokens=draw(st.sampled_from([0, 100])),
        slo_s=draw(st.sampled_from([0.1, 5.0])),
    )
    return asked, EngineSettings(
        scheduler=scheduler,
        max_num_seqs=draw(st.sampled_from([1, 4, 64])),
        max_num_batched_tokens=draw(st.sampled_from([1024, 2048])),
        kv_cache_tokens=draw(st.sampled_from([1200, 4000, 60_000, None])),
        block_tokens=draw(st.sampled_from([1, 16, 32])),
        chunked_prefill=draw(st.booleans()),
        prefix_caching=draw(st.booleans()),
        async_scheduling=draw(st.booleans()),
        long_prefill_token_threshold=draw(st.sampled_from([0, 64])),
        whole_prompt_fits=draw(st.booleans()),
        order=draw(st.sampled_from(["fcfs", "priority", "deadline", "aging"])),
        data_parallel_size=draw(st.sampled_from([1, 2])),
        swap_blocks=draw(st.sampled_from([0, 100])),
        swap_block_s=1e-5,
        adapter_load_s=draw(st.sampled_from([0.0, 0.05])),
        batch_size=8,
        bucket_tokens=(100, 300),
    )


@settings(max_examples=60, deadline=None)
@given(runs())
def test_every_run_obeys_little_keeps_its_tokens_and_frees_its_pool(run: tuple[Workload, EngineSettings]) -> None:
    asked, engine = run
    try:
        simulated = simulate(asked, engine, STEP)
    except DiagError:
        return  # nothing that was asked fits this engine
    told = token_ledger(simulated)
    assert told.unexplained_tokens == 0
    assert told.padding_tokens >= 0
    served = simulated.requests.filter(pl.col("finish_reason") == "length")
    assert told.delivered_tokens == asked.output_tokens[simulated.fits].sum() == served["output_tokens"].sum()
    assert len(served) == simulated.fits.sum()
    both = little(simulated)
    assert both.mean_count == pytest.approx(both.rate_times_stay, rel=1e-6, abs=1e-9)
    order = served.select(pl.col("arrival_s", "queued_s", "scheduled_s", "first_token_s", "last_token_s"))
    assert all(
        (order[before] <= order[after]).all() for before, after in zip(order.columns, order.columns[1:], strict=False)
    )
    assert starvation(simulated).unfinished_count == 0


@settings(max_examples=25, deadline=None)
@given(runs())
def test_a_pool_is_empty_again_and_never_was_overfull(run: tuple[Workload, EngineSettings]) -> None:
    asked, engine = run
    if not engine.continuous:
        return
    try:
        simulated = simulate(asked, engine, STEP)
    except DiagError:
        return
    _, after = continuous(asked.where(simulated.fits), engine, STEP)
    assert (after.blocks["users"] == 0).all()
    assert (after.now["free"] == after.blocks.shape[1]).all()
    assert (after.now["running"] == 0).all() and (after.now["waiting"] == 0).all()
    usage = simulated.engine_samples["kv_usage_ratio"].drop_nulls()
    assert ((usage >= 0) & (usage <= 1)).all()
    steps = simulated.engine_steps
    assert (steps["prefill_count"] + steps["decode_count"] <= engine.max_num_seqs).all()


@settings(max_examples=10, deadline=None)
@given(runs())
def test_the_same_run_gives_the_same_frames(run: tuple[Workload, EngineSettings]) -> None:
    asked, engine = run
    try:
        first, second = (simulate(asked, engine, STEP).recording for _ in range(2))
    except DiagError:
        return
    for name in ("requests", "engine_steps", "engine_samples", "deployments"):
        assert getattr(first, name).equals(getattr(second, name))


def test_one_request_alone_takes_what_its_steps_take() -> None:
    simulated = simulate(workload([1.0], [100], [5]), EngineSettings(async_scheduling=False), STEP)
    row = simulated.requests.row(0, named=True)
    prefill = float(STEP.seconds(100, 0, 100))
    decode = sum(float(STEP.seconds(0, 1, 100 + step)) for step in range(1, 5))
    assert row["first_token_s"] == pytest.approx(1.0 + prefill)
    assert row["last_token_s"] == pytest.approx(1.0 + prefill + decode)
    assert simulated.engine_steps["kind"].to_list() == ["prefill", *["decode"] * 4]


def test_a_step_keeps_to_the_token_budget_and_chunks_what_is_longer() -> None:
    engine = EngineSettings(max_num_batched_tokens=256, async_scheduling=False)
    steps = simulate(workload([0.0, 0.0], [1000, 50], [3, 3]), engine, STEP).engine_steps
    assert (steps["prefill_tokens"] + steps["decode_tokens"]).max() == 256
    assert steps["prefill_tokens"].to_list()[:4] == [256, 256, 256, 256]


def test_a_shared_prefix_is_computed_once() -> None:
    shared = workload([0.0, 1.0, 2.0], [200, 200, 200], [4, 4, 4], prefix_group=0, prefix_tokens=160)
    on = simulate(shared, EngineSettings(), STEP)
    off = simulate(shared, EngineSettings(prefix_caching=False), STEP)
    assert on.requests["cached_tokens"].to_list() == [0, 160, 160]
    assert off.requests["cached_tokens"].to_list() == [0, 0, 0]
    assert off.engine_steps["prefill_tokens"].sum() - on.engine_steps["prefill_tokens"].sum() == 320


def test_a_full_pool_preempts_the_last_and_computes_it_again() -> None:
    crowd = workload(np.zeros(8), np.full(8, 100), np.full(8, 200))
    engine = EngineSettings(kv_cache_tokens=1300, whole_prompt_fits=False, prefix_caching=False)
    simulated = simulate(crowd, engine, STEP)
    told = token_ledger(simulated)
    assert simulated.requests["preemption_count"].sum() > 0
    assert told.recomputed_tokens > 0
    assert simulated.engine_samples["preemption_count"].sum() == simulated.requests["preemption_count"].sum()
    assert simulated.requests["preemption_count"][0] == 0
    roomy = simulate(crowd, EngineSettings(kv_cache_tokens=60_000), STEP)
    assert roomy.requests["last_token_s"].max() < simulated.requests["last_token_s"].max()


def test_swapping_moves_blocks_instead_of_computing_them_again() -> None:
    crowd = workload(np.zeros(8), np.full(8, 100), np.full(8, 200))
    common = {"scheduler": "vllm-v0", "kv_cache_tokens": 1300, "max_num_batched_tokens": 4096}
    swapped = simulate(crowd, EngineSettings(**common, swap_blocks=10_000, swap_block_s=1e-4), STEP)
    again = simulate(crowd, EngineSettings(**common), STEP)
    assert swapped.requests["preemption_count"].sum() > 0
    assert token_ledger(swapped).recomputed_tokens == 0 < token_ledger(again).recomputed_tokens
    assert swapped.engine_samples["swapped_count"].max() > 0


def test_orca_reserves_the_declared_output() -> None:
    crowd = workload(np.zeros(20), np.full(20, 100), np.full(20, 50), max_output_tokens=900)
    orca = simulate(crowd, EngineSettings(scheduler="orca", kv_cache_tokens=4032), STEP)
    paged = simulate(crowd, EngineSettings(kv_cache_tokens=4000), STEP)
    assert orca.engine_steps["decode_count"].max() == 4  # 252 blocks hold 4 times the 63 of 1,000 tokens
    assert paged.engine_steps["decode_count"].max() == 20
    assert orca.requests["preemption_count"].sum() == 0


def test_sorting_the_queue_costs_time_and_lets_early_deadlines_first() -> None:
    slo = np.where(np.arange(40) % 2, 0.5, 60.0)
    crowd = workload(np.linspace(0, 1, 40), np.full(40, 100), np.full(40, 100), slo_s=slo, max_output_tokens=400)
    plain, free, paid = (
        simulate(crowd, EngineSettings(scheduler=scheduler, kv_cache_tokens=3000, resort_s=resort_s), STEP)
        for scheduler, resort_s in (("orca", 0.0), ("orca-article", 0.0), ("orca-article", 0.8e-3))
    )

    def wait_of_urgent(simulated: Simulation) -> float:
        rows = simulated.requests.filter(pl.int_range(pl.len()) % 2 == 1)
        return float((rows["scheduled_s"] - rows["arrival_s"]).mean())  # type: ignore[arg-type]

    assert wait_of_urgent(free) < wait_of_urgent(plain)
    assert paid.engine_steps["duration_s"].sum() > free.engine_steps["duration_s"].sum()
    assert starvation(free).overtaken_count > 0 == starvation(plain).overtaken_count


def test_a_policy_that_starves_is_reported() -> None:
    count = 200
    priority = np.where(np.arange(count) == 5, 9, 0)
    crowd = workload(np.linspace(0, 4, count), np.full(count, 100), np.full(count, 50), priority=priority)
    engine = {"max_num_seqs": 4, "kv_cache_tokens": 60_000}
    fair = starvation(simulate(crowd, EngineSettings(**engine), STEP))
    unfair = starvation(simulate(crowd, EngineSettings(**engine, order="priority"), STEP))
    assert fair.starved_count == fair.overtaken_count == 0
    assert unfair.starved_count == 1 and unfair.overtaken_count > 100
    assert unfair.longest_wait_id == "request-5"


def test_adapters_share_a_batch_and_one_at_a_time_is_slower() -> None:
    crowd = workload(np.zeros(24), np.full(24, 50), np.full(24, 40), adapter=np.arange(24) % 6)
    mixed = EngineSettings(scheduler="punica", adapter_load_s=0.02, adapter_step_s=1e-4)
    together = simulate(crowd, mixed, STEP)
    alone = simulate(crowd, EngineSettings(scheduler="punica", adapter_load_s=0.02, one_adapter=True), STEP)
    assert together.engine_steps["prefill_count"].max() == 1
    assert together.requests["last_token_s"].max() < alone.requests["last_token_s"].max()
    assert together.requests["scheduled_s"].min() >= 0.02


def test_static_batches_pad_and_buckets_pad_less() -> None:
    asked = drawn(3, count=96, rate=1000.0)
    static = simulate(asked, EngineSettings(scheduler="static", batch_size=16), STEP)
    bucketed = simulate(asked, EngineSettings(scheduler="bucketed", batch_size=16, bucket_tokens=(60, 150, 300)), STEP)
    whole = simulate(asked, EngineSettings(), STEP)
    assert token_ledger(whole).padding_tokens == 0
    assert 0 < token_ledger(bucketed).padding_tokens < token_ledger(static).padding_tokens
    first = np.arange(16)
    longest = asked.prompt_tokens[first].max() * 16 + (asked.output_tokens[first].max() - 1) * 16
    steps = static.engine_steps[: int(asked.output_tokens[first].max())]
    assert (steps["prefill_tokens"] + steps["decode_tokens"]).sum() == longest


def test_a_dynamic_batch_waits_as_long_as_it_is_told() -> None:
    asked = workload([0.0, 0.3], [10, 10], [1, 1])
    engine = EngineSettings(scheduler="dynamic-batch", batch_size=8, batch_wait_s=0.5)
    assert simulate(asked, engine, STEP).requests["scheduled_s"].to_list() == [0.3, 0.3]
    alone = EngineSettings(scheduler="dynamic-batch", batch_size=8)
    assert simulate(asked, alone, STEP).requests["scheduled_s"].to_list() == [0.0, 0.3]


def test_engines_in_step_share_the_load_and_the_pace() -> None:
    asked = drawn(5, count=40, rate=1000.0)
    simulated = simulate(asked, EngineSettings(data_parallel_size=2, max_num_seqs=8), STEP)
    by_engine = simulated.engine_steps.group_by("replica").agg(pl.len(), pl.col("duration_s").sum())
    assert set(by_engine["replica"].cast(pl.String)) == {"DP0", "DP1"}
    alike = simulated.engine_steps.group_by("time").agg(pl.col("duration_s").n_unique())
    assert (alike["duration_s"] == 1).all()


def test_what_can_never_run_is_refused_and_said() -> None:
    asked = workload([0.0, 0.1], [5000, 10], [5, 5])
    simulated = simulate(asked, EngineSettings(kv_cache_tokens=2000), STEP)
    assert simulated.requests["finish_reason"].to_list() == ["refused", "length"]
    assert simulated.requests["output_tokens"].to_list() == [None, 5]
    with pytest.raises(DiagError, match="no request fits"):
        simulate(workload([0.0], [5000], [5]), EngineSettings(kv_cache_tokens=2000), STEP)


def test_the_recording_says_that_it_is_simulated() -> None:
    recording = simulate(drawn(1), EngineSettings(), STEP).recording
    assert recording.sources[0].format == "simulated"
    assert "simulated" in recording.sources[0].notes[0]
    assert not recording.sources[0].dated


def test_arrivals_have_the_rate_and_the_burstiness_asked_for() -> None:
    poisson, bursty = (np.diff(gamma_arrivals(50, 400, cv=cv, seed=1)) for cv in (1.0, 3.0))
    for gaps, cv in ((poisson, 1.0), (bursty, 3.0)):
        assert 1 / gaps.mean() == pytest.approx(50, rel=0.1)
        assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1)
    burst = step_arrivals([(20, 200), (4, 850), (20, 200)], seed=2)
    counts = np.histogram(burst, bins=[0, 20, 24, 44])[0] / np.array([20, 4, 20])
    assert counts == pytest.approx([200, 850, 200], rel=0.05)
    assert (poisson_arrivals(5, 10, seed=3) == poisson_arrivals(5, 10, seed=3)).all()


def test_a_log_is_replayed_from_its_first_arrival() -> None:
    asked = drawn(4)
    log = simulate(asked, EngineSettings(), STEP).requests.with_columns(pl.col("arrival_s") + 100)
    again = replay(log)
    assert again.arrival_s == pytest.approx(asked.arrival_s - asked.arrival_s[0])
    assert (again.prompt_tokens == asked.prompt_tokens).all()
    assert again.scaled(2.0).arrival_s[-1] == pytest.approx(again.arrival_s[-1] / 2)
    with pytest.raises(DiagError, match="tells its arrival"):
        replay(log.with_columns(output_tokens=pl.lit(None, pl.UInt32)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"scheduler": "vlm"},
        {"order": "lifo"},
        {"max_num_seqs": 0},
        {"max_num_seqs": 1 << 40},
        {"max_num_batched_tokens": 1 << 70},
        {"kv_cache_tokens": 3},
        {"kv_cache_tokens": 10**12},
        {"data_parallel_size": 100_000},
        {"long_prefill_token_threshold": -5},
        {"resort_s": float("nan")},
        {"batch_wait_s": -1.0},
        {"bucket_tokens": (100, -1)},
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(DiagError):
        EngineSettings(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("arrival", "prompt", "output"), [([], [], []), ([-1.0], [1], [1]), ([0.0], [0], [1])])
def test_impossible_requests_are_refused(arrival: list[float], prompt: list[int], output: list[int]) -> None:
    with pytest.raises(DiagError):
        workload(arrival, prompt, output)


def test_a_clock_that_leaps_is_one_line_and_no_memory_error() -> None:
    with pytest.raises(DiagError, match="clock of the arrivals"):
        simulate(workload([0.0, 3e8], [10, 10], [5, 5]), EngineSettings(), STEP)


def test_a_request_beyond_any_context_is_refused_and_the_others_are_served() -> None:
    asked = workload([0.0, 0.1], [4_000_000_000, 10], [5, 5])
    assert simulate(asked, EngineSettings(), STEP).requests["finish_reason"].to_list() == ["refused", "length"]


def test_more_than_can_be_held_is_refused_before_it_is_held() -> None:
    asked = workload(np.zeros(2000), 100_000, 5)
    with pytest.raises(DiagError, match="lower max_num_seqs"):
        simulate(asked, EngineSettings(max_num_seqs=2000, data_parallel_size=1000, kv_cache_tokens=200_000), STEP)


def test_a_declared_output_counts_only_where_it_is_reserved() -> None:
    asked = workload([0.0], [10], [5], max_output_tokens=[1 << 40])
    assert simulate(asked, EngineSettings(), STEP).requests["finish_reason"].to_list() == ["length"]
    with pytest.raises(DiagError, match="no request fits"):
        simulate(asked, EngineSettings(scheduler="orca"), STEP)
