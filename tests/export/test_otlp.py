"""OTLP: what is exported is read back as it was, and a collector gets what the file holds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import infer_diag as diag
from infer_diag import export
from infer_diag.diagnose import Diagnosis
from infer_diag.errors import DiagError, SourceError
from infer_diag.export import otlp_wire

SAMPLES = ["captured/two_starts", "captured/pipeline_warm", "fleet/rag-legal", "fleet/desk-llama"]
CASES = Path(__file__).parents[3] / "shared" / "cases"
ORIGIN = datetime(2026, 3, 14, 9, 0, tzinfo=UTC)


def phases_of(diagnosis: Diagnosis) -> dict[tuple[str, ...], tuple[Any, ...]]:
    """What a diagnosis says of every phase: length, enclosing phase."""
    told = diagnosis.cold_start.phases
    return {
        (row["start_id"], row["phase"], row["rank"]): (row["duration_s"], row["inside"])
        for row in told.iter_rows(named=True)
        if row["chosen"]
    }


def starts_of(diagnosis: Diagnosis) -> list[tuple[Any, ...]]:
    columns = ["start_id", "replica", "outcome", "span_s", "hold_s"]
    return diagnosis.cold_start.summary.select(columns).rows()


def spans_of(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        for resource in json.loads(line).get("resourceSpans", ()):
            for scope in resource["scopeSpans"]:
                yield from scope["spans"]


@pytest.mark.parametrize("name", SAMPLES)
def test_what_is_exported_is_read_back(name: str, tmp_path: Path) -> None:
    before = diag.diagnose(diag.load(f"sample:{name}"))
    assert phases_of(before)
    done = export.otlp(before, tmp_path / "diagnosis.jsonl")
    assert done.span_count > len(before.cold_start.summary)
    after = diag.diagnose(diag.load(tmp_path / "diagnosis.jsonl"))
    assert phases_of(after) == phases_of(before)
    assert starts_of(after) == starts_of(before)


@pytest.mark.parametrize(
    "name",
    [
        "08-vllm-ray-405b-shards-slow.log",
        "13-sglang-dp-tqdm-glued.log",
        "21-vllm-ray-dedup-out-of-order.log",
    ],
)
def test_logs_that_do_not_tell_the_time_are_placed_where_one_says(name: str, tmp_path: Path) -> None:
    if not (CASES / name).exists():
        pytest.skip("the shared cases are not beside this checkout")
    before = diag.diagnose(diag.load(CASES / name))
    with pytest.raises(DiagError, match=r"prints no|wrong times"):
        export.otlp(before, tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()
    done = export.otlp(before, tmp_path / "out.jsonl", origin=ORIGIN)
    assert any("relative" in note for note in done.notes)
    read = diag.load(tmp_path / "out.jsonl")
    assert not read.sources[0].dated  # what was placed by hand is no date
    assert phases_of(diag.diagnose(read)) == phases_of(before)
    assert read.starts["first_time"].min() == ORIGIN


def test_a_start_during_which_the_clock_was_set_back_is_told_by_metrics_alone(tmp_path: Path) -> None:
    lines = (
        ("02:59:45", "[core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: model='m'"),
        ("02:00:16", "[gpu_model_runner.py:2392] Model loading took 14.2 GiB and 21.5 seconds"),
        ("02:00:42", "[api_server.py:1634] Application startup complete."),
    )
    (tmp_path / "server.log").write_text("".join(f"INFO 10-25 {clock} {text}\n" for clock, text in lines))
    before = diag.diagnose(diag.load(tmp_path / "server.log", year=2026, tz="UTC"))
    done = export.otlp(before, tmp_path / "out.jsonl")
    assert any("set back meanwhile" in note for note in done.notes)
    assert [span["name"] for span in spans_of(tmp_path / "out.jsonl")] == ["infer_diag recording"]


def test_a_start_without_stamps_is_told_by_metrics_alone(tmp_path: Path) -> None:
    path = CASES / "05-vllm-undated-two-runs.log"
    if not path.exists():
        pytest.skip("the shared cases are not beside this checkout")
    before = diag.diagnose(diag.load(path))
    done = export.otlp(before, tmp_path / "out.jsonl", origin=ORIGIN)
    assert any("makes no span" in note for note in done.notes)
    assert [span["name"] for span in spans_of(tmp_path / "out.jsonl")] == ["infer_diag recording"]
    assert "infer_diag.start.phase.duration" in (tmp_path / "out.jsonl").read_text(encoding="utf-8")


def test_times_are_those_of_the_log(two_starts: Diagnosis, tmp_path: Path) -> None:
    export.otlp(two_starts, tmp_path / "out.jsonl")
    starts = [span for span in spans_of(tmp_path / "out.jsonl") if span["name"] == "infer_diag start"]
    told = [(int(span["startTimeUnixNano"]) // 1000, int(span["endTimeUnixNano"]) // 1000) for span in starts]
    rows = two_starts.recording.starts.sort("first_time")
    for (begin, end), first, last in zip(told, rows["first_time"], rows["last_time"], strict=True):
        assert datetime.fromtimestamp(begin / 1e6, UTC) == first
        assert datetime.fromtimestamp(end / 1e6, UTC) == last


def test_spans_nest_and_ids_are_made_from_the_content(two_starts: Diagnosis, tmp_path: Path) -> None:
    one, again, other = (tmp_path / f"{name}.jsonl" for name in ("one", "again", "other"))
    export.otlp(two_starts, one, labels={"tenant_id": "acme"})
    export.otlp(two_starts, again, labels={"tenant_id": "acme"})
    export.otlp(two_starts, other, labels={"tenant_id": "other"})
    assert one.read_bytes() == again.read_bytes()
    spans = {span["spanId"]: span for span in spans_of(one)}
    assert len(spans) == len(list(spans_of(one)))
    assert len({span["traceId"] for span in spans.values()}) == 1
    assert {span["traceId"] for span in spans.values()}.isdisjoint(span["traceId"] for span in spans_of(other))
    assert sum("parentSpanId" not in span for span in spans.values()) == 1
    for span in spans.values():
        assert len(span["traceId"]) == 32 and len(span["spanId"]) == 16
        if (parent := spans.get(span.get("parentSpanId"))) is not None:
            assert int(parent["startTimeUnixNano"]) <= int(span["startTimeUnixNano"])
            assert int(span["endTimeUnixNano"]) <= int(parent["endTimeUnixNano"])
    parents = {(span["name"], spans[span["parentSpanId"]]["name"]) for span in spans.values() if "parentSpanId" in span}
    assert ("kv_profile", "init_engine") in parents


def test_every_finding_is_an_event_with_its_lines(two_starts: Diagnosis, tmp_path: Path) -> None:
    export.otlp(two_starts, tmp_path / "out.jsonl")
    (whole,) = [span for span in spans_of(tmp_path / "out.jsonl") if "parentSpanId" not in span]
    told = [{one["key"]: one["value"] for one in event["attributes"]} for event in whole["events"]]
    sentences = [each["infer_diag.finding.sentence"]["stringValue"] for each in told]
    assert sentences == [finding.sentence for finding in two_starts.findings]
    evidence = [each.get("infer_diag.finding.evidence", {}).get("arrayValue", {}).get("values", []) for each in told]
    assert [tuple(one["stringValue"] for one in each) for each in evidence] == [
        finding.evidence for finding in two_starts.findings
    ]


def test_a_collector_gets_spans_and_metrics(two_starts: Diagnosis, collector: Any, tmp_path: Path) -> None:
    labels = {"tenant_id": "acme", "order_id": "A-1"}
    done = export.otlp(two_starts, collector.url, labels=labels)
    export.otlp(two_starts, tmp_path / "out.jsonl", labels=labels)
    assert {path for path, _, _ in collector.taken} == {"/v1/traces", "/v1/metrics"}
    traces = [body for path, _, body in collector.taken if path == "/v1/traces"]
    sent = [
        span
        for body in traces
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert [span.span_id.hex() for span in sent] == [span["spanId"] for span in spans_of(tmp_path / "out.jsonl")]
    for span in sent:
        assert {"tenant_id", "order_id"} <= {one.key for one in span.attributes}
    (body,) = [body for path, _, body in collector.taken if path == "/v1/metrics"]
    metrics = ExportMetricsServiceRequest.FromString(body).resource_metrics[0].scope_metrics[0].metrics
    points = [point for metric in metrics for point in metric.gauge.data_points]
    assert len(points) == done.sample_count
    for point in points:
        names = {one.key for one in point.attributes}
        assert "tenant_id" in names and "order_id" not in names
    assert {metric.name for metric in metrics} <= export.MEASURES.keys()
    assert all(metric.unit == export.MEASURES[metric.name][0] for metric in metrics)


def test_what_a_collector_keeps_is_read_back(two_starts: Diagnosis, collector: Any, tmp_path: Path) -> None:
    """Batched and length-delimited, as the collector's file exporter writes it."""
    export.otlp(two_starts, collector.url)
    kept = tmp_path / "kept.binpb"
    kept.write_bytes(b"".join(len(body).to_bytes(4, "big") + body for _, _, body in collector.taken))
    after = diag.diagnose(diag.load(kept))
    assert phases_of(after) == phases_of(two_starts)
    assert starts_of(after) == starts_of(two_starts)


