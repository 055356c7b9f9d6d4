"""Spans of requests and of starts, as collectors and tracing systems keep them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import infer_diag as diag
from infer_diag.errors import SourceError
from infer_diag.recording import Recording

T0 = 1_700_000_000 * 10**9
LATENCIES = {
    "time_in_queue": 8.0,
    "time_in_model_prefill": 0.5,
    "time_in_model_decode": 1.0,
    "time_to_first_token": 8.5,
    "e2e": 9.5,
}


def attribute(key: str, value: str | int | float) -> dict[str, Any]:
    if isinstance(value, str):
        return {"key": key, "value": {"stringValue": value}}
    return {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"doubleValue": value}}


def span(
    name: str, identity: str, parent: str, begin: float, end: float, trace: str = "a", **attributes: Any
) -> dict[str, Any]:
    told = [attribute(key.replace("__", "."), value) for key, value in attributes.items()]
    return {"traceId": trace * 32, "spanId": identity, "parentSpanId": parent, "name": name, "kind": 2,
            "startTimeUnixNano": str(T0 + round(begin * 1e9)), "endTimeUnixNano": str(T0 + round(end * 1e9)),
            "attributes": told, "events": [], "status": {}}  # fmt: skip


def export(*spans: dict[str, Any], scopes: str = "scopeSpans", **resource: str) -> dict[str, Any]:
    attributes = [
        attribute(key.replace("__", "."), value) for key, value in ({"service__name": "vllm"} | resource).items()
    ]
    return {
        "resourceSpans": [
            {"resource": {"attributes": attributes}, scopes: [{"scope": {"name": "s"}, "spans": list(spans)}]}
        ]
    }


def request(number: int, begin: float = 80.0, **changes: Any) -> dict[str, Any]:
    told = {f"gen_ai__latency__{name}": value for name, value in LATENCIES.items()}
    told |= {
        "gen_ai__usage__prompt_tokens": 100,
        "gen_ai__usage__completion_tokens": 11,
        "gen_ai__request__id": f"q{number}",
    }
    return span("llm_request", f"r{number}", f"c{number}", begin + number, begin + number + 9.51, "b", **told | changes)


START = (
    export(
        span("Init device", "s2", "s1", 3, 5),
        span("Load weights", "s5", "s4", 6, 20),
        span("Load model", "s4", "s3", 5.5, 21),
        span("Loading (GPU)", "s3", "s1", 5.25, 22),
        vllm__process_kind="worker",
        vllm__process_name="Worker_TP0",
    ),
    export(
        span("Compile graph", "s7", "s6", 24, 50),
        span("Allocate KV cache", "s8", "s6", 52, 53),
        span("Capture model", "s9", "sw", 54, 70),
        span("Warmup (GPU)", "sw", "s6", 53, 71),
        span("Prepare model", "s6", "s0", 22, 72),
        span("EngineCoreProc init", "s0", "so", 2, 73),
    ),
    export(span("Overall Loading", "so", "", 0, 74)),
)


def loaded(tmp_path: Path, *documents: Any, indent: int | None = None) -> Recording:
    path = tmp_path / "traces"
    path.write_text(
        "\n".join(each if isinstance(each, str) else json.dumps(each, indent=indent) for each in documents) + "\n"
    )
    return diag.load(path)


def document(recording: Recording) -> dict[str, Any]:
    return diag.diagnose(recording).to_dict()


class TestRequests:
    def test_the_engines_durations_are_taken_by_name(self, tmp_path: Path) -> None:
        recording = loaded(tmp_path, *(export(request(number)) for number in range(3)))
        told = document(recording)
        requests = told["serving"]["requests"]
        assert {name: requests[name]["mean"] for name in ("queue_s", "prefill_s", "decode_s", "ttft_s", "e2e_s")} == {
            "queue_s": 8.0, "prefill_s": 0.5, "decode_s": 1.0, "ttft_s": 8.5, "e2e_s": 9.5}  # fmt: skip
        assert (requests["count"], requests["tpot_s"]["mean"]) == (3, 0.1)
        assert recording.requests["arrival_s"].to_list() == [0.0, 1.0, 2.0]
        assert recording.request_timings["line"].to_list() == [1, 2, 3]
        assert told["sources"][0]["first_time"] == "2023-11-14T22:14:40+00:00"
        assert "batching.queue" in {finding["id"] for finding in told["findings"]}

    def test_a_client_around_the_engine_is_no_second_request(self, tmp_path: Path) -> None:
        client = span(
            "chat m", "c0", "w", 79.9, 90, "b", gen_ai__usage__input_tokens=100, gen_ai__usage__output_tokens=11
        )
        agent = span(
            "invoke_agent", "w", "", 79, 91, "b", gen_ai__usage__input_tokens=100, gen_ai__usage__output_tokens=11
        )
        recording = loaded(tmp_path, export(client), export(agent), export(request(0)))
        assert document(recording)["serving"]["requests"]["count"] == 1

    def test_other_spans_of_generations(self, tmp_path: Path) -> None:
        good = span("chat m", "c0", "", 1, 3, gen_ai__usage__input_tokens=100, gen_ai__usage__output_tokens=11)
        bad = span("chat m", "c1", "", 2, 5, gen_ai__usage__input_tokens=7) | {"status": {"code": 2}}
        recording = loaded(tmp_path, export(good, bad, span("GET /health", "h", "", 0, 1)))
        assert recording.requests["arrival_s"].to_list() == [0.0, 1.0]
        assert recording.requests["last_token_s"].to_list() == [2.0, None]
        assert recording.requests["finish_reason"].to_list() == [None, "error"]
        assert recording.requests["prompt_tokens"].to_list() == [100, 7]

    def test_a_span_that_was_sent_again_counts_once(self, tmp_path: Path) -> None:
        recording = loaded(tmp_path, export(request(0)), export(request(1), request(0)))
        assert document(recording)["serving"]["requests"]["count"] == 2
        assert recording.sources[0].notes == ("1 spans are told twice or have no begin or end before it",)

    def test_times_before_their_begin_are_left_out(self, tmp_path: Path) -> None:
        broken = request(0) | {"endTimeUnixNano": str(T0)}
        recording = loaded(tmp_path, export(broken, request(1), request(2) | {"startTimeUnixNano": "soon"}))
        assert recording.request_timings["request_id"].to_list() == ["q1"]

    def test_the_order_of_lines_does_not_matter(self, tmp_path: Path) -> None:
        lines = [export(request(number)) for number in range(4)]
        one, other = (loaded(tmp_path, *each).requests.sort("request_id").drop("line") for each in (lines, lines[::-1]))
        assert one.equals(other)

    def test_parents_in_a_circle_end(self, tmp_path: Path) -> None:
        circle = [request(0) | {"parentSpanId": "r1"}, request(1) | {"parentSpanId": "r0"}]
        with pytest.raises(SourceError, match="none of its"):
            loaded(tmp_path, export(*circle))


class TestShapes:
    @pytest.mark.parametrize("indent", [None, 1])
    @pytest.mark.parametrize("shape", ["resourceSpans", "batches", "trace", "result"])
    def test_one_document(self, tmp_path: Path, indent: int | None, shape: str) -> None:
        inner = export(request(0), request(1))
        whole = (
            {"batches": inner["resourceSpans"]}
            if shape == "batches"
            else inner
            if shape == "resourceSpans"
            else {shape: inner}
        )
        assert len(loaded(tmp_path, whole, indent=indent).request_timings) == 2

    def test_older_scopes_and_plain_numbers(self, tmp_path: Path) -> None:
        plain = request(0) | {"startTimeUnixNano": T0, "endTimeUnixNano": T0 + 10**9}
        recording = loaded(tmp_path, export(plain, scopes="instrumentationLibrarySpans"))
        assert len(recording.request_timings) == 1

    def test_bad_lines_are_kept_apart(self, tmp_path: Path) -> None:
        good = export(request(0))
        lines = [good, '{"resourceSpans": 5}', "noise", json.dumps(good)[:-40], export(request(1))]
        recording = loaded(tmp_path, *lines)
        assert len(recording.request_timings) == 2
        assert recording.rejected["line"].to_list() == [2, 4]

    @pytest.mark.parametrize(
        "wrap", ['{"resourceSpans":[{"scopeSpans":[{"spans":%s}]}]}', '{"a":%s,"scopeSpans":1}', "%s"]
    )
    def test_deep_nesting_is_refused(self, tmp_path: Path, wrap: str) -> None:
        with pytest.raises(SourceError, match=r"deep|no format|none of its"):
            loaded(tmp_path, wrap % ("[" * 10_000 + "]" * 10_000))
        recording = loaded(tmp_path, wrap % ("[" * 10_000 + "]" * 10_000), export(request(0)))
        assert len(recording.request_timings) == 1

    def test_jaeger(self, tmp_path: Path) -> None:
        tags = [
            {"key": f"gen_ai.latency.{name}", "type": "float64", "value": value} for name, value in LATENCIES.items()
        ]
        tags += [{"key": "gen_ai.usage.completion_tokens", "type": "int64", "value": 11}]
        child = {"traceID": "ab", "spanID": "2", "operationName": "llm_request", "startTime": 1_700_000_000_000_500, "duration": 1_234_567,
                 "references": [{"refType": "CHILD_OF", "traceID": "ab", "spanID": "1"}], "tags": tags, "processID": "p1"}  # fmt: skip
        outer = {"traceID": "ab", "spanID": "1", "operationName": "chat", "startTime": 1_700_000_000_000_000, "duration": 2_000_000,
                 "references": [], "tags": [{"key": "gen_ai.usage.input_tokens", "type": "int64", "value": 5}], "processID": "p2"}  # fmt: skip
        failed = outer | {
            "spanID": "3",
            "startTime": 1_700_000_001_000_500,
            "tags": [*outer["tags"], {"key": "error", "value": True}],
        }
        trace = {
            "traceID": "ab",
            "spans": [outer, child, failed],
            "processes": {"p1": {"serviceName": "vllm", "tags": []}},
        }
        recording = loaded(tmp_path, {"data": [trace], "total": 0, "errors": None})
        assert recording.sources[0].format == "jaeger"
        assert recording.request_timings["queue_s"].to_list() == [8.0]
        requests = recording.requests.sort("arrival_s")
        assert requests["arrival_s"].to_list() == [0.0, 1.0]
        assert requests["finish_reason"].to_list() == [None, "error"]


class TestStarts:
    def test_phases_and_their_nesting(self, tmp_path: Path) -> None:
        start = document(loaded(tmp_path, *START, export(request(0))))["starts"][0]
        assert (start["outcome"], start["span_s"]) == ("ready", 74.0)
        assert start["phases_s"] == {
            "device_init": 2.0, "weights_load": 16.75, "weights_read": 14.0, "init_engine": 50.0,
            "compile_graph": 26.0, "kv_alloc": 1.0, "graph_capture": 16.0}  # fmt: skip
        inside = {phase["phase"]: phase["inside"] for phase in start["phases"]}
        assert (inside["weights_read"], inside["graph_capture"]) == ("weights_load", "init_engine")
        assert start["by_rank_s"]["TP0"]["weights_load"] == 16.75
        parts = 2.0 + 16.75 + 26 + 1 + 16
        assert start["unlogged_s"] == pytest.approx(74.0 - parts)

    def test_jaeger_tells_the_same_start(self, tmp_path: Path) -> None:
        spans = []
        for each in START:
            for one in each["resourceSpans"][0]["scopeSpans"][0]["spans"]:
                begin, end = int(one["startTimeUnixNano"]) // 1000, int(one["endTimeUnixNano"]) // 1000
                references = [{"refType": "CHILD_OF", "spanID": one["parentSpanId"]}] if one["parentSpanId"] else []
                spans.append({"traceID": "aa", "spanID": one["spanId"], "operationName": one["name"], "startTime": begin,
                              "duration": end - begin, "references": references, "tags": [], "processID": "p"})  # fmt: skip
        whole = {"data": [{"traceID": "aa", "spans": spans, "processes": {"p": {"serviceName": "vllm"}}}]}
        other = document(loaded(tmp_path, whole))["starts"][0]
        assert other["phases_s"] == document(loaded(tmp_path, *START))["starts"][0]["phases_s"]

    def test_two_traces_are_two_starts(self, tmp_path: Path) -> None:
        later = [json.loads(json.dumps(each).replace("a" * 32, "d" * 32)) for each in START]
        for each in later:
            for one in each["resourceSpans"][0]["scopeSpans"][0]["spans"]:
                one["startTimeUnixNano"] = str(int(one["startTimeUnixNano"]) + 600 * 10**9)
                one["endTimeUnixNano"] = str(int(one["endTimeUnixNano"]) + 600 * 10**9)
        starts = document(loaded(tmp_path, *later, *START))["starts"]
        assert [start["span_s"] for start in starts] == [74.0, 74.0]
        assert starts[0]["phases"][0]["evidence"] == [f"{tmp_path}/traces:4"]

    def test_a_start_that_failed(self, tmp_path: Path) -> None:
        whole = span("Overall Loading", "so", "", 0, 74) | {"status": {"code": "STATUS_CODE_ERROR"}}
        assert document(loaded(tmp_path, START[0], export(whole)))["starts"][0]["outcome"] == "failed"

    def test_a_start_that_is_still_going_on(self, tmp_path: Path) -> None:
        assert document(loaded(tmp_path, START[0]))["starts"][0]["outcome"] != "ready"
