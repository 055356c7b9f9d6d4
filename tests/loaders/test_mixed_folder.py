"""A folder as a team has it: the engine's log, its metrics, and things that are neither."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import fsspec
import pytest
import written

import infer_diag as diag
from infer_diag.loaders import load

CAPTURED = Path(__file__).resolve().parents[2] / "sample_logs" / "captured"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("server.log", "metrics.prom.txt"):
        shutil.copy(CAPTURED / "kv_preempts" / name, tmp_path / name)
    (tmp_path / "notes.txt").write_text("bread, milk\n")
    return tmp_path


def test_it_is_one_recording_on_one_clock(folder: Path) -> None:
    recording = load(folder)
    metrics, log = recording.sources
    assert log.dated
    assert "lends it" in log.notes[-1]
    assert metrics.first_time is not None
    assert log.first_time is not None
    assert abs((metrics.first_time - log.first_time).total_seconds()) < 120


def test_what_was_not_read_is_named_with_the_reason(folder: Path) -> None:
    (skipped,) = load(folder).skipped
    assert skipped.path.endswith("notes.txt")
    assert "no format" in skipped.reason
    diagnosis = diag.diagnose(load(folder))
    assert diagnosis.to_dict()["skipped"][0]["path"] == skipped.path
    assert "not read: " in diagnosis.text()


def test_each_source_tells_what_the_other_cannot(folder: Path) -> None:
    truth = json.loads((CAPTURED / "kv_preempts" / "meta.json").read_text())["starts"][0]
    both = diag.diagnose(load(folder)).to_dict()["serving"]
    log = diag.diagnose(load(folder / "server.log")).to_dict()["serving"]
    assert log["preemptions"] is None
    assert both["preemptions"] == truth["server_counters"]["preemptions"]
    assert both["samples"] == log["samples"]
    assert both["running"] == log["running"]
    assert both["requests"]["ttft_s"]["mean"] == pytest.approx(truth["client"]["ttft_s"]["mean"], abs=0.1)


def test_files_are_read_from_wherever_fsspec_reaches() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/logs/server.log", "\n".join(written.vllm_lines()).encode())
    recording = load("memory://logs/server.log")
    assert len(recording.phases)
    assert recording.sources[0].path == "memory://logs/server.log"
