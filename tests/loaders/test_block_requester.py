"""Who asked for a block: taken from a snapshot's stack, short, redacted, and only where it is told."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from infer_diag.attribution.heap.bricks import snapshot_bricks, trace_bricks
from infer_diag.attribution.heap.trace import heap_traces
from infer_diag.charts.memory_map import block_map_chart
from infer_diag.loaders import load

MIB = 1 << 20
CPP = {"filename": "CUDACachingAllocator.cpp", "line": 0, "name": "malloc(unsigned long)"}


def python(file: str, name: str = "forward", line: int = 7) -> dict[str, Any]:
    return {"filename": file, "line": line, "name": name}


def snapshot(tmp_path: Path, frames: Any, count: int = 3, **block: Any) -> Path:
    blocks = [
        {
            "address": (1 << 40) + place * 2 * MIB,
            "size": 2 * MIB,
            "requested_size": 2 * MIB,
            "state": "active_allocated",
            "frames": frames,
            **block,
        }
        for place in range(count)
    ]
    segment = {
        "device": 0,
        "address": 1 << 40,
        "total_size": 2 * MIB * count,
        "allocated_size": 2 * MIB * count,
        "stream": 0,
        "segment_type": "large",
        "blocks": blocks,
    }
    events = [
        {"action": "alloc", "addr": blocks[-1]["address"], "size": 2 * MIB, "stream": 0, "time_us": 0, "frames": []}
    ]
    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps({"segments": [segment], "device_traces": [events]}))
    return path


def requesters(path: Path) -> set[str | None]:
    return set(load(path).blocks["requester"])


def test_the_innermost_python_frame_is_named_by_file_line_and_function(tmp_path: Path) -> None:
    stack = [CPP, python("/home/someone/app/flexgen/backend.py", "allocate", 195), python("/home/someone/app/main.py")]
    assert requesters(snapshot(tmp_path, stack)) == {"flexgen/backend.py:195 allocate"}


def test_early_versions_keep_the_stack_in_the_history(tmp_path: Path) -> None:
    path = snapshot(tmp_path, None, history=[{"real_size": 5, "frames": [python("C:\\app\\run.py", "load")]}])
    assert requesters(path) == {"app/run.py:7 load"} or requesters(path) == {None}


@pytest.mark.parametrize(
    "frames",
    [None, [], [CPP], "text", [None, 3], [{"filename": 3}], [{"filename": None, "line": 1, "name": "x"}]],
)
def test_a_stack_without_python_names_nobody(tmp_path: Path, frames: Any) -> None:
    assert requesters(snapshot(tmp_path, frames)) == {None}


def test_what_a_stack_says_is_bounded_redacted_and_escaped(tmp_path: Path) -> None:
    names = requesters(snapshot(tmp_path, [python("a.py", "token_" + "x" * 5000)]))
    assert max(len(str(name)) for name in names) <= 120
    (name,) = requesters(snapshot(tmp_path, [python("x/hf_" + "aB3" * 10 + "/a.py", "f")]))
    assert "aB3aB3" not in str(name)
    path = snapshot(tmp_path, [python("<b>/a.py", "<script>")])
    drawn = block_map_chart(snapshot_bricks(load(path))).to_json()
    assert "&lt;script&gt;" in drawn and "<script>" not in drawn.replace("\\u003c", "<")


def test_an_idle_block_is_nobodys(tmp_path: Path) -> None:
    assert requesters(snapshot(tmp_path, [python("a.py")], state="inactive")) == {None}


def test_the_map_names_it_at_every_moment_at_which_the_block_lived(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    recording = load(snapshot(tmp_path, [python("app/a.py")]))
    bricks = trace_bricks(heap_traces(recording)[0])
    named = bricks.filter(pl.col("state").cast(pl.String) == "active").group_by("event_id").agg("requester")
    assert {row["event_id"]: len(row["requester"]) for row in named.iter_rows(named=True)} == {-1: 2, 0: 3}
    assert set(bricks["requester"].drop_nulls()) == {"app/a.py:7 forward"}
    assert "asked for in app" in block_map_chart(bricks).to_json()


def test_a_full_map_with_names_stays_small(tmp_path: Path) -> None:
    path = snapshot(tmp_path, [python("some_package/some_module_name.py", "some_function_name")], count=10_000)
    assert len(block_map_chart(snapshot_bricks(load(path))).to_json()) <= 2_000_000
