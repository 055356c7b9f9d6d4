"""Tenants, nodes and kinds in the scatter of starts; one lock, its bursts and its load; what a node offers."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infer_diag import schema
from infer_diag.attribution.rank_statistics import Location
from infer_diag.attribution.starts_together import Penalty
from infer_diag.attribution.starts_together.frames import FirstRequests
from infer_diag.attribution.tenancy import (
    allocation_test,
    allocation_totals,
    burst_waits,
    jitter_split,
    poisson_load_for,
    poisson_mean_wait_s,
    serial_waits,
    share_error,
    starts_for_quantile,
)
from infer_diag.attribution.tenancy.allocation_totals import METRIC
from infer_diag.attribution.tenancy.frames import Allocations, StartObservations
from infer_diag.attribution.tenancy.planted import planted_allocations, planted_starts
from infer_diag.charts import jitter_chart, waits_chart
from infer_diag.errors import DiagError
from infer_diag.loaders.kubernetes.node_resources import node_resources, placements, resource_check
from infer_diag.recording import Recording
from infer_diag.report.claims_tenants import QUERY, lock_lines, tenant_claims

WARM_S, COLD_S = 0.085, 0.420


def fleet(
    tenants: int, each: int, seed: int, *, tenant_sd: float = 0.0, node_sd: float = 0.0, pinned: bool = False
) -> pl.DataFrame:
    """Starts of ln-normal length: 6 nodes, cold ones 1.6 times as long, scatter 0.3."""
    draw = np.random.default_rng(seed)
    tenant = np.repeat(np.arange(tenants), each)
    node = tenant % 6 if pinned else draw.integers(0, 6, tenants * each)
    kind = draw.integers(0, 2, tenants * each)
    y = 3 + draw.normal(0, tenant_sd, tenants)[tenant] + draw.normal(0, node_sd, 6)[node] + 0.47 * kind
    told = {
        "duration_s": np.exp(y + draw.normal(0, 0.3, tenants * each)),
        "tenant": [f"team-{number}" for number in tenant],
        "node": [f"node-{number}" for number in node],
        "kind": np.where(kind, "cold", "warm"),
    }
    return StartObservations.validate(pl.DataFrame(told))


def row(split: pl.DataFrame, factor: str) -> dict[str, object]:
    return split.row(by_predicate=pl.col("factor") == factor, named=True)


def number(value: object) -> float:
    assert isinstance(value, float)
    return value


def test_tenants_without_effect_give_an_interval_that_holds_zero() -> None:
    held = small = 0
    for seed in range(30):
        tenant = row(jitter_split(fleet(8, 15, seed, node_sd=0.2)).shares, "tenant")
        held += tenant["low_ratio"] == 0
        small += number(tenant["p_ratio"]) <= 0.05
    assert held >= 27
    assert small <= 5


def test_a_planted_effect_is_recovered() -> None:
    shares = []
    for seed in range(12):
        split = jitter_split(fleet(20, 15, seed, tenant_sd=0.3, node_sd=0.2))
        tenant = row(split.shares, "tenant")
        assert number(tenant["p_ratio"]) <= 0.01
        assert number(tenant["low_ratio"]) > 0
        shares.append(number(tenant["share_ratio"]))
    # 0.09 of 0.09 (tenant) + 0.04 (node) + 0.055 (kind) + 0.09 (scatter)
    assert float(np.mean(shares)) == pytest.approx(0.09 / 0.275, abs=0.07)


def test_shares_add_up_to_one() -> None:
    shares = jitter_split(fleet(8, 15, 3, tenant_sd=0.2, node_sd=0.2)).shares
    assert shares["share_ratio"].sum() == pytest.approx(1.0)
    assert shares["factor"].to_list() == ["tenant", "node", "kind", "residual"]


def test_the_naive_share_is_above_zero_by_chance_and_the_debiased_one_is_not() -> None:
    """8 tenants with 5 starts and no effect: 7 of 39 degrees of freedom are 17.9 % of the scatter."""
    naive = []
    for seed in range(60):
        made = fleet(8, 5, seed).select(
            "duration_s", "tenant", pl.lit(None, pl.String).alias("node"), pl.lit(None, pl.String).alias("kind")
        )
        flat = made.with_columns(duration_s=pl.Series(np.exp(np.random.default_rng(seed).normal(0, 0.3, 40))))
        naive.append(number(row(jitter_split(flat).shares, "tenant")["naive_ratio"]))
    assert float(np.mean(naive)) == pytest.approx(0.179, abs=0.025)


def test_a_tenant_on_a_slow_node_is_not_blamed() -> None:
    """Tenant 0 lives mostly on node 0, which is slow; held beside the nodes its share is none."""
    draw = np.random.default_rng(5)
    tenant = np.repeat(np.arange(6), 40)
    node = np.where(draw.random(240) < 0.8, tenant, draw.integers(0, 6, 240))
    slow = np.where(node == 0, 0.8, 0.0)
    made = pl.DataFrame(
        {
            "duration_s": np.exp(2 + slow + draw.normal(0, 0.2, 240)),
            "tenant": [f"t{each}" for each in tenant],
            "node": [f"n{each}" for each in node],
            "kind": [None] * 240,
        },
        schema_overrides={"kind": pl.String},
    )
    shares = jitter_split(made).shares
    assert row(shares, "tenant")["low_ratio"] == 0 and number(row(shares, "tenant")["p_ratio"]) > 0.01
    assert number(row(shares, "node")["low_ratio"]) > 0
    alone = jitter_split(made.with_columns(node=pl.lit(None, pl.String))).shares
    assert number(row(alone, "tenant")["low_ratio"]) > 0  # what it looks like where nobody knows the nodes


def test_what_cannot_be_told_is_null_with_its_reason() -> None:
    few = row(jitter_split(fleet(4, 20, 1, tenant_sd=0.5)).shares, "tenant")
    assert few["share_ratio"] is None and "5 levels" in str(few["reason"]) and few["p_ratio"] is not None
    assert row(jitter_split(fleet(4, 20, 1, tenant_sd=0.5)).shares, "residual")["share_ratio"] is None
    flat = jitter_split(fleet(8, 15, 1).with_columns(duration_s=pl.lit(20.0))).shares
    assert flat["share_ratio"].null_count() == len(flat) and "no start lasts longer" in str(
        row(flat, "tenant")["reason"]
    )
    short = row(jitter_split(fleet(8, 6, 1)).shares, "tenant")
    assert short["share_ratio"] is None and "10 starts" in str(short["reason"])
    pinned = jitter_split(fleet(6, 20, 1, pinned=True)).shares
    assert row(pinned, "tenant")["share_ratio"] is None and "cannot be told" in str(row(pinned, "tenant")["reason"])
    assert row(pinned, "residual")["share_ratio"] is None
    unknown = fleet(8, 15, 1).with_columns(node=pl.lit(None, pl.String), kind=pl.lit("cold"))
    shares = jitter_split(unknown).shares
    assert "no line tells" in str(row(shares, "node")["reason"])
    assert "same kind" in str(row(shares, "kind")["reason"])
    partly = fleet(8, 15, 1).with_columns(node=pl.when(pl.col("node") != "node-1").then("node"))
    assert "some starts" in str(row(jitter_split(partly).shares, "node")["reason"])


def test_levels_say_what_each_took() -> None:
    levels = jitter_split(fleet(5, 12, 2)).levels
    kinds = levels.filter(pl.col("factor") == "kind")
    assert kinds["level"].to_list() == ["cold", "warm"]
    ratio = kinds["times_ratio"].to_list()
    assert ratio[0] / ratio[1] == pytest.approx(1.6, rel=0.15)
    assert levels.filter(pl.col("factor") == "tenant")["start_count"].sum() == 60


def test_starts_of_which_nothing_is_known_have_no_residual_either() -> None:
    nothing = [pl.lit(None, pl.String).alias(name) for name in ("tenant", "node", "kind")]
    shares = jitter_split(fleet(5, 12, 2).with_columns(nothing)).shares
    assert shares["share_ratio"].null_count() == len(shares) == 4


@pytest.mark.parametrize("scatter", [0.0, 1e-12, 1e-7, 1e-5, 1e-4, 1e-3])
def test_kinds_that_explain_all_but_nothing_have_their_share(scatter: float) -> None:
    kinds = np.repeat(["cold", "warm"], 12)
    noise = np.random.default_rng(1).normal(0, scatter, 24)
    made = fleet(2, 12, 1).with_columns(
        duration_s=pl.Series(np.where(kinds == "cold", 60.0, 30.0) * np.exp(noise)), kind=pl.Series(kinds)
    )
    kind = row(
        jitter_split(made.with_columns(tenant=pl.lit(None, pl.String), node=pl.lit(None, pl.String))).shares, "kind"
    )
    assert number(kind["share_ratio"]) == pytest.approx(1.0, abs=1e-4)
    assert number(kind["low_ratio"]) <= number(kind["share_ratio"]) <= number(kind["high_ratio"]) <= 1.0
    assert number(kind["low_ratio"]) > 0.999


def test_no_start_and_one_start_give_no_share() -> None:
    for count in (0, 1):
        shares = jitter_split(fleet(5, 12, 2).head(count)).shares
        assert shares["share_ratio"].null_count() == len(shares)


@pytest.mark.parametrize(
    ("share", "one", "two"), [(0.99, 299, 368), (0.95, 59, 72), (0.90, 29, 36)], ids=["p99", "p95", "p90"]
)
def test_starts_that_a_quantile_needs(share: float, one: int, two: int) -> None:
    assert starts_for_quantile(share) == one
    assert starts_for_quantile(share, two_sided=True) == two


@pytest.mark.parametrize(
    ("levels", "each", "at_30", "at_10"),
    [(4, 20, 0.196, 0.109), (8, 20, 0.129, 0.072), (8, 50, 0.119, 0.057), (20, 20, 0.078, 0.043)],
)
def test_more_tenants_sharpen_a_share_and_more_starts_hardly(
    levels: int, each: int, at_30: float, at_10: float
) -> None:
    assert share_error(levels, each, 0.3) == pytest.approx(at_30, abs=6e-4)
    assert share_error(levels, each, 0.1) == pytest.approx(at_10, abs=6e-4)
    with pytest.raises(DiagError):
        share_error(1, 20, 0.3)


def test_a_burst_of_eight_waits_297_ms_and_steady_load_would_need_to_be_nearly_full() -> None:
    assert burst_waits(8, WARM_S).mean_s == pytest.approx(0.2975)
    assert burst_waits(8, WARM_S).last_s == pytest.approx(0.595)
    assert burst_waits(9, WARM_S).mean_s == pytest.approx(0.340)
    load = poisson_load_for(COLD_S - WARM_S, WARM_S)
    assert load == pytest.approx(0.887, abs=5e-4)
    assert load / WARM_S == pytest.approx(10.4, abs=0.05)
    assert poisson_mean_wait_s(2.0, WARM_S) == pytest.approx(0.0087, abs=5e-5)
    assert math.isinf(poisson_mean_wait_s(12.0, WARM_S))
    with pytest.raises(DiagError):
        burst_waits(0, WARM_S)


@given(st.floats(0.01, 0.95), st.floats(0.001, 10))
def test_load_and_wait_are_inverse(load: float, service: float) -> None:
    assert poisson_load_for(poisson_mean_wait_s(load / service, service), service) == pytest.approx(load)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0, 5)), min_size=1, max_size=20))
def test_waits_behind_each_other_are_those_of_a_queue(calls: list[tuple[float, float]]) -> None:
    calls = sorted(calls)
    free, expected = -math.inf, []
    for arrival, service in calls:
        expected.append(max(free - arrival, 0.0))
        free = max(free, arrival) + service
    found = serial_waits([arrival for arrival, _ in calls], [service for _, service in calls])
    assert found.tolist() == pytest.approx(expected, abs=1e-9)


def test_a_full_server_of_random_arrivals_waits_as_the_formula_says() -> None:
    draw = np.random.default_rng(2)
    arrivals = np.cumsum(draw.exponential(1 / 8.0, 200_000))
    waits = serial_waits(arrivals, np.full(len(arrivals), WARM_S))
    assert float(waits.mean()) == pytest.approx(poisson_mean_wait_s(8.0, WARM_S), rel=0.05)


def allocations(seed: int, *, lock: str, bursts: int = 20, size: int = 8, rate: float | None = None) -> pl.DataFrame:
    """Calls on one node: bursts every minute or Poisson arrivals, on one lock, one per tenant, or none."""
    draw = np.random.default_rng(seed)
    count = bursts * size
    if rate is None:
        arrival = np.sort(60.0 * np.repeat(np.arange(bursts), size) + 0.01 * draw.random(count))
    else:
        arrival = np.cumsum(draw.exponential(1 / rate, count))
    tenant = draw.integers(0, 3, count)
    service = WARM_S * (1 + 0.1 * draw.random(count))
    wait = np.zeros(count)
    if lock == "all":
        wait = serial_waits(arrival, service)
    elif lock == "tenant":
        for each in range(3):
            wait[tenant == each] = serial_waits(arrival[tenant == each], service[tenant == each])
    told = {
        "node": ["n"] * count,
        "tenant": [f"t{each}" for each in tenant],
        "arrival_s": arrival,
        "begin_s": arrival + wait,
        "end_s": arrival + wait + service,
    }
    return Allocations.validate(pl.DataFrame(told))


@pytest.mark.parametrize(("lock", "verdict"), [("all", "one for all"), ("tenant", "one per tenant"), ("none", "none")])
def test_which_lock_makes_them_wait(lock: str, verdict: str) -> None:
    for seed in range(5):
        told = allocation_test(allocations(seed, lock=lock))
        assert told.lock == verdict
    if lock == "all":
        assert told.slope is not None and told.intercept is not None
        assert told.slope.value == pytest.approx(told.service_s, rel=0.1)
        assert abs(told.intercept.value) < 0.02


def test_bursts_are_told_from_steady_load() -> None:
    burst = allocation_test(allocations(1, lock="all"))
    assert (burst.lock, burst.arrivals) == ("one for all", "burst")
    assert burst.mean_wait_s == pytest.approx(0.3, abs=0.05)
    assert burst.poisson_wait_s is not None and burst.poisson_wait_s < 0.01
    steady = allocation_test(allocations(1, lock="all", bursts=100, rate=0.85 / 0.089))
    assert (steady.lock, steady.arrivals) == ("one for all", "steady")


def test_too_few_or_unstamped_allocations_tell_nothing() -> None:
    few = allocation_test(allocations(1, lock="all", bursts=3))
    assert (few.lock, few.queued_count) == ("undetermined", 18) and "30 are needed" in str(few.reason)
    blind = allocation_test(allocations(1, lock="all").with_columns(begin_s=pl.lit(None, pl.Float64)))
    assert blind.lock == "undetermined" and "no stamp" in str(blind.reason)
    assert allocation_test(Allocations.create_empty()).lock == "undetermined"


@pytest.mark.parametrize("within_s", [0.0, 0.5])
def test_a_single_burst_is_no_steady_load(within_s: float) -> None:
    arrival = np.linspace(0.0, within_s, 60)
    wait, service = serial_waits(arrival, np.full(60, WARM_S)), WARM_S
    told = {"node": ["n"] * 60, "tenant": ["t0", "t1"] * 30, "arrival_s": arrival, "begin_s": arrival + wait}
    made = Allocations.validate(pl.DataFrame({**told, "end_s": arrival + wait + service}))
    verdict = allocation_test(made)
    assert verdict.arrivals == "burst"
    assert verdict.poisson_wait_s is not None and math.isinf(verdict.poisson_wait_s)


def test_clocks_that_disagree_tell_no_lock() -> None:
    made = allocations(1, lock="all")
    for change in (pl.col("begin_s") - 5.0, pl.col("end_s") + 5.0):
        told = allocation_test(made.with_columns(begin_s=change))
        assert told.lock == "undetermined" and "clocks disagree" in str(told.reason) and told.mean_wait_s is None


def test_a_lock_needs_the_tenant_of_every_allocation_to_be_told_from_one_of_each() -> None:
    for lock in ("all", "tenant"):
        made = allocations(1, lock=lock)
        some = pl.when(pl.col("tenant") != "t1").then("tenant").alias("tenant")
        told = allocation_test(made.with_columns(some))
        assert (told.lock, told.other_slope) == ("undetermined", None)
    free = allocations(1, lock="none").with_columns(tenant=pl.lit(None, pl.String))
    assert allocation_test(free).lock == "none"


def test_waits_that_scatter_widely_rule_no_lock_out() -> None:
    """Waits of up to 40 services, whatever the position: the interval holds no effect and a full service alike."""
    made = allocations(2, lock="none", bursts=5)
    wild = np.random.default_rng(2).exponential(20 * WARM_S, len(made))
    told = allocation_test(made.with_columns(begin_s=pl.col("begin_s") + wild, end_s=pl.col("end_s") + wild))
    assert told.slope is not None and told.slope.lower is not None and told.slope.upper is not None
    assert told.slope.lower < 0 < WARM_S < told.slope.upper
    assert told.lock == "undetermined"


def test_nodes_have_a_queue_each() -> None:
    one = allocations(3, lock="all")
    both = pl.concat([one, one.with_columns(node=pl.lit("m"))])
    assert allocation_test(both).mean_wait_s == pytest.approx(allocation_test(one).mean_wait_s)


def test_a_histogram_bounds_how_many_were_slow() -> None:
    columns = schema.StartTotals.create_empty().schema
    row = {
        "source_id": 0,
        "line": 4,
        "step": "device_allocation",
        "resource": "nvidia.com/gpu",
        "event_count": 10,
        "mean_s": 0.2,
        "bucket_max_s": [0.1, 0.25, 0.5, None],
        "bucket_counts": [4, 3, 2, 1],
    }
    recording = Recording(start_totals=schema.StartTotals.validate(pl.DataFrame([row], schema=columns)))
    told = allocation_totals(recording, 0.335).row(0, named=True)
    assert (told["event_count"], told["above_low_count"], told["above_high_count"]) == (10, 1, 3)
    assert allocation_totals(recording, 0.25)["above_low_count"][0] == 3
    assert allocation_totals(Recording(), 0.335).is_empty()


DESCRIBED = """Name:               node-a
Labels:             nvidia.com/gpu.count=8
Capacity:
  cpu:                96
  nvidia.com/gpu:     8
