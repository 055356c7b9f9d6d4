"""Idle bytes at a failed allocation: only those of segments that may serve it count, whatever came afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from infer_diag.attribution.ooms import oom_readings
from infer_diag.attribution.usable_idle import usable_idle
from infer_diag.diagnose import diagnose
from infer_diag.recording import Recording
from infer_diag.simulators.allocators import Allocator, TorchSettings

MIB = 1 << 20
KIB = 1 << 10


def small_pool_of_holes(heap: Allocator, stream: str = "0", pool: str | None = None) -> list[int]:
    """Every second of 40 blocks of 512 KiB stays: 10 MiB idle that serve no request beyond 1 MiB."""
    got = [heap.malloc(512 * KIB, stream, pool=pool) for _ in range(40)]
    blocks = [address for address in got if address is not None]
    for address in blocks[::2]:
        heap.free(address)
    return blocks[1::2]


def large_pool_of_holes(heap: Allocator, stream: str = "0", pool: str | None = None) -> list[int]:
    """Every second of 20 blocks of 2 MiB stays: 20 MiB idle in pieces of 2 MiB."""
    got = [heap.malloc(2 * MIB, stream, pool=pool) for _ in range(20)]
    blocks = [address for address in got if address is not None]
    for address in blocks[::2]:
        heap.free(address)
    return blocks[1::2]


def failing(prepare: Any, request: int = 3 * MIB, **room: Any) -> Recording:
    heap = Allocator(TorchSettings(), limit_bytes=44 * MIB, **room)
    prepare(heap)
    while heap.malloc(request) is not None:
        pass
    return heap.recording()


def finding_of(recording: Recording) -> Any:
    (found,) = [each for each in diagnose(recording).findings if "could not be had" in each.sentence]
    return found


def test_holes_of_the_small_pool_serve_no_large_request() -> None:
    heap = Allocator(TorchSettings(), limit_bytes=20 * MIB)
    small_pool_of_holes(heap)
    assert heap.malloc(2432 * KIB) is None
    found = finding_of(heap.recording())
    assert found.id != "memory.fragmentation"
    assert "0 B of 10 MiB in all lay idle in large segments" in found.sentence


def test_holes_of_the_large_pool_serve_one() -> None:
    heap = Allocator(TorchSettings(), limit_bytes=40 * MIB)
    large_pool_of_holes(heap)
    assert heap.malloc(3 * MIB) is None
    found = finding_of(heap.recording())
    assert (found.id, found.status) == ("memory.fragmentation", "measured")
    assert "20 MiB lay idle in large segments of stream 0" in found.sentence


@pytest.mark.parametrize(("stream", "pool"), [("7", None), ("0", "1,0")])
def test_another_stream_or_a_graph_has_its_holes_for_itself(stream: str, pool: str | None) -> None:
    heap = Allocator(TorchSettings(), limit_bytes=40 * MIB, streams=("0", stream), pools=(None, pool))
    large_pool_of_holes(heap, stream, pool)
    assert heap.malloc(3 * MIB) is None
    (row,) = oom_readings(heap.recording()).iter_rows(named=True)
    assert (row["usable_idle_lower_bytes"], row["usable_idle_upper_bytes"]) == (0, 0)
    assert row["verdict"] != "fragmentation"


def test_a_stream_that_is_not_told_leaves_it_open() -> None:
    heap = Allocator(TorchSettings(), limit_bytes=40 * MIB, streams=("0", "7"), pools=(None, None))
    large_pool_of_holes(heap, "7")
    assert heap.malloc(3 * MIB) is None
    whole = heap.recording()
    untold = whole.replace(blocks=whole.blocks.with_columns(pl.lit(None, pl.String).alias("stream")))
    (row,) = oom_readings(untold).iter_rows(named=True)
    assert row["usable_idle_lower_bytes"] == 0
    assert row["usable_idle_upper_bytes"] >= 20 * MIB
    assert row["verdict"] == "undetermined" or row["verdict"] == "borderline"


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_what_was_idle_then_is_found_after_all_that_followed(seed: int, expandable: bool) -> None:
    random = np.random.default_rng(seed)
    heap = Allocator(
        TorchSettings(expandable_segments=expandable),
        limit_bytes=100 * MIB,
        streams=("0", "7", "0", "7"),
        pools=(None, None, "1,0", "1,0"),
    )
    live: list[int] = []
    truth: list[float] = []
    for _ in range(400):
        stream, pool = str(random.choice(["0", "0", "7"])), (None, None, None, "1,0")[random.integers(4)]
        size = int(random.choice([random.integers(1, MIB), random.integers(MIB, 9 * MIB)]))
        address = heap.malloc(size, stream, pool=pool)
        if address is None and pool is None:
            kind = "small" if size <= MIB else "large"
            idle = heap.blocks().filter(
                (pl.col("state").cast(pl.String) == "inactive")
                & (pl.col("segment_kind").cast(pl.String) == kind)
                & (pl.col("stream") == stream)
                & pl.col("pool").is_null()
            )
            truth.append(float(idle["size_bytes"].sum()))
        elif address is None:
            truth.append(float("nan"))
        else:
            live.append(address)
        while len(live) > 24:
            heap.free(live.pop(int(random.integers(len(live)))))
    recording = heap.recording()
    spans = usable_idle(recording, recording.ooms)
    assert len(spans) == len(truth) and truth
    for found, right in zip(spans, truth, strict=True):
        assert found is not None
        if right == right:
            assert found[0].low <= right <= found[0].high


def test_the_simulated_answer_is_exact_without_private_pools() -> None:
    recording = failing(lambda heap: (small_pool_of_holes(heap), large_pool_of_holes(heap)))
    (found, *_) = usable_idle(recording, recording.ooms)
    assert found is not None
    assert found[0].low == found[0].high


def test_without_a_block_map_nothing_is_told() -> None:
    whole = failing(large_pool_of_holes)
    bare = whole.replace(blocks=whole.blocks.clear())
    assert set(usable_idle(bare, bare.ooms)) == {None}
    assert finding_of(bare).status != "measured" or finding_of(bare).id != "memory.fragmentation"
