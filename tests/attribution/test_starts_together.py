"""Many starts: their parts and spreads, caches, stragglers, first requests, probes and the bill."""

from __future__ import annotations

import random
from datetime import timedelta
from functools import cache

import polars as pl
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

import infer_diag as diag
from infer_diag import schema
from infer_diag.attribution.rank_statistics import centre, middle, shift
from infer_diag.attribution.starts_together import (
    Probe,
    Together,
    cache_savings,
    first_request_penalty,
    killed_count,
    phase_spreads,
    probe_advice,
    start_requests,
    starts_together,
)
from infer_diag.attribution.starts_together.frames import StartRequests
from infer_diag.charts import starts_together_chart
from infer_diag.diagnose.starts_together import together_lines
from infer_diag.errors import UnknownNameError
from infer_diag.jupyter.panels import cold_start_panel
from infer_diag.recording import Clock, Recording, Source, combine
from tests.attribution.handmade_start import T0, HandmadeStart

SAMPLE = "sample:captured/starts_cold_warm"
COLUMNS = {"arrival_s": "arrival_unix_s", "first_token_s": "first_token_unix_s", "prompt_tokens": "prompt_tokens"}


def start(load_s: float, *, ready_s: float | None = None, event: str | None = None, gpus: int = 2) -> Recording:
    """One start whose load is printed and whose ready line comes at `ready_s`."""
    made = HandmadeStart().event("engine_begin", 0.0).printed("weights_load", load_s + 1, load_s)
    if event is not None:
        made.event(event, load_s + 1)
    recording = made.ready(load_s + 2 if ready_s is None else ready_s).recording()
    row = {"start_id": "start-1", "engine": "vllm", "model": "m", "gpu_count": gpus, "source_id": 0, "line": 1}
    return recording.replace(deployments=_deployments([row]))


def _deployments(rows: list[dict[str, object]]) -> pl.DataFrame:
    columns = schema.Deployments.create_empty().schema
    return schema.Deployments.validate(
        pl.DataFrame([{name: row.get(name) for name in columns.names()} for row in rows], schema=columns)
    )


def several(*loads: float, event: str | None = None) -> Recording:
    return combine(start(load, event=event) for load in loads)


def test_every_start_of_every_recording_is_a_row_and_its_parts_add_up() -> None:
    together = starts_together({"a": several(4.0, 6.0), "b": several(5.0)})
    assert together.starts.select("deployment", "start_id").rows() == [
        ("a", "start-1"),
        ("a", "start-2"),
        ("b", "start-1"),
    ]
    sums = together.parts.group_by("deployment", "start_id", maintain_order=True).agg(pl.col("duration_s").sum())
    assert sums["duration_s"].to_list() == pytest.approx(together.starts["span_s"].to_list())


def test_a_start_costs_its_gpus_for_at_least_its_span_and_exactly_its_hold() -> None:
    bounded = starts_together({"a": several(4.0)}).starts.row(0, named=True)
    assert (bounded["gpu_s"], bounded["gpu_status"]) == (2 * bounded["span_s"], "bounded")
    recording = start(4.0)
    held = recording.replace(starts=recording.starts.with_columns(acquire_time=pl.lit(T0 - timedelta(seconds=30))))
    measured = starts_together({"a": held}).starts.row(0, named=True)
    assert (measured["gpu_s"], measured["gpu_status"]) == (2 * 36.0, "measured")


def in_pod(recording: Recording) -> Recording:
    return recording.replace(starts=recording.starts.with_columns(acquire_time=pl.lit(T0 + timedelta(seconds=600))))


def of_pod(*, ready: bool) -> HandmadeStart:
    """A pod that waits ten minutes for its place, and whose container starts a minute later."""
    made = HandmadeStart().printed("schedule", 600.0, 600.0).printed("image_pull", 655.0, 50.0)
    made.printed("container_start", 660.0, 5.0).printed("weights_load", 690.0, 25.0)
    return made.ready(700.0) if ready else made.failed(700.0)


def gpus(recording: Recording) -> Recording:
    return recording.replace(deployments=start(4.0).deployments)


