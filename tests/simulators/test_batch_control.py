"""A server under a controller of its batch size: what holds whatever decides, and what each controller is known for."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import infer_diag as diag
from infer_diag.charts.batch_control import control_chart, plant_chart, policies_chart
from infer_diag.errors import DiagError
from infer_diag.report.claims_batch_control import backlog_s, batch_control_claims, needed_latency_ms
from infer_diag.simulators.batch_control import (
    ORACLE,
    POLICIES,
    Plant,
    Policy,
    affine,
    article_batch,
    article_plant,
    compare,
    corrected_batch,
    gamma,
    of_step_time,
    plant_rates,
    poisson,
    replayed,
    run_oracle,
    run_policy,
    step,
    steps,
    summary,
)
from infer_diag.simulators.batch_control.bound import most_in_slo
from infer_diag.simulators.batch_control.comparison import in_slo_count
from infer_diag.simulators.batch_control.controllers import LONG_S, SHORT_S, Seen, fixed_limit, pid
from infer_diag.simulators.serving import GPUS, MODELS, StepTime, gamma_arrivals, roofline

AZURE_CODE = Path(__file__).parents[3] / "shared" / "corpus" / "requests" / "azure_2023_code.csv"

plants = st.builds(
    affine,
    fixed_s=st.floats(0.001, 0.2),
    per_request_s=st.floats(0.0005, 0.02),
    limit_count=st.integers(1, 64),
)
arrivals = st.builds(
    lambda rate, cv, seed: gamma_arrivals(rate, 4.0, cv=cv, seed=seed),
    st.sampled_from([5.0, 60.0, 400.0]),
    st.sampled_from([0.5, 1.0, 4.0]),
    st.integers(0, 10_000),
)


def means(runs: pl.DataFrame, scenario: str) -> dict[str, dict[str, float | None]]:
    """policy → measure → mean."""
    told = summary(runs).filter(scenario=scenario)
    return {
        policy: dict(part.select("measure", "mean").iter_rows())
        for (policy,), part in told.group_by("policy", maintain_order=True)
    }


@pytest.fixture(scope="module")
def burst() -> pl.DataFrame:
    return compare([step()], article_plant(), seeds=range(3))


def test_the_formula_gives_the_largest_batch_for_both_rows_of_the_article() -> None:
    assert [article_batch(200), article_batch(850)] == [128, 128]
    assert [round(article_batch(qps, ms)) for qps, ms in ((200, 16.0), (850, 1.412))] == [32, 12]
    assert [corrected_batch(200, 0.1), corrected_batch(850, 0.1)] == [20, 85]


def test_the_table_implies_a_plant_whose_capacity_is_below_the_burst() -> None:
    plant = article_plant()
    fixed_s, per_request_s = plant.seconds[0], plant.seconds[2] - plant.seconds[1]
    assert fixed_s == pytest.approx(0.0876, abs=1e-4) and per_request_s == pytest.approx(0.00231, abs=1e-5)
    assert [32 / plant.seconds[32], 12 / plant.seconds[12]] == pytest.approx([198, 104])
    assert plant.capacity_per_s == pytest.approx(334, abs=1)
    assert 1 / per_request_s == pytest.approx(433, abs=1)


@given(plants, arrivals, st.sampled_from(list(POLICIES)), st.sampled_from([0.2, 1.0, 3.0]))
@settings(max_examples=80, deadline=None)
def test_every_request_is_served_dropped_or_waiting_and_in_turn(
    plant: Plant, times: np.ndarray, name: str, slo_s: float
) -> None:
    run = run_policy(times, plant, POLICIES[name], slo_s=slo_s, horizon_s=4.0)
    taken = ~np.isnan(run.finish_s)
    assert not (taken & run.dropped).any()
    assert run.batch_count.sum() == taken.sum()
    assert run.dropped.any() <= POLICIES[name].early_drop
    assert (np.diff(run.finish_s[taken]) >= 0).all()
    waiting = ~taken & ~run.dropped
    assert not waiting.any() or not (taken | run.dropped)[np.argmax(waiting) :].any()
    assert (run.batch_count <= np.minimum(run.limit_count, run.waiting_count)).all()
    assert (run.limit_count >= 1).all() and (run.limit_count <= plant.limit_count).all()
    assert (run.begin_s[1:] >= (run.begin_s + run.duration_s)[:-1] - 1e-12).all()
    assert run.served_within(0.0, 4.0) <= 4.0 * plant.capacity_per_s * (1 + 1e-9)


@given(plants, arrivals, st.sampled_from([0.2, 1.0]))
@settings(max_examples=40, deadline=None)
def test_no_policy_beats_the_bound_and_none_the_oracle_beyond_its_grid(
    plant: Plant, times: np.ndarray, slo_s: float
) -> None:
    decided = times[times + slo_s <= 4.0]
    most = most_in_slo(decided, plant, slo_s=slo_s)
    best = in_slo_count(run_oracle(times, plant, slo_s=slo_s, horizon_s=4.0))
    assert best <= most
    for policy in POLICIES.values():
        found = in_slo_count(run_policy(times, plant, policy, slo_s=slo_s, horizon_s=4.0))
        assert found <= most
        assert found <= best + 0.05 * len(decided) + 2


@given(st.lists(st.floats(0, 3), min_size=1, max_size=7), st.floats(0.2, 2.0), st.floats(0.5, 4.0))
@settings(max_examples=60, deadline=None)
def test_the_bound_is_what_trying_every_choice_of_requests_gives(
    times: list[float], slo_s: float, capacity_per_s: float
) -> None:
    plant, ordered = Plant(np.array([0.0, 1 / capacity_per_s]), "one at a time"), np.sort(times)

    def fits(chosen: tuple[float, ...]) -> bool:
        end_s = 0.0
        for arrival in chosen:
            end_s = max(end_s, arrival) + 1 / capacity_per_s
            if end_s > arrival + slo_s:
                return False
        return True

    tried = max(
        size
        for size in range(len(ordered) + 1)
        if any(fits(each) for each in itertools.combinations(ordered.tolist(), size))
    )
    assert most_in_slo(ordered, plant, slo_s=slo_s) == tried


def test_in_the_burst_nobody_serves_more_than_the_plant_can(burst: pl.DataFrame) -> None:
    assert burst["most_burst_per_s"].to_list() == pytest.approx([333.74] * len(burst), abs=0.01)
    assert (burst["burst_served_per_s"] <= burst["most_burst_per_s"] + 1e-9).all()
    assert (burst["in_slo_ratio"] <= burst["most_in_slo_ratio"]).all()


def test_what_the_tables_batches_do_to_the_burst(burst: pl.DataFrame) -> None:
    found = means(burst, step().name)
    assert found["article table"]["burst_served_per_s"] == pytest.approx(107, abs=5)
    assert found["article table"]["recovery_s"] is None
    assert found["article table"]["p99_response_s"] is None
    assert found["greedy"]["burst_served_per_s"] == pytest.approx(331, abs=4)
    assert found["greedy"]["p99_response_s"] == pytest.approx(8.0, abs=0.4)
    assert found["early drop"]["dropped_count"] == pytest.approx(2402, abs=150)
    # By then 2,580 requests wait that the capacity left over works off at 134/s.
    assert found["greedy"]["recovery_s"] == pytest.approx(19, abs=2)


def test_early_drop_keeps_the_promise_to_those_it_serves(burst: pl.DataFrame) -> None:
    found = means(burst, step().name)
    assert found["early drop"]["p99_response_s"] <= 1.0
    for name in ("greedy", "AIMD", "corrected"):
        assert found["early drop"]["in_slo_ratio"] > found[name]["in_slo_ratio"] + 0.2
    assert found[ORACLE]["in_slo_ratio"] >= max(row["in_slo_ratio"] or 0 for row in found.values()) - 1e-9
    assert found["early drop"]["in_slo_ratio"] > 0.95 * found[ORACLE]["most_in_slo_ratio"]


def test_a_batch_for_what_arrives_works_off_no_backlog(burst: pl.DataFrame) -> None:
    found = means(burst, step().name)
    assert found["corrected"]["recovery_s"] is not None
    assert found["corrected, batch time"]["recovery_s"] is None
    assert found["corrected, batch time"]["unfinished_count"] > 1000


def test_a_controller_that_blames_the_batch_for_the_queue_ends_at_a_batch_of_one() -> None:
    wrong = steps(step(), article_plant(), POLICIES["AIMD on response"])
    right = steps(step(), article_plant(), POLICIES["AIMD"])
    assert wrong.filter(pl.col("begin_s") > 40)["limit_count"].max() == 1
    assert right.filter(pl.col("begin_s") > 40)["limit_count"].min() == 128


def test_a_pid_settles_where_batches_take_half_the_slo_and_does_not_wind_up() -> None:
    plant = article_plant()
    settled = steps(poisson(900.0, 30.0), plant, POLICIES["PID"], slo_s=0.5).filter(pl.col("begin_s") > 20)
    assert settled["duration_s"].mean() == pytest.approx(0.25, rel=0.05)
    memory: dict[str, float] = {}
    allowed = [
        pid(Seen(1.0, np.zeros(1), 500, last, plant, 1.0), memory)
        for last in [None, *[made(128, 128, 0.01)] * 500, *[made(128, 128, 2.0)] * 3]
    ]
    assert allowed[-4] >= 128
    assert allowed[-1] < 64


def made(allowed: int, count: int, seconds: float):  # type: ignore[no-untyped-def]
    from infer_diag.simulators.batch_control.controllers import LastBatch

    return LastBatch(allowed, count, seconds, seconds)


def test_the_slope_sees_a_burst_before_the_window_does() -> None:
    before, during = np.arange(0.0, 10.0, 1 / 200), np.arange(10.0, 10.2, 1 / 850)
    times = np.concatenate([before, during])
    seen = Seen(float(times[-1]), times, 50, made(32, 32, 0.16), article_plant(), 1.0)
    assert seen.rate_per_s(SHORT_S) > 800
    assert 300 < seen.rate_per_s(LONG_S) < 600
    assert seen.rate_per_s(2.0) < 300
    steady = Seen(5.0, before[before <= 5.0], 50, made(32, 32, 0.16), article_plant(), 1.0)
    memory: dict[str, float] = {}
    calm = POLICIES["slope-aware"].limit(steady, memory)
    assert POLICIES["slope-aware"].limit(seen, memory) > 2 * calm
    assert POLICIES["corrected"].limit(seen, {}) < 2 * POLICIES["corrected"].limit(steady, {})


def test_identical_seeds_give_identical_frames() -> None:
    chosen = [POLICIES["AIMD"], POLICIES["early drop"]]
    scenarios = [gamma(4.0, seconds=10.0), poisson(seconds=10.0)]
    first, again = (compare(scenarios, article_plant(), seeds=(1, 2), policies=chosen) for _ in range(2))
    assert first.equals(again)
    assert not first.filter(seed_id=1).drop("seed_id").equals(first.filter(seed_id=2).drop("seed_id"))


def test_counts_of_a_run_add_up(burst: pl.DataFrame) -> None:
    total = pl.col("served_count") + pl.col("dropped_count") + pl.col("unfinished_count")
    assert burst.select((total == pl.col("arrived_count")).all()).item()
    told = steps(step(), article_plant(), POLICIES["early drop"], seed=1)
    row = burst.filter(policy="early drop", seed_id=1).row(0, named=True)
    assert told["dropped_count"].sum() == row["dropped_count"]
    assert told["batch_count"].sum() >= row["served_count"]


def test_intervals_hold_the_mean_and_need_more_than_one_seed(burst: pl.DataFrame) -> None:
    told = summary(burst).drop_nulls("mean")
    assert (told["lower"] <= told["mean"]).all() and (told["mean"] <= told["upper"]).all()
    greedy = burst.filter(policy="greedy")["served_per_s"].to_numpy()
    row = told.filter(policy="greedy", measure="served_per_s").row(0, named=True)
    assert row["upper"] - row["mean"] == pytest.approx(4.3027 * greedy.std(ddof=1) / 3**0.5, rel=1e-4)
    one = summary(burst.filter(seed_id=0))
    assert one["lower"].null_count() == len(one)


def test_a_measure_that_a_seed_lacks_has_no_mean(burst: pl.DataFrame) -> None:
    holed = burst.with_columns(p99_response_s=pl.when(pl.col("seed_id") > 0).then("p99_response_s"))
    row = summary(holed).filter(policy="greedy", measure="p99_response_s").row(0, named=True)
    assert row["mean"] is None and row["known_count"] == 2 and row["seed_count"] == 3


def test_a_log_is_replayed_as_it_is_or_at_another_rate() -> None:
    requests = diag.load("sample:captured/long_short_bursts").requests
    own = replayed(requests).arrivals(0)
    fast = replayed(requests, mean_per_s=200.0).arrivals(0)
    assert len(own) == 64 and own[0] == 0
    assert (len(fast) - 1) / fast[-1] == pytest.approx(200)
    assert fast * own[-1] / fast[-1] == pytest.approx(own)
    runs = compare([replayed(requests, mean_per_s=50.0)], article_plant(), seeds=(0, 1), policies=[])
    assert runs["seed_id"].to_list() == [0]
    with pytest.raises(DiagError, match="two requests that arrive at different times"):
        replayed(requests.head(1))


def test_azures_bursts_miss_a_slo_that_poisson_arrivals_of_the_same_rate_keep() -> None:
    if not AZURE_CODE.exists():
        pytest.skip("the shared corpus is not beside this checkout")
    scenario = replayed(diag.load(str(AZURE_CODE)).requests.head(4000), mean_per_s=100.0, name="azure code")
    greedy = [POLICIES["greedy"]]
    azure, even = (
        compare([each], article_plant(), seeds=(0,), policies=greedy, oracle=False).row(0, named=True)
        for each in (scenario, poisson(100.0, scenario.horizon_s))
    )
    assert even["in_slo_ratio"] == 1.0
    assert azure["in_slo_ratio"] < 0.98
    assert azure["in_slo_ratio"] <= azure["most_in_slo_ratio"]


def test_a_step_time_makes_a_plant() -> None:
    linear = StepTime(0.01, 1e-4, 1e-3)
    plant = of_step_time(linear, prompt_tokens=100, output_tokens=11, limit_count=8)
    assert plant.seconds[4] == pytest.approx(0.01 + 400e-4 + 10 * (0.01 + 4e-3))
    served = of_step_time(roofline(MODELS["Qwen2-7B"], GPUS["H100-SXM"]), prompt_tokens=500, output_tokens=20)
    assert (np.diff(served.seconds[1:]) >= 0).all()
    assert served.basis.startswith("roofline")
    with pytest.raises(DiagError, match="no prompt"):
        of_step_time(linear, prompt_tokens=0, output_tokens=1)


def test_what_cannot_be_is_refused() -> None:
    plant, policy = article_plant(), Policy("fixed", fixed_limit(4))
    with pytest.raises(DiagError, match="in order"):
        run_policy(np.array([2.0, 1.0]), plant, policy, slo_s=1.0, horizon_s=5.0)
    with pytest.raises(DiagError, match="seconds above 0"):
        run_policy(np.array([1.0]), plant, policy, slo_s=0.0, horizon_s=5.0)
    with pytest.raises(DiagError, match="every batch"):
        Plant(np.array([0.0]), "empty")
    empty = run_policy(np.array([]), plant, policy, slo_s=1.0, horizon_s=5.0)
    assert len(empty.begin_s) == 0 and empty.served_within(0, 5) == 0


def test_the_charts_show_the_frames(burst: pl.DataFrame) -> None:
    plant = article_plant()
    rates = plant_rates(plant)
    drawn = plant_chart(rates, capacity_per_s=plant.capacity_per_s, offered=[("burst", 850.0)], points=[(12, 104.0)])
    assert list(drawn.data[0].y) == rates["served_per_s"].to_list()
    assert {shape.y0 for shape in drawn.layout.shapes} == {plant.capacity_per_s, 850.0}
    told = [steps(step(), plant, POLICIES[name]) for name in ("greedy", "early drop")]
    figure = control_chart(told, capacity_per_s=plant.capacity_per_s, slo_s=1.0, burst=(20.0, 25.0), shown=["greedy"])
    assert [trace.visible for trace in figure.data] == [True] * 3 + ["legendonly"] * 3
    assert list(figure.data[2].y) == told[0]["oldest_wait_s"].to_list()
    both = pl.concat([summary(burst), summary(burst).with_columns(scenario=pl.lit("<b>other</b>"))])
    shares = policies_chart(both, seed_count=3)
    bars = [trace for trace in shares.data if trace.type == "bar"]
    found = both.filter(scenario=step().name, measure="in_slo_ratio")["mean"].to_list()
    assert sorted(bars[0].x) == pytest.approx(sorted(found))
    assert [button.label for button in shares.layout.updatemenus[0].buttons][1] == "&lt;b&gt;other&lt;/b&gt;"


def test_the_articles_figures_stand_beside_ours(burst: pl.DataFrame) -> None:
    plant = article_plant()
    claims = {
        claim.subject: claim
        for claim in batch_control_claims(summary(burst), plant, burst=step().name, burst_s=5.0, blamed=1)
    }
    assert claims["the formula's batch, burst"].article == "12"
    assert claims["the formula's batch, burst"].ours == "128"
    assert claims["the most that it serves"].ours == "334/s at b = 128, 433/s without a limit"
    assert needed_latency_ms(850.0, 12) == pytest.approx(1.41, abs=0.01)
    assert backlog_s(plant, 5.0) == pytest.approx((850 - plant.capacity_per_s) * 5 / (plant.capacity_per_s - 200))
    with pytest.raises(ValueError, match="never"):
        backlog_s(affine(0.1, 0.01), 5.0)
