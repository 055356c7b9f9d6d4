"""Each end of the path from Envoy to Loki and Tempo hands out what its loader reads: the same starts and phases."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import infer_diag as diag
from infer_diag import export, samples
from infer_diag.diagnose import Diagnosis
from infer_diag.errors import LogFormatError
from infer_diag.export.path_ends import handed_out

POD = "fleet/rag-legal/server.log.gz"


@pytest.fixture(scope="module")
def ends(two_starts: Diagnosis, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("ends")
    export.otlp(two_starts, folder / "exported.jsonl")
    lines = gzip.decompress(samples.path(POD).read_bytes()).decode()
    texts = handed_out(lines, (folder / "exported.jsonl").read_text(encoding="utf-8"))
    for end, text in texts.items():
        (folder / end).write_text(text, encoding="utf-8")
    return {end: folder / end for end in texts}


@pytest.mark.parametrize("end", ["Collector", "Loki"])
def test_lines_of_a_pod_tell_the_same_at_each_end(end: str, ends: dict[str, Path]) -> None:
    before, after = (diag.diagnose(diag.load(path)) for path in (f"sample:{POD}", ends[end]))
    same, whole = export.same_phases(before, after)
    assert same == whole > 3
    assert after.recording.sources[0].format == "vllm"
    assert before.recording.engine_samples["time"].to_list() == after.recording.engine_samples["time"].to_list()


def test_spans_tell_the_same_out_of_tempo(ends: dict[str, Path], two_starts: Diagnosis) -> None:
    after = diag.diagnose(diag.load(ends["Tempo"]))
    assert export.same_phases(two_starts, after) == (14, 14)
    spans = json.loads(ends["Tempo"].read_text(encoding="utf-8"))["batches"][0]["scopeSpans"][0]["spans"]
    assert len(spans[0]["traceId"]) == 24  # base64


def test_another_diagnosis_is_not_the_same(two_starts: Diagnosis) -> None:
    other = diag.diagnose(diag.load("sample:captured/plain"))
    same, whole = export.same_phases(two_starts, other)
    assert whole == 14 and same < whole
    assert export.same_phases(other, two_starts)[1] != whole


@pytest.mark.parametrize("line", ["INFO no stamp", "2026-99-99T00:00:00Z text", "[pod] nothing"])
def test_a_line_without_a_stamp_is_refused(line: str) -> None:
    with pytest.raises(LogFormatError, match="no stamp"):
        handed_out(line, "")