def test_a_refusal_is_one_line_with_the_reason(two_starts: Diagnosis, collector: Any) -> None:
    collector.status, collector.told = 400, b"no"
    with pytest.raises(SourceError, match=r"did not take the export.*400") as raised:
        export.otlp(two_starts, collector.url)
    assert "\n" not in str(raised.value)


def test_nobody_there_is_one_line(two_starts: Diagnosis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp_wire, "_TIMEOUT_S", 0.3)
    with pytest.raises(SourceError, match="did not take the export") as raised:
        export.otlp(two_starts, "http://someone:pass-word-1@127.0.0.1:9")
    assert "\n" not in str(raised.value) and "pass-word-1" not in str(raised.value)


@pytest.mark.parametrize(
    "target", ["http://", "http://host:99999", "http://host?x=1", "ftp://host", "grpc://host:4317"]
)
def test_what_is_no_endpoint_is_refused(two_starts: Diagnosis, target: str, tmp_path: Path) -> None:
    with pytest.raises(DiagError, match=r"no OTLP endpoint|neither a file"):
        export.otlp(two_starts, target)


@pytest.mark.parametrize(
    ("origin", "words"),
    [(ORIGIN, "clocks of these logs are known"), (datetime(2026, 3, 14), "are known")],
)
def test_known_times_are_not_moved(two_starts: Diagnosis, origin: datetime, words: str, tmp_path: Path) -> None:
    with pytest.raises(DiagError, match=words):
        export.otlp(two_starts, tmp_path / "out.jsonl", origin=origin)


