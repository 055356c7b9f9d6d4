"""The memory section of the report: words, the map with its slider, and nothing where no allocator is recorded."""

from __future__ import annotations

import sys
from pathlib import Path

import infer_diag as diag
from infer_diag.recording import Recording, Source
from infer_diag.report import render

sys.path.insert(0, str(Path(__file__).parents[1] / "attribution"))

from handmade_heap import MIB, Heap


def churned() -> Recording:
    heap = Heap()
    kept = [heap.alloc(size) for size in (3 * MIB, 700, 9 * MIB, 40 * MIB)]
    heap.free(kept[2])
    heap.free(kept[3])
    return heap.recording()


def test_a_recorded_heap_has_its_section_and_the_same_bytes_twice() -> None:
    html = render(diag.diagnose(churned()))
    assert '<section id="memory"' in html and 'href="#memory"' in html
    assert 'id="chart-memory"' in html and 'id="chart-holes"' in html
    assert "may go back" in html
    assert "Plotly.addFrames" in html and "Plotly.animate(" not in html
    assert html == render(diag.diagnose(churned()))


def test_without_an_allocator_there_is_no_section() -> None:
    assert "chart-memory" not in render(diag.diagnose(Recording(sources=(Source("a.log", "vllm", "vllm"),))))
