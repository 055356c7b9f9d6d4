"""Metrics of engines: scrapes as text, answers of a Prometheus server as JSON."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

import infer_diag as diag
from infer_diag.attribution.request_totals import quantile_bounds
from infer_diag.errors import DiagError, SourceError
from infer_diag.recording import Recording, Source

CAPTURED = Path(__file__).parents[2] / "sample_logs" / "captured"
SCENARIOS = ["kv_preempts", "long_short_bursts", "plain", "sequence_limit", "two_starts"]


def read(tmp_path: Path, text: str, name: str = "metrics.prom", **options: object) -> Recording:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return diag.load(path, **options)


def truth(scenario: str) -> list[dict[str, Any]]:
    return json.loads((CAPTURED / scenario / "meta.json").read_text(encoding="utf-8"))["starts"]


def document(recording: Recording) -> dict[str, Any]:
    return diag.diagnose(recording).to_dict()


def scrapes(*values: dict[str, float], every_s: int = 10, labels: str = 'engine="0",model_name="m"') -> str:
    lines = []
    for number, scrape in enumerate(values):
        lines.append(f"# scrape 2026-03-14T09:{number * every_s // 60:02d}:{number * every_s % 60:02d}Z")
        lines += [f"{name}{{{labels}}} {value}" for name, value in scrape.items()]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_servers_counters_and_the_clients_times_are_found_again(scenario: str) -> None:
    starts = truth(scenario)
    serving = document(diag.load(CAPTURED / scenario / "metrics.prom.txt"))["serving"]
    counters = [start["server_counters"] for start in starts]
    clients = [start["client"] for start in starts]
    assert serving["preemptions"] == sum(each["preemptions"] for each in counters)
    assert serving["requests"]["count"] == sum(each["requests_finished"] for each in counters)
    finished = np.array([client["finished"] for client in clients])
    for measure, slack_s in (("ttft_s", 0.02), ("e2e_s", 0.02)):
        mean = float(np.dot(finished, [client[measure]["mean"] for client in clients]) / finished.sum())
        assert serving["requests"][measure]["mean"] == pytest.approx(mean, abs=slack_s)
        assert serving["requests"][measure]["p50"] is None
    if len(clients) == 1:
        for name, (low, high) in serving["requests"]["ttft_s"]["bounds"].items():
            assert low - 0.02 <= clients[0]["ttft_s"][name] <= high + 0.02


@pytest.mark.parametrize("scenario", ["kv_preempts", "plain"])
def test_rates_times_their_intervals_are_the_tokens(scenario: str) -> None:
    counters = truth(scenario)[0]["server_counters"]
    samples = diag.load(CAPTURED / scenario / "metrics.prom.txt").engine_samples
    span_s = pl.col("time").diff().dt.total_microseconds() / 1e6
    tokens = samples.select(
        (pl.col("prompt_tokens_per_s") * span_s).sum().alias("prompt"),
        (pl.col("output_tokens_per_s") * span_s).sum().alias("output"),
    ).row(0)
    assert tokens == (pytest.approx(counters["prompt_tokens"]), pytest.approx(counters["generation_tokens"]))


def test_a_log_and_metrics_of_one_engine_count_once() -> None:
    both = document(diag.load(CAPTURED / "kv_preempts" / "server.log", CAPTURED / "kv_preempts" / "metrics.prom.txt"))
    alone = document(diag.load(CAPTURED / "kv_preempts" / "server.log"))
    for measure in ("samples", "running", "waiting", "output_tokens_per_s"):
        assert both["serving"][measure] == alone["serving"][measure]
    assert both["serving"]["preemptions"] == 34
    assert both["serving"]["requests"]["count"] == 48
    assert both["serving"]["requests"]["ttft_s"]["mean"] == pytest.approx(19.2985, abs=1e-3)


def test_the_order_of_series_does_not_matter(tmp_path: Path) -> None:
    text = (CAPTURED / "kv_preempts" / "metrics.prom.txt").read_text(encoding="utf-8")
    marks = re.split(r"(?m)^(# scrape .*)$", text)
    shuffled = []
    for mark, body in zip(marks[1::2], marks[2::2], strict=True):
        lines = [line for line in body.splitlines() if line and not line.startswith("#")]
        random.Random(7).shuffle(lines)
        shuffled += [mark, *lines]
    plain, mixed = read(tmp_path, text, "a.prom"), read(tmp_path, "\n".join(shuffled), "b.prom")
    assert_frame_equal(plain.engine_samples.drop("line"), mixed.engine_samples.drop("line"))
    totals = [each.request_totals.drop("line", "source_id").sort("measure") for each in (plain, mixed)]
    assert_frame_equal(*totals)


def test_a_counter_that_begins_again_gives_no_rate_and_no_negative_count(tmp_path: Path) -> None:
    names = ("vllm:num_preemptions_total", "vllm:generation_tokens_total")
    text = scrapes(*[dict(zip(names, pair, strict=True)) for pair in ((5, 1000), (9, 3000), (2, 500), (3, 900))])
    recording = read(tmp_path, text)
    samples = recording.engine_samples
    assert samples["output_tokens_per_s"].to_list() == [None, 200.0, None, 40.0]
    assert samples["preemption_count"].to_list() == [None, 4, 2, 1]
    assert recording.incidents["kind"].to_list() == ["restart"]
    assert "data.counter_reset" in [finding["id"] for finding in document(recording)["findings"]]


def test_one_scrape_tells_totals_and_no_rates(tmp_path: Path) -> None:
    text = scrapes(
        {"vllm:num_preemptions_total": 7, "vllm:generation_tokens_total": 1e6, "vllm:num_requests_running": 3}
    )
    serving = document(read(tmp_path, text))["serving"]
    assert (serving["preemptions"], serving["output_tokens_per_s"]) == (7, None)
    assert serving["running"]["last"] == 3
    told = [
        finding for finding in document(read(tmp_path, text))["findings"] if finding["id"] == "data.not_identifiable"
    ]
    assert any("one scrape" in finding["sentence"] and "# scrape" in finding["remedy"] for finding in told)


def test_a_version_with_both_names_of_the_pool_counts_it_once(tmp_path: Path) -> None:
    text = scrapes({"vllm:gpu_cache_usage_perc": 0.4, "vllm:kv_cache_usage_perc": 0.5})
    assert read(tmp_path, text).engine_samples["kv_usage_ratio"].to_list() == [0.5]
    old = scrapes({"vllm:gpu_cache_usage_perc": 0.4})
    assert read(tmp_path, old).engine_samples["kv_usage_ratio"].to_list() == [0.4]


@pytest.mark.parametrize("prefix", ["vllm:", "vllm_"])
def test_a_collectors_underscore_changes_nothing(tmp_path: Path, prefix: str) -> None:
    text = scrapes({f"{prefix}num_requests_running": 3, f"{prefix}num_requests_waiting": 2})
    samples = read(tmp_path, text).engine_samples
    assert samples.select("running_count", "waiting_count").rows() == [(3, 2)]


ENGINES = [
    ("sglang", {"sglang:num_running_reqs": 4, "sglang:num_queue_reqs": 9, "sglang:token_usage": 0.25}, (4, 9, 0.25)),
    ("tgi", {"tgi_batch_current_size": 4, "tgi_queue_size": 9}, (4, 9, None)),
    (
        "llama.cpp",
        {"llamacpp:requests_processing": 4, "llamacpp:requests_deferred": 9, "llamacpp:kv_cache_usage_ratio": 0.25},
        (4, 9, 0.25),
    ),
    ("lmdeploy", {"lmdeploy:num_requests_running": 4, "lmdeploy:num_requests_waiting": 9}, (4, 9, None)),
    ("triton", {"nv_inference_pending_request_count": 9}, (None, 9, None)),
]


@pytest.mark.parametrize(("engine", "values", "expected"), ENGINES, ids=[engine for engine, _, _ in ENGINES])
def test_engines_by_their_names(
    tmp_path: Path, engine: str, values: dict[str, float], expected: tuple[Any, ...]
) -> None:
    recording = read(tmp_path, scrapes(values, labels='model="m"'))
    assert (recording.sources[0].format, recording.sources[0].engine) == ("prometheus", engine)
    assert recording.engine_samples.select("running_count", "waiting_count", "kv_usage_ratio").row(0) == expected


def test_ranks_repeat_a_value_and_replicas_share_it(tmp_path: Path) -> None:
    ranks = "".join(f'sglang:num_running_reqs{{tp_rank="{rank}"}} 6\n' for rank in range(4))
    assert read(tmp_path, ranks).engine_samples["running_count"].to_list() == [6]
    engines = "".join(f'vllm:num_requests_running{{engine="{engine}"}} {engine + 1}\n' for engine in range(2))
    samples = read(tmp_path, engines).engine_samples
    assert samples.select("replica", "running_count").rows() == [("DP0", 1), ("DP1", 2)]


def test_triton_sums_are_means_over_its_requests(tmp_path: Path) -> None:
    text = scrapes(
        {
            "nv_inference_request_success": 437,
            "nv_inference_request_duration_us": 437 * 4800,
            "nv_inference_queue_duration_us": 437 * 3830,
        },
        labels='model="m",version="1"',
    )
    serving = document(read(tmp_path, text))["serving"]
    assert serving["requests"]["count"] == 437
    assert serving["requests"]["queue_s"]["mean"] == pytest.approx(0.00383)
    assert serving["shares"]["queue"] == pytest.approx(3830 / 4800)
    assert serving["requests"]["queue_s"]["p95"] is None


def test_open_metrics_exemplars_stamps_and_end(tmp_path: Path) -> None:
    body = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{model_name="m"}} {running} {stamp}
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{{le="0.5"}} {few} {stamp} # {{trace_id="abc",x="a b"}} 0.25 1700000000.1
vllm:time_to_first_token_seconds_bucket{{le="+Inf"}} {all} {stamp}
vllm:time_to_first_token_seconds_sum {sum} {stamp}
vllm:time_to_first_token_seconds_count {all} {stamp}
vllm:time_to_first_token_seconds_created 1.7e9 {stamp}
# EOF
"""
    first = body.format(running=1, few=2, all=4, sum=4.0, stamp="1700000000.5")
    second = body.format(running=2, few=5, all=14, sum=24.0, stamp="1700000010.5")
    recording = read(tmp_path, first + second)
    stamps = recording.engine_samples["time"].dt.epoch("us").to_list()
    assert stamps == [1_700_000_000_500_000, 1_700_000_010_500_000]
    total = recording.request_totals.row(0, named=True)
    assert (total["request_count"], total["mean"], total["bucket_counts"]) == (10, pytest.approx(2.0), [3, 7])
    assert total["bucket_max"] == [0.5, None]
    assert recording.rejected.is_empty()


