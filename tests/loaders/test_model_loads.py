"""Loads of a model as a benchmark measured them: two loaders compared, against arithmetic on the files themselves."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

import infer_diag as diag
from infer_diag.attribution.cold_start import start_frames
from infer_diag.errors import DiagError, SourceError

CORPUS = Path(__file__).parents[3] / "shared" / "corpus" / "model_loads"
needs_corpus = pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus of model loads is not beside this checkout")
LOADS = [
    {"model_name": "org/m_2", "loading_time": 5.25, "end_to_end_time": 2.5, "throughput": 24.4, "output_text": "a"},
    {"model_name": "org/m_1", "loading_time": 1.125, "end_to_end_time": 2.0, "throughput": 30.5, "output_text": "b"},
]


def read(tmp_path: Path, value: object) -> diag.Recording:
    path = tmp_path / "loads.json"
    path.write_text(json.dumps(value, indent=4))
    return diag.load(path)


def test_every_load_is_a_start_with_its_line(tmp_path: Path) -> None:
    recording = read(tmp_path, LOADS)
    assert recording.phases["duration_s"].to_list() == [5.25, 1.125]
    assert recording.phases["line"].to_list() == [3, 10]
    assert recording.request_timings["e2e_s"].to_list() == [2.5, 2.0]
    assert start_frames(recording).summary["span_s"].to_list() == [None, None]


def test_a_load_without_its_length_is_left_out(tmp_path: Path) -> None:
    recording = read(tmp_path, [LOADS[0], {**LOADS[1], "loading_time": None}])
    assert len(recording.starts) == 1
    with pytest.raises(SourceError):
        read(tmp_path, [{**LOADS[0], "loading_time": "soon"}])


@pytest.mark.parametrize("value", [[], [[]], {}, [None, 3, "x"], [{"model_name": 3, "loading_time": -1}]])
def test_other_json_is_refused(tmp_path: Path, value: object) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(value))
    with pytest.raises(DiagError):
        diag.load(path, format="model-loads")


@needs_corpus
def test_the_loader_comparison_of_the_corpus() -> None:
    paths = {name: next(CORPUS.glob(f"*_{name}_30_random.json")) for name in ("safetensors", "phantom")}
    recording = diag.load(*paths.values())
    means = {}
    for number, (name, path) in enumerate(paths.items()):
        own = [load["loading_time"] for load in json.loads(path.read_text())]
        found = recording.phases.filter(source_id=number)["duration_s"].to_list()
        assert found == own
        means[name] = statistics.fmean(found)
    assert means == {"safetensors": pytest.approx(5.0947, abs=5e-5), "phantom": pytest.approx(1.1750, abs=5e-5)}
    assert means["safetensors"] / means["phantom"] == pytest.approx(4.336, abs=5e-4)
    assert len(recording.starts) == 60
    assert set(start_frames(recording).summary["outcome"]) == {"ready"}


@needs_corpus
def test_a_diagnosis_of_sixty_loads_stays_short() -> None:
    diagnosis = diag.diagnose(diag.load(*sorted(CORPUS.glob("*.json"))))
    assert len(diagnosis.findings) < 12
