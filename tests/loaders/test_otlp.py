"""OTLP's metrics, its protobuf, and its logs: the same frames as from the sources that they stand for."""

from __future__ import annotations

import base64
import copy
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import zstandard
from google.protobuf.json_format import ParseDict
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from polars.testing import assert_frame_equal
from test_trace_spans import START, T0, export, request
from written import vllm_lines

import infer_diag as diag
from infer_diag.errors import SourceError
from infer_diag.loaders.otlp.protobuf import is_otlp
from infer_diag.recording import Recording

Document = dict[str, Any]
DELTA, CUMULATIVE = 1, 2


def labelled(labels: dict[str, str]) -> list[Document]:
    return [{"key": key, "value": {"stringValue": value}} for key, value in labels.items()]


def at(second: float, begin: float = 0.0) -> Document:
    return {"startTimeUnixNano": str(T0 + round(begin * 1e9)), "timeUnixNano": str(T0 + round(second * 1e9))}


def gauge(name: str, second: float, value: float, **labels: str) -> Document:
    return {"name": name, "gauge": {"dataPoints": [{**at(second), "asDouble": value, "attributes": labelled(labels)}]}}


def counter(name: str, second: float, value: int, temporality: int = CUMULATIVE, begin: float = 0.0) -> Document:
    point = {**at(second, begin), "asInt": str(value), "attributes": labelled({"model_name": "m"})}
    return {"name": name, "sum": {"dataPoints": [point], "aggregationTemporality": temporality, "isMonotonic": True}}


def histogram(
    name: str, second: float, counts: list[int], total: float, temporality: int = CUMULATIVE, begin: float = 0.0
) -> Document:
    point = {
        **at(second, begin),
        "count": str(sum(counts)),
        "sum": total,
        "bucketCounts": [str(count) for count in counts],
        "explicitBounds": [0.5, 1.0],
        "attributes": labelled({"model_name": "m"}),
    }
    return {"name": name, "histogram": {"dataPoints": [point], "aggregationTemporality": temporality}}


def metrics(*found: Document, **resource: str) -> Document:
    told = {"service.name": "vllm"} | {name.replace("__", "."): value for name, value in resource.items()}
    scope = {"scope": {"name": "receiver"}, "metrics": list(found)}
    return {"resourceMetrics": [{"resource": {"attributes": labelled(told)}, "scopeMetrics": [scope]}]}


def logs(lines: Iterable[tuple[float, str]], **resource: str) -> Document:
    told = {name.replace("__", "."): value for name, value in resource.items()}
    records = [{"timeUnixNano": str(T0 + round(second * 1e9)), "body": {"stringValue": text}} for second, text in lines]
    return {"resourceLogs": [{"resource": {"attributes": labelled(told)}, "scopeLogs": [{"logRecords": records}]}]}


SCRAPES = tuple(
    metrics(
        gauge("vllm:num_requests_running", second, running, model_name="m"),
        gauge("vllm:num_requests_waiting", second, 1, model_name="m"),
        counter("vllm:generation_tokens_total", second, tokens),
        histogram("vllm:time_to_first_token_seconds", second, counts, total),
        gauge("process_open_fds", second, 7),
    )
    for second, running, tokens, counts, total in (
        (10, 3, 1000, [1, 1, 0], 1.0),
        (25, 5, 4000, [2, 3, 1], 5.5),
        (40, 0, 4000, [2, 3, 1], 5.5),
    )
)
EXPOSITION = "".join(
    f"""# scrape {second}
vllm:num_requests_running{{model_name="m"}} {running}
vllm:num_requests_waiting{{model_name="m"}} 1
vllm:generation_tokens_total{{model_name="m"}} {tokens}
vllm:time_to_first_token_seconds_sum{{model_name="m"}} {total}
vllm:time_to_first_token_seconds_count{{model_name="m"}} {buckets[2]}
vllm:time_to_first_token_seconds_bucket{{model_name="m",le="0.5"}} {buckets[0]}
vllm:time_to_first_token_seconds_bucket{{model_name="m",le="1.0"}} {buckets[1]}
vllm:time_to_first_token_seconds_bucket{{model_name="m",le="+Inf"}} {buckets[2]}
"""
    for second, running, tokens, buckets, total in (
        (1_700_000_010, 3, 1000, (1, 2, 2), 1.0),
        (1_700_000_025, 5, 4000, (2, 5, 6), 5.5),
        (1_700_000_040, 0, 4000, (2, 5, 6), 5.5),
    )
)


def as_lines(*found: Document) -> bytes:
    return "".join(json.dumps(each) + "\n" for each in found).encode()


def message(found: Document) -> bytes:
    """The export as protobuf."""
    told = copy.deepcopy(found)
    for resource in told.get("resourceSpans", ()):
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for name, size in (("traceId", 16), ("spanId", 8), ("parentSpanId", 8)):
                    raw = span[name].encode()[:size]
                    span[name] = base64.b64encode(raw.ljust(size, b"\0") if raw else b"").decode()
    kinds = {
        "resourceSpans": ExportTraceServiceRequest,
        "resourceMetrics": ExportMetricsServiceRequest,
        "resourceLogs": ExportLogsServiceRequest,
    }
    (key,) = told
    body: bytes = ParseDict(told, kinds[key]()).SerializeToString()
    return body


