"""Serving figures from samples, requests and incidents made by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infer_diag import schema
from infer_diag.attribution.arrivals import arrivals
from infer_diag.attribution.preemptions import Preemptions, preemptions
from infer_diag.attribution.requests import MEASURES, durations, request_count, request_shares, request_stats
from infer_diag.attribution.serving import sample_stats, serving, window_s
from infer_diag.attribution.streams import streams
from infer_diag.recording import Clock, Recording, Source

T0 = datetime(2026, 6, 24, 9, 55, 30, tzinfo=UTC)
VLLM = Source("server.log", "vllm", "vllm", clocks=(Clock("inner", "06-24 09:55:30"),))
SGLANG = Source("sglang.log", "sglang", "sglang", clocks=(Clock("inner", "2026-06-24 09:55:30"),))


def frame(name: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    columns = schema.FRAMES[name]
    whole = [{"source_id": 0, "line": number, **row} for number, row in enumerate(rows, 1)]
    data = {column: [row.get(column) for row in whole] for column in columns.column_names()}
    return columns.validate(pl.DataFrame(data, strict=False), cast=True)


def sample(at_s: float | None = None, kind: str = "interval", **values: Any) -> dict[str, Any]:
    return {"time": None if at_s is None else T0 + timedelta(seconds=at_s), "kind": kind, **values}


def recorded(*sources: Source, **frames: list[dict[str, Any]]) -> Recording:
    return Recording(sources=sources or (VLLM,), **{name: frame(name, rows) for name, rows in frames.items()})  # type: ignore[arg-type]


def stats(recording: Recording) -> dict[str, dict[str, float]]:
    return {str(row.pop("measure")): row for row in sample_stats(recording).iter_rows(named=True)}


def test_statistics_of_one_engine_are_those_of_its_lines() -> None:
    rows = [
        sample(5.0 * i, running_count=r, output_tokens_per_s=o)
        for i, (r, o) in enumerate([(247, 2136.3), (241, 1970.3), (219, 2103.3)])
    ]
    told = stats(recorded(engine_samples=rows))
    assert told["running"] == {
        "first": 247,
        "last": 219,
        "min": 219,
        "mean": pytest.approx(235.6667, abs=1e-4),
        "max": 247,
    }
    assert told["output_tokens_per_s"]["mean"] == pytest.approx(2069.9667, abs=1e-4)


def test_a_measure_that_no_sample_has_is_absent_and_not_zero() -> None:
    rows = [sample(0, "prefill", running_count=0, waiting_count=114, kv_usage_ratio=0.0)]
    assert set(stats(recorded(SGLANG, engine_samples=rows))) == {"running", "waiting", "kv_usage_ratio"}


def test_replicas_that_print_together_are_added_and_their_pools_averaged() -> None:
    rows = [
        sample(
            at, replica=replica, running_count=running, waiting_count=1, kv_usage_ratio=kv, output_tokens_per_s=100.0
        )
        for at in (0, 10, 20)
        for replica, running, kv in (("DP0", 10, 0.2), ("DP1", 30, 0.6))
    ]
    told = stats(recorded(engine_samples=rows))
    assert told["running"]["min"] == told["running"]["max"] == 40
    assert told["waiting"]["mean"] == 2
    assert told["output_tokens_per_s"]["mean"] == 200
    assert told["kv_usage_ratio"]["mean"] == pytest.approx(0.4)


def test_replicas_a_second_apart_are_never_counted_by_halves() -> None:
    rows = [sample(at + late, replica=f"DP{late}", running_count=10) for at in (0, 10, 20, 30) for late in (0, 1)]
    assert stats(recorded(engine_samples=rows))["running"] == {
        "first": 20,
        "last": 20,
        "min": 20,
        "mean": 20,
        "max": 20,
    }


def test_a_rotated_log_is_one_engine_and_not_two() -> None:
    old = [sample(at, running_count=38) for at in (0, 10, 20)]
    new = [{**sample(at, running_count=39), "source_id": 1} for at in (30, 40, 50)]
    told = stats(recorded(VLLM, VLLM, engine_samples=old + new))
    assert (told["running"]["first"], told["running"]["last"], told["running"]["max"]) == (38, 39, 39)


def test_window_is_null_without_stamps() -> None:
    assert window_s(recorded(engine_samples=[sample(running_count=1), sample(running_count=2)])) is None
    assert window_s(recorded(engine_samples=[sample(0), sample(20)])) == 20


def test_window_is_null_across_a_real_date_and_an_unknown_one() -> None:
    undated = Source(
        "b.log", "sglang", "sglang", clocks=(Clock("inner", "23:59:59", year_known=False, date_known=False),)
    )
    rows = [sample(0), {**sample(20), "source_id": 1}]
    assert window_s(recorded(VLLM, undated, engine_samples=rows)) is None


def test_limits_of_the_last_configuration_before_a_sample_hold_for_it() -> None:
    deployments = [
        {"line": 1, "start_id": "start-1", "engine": "vllm", "max_running_count": 64},
        {"line": 2, "start_id": "start-1", "engine": "vllm", "max_batch_tokens": 8192},
        {"line": 10, "start_id": "start-2", "engine": "vllm", "max_batch_tokens": 2048},
    ]
    rows = [{**sample(at), "line": line} for at, line in ((0, 5), (10, 12))]
    (stream,) = streams(recorded(engine_samples=rows, deployments=deployments))
    assert stream.samples["max_running_count"].to_list() == [64, None]
    assert stream.samples["max_batch_tokens"].to_list() == [8192, 2048]


def test_nothing_served_is_null() -> None:
    assert serving(Recording()) is None
    assert serving(recorded(incidents=[{"kind": "ready"}], requests=[request(arrival_s=1.0)])) is None
    assert serving(recorded(requests=[request(arrival_s=1.0, last_token_s=2.0)])) is not None


def test_counted_preemptions_add_up_over_the_samples() -> None:
    rows = [sample(at, preemption_count=count) for at, count in ((0, None), (10, 3), (20, 4))]
    assert preemptions(recorded(engine_samples=rows)) == Preemptions(7, 7)


@pytest.mark.parametrize("version", ["0.32.0", "0.11.2", "0.6.3", None])
def test_vllm_that_prints_no_preemption_may_have_had_some(version: str | None) -> None:
    source = Source("server.log", "vllm", "vllm", engine_version=version)
    start = {"start_id": "start-1", "last_line": 9, "served": True}
    assert preemptions(recorded(source, engine_samples=[sample(0), sample(10)], starts=[start])).count is None


def test_the_old_warning_counts_by_its_number_and_leaves_the_rest_open() -> None:
    lines = [{"kind": "preemption", "fields": f"total_num_cumulative_preemption={n}"} for n in (1, 51)]
    assert preemptions(recorded(engine_samples=[sample(0)], incidents=lines)) == Preemptions(51, 100)


def test_retractions_are_printed_by_every_rank_and_counted_once() -> None:
    lines = [
        {"kind": "preemption", "rank": rank, "fields": f"#retracted_reqs: {n}"}
        for n in (2, 3)
        for rank in ("TP0", "TP1")
    ]
    assert preemptions(recorded(SGLANG, engine_samples=[sample(0, "decode")], incidents=lines)) == Preemptions(5, 5)


def test_sglang_without_retractions_is_zero_only_in_a_whole_log() -> None:
    rows = [sample(0, "decode"), sample(10, "decode")]
    assert preemptions(recorded(SGLANG, engine_samples=rows)).count is None
    start = {"start_id": "start-1", "last_line": 9, "served": True}
    assert preemptions(recorded(SGLANG, engine_samples=rows, starts=[start])).count == 0
    other = Source("tgi.log", "tgi", "tgi")
    assert preemptions(recorded(other, engine_samples=rows, starts=[start])).count is None
    cut = Source("sglang.log", "sglang", "sglang", cut=True)
    assert preemptions(recorded(cut, engine_samples=rows, starts=[start])).count is None


def test_one_source_that_cannot_tell_leaves_the_sum_open() -> None:
    rows = [sample(0, preemption_count=2), {**sample(0), "source_id": 1}]
    assert preemptions(recorded(VLLM, VLLM, engine_samples=rows)) == Preemptions(2, None)
    silent = [sample(0, preemption_count=0), {**sample(0), "source_id": 1}]
    assert preemptions(recorded(VLLM, VLLM, engine_samples=silent)).count is None


def request(name: str = "r", **events: Any) -> dict[str, Any]:
    return {"request_id": name, **events}


def test_measures_of_one_request() -> None:
    row = request(
        arrival_s=0.0,
        queued_s=0.1,
        scheduled_s=1.1,
        first_token_s=1.6,
        last_token_s=3.6,
        prompt_tokens=100,
        output_tokens=5,
    )
    told = durations(frame("requests", [row])).row(0, named=True)
    expected = {"queue_s": 1.0, "prefill_s": 0.5, "decode_s": 2.0, "ttft_s": 1.6, "e2e_s": 3.6, "tpot_s": 0.5}
    assert {name: told[name] for name in expected} == pytest.approx(expected)


def test_one_output_token_has_no_time_per_token() -> None:
    row = request(first_token_s=1.0, last_token_s=1.0, output_tokens=1)
    assert durations(frame("requests", [row]))["tpot_s"].to_list() == [None]


def test_a_span_that_runs_backward_is_left_out_and_not_clipped() -> None:
    rows = [request("a", arrival_s=5.0, last_token_s=3.0), request("b", arrival_s=0.0, last_token_s=4.0)]
    told = request_stats(recorded(requests=rows)).filter(measure="e2e_s").row(0, named=True)
    assert (told["request_count"], told["mean"]) == (1, 4.0)


def test_quantiles_are_linear() -> None:
    rows = [request(str(n), arrival_s=0.0, last_token_s=float(n)) for n in (1, 2, 3, 4)]
    told = request_stats(recorded(requests=rows)).row(0, named=True)
    assert told["p50"] == 2.5
    assert told["p95"] == pytest.approx(3.85)


def test_finished_requests_count_before_responses() -> None:
    responses = [{"kind": "response", "fields": f"POST /v1/completions {code}"} for code in (200, 200, 400, 503)]
    assert request_count(recorded(incidents=responses)) == 2
    finished = [request("a", last_token_s=1.0), request("b")]
    assert request_count(recorded(requests=finished, incidents=responses)) == 1
    assert request_count(recorded(requests=[request("b")])) is None
    assert request_count(recorded(incidents=responses[2:])) == 0


def test_what_a_client_recorded_is_not_counted_beside_the_server_s_own_count() -> None:
    client = Source("bench.json", "vllm-bench", "vllm-bench")
    responses = [
        {"kind": "response", "fields": "POST /v1/completions 200", "source_id": server} for server in (0, 0, 0, 2)
    ]
    finished = [request(name, last_token_s=1.0, source_id=1) for name in "ab"]
    told = recorded(VLLM, client, VLLM, requests=finished, incidents=responses)
    assert request_count(told) == 4
    assert request_count(told.replace(incidents=told.incidents.head(1))) == 2


def test_shares_are_null_part_by_part() -> None:
    rows = [request(arrival_s=0.0, scheduled_s=0.0, first_token_s=2.82, last_token_s=3.6)]
    shares = request_shares(recorded(requests=rows))
    assert shares["prefill"] == pytest.approx(0.7833, abs=1e-4)
    assert (shares["queue"], shares["other"]) == (None, None)
    assert set(request_shares(Recording()).values()) == {None}


def arriving(seconds: list[float]) -> list[dict[str, Any]]:
    return [request(str(n), arrival_s=at) for n, at in enumerate(seconds)]


def test_many_arrivals_at_once_stand_out_from_what_is_usual_around_them() -> None:
    rows = arriving([30.0 * n for n in range(4) for _ in range(16)])
    told = arrivals(frame("requests", rows))[0]
    assert (told.peak_count, told.burst_count, told.line) == (16, 4, 1)
    assert told.usual_count == pytest.approx(2 * 32 / 60)


@pytest.mark.parametrize(
    "seconds",
    [
        [float(n // 2) for n in range(70)],
        [n / 10 for n in range(600)],
        [3.0 * n for n in range(40)] + [60.5 + n / 10 for n in range(5)],
        [n / 50 for n in range(3000)] + [30 + n / 40 for n in range(80)],
        [n / 1.3 for n in range(650)] + [250 + n / 10 for n in range(6)],
    ],
)
def test_a_steady_stream_however_dense_is_no_burst(seconds: list[float]) -> None:
    assert arrivals(frame("requests", arriving(seconds)))[0].burst_count == 0


def test_a_busy_hour_is_no_burst_of_the_day() -> None:
    quiet, busy = [30.0 * n for n in range(100)], [3000 + n / 5 for n in range(1500)]
    assert arrivals(frame("requests", arriving(quiet + busy)))[0].burst_count == 0


def test_few_or_unknown_arrivals_tell_nothing() -> None:
    assert arrivals(frame("requests", arriving([0.0] * 19))) == {}
    assert arrivals(frame("requests", [request(str(n)) for n in range(40)])) == {}


EVENTS = st.lists(st.floats(0, 100), min_size=5, max_size=5).map(sorted)


@given(st.lists(EVENTS, min_size=1, max_size=8), st.floats(1, 1000))
@settings(max_examples=40, deadline=None)
def test_parts_of_the_requests_time_add_up_and_scale_with_the_clock(events: list[list[float]], factor: float) -> None:
    names = ("arrival_s", "queued_s", "scheduled_s", "first_token_s", "last_token_s")
    rows = [request(str(n), **dict(zip(names, row, strict=True))) for n, row in enumerate(events)]
    shares = request_shares(recorded(requests=rows))
    known = [share for share in shares.values() if share is not None]
    if sum(row[4] - row[0] for row in events) > 1e-6:
        assert sum(known) == pytest.approx(1)
    longer = [{**row, **{name: row[name] * factor for name in names}} for row in rows]
    base, scaled = request_stats(recorded(requests=rows)), request_stats(recorded(requests=longer))
    assert scaled["mean"].to_list() == pytest.approx([mean * factor for mean in base["mean"]], abs=1e-6)


SAMPLES = st.lists(
    st.tuples(st.integers(0, 60), st.sampled_from([None, "DP0", "DP1"]), st.integers(0, 300), st.floats(0, 1)),
    min_size=1,
    max_size=20,
)


@given(SAMPLES, st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_the_order_of_rows_is_irrelevant(points: list[tuple[int, str | None, int, float]], random: Any) -> None:
    rows = [
        {**sample(at, replica=replica, running_count=running, kv_usage_ratio=kv), "line": line}
        for line, (at, replica, running, kv) in enumerate(points, 1)
    ]
    shuffled = random.sample(rows, len(rows))
    assert sample_stats(recorded(engine_samples=rows)).equals(sample_stats(recorded(engine_samples=shuffled)))


def test_every_measure_of_the_schema_is_computed() -> None:
    assert set(durations(Recording().requests).columns) == set(MEASURES)