def test_a_start_that_fails_costs_from_the_devices_assignment_on() -> None:
    row = starts_together({"a": gpus(in_pod(of_pod(ready=False).recording()))}).starts.row(0, named=True)
    assert (row["gpu_s"], row["gpu_status"]) == (2 * 100.0, "bounded")
    unplaced = starts_together({"a": gpus(of_pod(ready=False).recording())}).starts.row(0, named=True)
    assert (unplaced["gpu_s"], unplaced["gpu_status"]) == (None, "not_identifiable")


def test_a_startup_probe_counts_from_the_containers_start() -> None:
    together = starts_together({"a": in_pod(of_pod(ready=True).recording())})
    assert together.starts["container_s"].to_list() == [40.0]
    assert "initialDelaySeconds 40," in "\n".join(together_lines(together))
    pulled = HandmadeStart().printed("image_pull", 50.0, 50.0).ready(90.0).recording()
    assert starts_together({"a": pulled}).starts["container_s"].to_list() == [None]
    assert starts_together({"a": start(4.0)}).starts["container_s"].to_list() == [6.0]
    assert starts_together({"a": of_pod(ready=False).recording()}).starts["container_s"].to_list() == [None]


def test_a_start_without_a_gap_has_no_second_unlogged() -> None:
    full = HandmadeStart().printed("weights_load", 4.0, 4.0).ready(4.0).recording()
    spreads = phase_spreads(starts_together({"a": combine([start(4.0), full])}))
    row = spreads.row(by_predicate=pl.col("part") == "unlogged", named=True)
    assert (row["start_count"], row["min_s"]) == (2, 0.0)


def test_without_a_number_of_gpus_there_is_no_bill() -> None:
    recording = start(4.0).replace(deployments=schema.Deployments.create_empty())
    row = starts_together({"a": recording}).starts.row(0, named=True)
    assert (row["gpu_s"], row["gpu_status"]) == (None, "not_identifiable")


def test_a_start_of_which_nothing_is_told_has_not_the_gpus_of_another_file() -> None:
    silent = start(4.0).replace(deployments=schema.Deployments.create_empty())
    starts = starts_together({"a": combine([start(4.0), silent])}).starts
    assert starts["gpu_count"].to_list() == [2, None]
    assert starts["configuration"].n_unique() == 2
    anyone = start(4.0).deployments.with_columns(start_id=pl.lit(None, pl.String))
    assert starts_together({"a": silent.replace(deployments=anyone)}).starts["gpu_count"].to_list() == [2]


@pytest.mark.parametrize(
    ("event", "state"), [("compile_cache_miss", "cold"), ("compile_cache_hit", "warm"), (None, None)]
)
def test_caches_are_cold_or_warm_by_lines_alone(event: str | None, state: str | None) -> None:
    assert starts_together({"a": several(4.0, event=event)}).starts["caches"].to_list() == [state]


def test_who_emptied_the_caches_knows_better_than_the_log() -> None:
    told = starts_together({"a": several(4.0, event="compile_cache_miss")}, caches={"a": "warm"})
    assert told.starts["caches"].to_list() == ["warm"]
    with pytest.raises(UnknownNameError):
        starts_together({"a": several(4.0)}, caches={"b": "warm"})


def test_savings_compare_starts_of_one_configuration_only() -> None:
    cold, warm = several(20.0, event="compile_cache_miss"), several(5.0, event="compile_cache_hit")
    saved = cache_savings(starts_together({"a": cold, "b": warm}))
    assert saved.row(by_predicate=pl.col("part") == "weights_load", named=True)["saved_s"] == pytest.approx(15.0)
    assert saved["low_s"].null_count() == len(saved)  # one start of each kind has no interval
    other = warm.replace(deployments=warm.deployments.with_columns(model=pl.lit("another")))
    assert cache_savings(starts_together({"a": cold, "b": other})).is_empty()


def test_spreads_have_an_interval_from_six_starts_on() -> None:
    five, six = (phase_spreads(starts_together({"a": several(*range(3, 3 + n))})) for n in (5, 6))
    assert five.filter(pl.col("part") == "span")["low_s"].to_list() == [None]
    row = six.row(by_predicate=pl.col("part") == "weights_load", named=True)
    assert (row["start_count"], row["min_s"], row["p50_s"], row["max_s"]) == (6, 3.0, 5.5, 8.0)
    assert (row["low_s"], row["high_s"]) == (3.0, 8.0)


