"""Envoy, collector, Loki and Tempo: each end of the path is read, and the ends tell of the same requests alike."""

from __future__ import annotations

import base64
import copy
import json
from pathlib import Path
from typing import Any

import pytest
import test_envoy as envoy
import test_loki as loki
import test_trace_spans as traces

import infer_diag as diag


def in_base64(value: Any) -> Any:
    """The document as Tempo's API writes it: ids as protobuf's JSON encodes bytes."""
    if isinstance(value, list):
        return [in_base64(each) for each in value]
    if not isinstance(value, dict):
        return value
    ids = ("traceId", "spanId", "parentSpanId")
    return {
        key: base64.b64encode(bytes.fromhex(each)).decode() if key in ids and each else in_base64(each)
        for key, each in value.items()
    }


def spans() -> dict[str, Any]:
    """An agent's span around the engine's own, so that parents have to be found by their ids."""
    trace, outer, inner = "5b8efff798038103d269b633813fc60c", "aaaaaaaaaaaaaaa1", "bbbbbbbbbbbbbbb2"
    asked = traces.request(0) | {"traceId": trace, "spanId": inner, "parentSpanId": outer}
    around = copy.deepcopy(asked) | {"spanId": outer, "parentSpanId": "", "name": "chat"}
    around["attributes"] = [traces.attribute("gen_ai.usage.input_tokens", 5)]
    return traces.export(around, asked)


@pytest.mark.parametrize("shape", ["batches", "trace"])
def test_tempo_s_ids_are_those_of_the_collector_s_files(tmp_path: Path, shape: str) -> None:
    plain, tempo = spans(), in_base64(spans())
    assert "5b8efff798038103d269b633813fc60c" not in json.dumps(tempo)
    answer = {"batches": tempo["resourceSpans"]} if shape == "batches" else {"trace": tempo}
    (tmp_path / "file.jsonl").write_text(json.dumps(plain) + "\n")
    (tmp_path / "tempo.json").write_text(json.dumps(answer, indent=1))
    of_file, of_tempo = diag.load(tmp_path / "file.jsonl"), diag.load(tmp_path / "tempo.json")
    assert of_tempo.sources[0].format == "otlp"
    assert len(of_tempo.request_timings) == 1
    assert of_tempo.request_timings.drop("line").equals(of_file.request_timings.drop("line"))
    assert of_tempo.requests.drop("line").equals(of_file.requests.drop("line"))


@pytest.mark.parametrize("text", [loki.listing(loki.STAMPED), loki.answer(loki.STAMPED)], ids=["logcli", "api"])
def test_loki_s_stamp_is_the_outer_clock(tmp_path: Path, text: str) -> None:
    (tmp_path / "loki.json").write_text(text)
    source = diag.load(tmp_path / "loki.json").sources[0]
    assert source.format == "vllm"
    assert [clock.where for clock in source.clocks] == ["outer", "inner"]
    assert source.clocks[0].year_known and source.first_time is not None and source.first_time.year == 2026


def test_a_mixed_answer_of_loki_is_what_most_of_it_is(tmp_path: Path) -> None:
    """A query over a namespace brings the gateway's lines among the engine's: neither spoils the other's reading."""
    entries = list(loki.STAMPED)
    mixed = [*entries[:5], ("2026-03-14T09:26:54.000Z", envoy.default(envoy.access(0))), *entries[5:]]
    (tmp_path / "mixed.json").write_text(loki.listing(mixed))
    (tmp_path / "engine.json").write_text(loki.listing(entries))
    both, alone = diag.load(tmp_path / "mixed.json"), diag.load(tmp_path / "engine.json")
    assert both.sources[0].format == "vllm"
    assert both.phases.drop("line").equals(alone.phases.drop("line"))
    gateway = diag.load(tmp_path / "mixed.json", format="envoy")
    assert gateway.requests["request_id"].to_list() == ["req-0"]
    places, (line,) = gateway.sources[0].places, gateway.requests["line"]
    assert (line if places is None else places[line - 1]) == 6


def test_both_ends_of_one_path_are_read_together(tmp_path: Path) -> None:
    lines = [("2026-03-14T09:30:00Z", envoy.default(envoy.access(at))) for at in range(3)]
    (tmp_path / "gateway.json").write_text(loki.answer(lines))
    (tmp_path / "tempo.json").write_text(json.dumps(in_base64(spans())))
    recording = diag.load(tmp_path)
    assert sorted(source.format for source in recording.sources) == ["envoy", "otlp"]
    assert diag.diagnose(recording).to_dict()["serving"]["requests"]["count"] == 3
