"""The trace of a pipeline's start, with stand-ins for torch and transformers in a real fresh process."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import polars as pl
import pytest

import infer_diag as diag
from infer_diag import samples
from infer_diag.errors import ProbeUnavailable, SourceError
from infer_diag.probes.budget import Budget
from infer_diag.probes.pipeline.import_times import import_rows
from infer_diag.probes.pipeline.probe import phase_rows, probe_pipeline, run
from infer_diag.probes.result import ProbeResult, framed, read_result
from infer_diag.probes.settings import Settings

TRANSFORMERS = """
import time
__version__ = "9.9"


class Kind:
    architecture = "Tiny"

    def __init__(self, config):
        self.built = True

    @classmethod
    def from_pretrained(cls, model, config=None):
        made = cls(config)
        open(model + "/model.safetensors", "rb").read()
        return made


class Tiny(Kind):
    pass


class AutoTokenizer:
    @staticmethod
    def from_pretrained(model):
        return model


class AutoConfig:
    @staticmethod
    def from_pretrained(model):
        return type("Config", (), {"architectures": ["@NAME@"]})


AutoModelForCausalLM = Kind


def pipeline(task, model, tokenizer):
    assert task == "text-generation" and model.built

    def answer(prompt, max_new_tokens, min_new_tokens, do_sample, streamer):
        for value in range(max_new_tokens + 1):
            streamer.put(value)
        streamer.end()

    return answer
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with weights, and libraries on the path that load it."""
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    (libraries / "torch.py").write_text('__version__ = "1.2"\n')
    (libraries / "transformers.py").write_text(TRANSFORMERS.replace("@NAME@", "Tiny"))
    monkeypatch.setenv("PYTHONPATH", str(libraries))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"x" * 1000)
    return folder


def test_every_phase_of_a_start_is_traced(model: Path, tmp_path: Path) -> None:
    result = probe_pipeline(tmp_path, model, starts=2)
    assert result.recordings == ("pipeline_start_1.jsonl", "pipeline_start_2.jsonl")
    rows = [json.loads(line) for line in (tmp_path / result.recordings[0]).read_text().splitlines()]
    assert {row["infer_diag"] for row in rows} == {"pipeline_start"}
    assert {row["event"] for row in rows} == {"phase_begin", "phase_end", "token", "memory"}
    assert [row["time_s"] for row in rows] == sorted(row["time_s"] for row in rows)
    ended = [row["phase"] for row in rows if row["event"] == "phase_end"]
    assert ended == [
        *("process", "imports", "tokenizer", "config", "build", "weights", "pipeline"),
        *("first_token", "second_token", "second_request"),
    ]
    tokens = [(row["request"], row["token"], row["phase"]) for row in rows if row["event"] == "token"]
    assert tokens == [
        (1, 1, "first_token"),
        (1, 2, "second_token"),
        (2, 1, "second_request"),
        (2, 2, "second_request"),
    ]
    phases = result.frames["pipeline_phases"]
    assert set(phases["start_id"]) == {1, 2}
    assert phases["duration_s"].null_count() == 0
    assert phases.filter(pl.col("phase") == "weights")["peak_bytes"].min() > 1_000_000
    imported = result.frames["import_times"].filter(pl.col("start_id") == 1)["module"]
    assert {"torch", "transformers"} <= set(imported)
    assert "first token after" in result.sentences[0]
    assert read_result(result.write(tmp_path)).frames["pipeline_phases"].equals(phases)


def test_a_class_that_is_not_transformers_own_is_loaded_in_one_phase(model: Path, tmp_path: Path) -> None:
    (tmp_path / "libraries" / "transformers.py").write_text(TRANSFORMERS.replace("@NAME@", "Elsewhere"))
    phases = probe_pipeline(tmp_path, model).frames["pipeline_phases"]["phase"].to_list()
    assert "weights" in phases
    assert "build" not in phases


def test_a_cold_start_says_so(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[Path] = []
    monkeypatch.setattr("infer_diag.probes.pipeline.probe.page_cache.drop", dropped.append)
    monkeypatch.setattr("infer_diag.probes.pipeline.probe.page_cache.require", lambda: None)
    places = json.dumps([str(tmp_path / "libraries")])
    monkeypatch.setattr("infer_diag.probes.pipeline.probe._ASK_PLACES", f"print({places!r})")
    result = probe_pipeline(tmp_path, model, cold=True)
    assert result.machine["page_cache"] == "cold"
    assert model / "model.safetensors" in dropped
    assert tmp_path / "libraries" / "torch.py" in dropped
    assert json.loads((tmp_path / "pipeline_start_1.jsonl").read_text().splitlines()[0])["cache"] == "cold"


def test_a_start_that_fails_is_told_by_its_last_words(model: Path, tmp_path: Path) -> None:
    (tmp_path / "libraries" / "torch.py").write_text('raise ImportError("libcuda is broken")\n')
    with pytest.raises(SourceError, match="failed to start: ImportError: libcuda is broken"):
        probe_pipeline(tmp_path, model)


def test_a_start_that_hangs_is_ended(model: Path, tmp_path: Path) -> None:
    (tmp_path / "libraries" / "torch.py").write_text("import time\ntime.sleep(600)\n")
    with pytest.raises(ProbeUnavailable, match="took longer than"):
        probe_pipeline(tmp_path, model, budget=Budget(1.0))


def test_what_is_missing_is_said(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ProbeUnavailable, match="needs a model"):
        run(tmp_path, Settings(), Budget(1))
    (tmp_path / "libraries" / "transformers.py").unlink()
    with pytest.raises(ProbeUnavailable, match="no torch or no transformers"):
        run(tmp_path, Settings(model=model, python=sys.executable), Budget(10))
    with pytest.raises(ProbeUnavailable, match="cannot be run"):
        run(tmp_path, Settings(model=model, python=str(tmp_path / "absent")), Budget(10))


def shipped(name: str) -> tuple[Path, ProbeResult]:
    folder = samples.path(f"captured/{name}")
    return folder, read_result(folder / "probe_pipeline.json")


@pytest.mark.parametrize(("name", "starts"), [("pipeline_cold", 1), ("pipeline_warm", 2)])
def test_the_shipped_starts_agree_with_their_traces(name: str, starts: int) -> None:
    folder, result = shipped(name)
    assert len(result.recordings) == starts
    rows = []
    for start, file in enumerate(result.recordings, 1):
        rows += phase_rows((folder / file).read_text(), start)
    assert framed("pipeline_phases", rows).equals(result.frames["pipeline_phases"])
    recording = diag.load(folder)
    assert recording.starts["ready_time"].null_count() == 0
    assert len(recording.starts) == starts


def test_the_shipped_cold_start_waited_for_its_files() -> None:
    cold, warm = (
        shipped(name)[1].frames["pipeline_phases"].filter(pl.col("phase") == "weights")
        for name in ("pipeline_cold", "pipeline_warm")
    )
    assert cold["duration_s"].min() > 3 * warm["duration_s"].max()
    assert cold["duration_s"].min() > 1.5 * cold["cpu_s"].max()


def test_a_phase_that_never_ended_has_no_duration() -> None:
    lines = [
        {"event": "phase_begin", "phase": "imports", "time_s": 0.5, "cpu_s": 0.2},
        {"event": "phase_end", "phase": "imports", "time_s": 2.5, "cpu_s": 0.9},
        {"event": "memory", "phase": "imports", "time_s": 2.5, "cpu_s": 0.9, "peak_bytes": 77},
        {"event": "phase_begin", "phase": "weights", "time_s": 3.0, "cpu_s": 1.0},
    ]
    rows = phase_rows("\n".join(map(json.dumps, lines)), 1)
    assert framed("pipeline_phases", rows).rows() == [
        (1, "imports", 0.5, 2.0, pytest.approx(0.7), 77),
        (1, "weights", 3.0, None, None, None),
    ]


def test_the_interpreters_import_lines_are_read_and_others_passed_over() -> None:
    text = (
        "import time: self [us] | cumulative | imported package\n"
        "import time:       120 |        120 |   zipimport\n"
        "a warning: import time: 5\n"
        "import time:      1000 |       1120 | torch._C\n"
        "import time:      12 |  x | broken\n"
    )
    rows = import_rows(text, 3)
    assert [(row["module"], row["depth_count"], row["self_s"], row["cumulative_s"]) for row in rows] == [
        ("zipimport", 1, 120e-6, 120e-6),
        ("torch._C", 0, 1e-3, 1120e-6),
    ]
    assert len(framed("import_times", rows)) == 2