def test_a_phase_that_a_start_does_not_tell_is_not_zero_seconds_of_it() -> None:
    silent = HandmadeStart().event("engine_begin", 0.0).ready(9.0).recording()
    spreads = phase_spreads(starts_together({"a": combine([start(4.0), silent])}))
    assert spreads.filter(pl.col("part") == "weights_load")["start_count"].to_list() == [1]


def ranked(*ends: float) -> Recording:
    made = HandmadeStart().event("engine_begin", 0.0)
    for rank, end in enumerate(ends):
        made.printed("weights_load", end, 1.0, f"TP{rank}")
    return made.ready(max(ends) + 1).recording()


def test_the_worker_that_is_always_last_is_named() -> None:
    recording = combine(ranked(22, 24, 23, 40 + n) for n in range(8))
    row = starts_together({"a": recording}).stragglers.row(0, named=True)
    assert (row["rank"], row["slowest_count"], row["start_count"]) == ("TP3", 8, 8)
    assert row["excess_s"] == pytest.approx(43.5 - 23.5)
    assert row["chance_ratio"] == pytest.approx(4 * 0.25**8)


def test_lines_without_a_worker_are_no_worker_that_is_last() -> None:
    made = HandmadeStart().event("engine_begin", 0.0)
    for rank, end in (("TP0", 10.0), ("TP1", 12.0), (None, 30.0)):
        made.printed("weights_load", end, 1.0, rank)
    found = starts_together({"a": made.ready(31.0).recording()}).stragglers
    assert found["rank"].to_list() == ["TP1"]


def test_workers_that_take_turns_are_no_straggler() -> None:
    recording = combine(ranked(*(10.0 + (rank == n % 4) for rank in range(4))) for n in range(8))
    found = starts_together({"a": recording}).stragglers
    assert found["slowest_count"].to_list() == [2, 2, 2, 2]
    assert found["chance_ratio"].min() == 1.0
    together = starts_together({"a": ranked(10.0, 10.0)}).stragglers
    assert together.is_empty()  # nobody is last


def requests(firsts: list[float], steady: float = 0.1, **columns: object) -> pl.DataFrame:
    rows = [
        {
            "deployment": "a",
            "start_id": f"start-{number}",
            "order_id": order,
            "ttft_s": first if order == 0 else steady + 0.001 * (order % 3),
            "prompt_tokens": 64,
            "queue_s": None,
            "cached_tokens": None,
        }
        for number, first in enumerate(firsts)
        for order in range(26)
    ]
    return StartRequests.validate(pl.DataFrame(rows, schema=StartRequests.create_empty().schema)).with_columns(
        **{name: pl.lit(value) for name, value in columns.items()}
    )


def test_the_first_request_pays_and_five_starts_cannot_say_how_much() -> None:
    refused = first_request_penalty(requests([2.0] * 5))
    assert refused.location is None
    assert refused.reason is not None and "needs 6" in refused.reason
    assert len(refused.starts) == 5
    told = first_request_penalty(requests([1.6, 1.9, 2.0, 2.1, 2.2, 2.6])).location
    assert told is not None
    assert told.value == pytest.approx(1.95, abs=0.05)
    assert told.low == pytest.approx(1.499) and told.high == pytest.approx(2.499)


def test_no_penalty_gives_an_interval_that_holds_zero() -> None:
    draw = random.Random(4)
    made = requests([0.1] * 12).with_columns(ttft_s=pl.Series([draw.gauss(0.1, 0.02) for _ in range(12 * 26)]))
    told = first_request_penalty(made).location
    assert told is not None and told.low is not None and told.high is not None
    assert told.low < 0 < told.high


