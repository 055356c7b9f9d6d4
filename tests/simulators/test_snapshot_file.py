"""A simulated heap written as PyTorch's snapshot: read back it is the same heap, and says that it is simulated."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from infer_diag.attribution.heap.view import heap_view
from infer_diag.loaders import load
from infer_diag.samples import path
from infer_diag.simulators.allocators import Allocator, TorchSettings
from infer_diag.simulators.snapshot_file import write_snapshot

MIB = 1 << 20


def heap() -> Allocator:
    made = Allocator(TorchSettings(), limit_bytes=64 * MIB, streams=("0", "7", "0"), pools=(None, None, "1,0"))
    blocks = [made.malloc(3 * MIB), made.malloc(700), made.malloc(5 * MIB, "7"), made.malloc(2 * MIB, pool="1,0")]
    made.free(blocks[0] or 0)
    made.malloc(60 * MIB)
    return made


def test_blocks_events_and_failures_come_back(tmp_path: Path) -> None:
    made = heap().recording()
    stacks = {int(made.blocks["address_id"][0]): [{"filename": "a/b.py", "line": 3, "name": "f"}]}
    read = load(write_snapshot(made, tmp_path / "a.pickle", stacks=stacks))
    columns = ["segment_id", "segment_bytes", "address_id", "size_bytes", "state", "stream", "pool", "segment_kind"]
    assert read.blocks.select(columns).sort("address_id").equals(made.blocks.select(columns).sort("address_id"))
    assert read.allocator_events.filter(pl.col("action") != "free_requested")["action"].to_list() == (
        made.allocator_events["action"].to_list()
    )
    assert read.ooms.select("requested_bytes", "free_bytes").equals(
        made.ooms.select("requested_bytes", "free_bytes"), null_equal=True
    )


def test_it_says_that_nothing_of_it_was_recorded(tmp_path: Path) -> None:
    read = load(write_snapshot(heap().recording(), tmp_path / "a.pickle"))
    assert read.sources[0].is_simulated
    view = heap_view(read)
    assert view is not None and view.status == "simulated"


def test_the_shipped_sample_says_so_too_and_its_replay_fits_it() -> None:
    read = load(path("simulated/growing_caches") / "snapshot.pickle")
    view = heap_view(read)
    assert read.sources[0].is_simulated
    assert view is not None and (view.status, view.doubt, view.failure_count) == ("simulated", "", 1)
