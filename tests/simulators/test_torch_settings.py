"""PyTorch's allocator by its published rules: sizes, segments, cutting, collection, expandable segments, pools."""

from __future__ import annotations

import polars as pl
import pytest

from infer_diag.errors import DiagError
from infer_diag.simulators.allocators import Allocator, TorchSettings
from infer_diag.simulators.allocators.settings import divisions

MIB = 1 << 20


def taken(settings: TorchSettings | None, *sizes: int, limit: int | None = None) -> Allocator:
    allocator = Allocator(settings, limit_bytes=limit)
    for size in sizes:
        allocator.malloc(size)
    return allocator


def allocated(size: int, settings: TorchSettings | None = None) -> int:
    return taken(settings, size).counters.allocated_bytes


@pytest.mark.parametrize(
    ("asked", "segment", "idle"),
    [
        (1, 2 * MIB, 2 * MIB - 512),
        (MIB, 2 * MIB, MIB),
        (3 * MIB // 2, 20 * MIB, 37 * MIB // 2),
        (10 * MIB, 10 * MIB, 0),
        (int(10.1 * MIB), 12 * MIB, 12 * MIB - 10590720),
        (31 * MIB, 32 * MIB, 0),
    ],
)
def test_segments_are_as_large_as_the_request_makes_them(asked: int, segment: int, idle: int) -> None:
    allocator = taken(None, asked)
    assert allocator.counters.reserved_bytes == segment
    assert allocator.holes().tolist() == ([idle] if idle else [])


def test_a_rest_of_up_to_a_mebibyte_stays_in_a_large_block() -> None:
    assert allocated(31 * MIB) == 32 * MIB
    assert allocated(31 * MIB - 512) == 31 * MIB - 512


@pytest.mark.parametrize(
    ("size", "parts", "rounded"),
    [
        (1200, 0, 1536),
        (1200, 2, 1536),
        (3000, 4, 3072),
        (2100, 4, 2560),
        (4096, 8, 4096),
        (5000, 8, 5120),
        (1, 4, 512),
    ],
)
def test_requests_are_rounded_to_divisions_of_powers_of_two(size: int, parts: int, rounded: int) -> None:
    assert allocated(size, TorchSettings(roundup_power2_divisions=parts)) == rounded


def test_divisions_by_size_fill_the_gaps_as_pytorch_does() -> None:
    table = divisions(((256, 1), (512, 2), (1024, 4), (None, 8))).tolist()
    assert table[:8] == [1] * 8
    assert table[8:] == [1, 2, 8, 8, 8, 8, 8, 8]
    assert divisions(((64, 4), (256, 8))).tolist() == [4] * 7 + [0, 8] + [0] * 7
    with pytest.raises(DiagError, match="3 is no power of two"):
        divisions(3)


def test_the_smallest_block_serves_and_the_lowest_among_equals() -> None:
    allocator = Allocator()
    addresses = [allocator.malloc(size * MIB) for size in (30, 40, 30, 50)]
    for address in addresses:
        assert address is not None
        allocator.free(address)
    assert allocator.malloc(29 * MIB) == addresses[0]
    assert allocator.malloc(29 * MIB) == addresses[2]
    assert allocator.malloc(35 * MIB) == addresses[1]


def test_streams_and_private_pools_do_not_share() -> None:
    allocator = Allocator()
    first = allocator.malloc(30 * MIB, "0")
    assert first is not None
    allocator.free(first)
    assert allocator.malloc(30 * MIB, "7") != first
    assert allocator.malloc(30 * MIB, "0", pool="1,0") != first
    assert allocator.malloc(30 * MIB, "0") == first
    blocks = allocator.blocks()
    assert blocks.select("stream", "pool").rows() == [("0", None), ("7", None), ("0", "1,0")]


def test_a_private_pool_keeps_its_segments_when_the_cache_is_emptied() -> None:
    allocator = Allocator()
    private, shared = allocator.malloc(30 * MIB, pool="1,0"), allocator.malloc(30 * MIB)
    assert private is not None and shared is not None
    allocator.free(private)
    allocator.free(shared)
    allocator.empty_cache()
    assert allocator.blocks()["pool"].to_list() == ["1,0"]


def test_large_blocks_stay_whole_above_the_largest_split() -> None:
    settings = TorchSettings(max_split_size_bytes=100 * MIB)
    allocator = Allocator(settings, limit_bytes=300 * MIB)
    whole = allocator.malloc(200 * MIB)
    assert whole is not None
    allocator.free(whole)
    assert allocator.malloc(50 * MIB) != whole
    assert allocator.malloc(190 * MIB) == whole
    allocator.free(whole)
    # The device has no room for another 150 MiB, and 200 MiB is more than 20 MiB too large: it goes back first.
    assert allocator.malloc(150 * MIB) is not None
    assert allocator.counters.device_free_count == 1
    assert allocator.counters.retry_count == 0
    with pytest.raises(DiagError, match="below 20"):
        TorchSettings(max_split_size_bytes=MIB).policy(None)


def test_whole_segments_go_back_before_a_request_fails() -> None:
    allocator = Allocator(limit_bytes=100 * MIB)
    kept = [allocator.malloc(20 * MIB) for _ in range(5)]
    for address in kept[:3]:
        assert address is not None
        allocator.free(address)
    assert allocator.malloc(60 * MIB) is not None
    assert allocator.malloc(20 * MIB) is None
    counters = allocator.counters
    assert (counters.retry_count, counters.failure_count, counters.device_free_count) == (2, 1, 3)


def test_a_pinned_segment_makes_a_request_fail_although_enough_is_idle() -> None:
    for settings, is_served in ((TorchSettings(), False), (TorchSettings(expandable_segments=True), True)):
        allocator = Allocator(settings, limit_bytes=160 * MIB)
        whole = allocator.malloc(100 * MIB)
        assert whole is not None
        allocator.free(whole)
        assert allocator.malloc(30 * MIB) == whole
        assert allocator.counters.cached_bytes == 70 * MIB
        assert (allocator.malloc(80 * MIB) is not None) == is_served


def test_a_live_block_pins_its_chunk_of_an_expandable_segment_too() -> None:
    allocator = Allocator(TorchSettings(expandable_segments=True), limit_bytes=80 * MIB)
    holes = []
    for _ in range(4):
        allocator.malloc(2 * MIB)
        holes.append(allocator.malloc(18 * MIB))
    for address in holes:
        assert address is not None
        allocator.free(address)
    assert allocator.holes().sum() == 72 * MIB
    assert allocator.malloc(30 * MIB) is None


def test_the_collection_gives_back_what_was_unused_for_longest() -> None:
    settings = TorchSettings(memory_fraction=1.0, garbage_collection_threshold=0.5)
    allocator = Allocator(settings, limit_bytes=200 * MIB)
    old, new = allocator.malloc(40 * MIB), allocator.malloc(60 * MIB)
    assert old is not None and new is not None
    allocator.free(old)
    for _ in range(5):
        allocator.malloc(512)
        kept = allocator.malloc(2 * MIB)
        assert kept is not None
        allocator.free(kept)
    allocator.free(new)
    assert allocator.malloc(70 * MIB) is not None
    segments = allocator.blocks()["segment_id"].unique().to_list()
    assert old not in segments
    assert allocator.counters.retry_count == 0
    with pytest.raises(DiagError, match="no effect without a memory fraction"):
        TorchSettings(garbage_collection_threshold=0.5).policy(200 * MIB)


def test_the_memory_fraction_is_a_limit_of_its_own() -> None:
    allocator = taken(TorchSettings(memory_fraction=0.5), 40 * MIB, 40 * MIB, limit=100 * MIB)
    assert allocator.counters.failure_count == 1
    assert allocator.counters.reserved_bytes == 40 * MIB


def test_expandable_segments_map_chunks_and_grow_at_their_end() -> None:
    allocator = Allocator(TorchSettings(expandable_segments=True), limit_bytes=1 << 30)
    first, second = allocator.malloc(30 * MIB), allocator.malloc(15 * MIB)
    assert first is not None and second == first + 30 * MIB
    assert allocator.counters.reserved_bytes == 60 * MIB
    assert allocator.blocks()["segment_id"].n_unique() == 1
    allocator.malloc(1000)
    assert allocator.counters.reserved_bytes == 62 * MIB
    events = allocator.recording().allocator_events
    mapped = events.filter(pl.col("action") == "segment_map")["allocated_bytes"].to_list()
    assert mapped == [40 * MIB, 20 * MIB, 2 * MIB]


def test_pages_go_back_from_the_middle_and_their_gap_is_filled_first() -> None:
    allocator = Allocator(TorchSettings(expandable_segments=True), limit_bytes=1 << 30)
    low, middle, high = (allocator.malloc(40 * MIB) for _ in range(3))
    assert low is not None and middle is not None and high is not None
    allocator.free(middle)
    allocator.empty_cache()
    assert allocator.counters.reserved_bytes == 80 * MIB
    assert allocator.blocks()["segment_id"].to_list() == [low, high]
    assert allocator.malloc(40 * MIB) == middle


def test_pages_of_an_expandable_segment_are_no_split_blocks() -> None:
    allocator = Allocator(TorchSettings(expandable_segments=True))
    first = allocator.malloc(10 * MIB)
    allocator.malloc(5 * MIB)
    assert first is not None
    allocator.free(first)
    assert allocator.recording().memory_stats["inactive_split_bytes"].item() == 0


def test_bytes_cut_from_a_segment_are_split_ones() -> None:
    allocator = taken(None, 2 * MIB)
    assert allocator.recording().memory_stats["inactive_split_bytes"].item() == 18 * MIB