def test_steady_requests_are_alike_unqueued_and_not_in_the_cache() -> None:
    made = requests([2.0] * 6)
    later = pl.col("order_id") >= 1
    for change in (
        pl.when(later).then(640).otherwise("prompt_tokens").cast(pl.UInt32).alias("prompt_tokens"),
        pl.when(later).then(0.5).alias("queue_s"),
        pl.when(later).then(32).cast(pl.UInt32).alias("cached_tokens"),
    ):
        assert first_request_penalty(made.with_columns(change)).starts.is_empty()
    assert first_request_penalty(made).includes_cold_prefix
    assert not first_request_penalty(requests([2.0] * 6, cached_tokens=0)).includes_cold_prefix


def serving(ready_s: float, arrivals: list[float], *, stop_s: float | None = None, path: str = "a.log") -> Recording:
    """A server whose log tells of its requests, each with half a second to its first token, and ends a minute on."""
    recording = start(4.0, ready_s=ready_s)
    told = pl.DataFrame(
        {
            "request_id": [f"{path} {each}" for each in arrivals],
            "arrival_s": arrivals,
            "first_token_s": [each + 0.5 for each in arrivals],
        },
        schema={"request_id": pl.String, "arrival_s": pl.Float64, "first_token_s": pl.Float64},
    ).with_columns(source_id=pl.lit(0, pl.UInt32), line=pl.int_range(1, len(arrivals) + 1, dtype=pl.UInt32))
    columns = schema.Requests.create_empty().schema
    full = told.with_columns(pl.lit(None).alias(name) for name in columns.names() if name not in told.columns)
    gone = recording.incidents.head(1).with_columns(
        kind=pl.lit("shutdown").cast(recording.incidents["kind"].dtype),
        time=pl.lit(T0 + timedelta(seconds=stop_s)) if stop_s is not None else pl.lit(None),
    )
    last = T0 + timedelta(seconds=ready_s + 60)
    source = Source(path, "vllm", "vllm", first_time=T0, last_time=last, clocks=(Clock("inner", "x", "UTC"),))
    return recording.replace(
        sources=(source,),
        requests=full.select(columns.names()).cast(dict(columns)),
        incidents=pl.concat([recording.incidents, gone.cast(dict(recording.incidents.schema))]),
    )


def test_requests_belong_to_the_start_that_served_them() -> None:
    whole = serving(10.0, [11.0, 12.0, 30.0], stop_s=20.0)
    found = start_requests({"a": whole})
    assert found.select("start_id", "order_id", "ttft_s").rows() == [("start-1", 0, 0.5), ("start-1", 1, 0.5)]
    undated = whole.replace(sources=(Source("server.log", "vllm", "vllm"),))
    assert start_requests({"a": undated}).is_empty()


def test_requests_of_servers_side_by_side_belong_to_the_one_whose_log_tells_of_them() -> None:
    one, other = serving(10.0, [11.0, 40.0]), serving(30.0, [31.0], path="b.log")
    found = start_requests({"a": combine([one, other])})
    assert found.select("start_id", "order_id").rows() == [("start-1", 0), ("start-1", 1), ("start-2", 0)]
    # A client's file does not say which of the two servers answered.
    client = serving(10.0, [11.0, 40.0], path="client.csv")
    client = client.replace(starts=client.starts.clear(), incidents=client.incidents.clear())
    silent = [each.replace(requests=each.requests.clear()) for each in (one, other)]
    assert start_requests({"a": combine([*silent, client])}).is_empty()
    assert len(start_requests({"a": combine([silent[0], client])})) == 2


@given(st.lists(st.floats(1, 600), min_size=1, max_size=30), st.integers(1, 30), st.floats(0, 30))
def test_the_advised_probe_kills_no_start_that_was_seen(spans: list[float], period: int, before: float) -> None:
    advice = probe_advice(spans, period_s=period, before_s=before)
    assert advice is not None
    assert killed_count([span + before for span in spans], advice.probe) == 0
    assert advice.probe.initial_delay_s <= min(spans) + before
    assert 0 <= advice.probe.allowed_s - 1.5 * (max(spans) + before) < period or advice.probe.failure_threshold == 1


def test_a_probe_allows_its_delay_and_all_but_the_last_period() -> None:
    assert Probe(10, 5, 3).allowed_s == 20
    assert killed_count([19.0, 20.0, 21.0, 60.0], Probe(10, 5, 3)) == 2
    assert probe_advice([]) is None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-1000, 1000), min_size=6, max_size=12, unique=True))
