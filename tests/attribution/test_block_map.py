"""Block maps and peaks, held against sums that are made without polars."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import infer_diag as diag
from infer_diag import schema
from infer_diag.attribution.block_map import allocator_peaks, block_summary
from infer_diag.loaders import load
from infer_diag.recording import Recording, Source

SHARED = Path(__file__).parents[3] / "shared"
CORPUS, GENERATOR = SHARED / "corpus" / "snapshots", SHARED / "bench" / "gen_snapshot.py"
needs_corpus = pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus of real snapshots is not here")
needs_generator = pytest.mark.skipif(not GENERATOR.is_file(), reason="the generator of snapshots is not here")
SOURCE = Source(path="a.pickle", format="pytorch-snapshot", engine="pytorch")


def framed(frame: Any, rows: list[dict[str, Any]]) -> pl.DataFrame:
    columns = frame.create_empty().schema
    whole = [{"source_id": 0, "line": 0, **row} for row in rows]
    return frame.validate(pl.DataFrame(whole, schema=columns, orient="row"), cast=True)


def mapped(rows: list[dict[str, Any]], requested: float | None = None, **where: Any) -> Recording:
    shown = [{"snapshot": "snapshot", "gpu": "0", "address_id": place, **row} for place, row in enumerate(rows)]
    ooms = [] if requested is None else [{"memory": "device", "requested_bytes": requested, **where}]
    return Recording(sources=(SOURCE,), blocks=framed(schema.Blocks, shown), ooms=framed(schema.Ooms, ooms))


def piece(segment: int, size: int, state: str, **more: Any) -> dict[str, Any]:
    return {"segment_id": segment, "size_bytes": size, "state": state, **more}


def test_no_block_gives_no_row() -> None:
    assert block_summary(Recording()).is_empty()
    assert allocator_peaks(Recording()).is_empty()


def test_a_full_pool_has_no_fragmentation_to_speak_of() -> None:
    row = block_summary(mapped([piece(1, 100, "active"), piece(1, 50, "awaiting")])).row(0, named=True)
    assert (row["reserved_bytes"], row["allocated_bytes"], row["active_bytes"], row["idle_bytes"]) == (150, 100, 150, 0)
    assert (row["largest_free_bytes"], row["external_frag_ratio"], row["unusable_free_ratio"]) == (0, None, None)


def test_idle_pieces_beside_live_blocks_are_split_unless_pages_go_back() -> None:
    rows = [piece(1, 10, "inactive"), piece(1, 5, "active"), piece(2, 7, "inactive")]
    expandable = [piece(3, 20, "inactive", is_expandable=True), piece(3, 1, "active", is_expandable=True)]
    row = block_summary(mapped(rows + expandable)).row(0, named=True)
    assert (row["idle_bytes"], row["inactive_split_bytes"], row["largest_free_bytes"]) == (37, 10, 20)
    assert row["external_frag_ratio"] == pytest.approx(1 - 20 / 37)


MIB = 1 << 20


@pytest.mark.parametrize(
    ("requested", "where", "usable"),
    [
        (3 * MIB, {}, 8 + 4),
        (5 * MIB, {}, 8),
        (9 * MIB, {}, 0),
        (MIB, {}, 2),
        (3 * MIB, {"gpu": "0"}, 8 + 4),
    ],
)
def test_what_a_request_could_use(requested: int, where: dict[str, str], usable: int) -> None:
    """A block of a private pool serves nobody else; small segments serve requests up to a MiB, large ones the rest."""
    rows = [
        piece(1, 8 * MIB, "inactive", segment_kind="large"),
        piece(2, 4 * MIB, "inactive", segment_kind="large"),
        piece(3, 2 * MIB, "inactive", segment_kind="small"),
        piece(4, 16 * MIB, "inactive", segment_kind="large", pool="1,2"),
    ]
    row = block_summary(mapped(rows, requested, **where)).row(0, named=True)
    assert row["unusable_free_ratio"] == pytest.approx(1 - usable / 30)


def test_a_failure_on_another_device_says_nothing_here() -> None:
    row = block_summary(mapped([piece(1, 8, "inactive")], 4.0, gpu="1")).row(0, named=True)
    assert row["unusable_free_ratio"] is None


def test_devices_are_apart_and_the_document_gives_no_ratio_of_both() -> None:
    rows = [piece(1, 10, "inactive"), piece(1, 30, "inactive", gpu="1"), piece(2, 20, "inactive", gpu="1")]
    recording = mapped(rows)
    told = block_summary(recording).sort("gpu")
    assert told["external_frag_ratio"].to_list() == [0.0, pytest.approx(0.4)]
    assert told["segment_count"].to_list() == [1, 2]
    blocks = diag.diagnose(recording).to_dict()["memory"]["blocks"]
    assert blocks["reserved_bytes"] == 60
    assert blocks["segments"] == 3
    assert blocks["largest_free_bytes"] == 30
    assert blocks["external_frag_ratio"] is None


sizes = st.integers(512, 1 << 34)
pieces = st.tuples(st.integers(1, 4), sizes, st.sampled_from(("active", "awaiting", "inactive")), st.booleans())


@settings(max_examples=80, deadline=None)
@given(st.lists(pieces, min_size=1, max_size=12))
def test_parts_add_up(rows: list[tuple[int, int, str, bool]]) -> None:
    shown = [piece(segment, size, state, is_expandable=flag) for segment, size, state, flag in rows]
    row = block_summary(mapped(shown)).row(0, named=True)
    whole = sum(size for _, size, _, _ in rows)
    idle = [size for _, size, state, _ in rows if state == "inactive"]
    assert row["reserved_bytes"] == whole == row["active_bytes"] + row["idle_bytes"]
    assert row["allocated_bytes"] <= row["active_bytes"]
    assert row["idle_bytes"] == sum(idle)
    assert row["inactive_split_bytes"] <= sum(idle)
    assert row["largest_free_bytes"] == max(idle, default=0)
    if idle:
        assert row["external_frag_ratio"] == pytest.approx(1 - max(idle) / sum(idle))


def recorded(rows: list[dict[str, Any]]) -> Recording:
    return Recording(sources=(SOURCE,), allocator_events=framed(schema.AllocatorEvents, rows))


def test_a_peak_is_the_largest_running_sum() -> None:
    rows = [
        {"action": "alloc", "address_id": 1, "requested_bytes": 10},
        {"action": "alloc", "address_id": 2, "requested_bytes": 5},
        {"action": "free_requested", "address_id": 1, "requested_bytes": 10},
        {"action": "free", "address_id": 1, "requested_bytes": 10},
        {"action": "alloc", "address_id": 3, "requested_bytes": 9},
        {"action": "oom", "requested_bytes": 1000},
        {"action": "free", "address_id": 77, "requested_bytes": 3},
    ]
    row = allocator_peaks(recorded(rows)).row(0, named=True)
    assert (row["peak_bytes"], row["basis"], row["oom_count"], row["orphan_free_count"]) == (15, "requested", 1, 1)


def test_a_peak_is_in_allocated_bytes_where_frees_tell_nothing_else() -> None:
    rows = [
        {"action": "alloc", "address_id": 1, "requested_bytes": 24, "allocated_bytes": 512},
        {"action": "free", "address_id": 1, "allocated_bytes": 512},
    ]
    row = allocator_peaks(recorded(rows)).row(0, named=True)
    assert (row["peak_bytes"], row["basis"]) == (512, "allocated")


def plainly_read(path: Path) -> Any:
    class Plain(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            raise AssertionError(f"{module}.{name}")

    with path.open("rb") as file:
        return Plain(file).load()


def truth(snapshot: Any) -> dict[str, Any]:
    """Totals of a snapshot by loops over its own dictionaries."""
    blocks = [(segment, block) for segment in snapshot["segments"] for block in segment["blocks"]]
    idle = [block["size"] for _, block in blocks if block["state"] == "inactive"]
    split = [
        block["size"]
        for segment, block in blocks
        if block["state"] == "inactive" and len(segment["blocks"]) > 1 and not segment.get("is_expandable")
    ]
    return {
        "reserved_bytes": sum(segment["total_size"] for segment in snapshot["segments"]),
        "allocated_bytes": sum(block["size"] for _, block in blocks if block["state"] == "active_allocated"),
        "active_bytes": sum(block["size"] for _, block in blocks if block["state"] != "inactive"),
        "inactive_split_bytes": sum(split),
        "largest_free_bytes": max(idle, default=0),
        "external_frag_ratio": round(1 - max(idle) / sum(idle), 6) if idle else None,
        "unusable_free_ratio": None,
        "segments": len(snapshot["segments"]),
    }


def running_peak(snapshot: Any) -> int:
    """The peak as Mosaic counts it: from nothing, requested bytes, freed when the free is completed."""
    peak = level = 0
    for event in snapshot["device_traces"][0]:
        if event["action"] == "alloc":
            level += event["size"]
            peak = max(peak, level)
        elif event["action"] == "free_completed":
            level -= event["size"]
    return peak


RESERVED = {
    "mosaic__output": 262_144_000,
    "llminf__1.3b_snapshot": 7_608_467_456,
    "llminf__oom_snapshot": 11_844_714_496,
    "silmont__memory_forward_bf16_128": 861_929_472,
    "silmont__mem_snapshot": 3_781_165_056,
}


@needs_corpus
@pytest.mark.parametrize("path", sorted(CORPUS.glob("*")), ids=lambda path: path.stem)
def test_real_snapshots_to_the_byte(path: Path) -> None:
    snapshot, recording = plainly_read(path), load(path)
    blocks = diag.diagnose(recording).to_dict()["memory"]["blocks"]
    assert blocks == truth(snapshot)
    assert blocks["reserved_bytes"] == RESERVED[path.stem]
    peaks = allocator_peaks(recording)
    assert (peaks["peak_bytes"].to_list() or [0]) == [running_peak(snapshot)]


@needs_generator
def test_every_failure_of_a_simulated_device_knows_its_bytes(tmp_path: Path) -> None:
    """There, what is reserved and what is free make up the device at every moment."""
    path = tmp_path / "a.pickle"
    command = [sys.executable, str(GENERATOR), "--events", "30000", "--limit-gib", "11.4", "--out", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    snapshot, recording = plainly_read(path), load(path)
    events = [event for event in snapshot["device_traces"][0] if event["action"] == "oom"]
    assert len(recording.ooms) == len(events) > 100
    whole = recording.ooms.select((pl.col("reserved_bytes") + pl.col("free_bytes")).alias("device"))["device"]
    assert whole.unique().to_list() == [float(int(11.4 * (1 << 30)))]
    bounds = recording.ooms.select(
        (pl.col("idle_bytes") - pl.col("idle_resolution_bytes")).alias("low"),
        (pl.col("idle_bytes") + pl.col("idle_resolution_bytes")).alias("high"),
        "reserved_bytes",
    )
    assert (bounds["low"] <= bounds["high"]).all()
    assert (bounds["low"] <= bounds["reserved_bytes"]).all()
    assert allocator_peaks(recording)["peak_bytes"].item() == running_peak(snapshot)
