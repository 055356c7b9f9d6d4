"""What every simulated allocator keeps to, whatever is asked of it, and what each does that the others do not."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infer_diag.errors import DiagError
from infer_diag.simulators.allocators import (
    ALLOCATORS,
    Allocator,
    AsyncSettings,
    CupySettings,
    RmmArenaSettings,
    RmmPoolSettings,
    SlabSettings,
    TorchSettings,
)

MIB = 1 << 20
LIMIT = 256 * MIB
KINDS = ALLOCATORS | {
    "torch_expandable": TorchSettings(expandable_segments=True),
    "torch_split": TorchSettings(max_split_size_bytes=32 * MIB),
    "torch_collecting": TorchSettings(memory_fraction=0.9, garbage_collection_threshold=0.5),
}

SIZES = st.one_of(
    st.integers(0, 4096),
    st.integers(1, 2 * MIB),
    st.integers(MIB, 40 * MIB),
    st.sampled_from([512, MIB, MIB + 1, 2 * MIB, 10 * MIB, 10 * MIB + 1, 20 * MIB, LIMIT, LIMIT + 1]),
)
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("malloc"), SIZES, st.sampled_from(["0", "7"])),
        st.tuples(st.just("free"), st.integers(0, 1 << 30)),
        st.tuples(st.just("free_when_idle"), st.integers(0, 1 << 30)),
        st.tuples(st.just("complete"), st.integers(0, 1 << 30)),
        st.tuples(st.just("empty_cache")),
    ),
    max_size=80,
)
relaxed = settings(deadline=None, max_examples=10, suppress_health_check=[HealthCheck.too_slow])


@dataclass
class Driven:
    """An allocator and what a program did with it."""

    allocator: Allocator
    live: list[tuple[int, int]] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    addresses: list[int | None] = field(default_factory=list)


def driven(kind: str, calls: list[tuple[object, ...]], limit: int = LIMIT) -> Driven:
    run = Driven(Allocator(KINDS[kind], limit_bytes=limit))
    for call in calls:
        match call:
            case ("malloc", int(size), str(stream)):
                address = run.allocator.malloc(size, stream)
                run.addresses.append(address)
                if address is not None:
                    run.live.append((address, size))
            case ("free", int(place)) if run.live:
                run.allocator.free(run.live.pop(place % len(run.live))[0])
            case ("free_when_idle", int(place)) if run.live:
                run.waiting.append(run.allocator.free_when_idle(run.live.pop(place % len(run.live))[0]))
            case ("complete", int(place)) if run.waiting:
                run.allocator.complete(run.waiting.pop(place % len(run.waiting)))
            case ("empty_cache",):
                run.allocator.empty_cache()
    return run


@pytest.mark.parametrize("kind", KINDS)
@relaxed
@given(calls=CALLS)
def test_live_blocks_never_overlap_and_blocks_tile_what_is_reserved(kind: str, calls: list[tuple[object, ...]]) -> None:
    run = driven(kind, calls)
    blocks, counters = run.allocator.blocks(), run.allocator.counters
    ends = blocks["address_id"] + blocks["size_bytes"]
    assert (ends[:-1] <= blocks["address_id"][1:]).all()
    assert counters.reserved_bytes == blocks["size_bytes"].sum() <= LIMIT
    assert counters.reserved_peak_bytes <= LIMIT
    in_state = {state: blocks.filter(pl.col("state") == state)["size_bytes"].sum() for state in ("active", "awaiting")}
    assert counters.allocated_bytes == in_state["active"]
    assert counters.active_bytes == sum(in_state.values())
    placed = dict(zip(blocks["address_id"], blocks["size_bytes"], strict=True))
    assert all(placed[address] >= size for address, size in run.live)
    assert counters.slack_bytes >= 0
    assert counters.cached_bytes >= 0
    spans = blocks.group_by("segment_id").agg(
        pl.col("address_id").min().alias("begin"), pl.col("size_bytes").sum(), pl.col("segment_bytes").first()
    )
    assert (spans["begin"] == spans["segment_id"]).all()
    assert (spans["size_bytes"] == spans["segment_bytes"]).all()
    if kind != "slab_classes":
        idle = pl.col("state").is_in(["inactive", "free"])
        both = blocks.with_columns((idle & idle.shift(1).over("segment_id")).alias("split"))
        assert not both["split"].any()


@pytest.mark.parametrize("kind", ["torch", "torch_expandable", "rmm_arena", "slab_classes"])
@relaxed
@given(calls=CALLS)
def test_the_same_calls_give_the_same_addresses(kind: str, calls: list[tuple[object, ...]]) -> None:
    one, other = driven(kind, calls), driven(kind, calls)
    assert one.addresses == other.addresses
    assert one.allocator.recording().allocator_events.equals(other.allocator.recording().allocator_events)


@pytest.mark.parametrize("kind", KINDS)
@relaxed
@given(calls=CALLS)
def test_freeing_everything_leaves_nothing_in_use(kind: str, calls: list[tuple[object, ...]]) -> None:
    run = driven(kind, calls)
    run.allocator.empty_cache()
    for address, _ in run.live:
        run.allocator.free(address)
    run.allocator.empty_cache()
    counters = run.allocator.counters
    assert counters.allocated_bytes == counters.requested_bytes == counters.active_bytes == 0
    if kind in ("torch", "torch_expandable", "torch_split", "torch_collecting", "cupy", "slab_classes"):
        assert counters.reserved_bytes == 0
    else:
        segments = run.allocator.blocks().group_by("segment_id").len()
        assert (segments["len"] == 1).all()


@pytest.mark.parametrize("kind", ["torch", "torch_expandable", "cupy", "rmm_arena"])
@relaxed
@given(calls=CALLS)
def test_a_simulated_run_reads_like_a_recorded_one(kind: str, calls: list[tuple[object, ...]]) -> None:
    run = driven(kind, calls)
    recording = run.allocator.recording()
    events = recording.allocator_events
    level = {"alloc": 1, "free": -1}
    change = pl.col("action").cast(pl.String).replace_strict(level, default=0, return_dtype=pl.Int64)
    moved = events.select((change * pl.col("allocated_bytes").cast(pl.Int64)).sum()).item()
    assert moved == run.allocator.counters.active_bytes
    assert len(recording.ooms) == run.allocator.counters.failure_count == run.addresses.count(None)
    assert "simulated" in recording.sources[0].notes[0]
    stats = recording.memory_stats.row(0, named=True)
    assert stats["reserved_bytes"] == run.allocator.counters.reserved_bytes


class PlainPool:
    """CuPy's pool as its rules read: lists, and a search through all of them."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.segments: dict[int, int] = {}
        self.idle: list[tuple[int, int]] = []
        self.live: dict[int, int] = {}
        self.above = 0x7000_0000_0000

    def malloc(self, size: int) -> int | None:
        size = max(1, -(-size // 512)) * 512
        fitting = min((hole for hole in self.idle if hole[0] >= size), default=None)
        if fitting is None:
            for _ in range(2):
                if sum(self.segments.values()) + size <= self.limit:
                    break
                whole = [hole for hole in self.idle if self.segments.get(hole[1]) == hole[0]]
                self.idle = [hole for hole in self.idle if hole not in whole]
                for _, address in whole:
                    del self.segments[address]
            else:
                return None
            fitting = (size, self.above)
            self.segments[self.above] = size
            self.above += -(-size // (2 * MIB)) * 2 * MIB
        else:
            self.idle.remove(fitting)
        found, address = fitting
        if found > size:
            self.idle.append((found - size, address + size))
        self.live[address] = size
        return address

    def free(self, address: int) -> None:
        size = self.live.pop(address)
        for hole in list(self.idle):
            if hole[1] == address + size and hole[1] not in self.segments:
                self.idle.remove(hole)
                size += hole[0]
        for hole in list(self.idle):
            if hole[1] + hole[0] == address and address not in self.segments:
                self.idle.remove(hole)
                size, address = size + hole[0], hole[1]
        self.idle.append((size, address))


@relaxed
@given(calls=st.lists(st.tuples(st.integers(1, 30 * MIB), st.integers(0, 99)), max_size=150))
def test_cupys_pool_serves_as_its_rules_read(calls: list[tuple[int, int]]) -> None:
    plain, ours = PlainPool(64 * MIB), Allocator(CupySettings(), limit_bytes=64 * MIB)
    live: list[int] = []
    for size, place in calls:
        if place < 45 and live:
            address = live.pop(place % len(live))
            plain.free(address)
            ours.free(address)
            continue
        expected = plain.malloc(size)
        assert ours.malloc(size) == expected
        if expected is not None:
            live.append(expected)


def test_the_articles_cycle_packs_torchs_segments_exactly() -> None:
    """2 + 16 + 2 MiB, each cycle alive for 20: what PyTorch takes from the driver in 20 MiB segments has no hole."""
    allocator = Allocator(limit_bytes=1 << 30)
    alive: deque[list[int | None]] = deque()
    for _ in range(500):
        if len(alive) == 20:
            for address in alive.popleft():
                assert address is not None
                allocator.free(address)
        alive.append([allocator.malloc(size * MIB) for size in (2, 16, 2)])
    counters = allocator.counters
    assert (counters.reserved_bytes, counters.allocated_bytes) == (400 * MIB, 400 * MIB)
    assert counters.failure_count == 0
    assert len(allocator.holes()) == 0


def test_rmm_grows_by_doubling_and_never_gives_back() -> None:
    allocator = Allocator(RmmPoolSettings(initial_pool_bytes=MIB))
    first = allocator.malloc(MIB)
    allocator.malloc(512)
    assert allocator.counters.reserved_bytes == 2 * MIB
    allocator.malloc(9 * MIB)
    assert allocator.counters.reserved_bytes == 11 * MIB
    assert first is not None
    allocator.free(first)
    allocator.empty_cache()
    assert allocator.counters.reserved_bytes == 11 * MIB


def test_rmms_arenas_lend_superblocks_and_take_them_back_when_a_request_would_fail() -> None:
    allocator = Allocator(RmmArenaSettings(arena_bytes=4 * MIB), limit_bytes=4 * MIB)
    small = allocator.malloc(1000, "1")
    large = allocator.malloc(2 * MIB, "1")
    assert small is not None and large == small + MIB
    assert allocator.malloc(2 * MIB, "1") is None
    allocator.free(small)
    allocator.free(large)
    assert allocator.malloc(4 * MIB, "2") == small


def test_a_stream_keeps_an_empty_superblock_until_a_request_would_fail() -> None:
    allocator = Allocator(RmmArenaSettings(arena_bytes=4 * MIB), limit_bytes=4 * MIB)
    small = allocator.malloc(1000, "1")
    assert small is not None
    allocator.free(small)
    assert allocator.malloc(3 * MIB, "2") == small + MIB
    assert allocator.counters.retry_count == 0
    assert allocator.malloc(1000, "2") == small
    assert allocator.counters.retry_count == 1


def test_the_slabs_readings_round_alike_and_hold_otherwise() -> None:
    whole, classed = Allocator(SlabSettings(), limit_bytes=LIMIT), Allocator(SlabSettings(True), limit_bytes=LIMIT)
    for allocator in (whole, classed):
        allocator.malloc(MIB)
        allocator.malloc(4 * MIB + 1)
        assert allocator.counters.allocated_bytes == 18 * MIB
    assert whole.counters.reserved_bytes == LIMIT
    assert classed.counters.reserved_bytes == 128 * MIB


def test_the_driver_pools_threshold_keeps_idle_memory() -> None:
    for threshold, left in ((0, 0), (None, 64 * MIB)):
        allocator = Allocator(AsyncSettings(threshold))
        address = allocator.malloc(40 * MIB)
        assert address is not None
        allocator.free(address)
        allocator.empty_cache()
        assert allocator.counters.reserved_bytes == left


def test_a_synchronisation_ends_what_streams_still_use() -> None:
    allocator = Allocator(limit_bytes=40 * MIB)
    first = allocator.malloc(20 * MIB)
    assert first is not None
    waiting = allocator.free_when_idle(first)
    assert allocator.blocks()["state"].to_list() == ["awaiting"]
    assert allocator.malloc(30 * MIB) is not None
    allocator.complete(waiting)
    assert allocator.counters.allocated_bytes == 30 * MIB


def test_what_cannot_be_is_refused() -> None:
    allocator = Allocator()
    with pytest.raises(DiagError, match="cannot allocate -1"):
        allocator.malloc(-1)
    with pytest.raises(DiagError, match="no live block begins"):
        allocator.free(12345)
    with pytest.raises(DiagError, match="needs the size of the device"):
        Allocator(RmmArenaSettings())
    with pytest.raises(DiagError, match="larger than the device"):
        Allocator(RmmArenaSettings(arena_bytes=2 * LIMIT), limit_bytes=LIMIT)


@pytest.mark.parametrize("kind", ["torch", "rmm_arena"])
def test_a_stream_that_comes_late_begins_with_nothing_idle(kind: str) -> None:
    allocator = Allocator(KINDS[kind], limit_bytes=LIMIT)
    early = [allocator.malloc(size) for size in range(1000, 90_000, 700)]
    for address in early[::2]:
        assert address is not None
        allocator.free(address)
    idle = set(allocator.blocks().filter(pl.col("state") != "active")["address_id"])
    late = allocator.malloc(1000, "late")
    assert late is not None
    assert kind == "rmm_arena" or late not in idle
    allocator.empty_cache()
    blocks = allocator.blocks()
    assert blocks["address_id"].is_unique().all()
    assert blocks.filter(pl.col("state") == "active").height == len(early[1::2]) + 1