def test_an_interval_holds_what_wilcoxons_test_does_not_reject(values: list[int]) -> None:
    """Points between two Walsh averages, where no difference is 0 and none ties with another."""
    found = centre([float(value) for value in values])
    assert found is not None and found.low is not None and found.high is not None
    assert found.low <= found.value <= found.high
    for point, inside in ((found.low - 0.23, False), (found.low + 0.23, True), (found.high + 0.23, False)):
        away = [value - point for value in values]
        if len({round(abs(each), 6) for each in away}) == len(away):
            assert (scipy.stats.wilcoxon(away, method="exact").pvalue > 0.05) == inside


def test_small_samples_have_no_interval_and_large_ones_agree_with_the_normal_limit() -> None:
    assert centre([]) is None and shift([1.0], []) is None and middle([]) is None
    five = centre([1.0, 2.0, 3.0, 4.0, 5.0])
    assert five is not None and five.low is None
    draw = random.Random(3)
    many = [draw.gauss(5, 1) for _ in range(60)]
    located = centre(many)
    assert located is not None and located.low is not None and located.high is not None
    assert located.high - located.low == pytest.approx(4 / 60**0.5, rel=0.3)


def test_a_planted_shift_is_covered() -> None:
    draw = random.Random(8)
    covered = 0
    for _ in range(200):
        cold = [draw.expovariate(1) + 3 for _ in range(7)]
        found = shift(cold, [draw.expovariate(1) for _ in range(7)])
        assert found is not None and found.low is not None and found.high is not None
        covered += found.low <= 3 <= found.high
    assert covered >= 0.92 * 200


@cache
def recorded() -> Together:
    logs = {name: diag.load(f"{SAMPLE}/{name}.log.gz", year=2026, tz="UTC") for name in ("cold", "warm")}
    return starts_together(logs, caches={"cold": "cold", "warm": "warm"})


def test_the_recorded_starts_say_what_their_caches_saved() -> None:
    counts = recorded().starts.group_by("caches", maintain_order=True).len().rows()
    assert sorted(counts) == [("cold", 7), ("warm", 7)]
    saved = cache_savings(recorded())
    for part in ("span", "compile"):
        row = saved.row(by_predicate=pl.col("part") == part, named=True)
        assert 0 < row["low_s"] < row["saved_s"] < row["high_s"]
    assert recorded().starts["gpu_s"].null_count() == 14  # a CPU is no GPU


def test_the_recorded_first_requests_waited_longer() -> None:
    parts = {}
    for name in ("cold", "warm"):
        log = diag.load(f"{SAMPLE}/{name}.log.gz", year=2026, tz="UTC")
        seen = diag.load(f"{SAMPLE}/{name}_requests.csv", format="table", columns=COLUMNS)
        parts[name] = combine([log.replace(requests=log.requests.clear()), seen])
    found = start_requests(parts)
    assert found.group_by("deployment", "start_id").len()["len"].to_list() == [32] * 14
    penalty = first_request_penalty(found).location
    assert penalty is not None and penalty.low is not None
    assert penalty.count == 14
    assert penalty.low > 0


def test_the_face_tells_many_starts_together() -> None:
    diagnosis = diag.diagnose(diag.load(f"{SAMPLE}/cold.log.gz"))
    panel = cold_start_panel(diagnosis)
    assert "7 cold starts last" in panel.sentence and "startup probe" in panel.sentence
    assert panel.figure is not None and len(panel.figure.data[0].x) >= 7
    lines = "\n".join(together_lines(recorded()))
    assert "warm caches save" in lines and "GPU-seconds" not in lines
    figure = starts_together_chart(recorded().starts, recorded().parts)
    assert [trace.name for trace in figure.data] == ["caches cold", "caches warm"]


def test_no_start_is_no_row() -> None:
    nothing = starts_together({"a": Recording()})
    assert nothing.starts.is_empty() and nothing.unlogged_ratio is None
    assert phase_spreads(nothing).is_empty() and cache_savings(nothing).is_empty()
    assert together_lines(nothing) == ()
