"""Prometheus remote write, against a real server: what was written is what it answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cramjam
import pytest
from prometheus_server import ABSENT, PROMETHEUS, PrometheusServer

import infer_diag as diag
from infer_diag import export
from infer_diag.diagnose import Diagnosis
from infer_diag.errors import DiagError, SourceError
from infer_diag.export import remote_write_wire

needs_server = pytest.mark.skipif(PROMETHEUS is None, reason=ABSENT)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    arguments = ["--web.enable-remote-write-receiver", "--storage.tsdb.retention.time=100y"]
    with PrometheusServer(tmp_path_factory.mktemp("receiver"), arguments=arguments) as running:
        yield running


@pytest.fixture(scope="module")
def written(server: PrometheusServer, two_starts: Diagnosis) -> export.Exported:
    url = f"http://{server.address}/api/v1/write"
    return export.remote_write(two_starts, url, labels={"tenant_id": "acme", "order_id": "A-1", "team.name": "search"})


def answers(server: PrometheusServer, diagnosis: Diagnosis, query: str) -> list[dict[str, Any]]:
    """What the server holds at the end of the recording."""
    last = max(source.last_time for source in diagnosis.recording.sources if source.last_time)
    found: list[dict[str, Any]] = server.get("query", query=query, time=f"{last.timestamp():.3f}")["data"]["result"]
    return found


@needs_server
def test_lengths_of_phases_come_back(server: PrometheusServer, two_starts: Diagnosis, written: export.Exported) -> None:
    found = answers(server, two_starts, "infer_diag_start_phase_duration_seconds")
    told = {(one["metric"]["start_id"], one["metric"]["phase"]): float(one["value"][1]) for one in found}
    phases = two_starts.cold_start.phases.drop_nulls("duration_s").iter_rows(named=True)
    assert told == {
        (row["start_id"], row["phase"]): row["duration_s"] for row in phases if row["rank"] is None and row["chosen"]
    }
    assert {one["metric"]["job"] for one in found} == {"infer_diag"}


@needs_server
def test_findings_and_labels_come_back(
    server: PrometheusServer, two_starts: Diagnosis, written: export.Exported
) -> None:
    found = answers(server, two_starts, "infer_diag_findings")
    assert sum(float(one["value"][1]) for one in found) == len(two_starts.findings)
    for one in found:
        assert one["metric"]["tenant_id"] == "acme"
        assert one["metric"]["team_name"] == "search"
        assert "order_id" not in one["metric"]


@needs_server
def test_every_sample_is_there_once(server: PrometheusServer, two_starts: Diagnosis, written: export.Exported) -> None:
    held = answers(server, two_starts, '{job="infer_diag"}[1d]')
    assert sum(len(one["values"]) for one in held) == written.sample_count
    assert len(held) == written.series_count
    running = answers(server, two_starts, "infer_diag_engine_requests_running[1d]")
    values = [(float(at), float(value)) for one in running for at, value in one["values"]]
    frame = two_starts.recording.engine_samples.drop_nulls("running_count")
    assert sorted(values) == sorted(
        (time.timestamp(), float(count)) for time, count in frame.select("time", "running_count").iter_rows()
    )


@needs_server
def test_samples_older_than_what_is_there_are_refused_with_the_way_out(
    server: PrometheusServer, written: export.Exported
) -> None:
    old = diag.diagnose(diag.load("sample:fleet/rag-legal"))
    with pytest.raises(SourceError, match="out_of_order_time_window") as raised:
        export.remote_write(old, f"http://{server.address}/api/v1/write")
    assert "\n" not in str(raised.value)


@needs_server
def test_another_path_is_told_where_to_write(server: PrometheusServer, two_starts: Diagnosis) -> None:
    with pytest.raises(SourceError, match=r"404.*enable-remote-write-receiver"):
        export.remote_write(two_starts, f"http://{server.address}/write")


def test_bodies_are_in_order_of_time(two_starts: Diagnosis, collector: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(remote_write_wire, "_AT_ONCE", 10)
    done = export.remote_write(two_starts, f"{collector.url}/api/v1/write")
    latest, count = 0, 0
    for path, headers, body in collector.taken:
        assert path == "/api/v1/write"
        assert headers["Content-Encoding"] == "snappy"
        request = remote_write_wire._write_request().FromString(bytes(cramjam.snappy.decompress_raw(body)))
        stamps = sorted(sample.timestamp for one in request.timeseries for sample in one.samples)
        assert stamps[0] >= latest
        latest, count = stamps[-1], count + len(stamps)
        for one in request.timeseries:
            names = [label.name for label in one.labels]
            assert names == sorted(names) and len(names) == len(set(names))
    assert count == done.sample_count
    assert len(collector.taken) == -(-count // 10)


def test_credentials_go_into_a_header_and_nowhere_else(two_starts: Diagnosis, collector: Any) -> None:
    url = collector.url.replace("http://", "http://writer:pass-word-1@")
    done = export.remote_write(two_starts, f"{url}/api/v1/write")
    assert collector.taken[0][1]["Authorization"].startswith("Basic ")
    assert "pass-word-1" not in repr(done)
    collector.status, collector.told = 401, b"who are you? pass-word-1"
    with pytest.raises(SourceError, match="401") as raised:
        export.remote_write(two_starts, f"{url}/api/v1/write")
    assert "writer:pass-word-1" not in str(raised.value)


@pytest.mark.parametrize("url", ["prometheus:9090", "ftp://host/api/v1/write", "out.bin"])
def test_what_is_no_url_is_refused(two_starts: Diagnosis, url: str) -> None:
    with pytest.raises(DiagError, match="no URL"):
        export.remote_write(two_starts, url)


def test_names_follow_the_translation_of_opentelemetry() -> None:
    names = dict(export.measures_table().select("metric", "prometheus").iter_rows())
    assert names.keys() == export.MEASURES.keys() and len(set(names.values())) == len(names)
    assert names["infer_diag.engine.kv.usage"] == "infer_diag_engine_kv_usage_ratio"
    assert names["infer_diag.gpu.memory.used"] == "infer_diag_gpu_memory_used_bytes"
