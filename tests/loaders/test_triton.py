"""Triton: models loaded in the text log, and requests in the statistics, ensembles included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infer_diag.diagnose import diagnose
from infer_diag.loaders import load
from infer_diag.loaders.json_documents import decoded
from infer_diag.recording import Recording

PARTS = ("compute_input", "compute_infer", "compute_output")


def loaded(tmp_path: Path, text: str, name: str = "triton.log") -> Recording:
    path = tmp_path / name
    path.write_text(text)
    return load(path)


RECORDS = (
    ("16:57:07.444265", "pinned_memory_manager.cc:277", "Pinned memory pool is created at '0x7a9ffa000000' with size 268435456"),
    ("16:57:07.635758", "model_lifecycle.cc:473", "loading: tensorrt_llm:1"),
    ("16:57:07.635759", "model_lifecycle.cc:473", "loading: preprocessing:1"),
    ("16:57:17.635759", "model_lifecycle.cc:849", "successfully loaded 'preprocessing'"),
    ("16:58:08.485508", "model_lifecycle.cc:849", "successfully loaded 'tensorrt_llm'"),
    ("16:58:09.100000", "grpc_server.cc:2558", "Started GRPCInferenceService at 0.0.0.0:8001"),
)  # fmt: skip
STYLES = {
    "plain": "I0410 {time} 1 {place}] {text}",
    "quoted": 'I0410 {time} 1 {place}] "{text}"',
    "containerd": '2026-04-10T{time}789Z stderr F I0410 {time} 1 {place}] "{text}"',
    "compose": 'triton-1  | I0410 {time} 1 {place}] "{text}"',
}


def log(style: str, records: tuple[tuple[str, str, str], ...] = RECORDS) -> str:
    lines = [STYLES[style].format(time=time, place=place, text=text) for time, place, text in records]
    return "Triton Server Version 2.64.0\n" + "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize("style", STYLES)
def test_models_that_load_side_by_side(tmp_path: Path, style: str) -> None:
    recording = loaded(tmp_path, log(style))
    assert (recording.sources[0].engine, recording.sources[0].engine_version) == ("triton", "2.64.0")
    (start,) = diagnose(recording).to_dict()["starts"]
    assert start["outcome"] == "ready"
    assert start["phases_s"]["engine_load"] == pytest.approx(60.84975)
    assert start["by_rank_s"]["preprocessing"]["engine_load"] == pytest.approx(10)


def test_a_model_that_cannot_be_loaded_fails_the_start(tmp_path: Path) -> None:
    failed = (
        "16:57:20.000000",
        "model_lifecycle.cc:626",
        "failed to load 'tensorrt_llm' version 1: Internal: unexpected error",
    )
    (start,) = diagnose(loaded(tmp_path, log("plain", (*RECORDS[:3], failed)))).to_dict()["starts"]
    assert start["outcome"] == "failed"


def model(name: str, count: int, **ns: int) -> dict[str, Any]:
    stats = {part: {"count": count, "ns": ns[part]} for part in ("success", "queue", *PARTS)}
    return {
        "name": name,
        "version": "1",
        "last_inference": 1672110878962,
        "inference_count": count,
        "execution_count": count,
        "inference_stats": {**stats, "fail": {"count": 0, "ns": 0}},
        "batch_stats": [{"batch_size": 1, "compute_input": {"count": 1, "ns": None}}],
    }


def text_of(*models: dict[str, Any], indent: int | None = 4) -> str:
    return json.dumps({"model_stats": list(models)}, indent=indent)


def as_protobuf(value: Any) -> Any:
    """As a gRPC client prints it: 64-bit numbers as text, zeros left out, names in camel case."""
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if each not in (0, None)}
        return {
            key.split("_")[0] + "".join(map(str.title, key.split("_")[1:])): as_protobuf(each)
            for key, each in kept.items()
        }
    return [as_protobuf(each) for each in value] if isinstance(value, list) else str(value)


ONE = model("decoder", 400, success=2_000_000_000, queue=1_600_000_000, compute_input=8_000_000, compute_infer=300_000_000, compute_output=9_000_000)  # fmt: skip
PRE = model("preprocessing", 100, success=300, queue=200, compute_input=10, compute_infer=50, compute_output=20)
CORE = model(
    "tensorrt_llm", 100, success=90_000, queue=60_000, compute_input=0, compute_infer=25_000, compute_output=500
)
ENSEMBLE = model("ensemble", 100, success=100_000, queue=7, compute_input=10, compute_infer=25_050, compute_output=520)
OTHER = model("reranker", 40, success=8_000, queue=0, compute_input=100, compute_infer=7_000, compute_output=100)


def totals(recording: Recording) -> dict[tuple[str, str], tuple[int, float]]:
    rows = recording.request_totals.select("model", "measure", "request_count", "mean").rows()
    return {(name, str(measure)): (count, mean) for name, measure, count, mean in rows}


FORMS = {
    "HTTP": text_of(ONE),
    "one line": text_of(ONE, indent=None),
    "gRPC": json.dumps(as_protobuf({"model_stats": [ONE]}), indent=2),
    "snake case with numbers as text": text_of(json.loads(json.dumps(ONE), parse_int=str)),
    "behind a prompt": "$ curl localhost:8000/v2/models/stats\n" + text_of(ONE),
    "read again and again": text_of(model("decoder", 1, success=5, queue=1, **dict.fromkeys(PARTS, 1)))
    + "\n"
    + text_of(ONE),
}


@pytest.mark.parametrize("form", FORMS)
def test_requests_of_one_model_in_any_form(tmp_path: Path, form: str) -> None:
    recording = loaded(tmp_path, FORMS[form], "stats.json")
    assert (recording.sources[0].format, recording.sources[0].engine) == ("triton-statistics", "triton")
    assert totals(recording) == {
        ("decoder", "e2e_s"): (400, pytest.approx(0.005)),
        ("decoder", "queue_s"): (400, pytest.approx(0.004)),
    }


def test_the_evidence_is_the_line_of_the_model_s_queue(tmp_path: Path) -> None:
    text = text_of(PRE, ONE)
    lines = {row["model"]: row["line"] for row in loaded(tmp_path, text, "stats.json").request_totals.to_dicts()}
    printed = text.splitlines()
    assert [printed[line - 1].strip() for line in lines.values()] == ['"queue": {', '"queue": {']
    assert printed[lines["decoder"] + 1].strip() == f'"ns": {1_600_000_000}'


@pytest.mark.parametrize("order", [(ENSEMBLE, PRE, CORE), (CORE, ENSEMBLE, PRE), (PRE, CORE, ENSEMBLE)])
def test_requests_of_an_ensemble_are_counted_once(tmp_path: Path, order: tuple[dict[str, Any], ...]) -> None:
    found = totals(loaded(tmp_path, text_of(*order), "stats.json"))
    assert found == {
        ("ensemble", "e2e_s"): (100, pytest.approx(1e-6)),
        ("ensemble", "queue_s"): (100, pytest.approx((7 + 200 + 60_000) / 100 * 1e-9)),
    }


def test_a_model_beside_an_ensemble_keeps_its_own_requests(tmp_path: Path) -> None:
    found = totals(loaded(tmp_path, text_of(ENSEMBLE, OTHER, PRE, CORE), "stats.json"))
    assert {name for name, _ in found} == {"ensemble", "reranker"}
    assert found["reranker", "queue_s"] == (40, 0)


def test_steps_that_wait_side_by_side_tell_no_queue_of_the_whole(tmp_path: Path) -> None:
    shorter = ENSEMBLE | {"inference_stats": ENSEMBLE["inference_stats"] | {"success": {"count": 100, "ns": 70_000}}}
    core = CORE | {"inference_stats": CORE["inference_stats"] | {"success": {"count": 100, "ns": 69_000}}}
    assert ("ensemble", "queue_s") not in totals(loaded(tmp_path, text_of(shorter, PRE, core), "stats.json"))


def test_an_unknown_part_is_null_and_not_zero(tmp_path: Path) -> None:
    blank = ONE | {"inference_stats": ONE["inference_stats"] | {"queue": {"count": 400, "ns": None}}}
    assert set(totals(loaded(tmp_path, text_of(blank), "stats.json"))) == {("decoder", "e2e_s")}


def test_statistics_that_break_off_keep_what_is_whole(tmp_path: Path) -> None:
    text = text_of(ONE)
    recording = loaded(tmp_path, text[: text.index('"fail"')], "stats.json")
    assert recording.sources[0].cut
    assert totals(recording)["decoder", "queue_s"] == (400, pytest.approx(0.004))


def test_models_without_a_request_tell_nothing(tmp_path: Path) -> None:
    idle = model("idle", 0, success=0, queue=0, **dict.fromkeys(PARTS, 0))
    assert set(totals(loaded(tmp_path, text_of(idle, ONE), "stats.json"))) == {
        ("decoder", "e2e_s"),
        ("decoder", "queue_s"),
    }


def test_a_queue_that_rules_is_found_and_nothing_is_made_up(tmp_path: Path) -> None:
    told = diagnose(loaded(tmp_path, text_of(ONE), "stats.json")).to_dict()
    assert told["serving"]["shares"] == {"queue": pytest.approx(0.8), "prefill": None, "decode": None, "other": None}
    assert told["serving"]["requests"]["queue_s"]["p95"] is None
    assert "batching.queue" in {finding["id"] for finding in told["findings"]}


@given(st.integers(0, 1500))
@settings(max_examples=30, deadline=None)
def test_wherever_a_document_breaks_off_nothing_false_is_told(place: int) -> None:
    found, _ = decoded(text_of(ONE)[:place])
    for _, value in found:
        for each in value.get("model_stats", []):
            for name, part in each.get("inference_stats", {}).items():
                assert part.items() <= ONE["inference_stats"][name].items()