def test_an_origin_needs_a_zone(tmp_path: Path) -> None:
    undated = diag.diagnose(diag.load("sample:captured/killed_mid_load"))
    with pytest.raises(DiagError, match="names no zone"):
        export.otlp(undated, tmp_path / "out.jsonl", origin=datetime(2026, 3, 14))
    east = datetime(2026, 3, 14, 17, tzinfo=timezone(timedelta(hours=8)))
    export.otlp(undated, tmp_path / "east.jsonl", origin=east)
    assert min(int(span["startTimeUnixNano"]) for span in spans_of(tmp_path / "east.jsonl")) == ORIGIN.timestamp() * 1e9


def test_a_year_without_a_zone_is_not_enough(tmp_path: Path) -> None:
    path = "sample:captured/two_starts/server.log"
    with pytest.raises(DiagError, match="whole date"):
        export.otlp(diag.diagnose(diag.load(path)), tmp_path / "out.jsonl")
    with pytest.raises(DiagError, match="prints no zone"):
        export.otlp(diag.diagnose(diag.load(path, year=2026)), tmp_path / "out.jsonl")
    export.otlp(diag.diagnose(diag.load(path, year=2026, tz="Asia/Shanghai")), tmp_path / "out.jsonl")


def test_a_start_that_breaks_off_stays_unfinished(tmp_path: Path) -> None:
    before = diag.diagnose(diag.load("sample:captured/killed_mid_load", year=2026, tz="UTC"))
    export.otlp(before, tmp_path / "out.jsonl")
    after = diag.diagnose(diag.load(tmp_path / "out.jsonl"))
    assert [row[2] for row in starts_of(after)] == [row[2] for row in starts_of(before)]
    assert phases_of(after).keys() == phases_of(before).keys()


def test_series_out_of_hand_are_refused(two_starts: Diagnosis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infer_diag.export.measures.MOST_SERIES", 5)
    with pytest.raises(DiagError, match="time series are more"):
        export.otlp(two_starts, tmp_path / "out.jsonl")
    monkeypatch.setattr("infer_diag.export.measures.MOST_SAMPLES", 5)
    with pytest.raises(DiagError, match="samples are more than one export"):
        export.otlp(two_starts, tmp_path / "out.jsonl")


def test_a_fleet_is_refused() -> None:
    with pytest.raises(DiagError, match="one recording"):
        export.otlp("no diagnosis", "out.jsonl")  # type: ignore[arg-type]


def test_hostile_text_of_a_log_goes_out_redacted_and_bounded(tmp_path: Path) -> None:
    gpu = "0\\u202e" + "x" * 5000
    page = f"""# scrape 2026-03-14T09:00:00Z
DCGM_FI_DEV_FB_USED{{gpu="{gpu}",Hostname="n"}} 100
DCGM_FI_DEV_FB_USED{{gpu="hf_{"a" * 34}",Hostname="n"}} 100
vllm:num_requests_running 3
""".encode().decode("unicode_escape")
    (tmp_path / "page.txt").write_text(page, encoding="utf-8")
    export.otlp(diag.diagnose(diag.load(tmp_path / "page.txt")), tmp_path / "out.jsonl")
    text = (tmp_path / "out.jsonl").read_text(encoding="utf-8")
    assert "infer_diag.gpu.memory.used" in text
    assert "hf_" + "a" * 34 not in text and "\u202e" not in text
    assert "x" * 200 not in text