def test_milliseconds_of_the_text_format(tmp_path: Path) -> None:
    recording = read(tmp_path, "vllm:num_requests_running 3 1700000000500\n")
    assert recording.engine_samples["time"].dt.epoch("us").to_list() == [1_700_000_000_500_000]


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
def test_what_is_no_number_is_no_value(tmp_path: Path, value: str) -> None:
    recording = read(tmp_path, f"vllm:num_requests_running 3\nvllm:num_requests_waiting {value}\n")
    assert recording.engine_samples.select("running_count", "waiting_count").row(0) == (3, None)


LABELS = st.text(st.characters(codec="utf-8", exclude_characters="\n\r", exclude_categories=["Cs", "Cc"]), max_size=30)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(LABELS, LABELS)
def test_escaped_labels_do_no_harm(tmp_path: Path, one: str, other: str) -> None:
    escaped = [text.replace("\\", "\\\\").replace('"', '\\"') for text in (one, other)]
    labels = f'model_name="{escaped[0]}",note="{escaped[1]}"'
    values = {"vllm:num_requests_running": 3, **histogram([(1.0, 2), (float("inf"), 1)], 3.0)}
    recording = read(tmp_path, f"{scrapes(values, labels=labels)}vllm:num_requests_waiting 1\n")
    assert recording.engine_samples["running_count"].to_list() == [3]
    assert recording.rejected.is_empty()


