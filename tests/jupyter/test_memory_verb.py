"""`%diag memory`: the panel of a recording's heap, at its end and at a moment."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from infer_diag.jupyter.panel import MAX_LINES, PLOTLY
from infer_diag.recording import Recording, Source

sys.path.insert(0, str(Path(__file__).parents[1] / "attribution"))

from handmade_heap import MIB, Heap


@pytest.fixture
def heap(notebook: Any) -> Any:
    heap = Heap()
    kept = [heap.alloc(size) for size in (3 * MIB, 700, 9 * MIB, 40 * MIB)]
    heap.free(kept[2])
    heap.free(kept[3])
    notebook.shell.user_ns["churn"] = heap.recording()
    return notebook


def test_the_last_state_is_shown_with_a_slider_and_in_words(heap: Any) -> None:
    ran = heap.ok("%diag memory churn")
    (bundle,) = ran.bundles
    figure = bundle[PLOTLY]
    assert figure["data"][0]["type"] == "heatmap"
    assert len(figure["frames"]) == len(figure["layout"]["sliders"][0]["steps"]) > 2
    assert "40 MiB" in ran.text and "may go back" in ran.text
    assert len(ran.text.splitlines()) <= MAX_LINES


def test_a_moment_is_shown_where_one_is_said(heap: Any) -> None:
    text = heap.ok("%diag memory churn --at 3ms").text
    assert "at 3 ms: 3 MiB of 22 MiB in use" in text
    assert "at_s=0.003" in heap.ok("%diag memory churn --at 3ms --code").text


@pytest.mark.parametrize(("option", "words"), [("--at 3", "with a unit"), ("--at 9h", "outside of the recording")])
def test_a_time_without_unit_or_outside_fails_the_cell(heap: Any, option: str, words: str) -> None:
    assert words in str(heap.run(f"%diag memory churn {option}").error)


def test_the_python_of_the_verb_gives_the_same_panel(heap: Any) -> None:
    code = heap.ok("%diag memory churn --code").text
    assert heap.ok(code).text == heap.ok("%diag memory churn").text


def test_events_that_do_not_fit_are_told(notebook: Any) -> None:
    heap = Heap()
    heap.free(heap.alloc(3 * MIB))
    heap.alloc(2 * MIB)
    whole = heap.recording()
    kept = ~pl.col("action").cast(pl.String).str.starts_with("free")
    notebook.shell.user_ns["lossy"] = whole.replace(allocator_events=whole.allocator_events.filter(kept))
    assert "approximate: 1 blocks whose free was not recorded" in notebook.ok("%diag memory lossy").text


def test_a_recording_without_memory_says_what_would_tell(notebook: Any) -> None:
    notebook.shell.user_ns["bare"] = Recording(sources=(Source("a.log", "vllm", "vllm"),))
    ran = notebook.ok("%diag memory bare")
    assert "snapshot" in ran.text
    assert PLOTLY not in ran.bundles[0]


def test_other_settings_are_replayed_beside_the_recording(heap: Any) -> None:
    pytest.importorskip("numba")
    ran = heap.ok("%diag memory churn --what-if expandable_segments")
    assert ran.text.startswith("What if expandable_segments (simulated)")
    assert "the recording: " in ran.text and "recorded settings: " in ran.text
    assert any(PLOTLY in bundle for bundle in ran.bundles)
    assert (
        "memory_what_if_panel(recording, 'expandable_segments')"
        in heap.ok("%diag memory churn --what-if expandable_segments --code").text
    )