Allocatable:
  cpu:                95
  nvidia.com/gpu:     {allocatable}
System Info:
  Machine ID:         17
Allocated resources:
  Resource           Requests     Limits
  --------           --------     ------
  cpu                3 (3%)       4
  nvidia.com/gpu     5            5
Events:
  Type    Reason     Age   From               Message
  Normal  Scheduled  59m   default-scheduler  Successfully assigned team-a/llm-0 to node-a
"""


def test_capacity_beside_allocatable_is_health_and_not_use() -> None:
    (row,) = node_resources(DESCRIBED.format(allocatable=7)).iter_rows(named=True)
    assert (row["node"], row["capacity_count"], row["allocatable_count"], row["requested_count"]) == ("node-a", 8, 7, 5)
    (sentence,) = resource_check(node_resources(DESCRIBED.format(allocatable=7)))
    assert "1 of 8 are unhealthy or reserved" in sentence and "5 of these requested" in sentence
    (sound,) = resource_check(node_resources(DESCRIBED.format(allocatable=8)))
    assert "all 8 are offered" in sound
    (dead,) = resource_check(node_resources(DESCRIBED.format(allocatable=0)))
    assert "none healthy" in dead
    assert node_resources("Name: node-b\nCapacity:\n  cpu: 4\n").is_empty()


def test_events_tell_tenant_and_node() -> None:
    json_event = '{"message": "Successfully assigned team-b/llm-1 to gpu-node.example"}'
    found = placements(DESCRIBED.format(allocatable=8) + json_event)
    assert found.select("tenant", "pod", "node").rows() == [
        ("team-a", "llm-0", "node-a"),
        ("team-b", "llm-1", "gpu-node.example"),
    ]


def test_every_figure_of_the_article_stands_beside_ours() -> None:
    told = " ".join(tenant_claims().lines)
    for figure in ("Register()", "+300 ms", "420 ms and 85 ms", "device_plugin_allocation_duration_seconds"):
        assert figure in told
    assert "297.5 ms" in told and "kubelet_device_plugin_alloc_duration_seconds" in told
    few = Penalty(FirstRequests.create_empty(), None, "5 starts; an interval needs 6", True)
    assert list(tenant_claims(few))[-1].ours is None
    located = Penalty(FirstRequests.create_empty(), Location(0.116, 0.063, 0.226, 14), None, True)
    assert "116 ms more" in str(list(tenant_claims(located))[-1].ours)
    assert METRIC in QUERY and "88.7 %" in lock_lines()[1]


@pytest.mark.parametrize("lock", ["one for all", "one per tenant", "none"])
def test_planted_allocations_are_what_they_say(lock: str) -> None:
    made = planted_allocations(lock, WARM_S)
    assert allocation_test(made).lock == lock
    assert (made["begin_s"] >= made["arrival_s"]).all()


def test_planted_starts_scatter_as_asked() -> None:
    made = planted_starts(200, 10, tenant_scatter=0.4, kind_factor=1.0)
    means = made.group_by("tenant").agg(pl.col("duration_s").log().mean())["duration_s"]
    assert means.std() == pytest.approx(math.hypot(0.4, 0.3 / math.sqrt(10)), rel=0.15)


def test_charts_draw_what_the_frames_hold() -> None:
    shares = jitter_split(fleet(4, 20, 1)).shares
    figure = jitter_chart(shares)
    assert list(figure.data[0].x) == shares["share_ratio"].drop_nulls().to_list()
    assert "5 levels" in figure.layout.annotations[0].text
    assert waits_chart({"burst": ([1, 2], [0.0, 0.1])}, 0.335, "pods at once").data[0].y == (0.0, 0.1)