def histogram(buckets: list[tuple[float, int]], total: float) -> dict[str, float]:
    name = "vllm:e2e_request_latency_seconds"
    return {f"{name}_sum": total, f"{name}_count": sum(count for _, count in buckets)}


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.floats(0, 30, allow_subnormal=False), min_size=1, max_size=60))
def test_the_bounds_hold_the_linear_quantile(tmp_path: Path, values: list[float]) -> None:
    limits = [0.3, 0.5, 1.0, 2.5, 10.0, float("inf")]
    name = "vllm:e2e_request_latency_seconds"
    lines = [f'{name}_bucket{{le="{limit}"}} {sum(value <= limit for value in values)}' for limit in limits]
    text = "\n".join([*lines, f"{name}_sum {sum(values)}", f"{name}_count {len(values)}"]) + "\n"
    recording = read(tmp_path, text.replace('le="inf"', 'le="+Inf"'))
    for share, low, high in quantile_bounds(recording).select("quantile_ratio", "min", "max").iter_rows():
        exact = float(np.quantile(values, share))
        assert low - 1e-9 <= exact <= (high if high is not None else float("inf")) + 1e-9


def test_totals_of_two_sources_are_left_out() -> None:
    """Two scrapes of one engine and one of each of two engines look alike."""
    row = {"line": 1, "model": None, "measure": "e2e_s", "request_count": 4, "mean": 2.0}
    both = [{**row, "source_id": source} for source in (0, 1)]
    columns = Recording().request_totals.schema
    totals = pl.DataFrame([{**dict.fromkeys(columns), **each} for each in both], schema=columns)
    sources = (Source("a", "prometheus", "vllm"), Source("b", "prometheus", "vllm"))
    assert document(Recording(sources=sources, request_totals=totals))["serving"]["requests"]["e2e_s"] is None


