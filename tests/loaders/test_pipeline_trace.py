"""Traces of a pipeline's start in our own format: phases, first tokens, and what a killed start leaves."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import infer_diag as diag
from infer_diag.attribution.cold_start import start_frames
from infer_diag.errors import DiagError, SourceError
from infer_diag.recording import Recording
from infer_diag.units import format_bytes

LAUNCH = datetime(2026, 3, 14, 9, 26, 53, tzinfo=UTC)
EVENTS: list[tuple[str, str, float, dict[str, object]]] = [
    ("phase_begin", "process", 0.0, {}),
    ("phase_end", "process", 0.125, {}),
    ("phase_begin", "imports", 0.25, {}),
    ("phase_end", "imports", 8.25, {}),
    ("memory", "imports", 8.25, {"peak_bytes": 600 << 20}),
    ("phase_begin", "tokenizer", 8.5, {"transformers": "5.1.0"}),
    ("phase_end", "tokenizer", 9.0, {}),
    ("phase_begin", "build", 9.0, {}),
    ("phase_end", "build", 10.5, {}),
    ("phase_begin", "weights", 10.5, {}),
    ("phase_end", "weights", 31.0, {}),
    ("memory", "weights", 31.0, {"peak_bytes": 15 << 30}),
    ("phase_begin", "pipeline", 31.0, {}),
    ("phase_end", "pipeline", 31.5, {}),
    ("phase_begin", "first_token", 31.5, {}),
    ("phase_end", "first_token", 34.0, {}),
    ("token", "first_token", 34.0, {"request": 1, "token": 1}),
    ("phase_begin", "second_token", 34.0, {}),
    ("phase_end", "second_token", 34.25, {}),
    ("token", "second_token", 34.25, {"request": 1, "token": 2}),
    ("phase_begin", "second_request", 35.0, {}),
    ("token", "first_token", 35.5, {"request": 2, "token": 1}),
    ("token", "second_token", 35.75, {"request": 2, "token": 2}),
    ("phase_end", "second_request", 35.75, {}),
]


def line(event: str, phase: str, at: float, fields: dict[str, object], *, wall: bool = True) -> str:
    told = {"infer_diag": "pipeline_start", "version": 1, "event": event, "phase": phase, "time_s": at}
    stamp = {"wall": (LAUNCH + timedelta(seconds=at)).isoformat()} if wall else {}
    return json.dumps(told | stamp | fields)


def read(tmp_path: Path, lines: list[str], **options: object) -> Recording:
    path = tmp_path / "pipeline_start_1.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return diag.load(path, **options)


def written(events: list[tuple[str, str, float, dict[str, object]]], *, wall: bool = True) -> list[str]:
    return [line(*event, wall=wall) for event in events]


@pytest.mark.parametrize("wall", [True, False], ids=["wall clock", "monotonic alone"])
def test_phases_and_gaps_are_the_start(tmp_path: Path, wall: bool) -> None:
    recording = read(tmp_path, written(EVENTS, wall=wall))
    (start,) = diag.diagnose(recording).to_dict()["starts"]
    assert start["phases_s"] == {
        "process": 8.625,
        "model_build": 1.5,
        "weights_load": 20.5,
        "server_ready": 0.5,
        "first_request": 2.5,
    }
    assert (start["outcome"], start["span_s"]) == ("ready", 34.0)
    slices = start_frames(recording).slices
    assert slices["duration_s"].sum() == 34.0
    assert start["unlogged_s"] == pytest.approx(0.375)
    assert recording.sources[0].dated is wall
    assert recording.starts["served"].to_list() == [True]


def test_the_first_request_is_told_beside_the_second(tmp_path: Path) -> None:
    rows = read(tmp_path, written(EVENTS)).requests.sort("request_id")
    ttft = (rows["first_token_s"] - rows["arrival_s"]).to_list()
    assert ttft == pytest.approx([2.5, 0.5])
    assert (rows["last_token_s"] - rows["first_token_s"]).to_list() == pytest.approx([0.25, 0.25])
    assert rows["output_tokens"].to_list() == [2, 2]


def test_versions_and_peak_memory_are_kept(tmp_path: Path) -> None:
    recording = read(tmp_path, written(EVENTS))
    assert (recording.sources[0].engine, recording.sources[0].engine_version) == ("transformers", "5.1.0")
    assert [note for note in recording.sources[0].notes if note.endswith(format_bytes(float(15 << 30)))]


def test_a_start_that_was_killed_is_unfinished(tmp_path: Path) -> None:
    recording = read(tmp_path, written(EVENTS[:10]))
    (start,) = diag.diagnose(recording).to_dict()["starts"]
    assert start["outcome"] == "unfinished"
    assert start["phases_s"]["weights_load"] is None


def test_a_wall_clock_that_jumps_moves_nothing(tmp_path: Path) -> None:
    lines = written(EVENTS)
    told = json.loads(lines[12])
    lines[12] = json.dumps(told | {"wall": (LAUNCH + timedelta(hours=2)).isoformat()})
    (start,) = diag.diagnose(read(tmp_path, lines)).to_dict()["starts"]
    assert start["span_s"] == 34.0


def test_phases_of_other_names_are_left_alone(tmp_path: Path) -> None:
    lines = [*written(EVENTS), line("phase_begin", "tea", 40.0, {}), line("phase_end", "tea", 50.0, {})]
    assert "tea" not in diag.diagnose(read(tmp_path, lines)).to_dict()["starts"][0]["phases_s"]


def test_a_damaged_line_costs_itself(tmp_path: Path) -> None:
    lines = written(EVENTS)
    recording = read(tmp_path, [*lines[:6], '{"infer_diag": "pipeline_start", "event": "pha', *lines[6:]])
    assert recording.sources[0].rejected_lines == 1
    assert start_frames(recording).summary["span_s"].to_list() == [34.0]


@pytest.mark.parametrize("change", [{"version": 2}, {"event": "token"}], ids=["another version", "no phase"])
def test_what_tells_of_no_start_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    lines = [json.dumps(json.loads(text) | change) for text in written(EVENTS)]
    with pytest.raises(SourceError):
        read(tmp_path, lines)


def test_the_trace_that_the_probe_writes_is_read(tmp_path: Path) -> None:
    from infer_diag.probes.pipeline.child import Tokens, Trace

    path = tmp_path / "pipeline_start_1.jsonl"
    with path.open("w") as file:
        trace = Trace(file, 0.0)
        with trace.phase("imports"):
            pass
        with trace.phase("weights"):
            pass
        trace.event("phase_begin", "first_token")
        streamer = Tokens(trace, 1)
        for piece in ("prompt", "a", "b"):
            streamer.put(piece)
    recording = diag.load(path)
    assert recording.sources[0].format == "pipeline-start"
    assert recording.phases["phase"].cast(pl.String).to_list() == ["process", "weights_load", "first_request"]
    assert start_frames(recording).summary["outcome"].to_list() == ["ready"]
    assert recording.requests["output_tokens"].to_list() == [2]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "event": st.sampled_from(["phase_begin", "phase_end", "token", "memory", "x"]),
                "phase": st.sampled_from(["imports", "weights", "first_token", "build", "", "x"]),
                "time_s": st.floats() | st.none() | st.text(max_size=3) | st.integers(-10, 10),
            },
            optional={"wall": st.text(max_size=12), "request": st.integers(0, 3), "peak_bytes": st.integers(-9, 9)},
        )
    )
)
def test_any_events_are_read_or_refused(tmp_path: Path, events: list[dict[str, object]]) -> None:
    lines = [json.dumps({"infer_diag": "pipeline_start", "version": 1, **event}) for event in events]
    try:
        recording = read(tmp_path, lines, format="pipeline-start")
    except DiagError:
        return
    assert diag.diagnose(recording).to_json()