def varint(number: int) -> bytes:
    found = b""
    while number > 127:
        found, number = found + bytes([number & 127 | 128]), number >> 7
    return found + bytes([number])


FRAMINGS: dict[str, Callable[[bytes], bytes]] = {
    "four bytes": lambda body: len(body).to_bytes(4, "big") + body,
    "varint": lambda body: varint(len(body)) + body,
    "compressed": lambda body: len(packed := zstandard.compress(body)).to_bytes(4, "big") + packed,
}


def read(folder: Path, data: bytes, name: str = "export") -> Recording:
    (folder / name).write_bytes(data)
    return diag.load(folder / name)


def without_lines(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.drop("line", "source_id")


def same_frames(one: Recording, other: Recording) -> None:
    """Both tell the same, wherever it stands in their files."""
    assert one.rows() == other.rows()
    for name in one.rows():
        assert_frame_equal(
            without_lines(getattr(one, name)), without_lines(getattr(other, name)), check_row_order=False
        )


def test_metrics_fill_the_frames_that_scrapes_fill(tmp_path: Path) -> None:
    scraped = read(tmp_path, EXPOSITION.encode(), "page")
    told = read(tmp_path, as_lines(*SCRAPES))
    assert told.sources[0].format == "otlp" and told.sources[0].engine == "vllm"
    assert len(told.engine_samples) == 3 and len(told.request_totals) == 1
    same_frames(told, scraped)
    assert told.engine_samples["line"].to_list() == [1, 2, 3]


def test_metrics_as_one_document_over_many_lines(tmp_path: Path) -> None:
    whole = {"resourceMetrics": [one for scrape in SCRAPES for one in scrape["resourceMetrics"]]}
    same_frames(read(tmp_path, json.dumps(whole, indent=1).encode()), read(tmp_path, as_lines(*SCRAPES), "lines"))


def test_deltas_add_up(tmp_path: Path) -> None:
    parts = [(10, 0, 100, [1, 0, 0], 0.25), (20, 10, 50, [0, 2, 0], 1.5), (30, 20, 0, [0, 0, 1], 3.0)]
    told = read(
        tmp_path,
        as_lines(
            *(
                metrics(
                    counter("vllm:generation_tokens_total", second, tokens, DELTA, begin),
                    histogram("vllm:time_to_first_token_seconds", second, counts, total, DELTA, begin),
                )
                for second, begin, tokens, counts, total in parts
            )
        ),
    )
    rates = told.engine_samples.sort("time")["output_tokens_per_s"].drop_nulls().to_list()
    assert rates == [10.0, 5.0, 0.0]
    (row,) = told.request_totals.to_dicts()
    assert (row["request_count"], row["bucket_counts"]) == (4, [1, 2, 1])
    assert math.isclose(row["mean"], (0.25 + 1.5 + 3.0) / 4)


@pytest.mark.parametrize("encode", [as_lines, lambda *found: b"".join(map(FRAMINGS["varint"], map(message, found)))])
def test_logs_among_other_signals_are_said_to_be_left_out(encode: Callable[..., bytes], tmp_path: Path) -> None:
    told = read(tmp_path, encode(*SCRAPES, logs([(1.0, "INFO something")])))
    assert len(told.engine_samples) == 3
    assert any("exports of logs among them" in note for note in told.sources[0].notes)


def test_pods_are_told_apart_by_their_resource(tmp_path: Path) -> None:
    told = read(
        tmp_path,
        as_lines(
            *(
                metrics(gauge("vllm:num_requests_running", 10, running), k8s__pod__name=pod)
                for pod, running in (("pod-a", 3), ("pod-b", 4))
            )
        ),
    )
    rows = told.engine_samples.sort("replica").select("replica", "running_count").rows()
    assert rows == [("pod-a", 3), ("pod-b", 4)]


def test_semantic_conventions_of_servers_are_read(tmp_path: Path) -> None:
    names = {"request.duration": "e2e_s", "time_to_first_token": "ttft_s", "time_per_output_token": "tpot_s"}
    told = read(
        tmp_path, as_lines(metrics(*(histogram(f"gen_ai.server.{name}", 10, [1, 1, 0], 1.0) for name in names)))
    )
    assert sorted(told.request_totals["measure"]) == sorted(names.values())


@pytest.mark.parametrize("framing", FRAMINGS)
def test_protobuf_tells_what_json_tells(framing: str, tmp_path: Path) -> None:
    found = (*START, export(request(1), request(2)), *SCRAPES)
    framed = b"".join(FRAMINGS[framing](message(one)) for one in found)
    told, known = read(tmp_path, framed), read(tmp_path, as_lines(*found), "json")
    assert (told.sources[0].format, told.sources[0].cut) == ("otlp", False)
    assert {"starts", "phases", "request_timings", "engine_samples", "request_totals"} <= told.rows().keys()
    starts = ["line", "last_line", "ready_line", "failed_line"]
    same_frames(
        told.replace(starts=told.starts.drop(starts).with_columns(line=pl.lit(0))),
        known.replace(starts=known.starts.drop(starts).with_columns(line=pl.lit(0))),
    )


@pytest.mark.parametrize("found", [START[1], export(request(1)), SCRAPES[0]], ids=["start", "request", "scrape"])
def test_one_message_may_be_the_whole_file(found: Document, tmp_path: Path) -> None:
    told, known = read(tmp_path, message(found)), read(tmp_path, as_lines(found), "json")
    assert told.rows() == known.rows()


def test_messages_of_json_that_a_collector_compressed(tmp_path: Path) -> None:
    framed = b"".join(FRAMINGS["compressed"](json.dumps(one).encode()) for one in SCRAPES)
    same_frames(read(tmp_path, framed), read(tmp_path, as_lines(*SCRAPES), "json"))


def test_what_is_cut_off_is_said_and_the_rest_is_kept(tmp_path: Path) -> None:
    framed = b"".join(FRAMINGS["four bytes"](message(one)) for one in SCRAPES)
    told = read(tmp_path, framed[:-5])
    assert told.sources[0].cut
    assert len(told.engine_samples) == 2


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_break_the_recognition(data: bytes) -> None:
    assert is_otlp(data) in (True, False)


@pytest.mark.parametrize(
    "text",
    ["\n" * 100, "\nd\nc\nb\na\n", "\n\n\n\tINFO 01-02 03:04:05 x", "{}", '{"resourceSpans":[]}', "", "\x0a\x01a"],
)
def test_text_is_not_taken_for_protobuf(text: str) -> None:
    assert not is_otlp(text.encode())


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_damaged_protobuf_is_refused_or_read_in_part(data: st.DataObject, tmp_path_factory: Any) -> None:
    body = bytearray(FRAMINGS["four bytes"](message(SCRAPES[0])))
    for place in data.draw(st.lists(st.integers(20, len(body) - 1), min_size=1, max_size=4)):
        body[place] = data.draw(st.integers(0, 255))
    try:
        told = read(tmp_path_factory.mktemp("damaged"), bytes(body))
    except SourceError as error:
        assert "\n" not in str(error)
        return
    assert told.sources[0].format == "otlp"


def test_a_bar_that_was_exported_is_a_bar_again(tmp_path: Path) -> None:
    bars = [
        f"Loading safetensors checkpoint shards:  {25 * done}% Completed | {done}/4 [00:0{done}<00:04]"
        for done in (1, 2)
    ]
    plain = diag.load(_written(tmp_path / "plain.log", [*vllm_lines()[:3], *bars]), year=2026, tz="UTC")
    diag.export.otlp(diag.diagnose(plain), tmp_path / "out.jsonl")
    told = diag.load(tmp_path / "out.jsonl").progress
    columns = ["phase", "done_count", "total_count", "elapsed_s"]
    assert told.select(columns).rows() == plain.progress.select(columns).rows() != []


def test_lines_of_an_engine_come_out_of_logs(tmp_path: Path) -> None:
    lines = vllm_lines()
    plain = diag.load(_written(tmp_path / "plain.log", lines))
    records = [(second * 1.0, line) for second, line in enumerate(lines)]
    for name, data in {
        "lines": as_lines(*(logs([one], k8s__pod__name="pod-a") for one in records)),
        "backwards": as_lines(*(logs([one], k8s__pod__name="pod-a") for one in reversed(records))),
        "document": json.dumps(logs(records, k8s__pod__name="pod-a"), indent=1).encode(),
        "protobuf": message(logs(records, k8s__pod__name="pod-a")),
        "framed": b"".join(FRAMINGS["four bytes"](message(logs([one]))) for one in records),
    }.items():
        told = read(tmp_path, data, name)
        assert told.sources[0].format == "vllm"
        assert told.rows()["phases"] == plain.rows()["phases"]
        before, after = (one.phases.select("phase", "duration_s").sort("phase", "duration_s") for one in (plain, told))
        assert_frame_equal(before, after)
        outer = [clock for clock in told.sources[0].clocks if clock.where == "outer"]
        assert [clock.zone for clock in outer] == ["Z"]  # the record's own time stands beside the engine's
        assert told.engine_samples["kv_usage_ratio"].to_list() == plain.engine_samples["kv_usage_ratio"].to_list()


def test_evidence_out_of_logs_leads_to_the_physical_line(tmp_path: Path) -> None:
    lines = vllm_lines()
    told = read(tmp_path, as_lines(*(logs([(float(n), line)]) for n, line in reversed(list(enumerate(lines))))))
    row = told.phases.filter(pl.col("duration_s") == 10.25).row(0, named=True)
    evidence = told.evidence(row["source_id"], row["line"])
    number = int(evidence.rpartition(":")[2])
    assert "Loading weights took 10.25" in (tmp_path / "export").read_text().splitlines()[number - 1]


@pytest.mark.parametrize("data", [as_lines(logs([])), message(logs([(1.0, " ")]))], ids=["none", "blank"])
def test_logs_without_text_say_so(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no body that is text|is in no format|is a binary|none of its"):
        read(tmp_path, data)


def _written(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