def answer(values: dict[str, list[Any]]) -> dict[str, Any]:
    result = [{"metric": {"__name__": name, "instance": "a:8000"}, "values": pairs} for name, pairs in values.items()]
    return {"status": "success", "data": {"resultType": "matrix", "result": result}}


def test_a_saved_answer_is_read_like_scrapes(tmp_path: Path) -> None:
    at = [1_700_000_000 + 15 * step for step in range(4)]
    saved = answer(
        {
            "vllm:num_requests_running": [[at[0], "3"], [at[1], "NaN"], [at[2], "5"], [at[3], "5"]],
            "vllm:generation_tokens_total": [[at[0], "100"], [at[1], "400"], [at[2], "1000"], [at[3], "1000"]],
        }
    )
    samples = read(tmp_path, json.dumps(saved), "answer.json").engine_samples
    assert samples["running_count"].to_list() == [3, None, 5, 5]
    assert samples["output_tokens_per_s"].to_list() == [None, 20.0, 40.0, 0.0]
    assert samples["time"].dt.epoch("s").to_list() == at


def test_an_instant_answer(tmp_path: Path) -> None:
    saved = answer({})
    saved["data"] = {
        "resultType": "vector",
        "result": [{"metric": {"__name__": "vllm:num_requests_running"}, "value": [1_700_000_000.25, "3"]}],
    }
    assert read(tmp_path, json.dumps(saved), "answer.json").engine_samples["running_count"].to_list() == [3]


@pytest.mark.parametrize(
    ("saved", "says"),
    [
        (answer({}) | {"status": "error", "error": "query timed out"}, "query timed out"),
        (answer({}) | {"data": {"resultType": "matrix", "result": [{"metric": {}, "values": [[1, "2"]]}]}}, "name"),
        (answer({"up": [[1, "1"]]}), "none of its"),
    ],
)
def test_an_answer_that_tells_nothing_says_why(tmp_path: Path, saved: dict[str, Any], says: str) -> None:
    with pytest.raises(SourceError, match=says):
        read(tmp_path, json.dumps(saved), "answer.json", format="prometheus")


def test_metrics_of_something_else_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError):
        read(tmp_path, "# TYPE go_goroutines gauge\ngo_goroutines 8\nnode_load1 0.4\n")


def test_a_damaged_sample_is_kept_as_rejected(tmp_path: Path) -> None:
    recording = read(tmp_path, 'vllm:num_requests_running 3\nvllm:num_requests_waiting{engine="0} 1\n')
    assert recording.rejected["line"].to_list() == [2]
    assert recording.engine_samples["waiting_count"].to_list() == [None]


LINES = st.sampled_from(
    [
        "# scrape 2026-03-14T09:26:53Z",
        "# EOF",
        "1700000000",
        'vllm:num_requests_running{engine="0"} 3',
        "vllm:num_requests_running -1",
        "vllm:num_requests_running 1e300",
        "vllm:kv_cache_usage_perc NaN",
        "vllm:time_to_first_token_seconds_count 5",
        "vllm:time_to_first_token_seconds_sum -5",
        'vllm:time_to_first_token_seconds_bucket{le="x"} 5',
        'vllm:time_to_first_token_seconds_bucket{le="1"} 5',
        'DCGM_FI_DEV_FB_USED{gpu="0"} 5',
        "DCGM_FI_DEV_FB_USED{} 5",
        'DCGM_FI_DEV_XID_ERRORS{gpu="0"} 79',
        "nv_inference_request_success 0",
        "nv_inference_queue_duration_us 1e18",
    ]
)


@settings(max_examples=75, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(LINES | st.text(max_size=30), max_size=25), st.sampled_from(["prometheus", "dcgm-exporter"]))
def test_any_text_is_read_or_refused(tmp_path: Path, lines: list[str], format: str) -> None:
    try:
        recording = read(tmp_path, "\n".join(lines), format=format)
    except DiagError:
        return
    assert diag.diagnose(recording).to_json()
