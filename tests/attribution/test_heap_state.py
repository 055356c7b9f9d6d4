"""The state of a heap over time, held against a heap in plain Python and against real snapshots."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from handmade_heap import BEGAN, MIB, Heap, framed, recorded
from hypothesis import given, settings
from hypothesis import strategies as st

from infer_diag import schema
from infer_diag.attribution.heap.curves import heap_curves
from infer_diag.attribution.heap.maps import block_map, heap_agreement
from infer_diag.errors import DiagError
from infer_diag.loaders import load
from infer_diag.recording import Recording, Source

CORPUS = Path(__file__).parents[3] / "shared" / "corpus"
needs_corpus = pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus of real recordings is not here")

sizes = st.one_of(
    st.integers(1, 4096), st.integers(1, MIB), st.integers(MIB, 12 * MIB), st.sampled_from([MIB, MIB + 1, 20 * MIB])
)
steps = st.lists(st.tuples(st.sampled_from("aaafrt"), sizes, st.integers(0, 1 << 20)), min_size=1, max_size=40)


def driven(moves: list[tuple[str, int, int]]) -> Heap:
    heap = Heap()
    heap.alloc(3 * MIB)
    for kind, size, pick in moves:
        if kind == "a":
            heap.alloc(size)
        elif kind == "t":
            heap.trim()
        elif heap.live:
            address = sorted(heap.live)[pick % len(heap.live)]
            if kind == "f":
                heap.free(address)
            elif address not in heap.awaited:
                heap.request_free(address)
    return heap


def state(rows: pl.DataFrame) -> list[tuple[int, int, str]]:
    return [(a, s, str(k)) for a, s, k in rows.select("address_id", "size_bytes", "state").iter_rows()]


@settings(max_examples=30, deadline=None)
@given(steps, st.floats(0, 1))
def test_any_state_since_the_recording_began_is_the_heaps(moves: list[tuple[str, int, int]], share: float) -> None:
    """Whatever lived before the first event that was kept is found again, at every event and not only at the end."""
    heap = driven(moves)
    forgotten = int(share * len(heap.events))
    recording = heap.recording(forgotten)
    agreement = heap_agreement(recording).row(0, named=True)
    assert agreement["equal_count"] == agreement["block_count"] == agreement["replayed_count"]
    assert not any(agreement[f"{name}_count"] for name in ("outside", "overlapping", "unknown_free", "uncovered"))
    for number in {0, len(heap.events) // 2, len(heap.events) - 1}:
        if number >= forgotten:
            found = state(block_map(recording, event=number - forgotten))
            truth = heap.states[number]
            assert {row[::2] for row in found if row[2] != "inactive"} == {
                row[::2] for row in truth if row[2] != "inactive"
            }
            # Of a block freed before its neighbours changed nobody can tell which bytes stayed with it unused.
            if not forgotten:
                assert found == truth


@settings(max_examples=20, deadline=None)
@given(steps)
def test_curves_are_the_sums_of_the_maps(moves: list[tuple[str, int, int]]) -> None:
    heap = driven(moves)
    curves = heap_curves(heap.recording())
    device = curves.filter(scope="device").filter(pl.col("event_id") >= 0)
    assert device["event_id"].to_list() == list(range(len(heap.events)))
    for row, truth in zip(device.iter_rows(named=True), heap.states, strict=True):
        idle = [size for _, size, kind in truth if kind == "inactive"]
        live = [size for _, size, kind in truth if kind == "active"]
        whole = sum(size for _, size, _ in truth)
        assert (row["reserved_bytes"], row["allocated_bytes"], row["idle_bytes"]) == (whole, sum(live), sum(idle))
        assert row["active_bytes"] == whole - sum(idle)
        assert (row["largest_free_bytes"], row["hole_count"]) == (max(idle, default=0), len(idle))
    pools = curves.filter(scope="pool").group_by("event_id", maintain_order=True).agg(pl.col("idle_bytes").sum())
    assert pools.filter(pl.col("event_id") >= 0)["idle_bytes"].to_list() == device["idle_bytes"].to_list()


def test_the_most_between_two_instants_is_kept() -> None:
    heap = Heap()
    for _ in range(30):
        heap.free(heap.alloc(5 * MIB))
    curves = heap_curves(heap.recording(), instants=3).filter(scope="device")
    assert curves["active_bytes"].to_list()[-1] == 0
    assert curves["peak_active_bytes"].to_list()[1:] == [5 * MIB, 5 * MIB]


def test_stuck_bytes_lie_beside_live_blocks() -> None:
    heap = Heap()
    kept = heap.alloc(2 * MIB)
    heap.free(heap.alloc(30 * MIB))
    row = heap_curves(heap.recording()).filter(scope="device").row(-1, named=True)
    assert heap.live.keys() == {kept}
    assert (row["idle_bytes"], row["inactive_split_bytes"]) == (48 * MIB, 18 * MIB)


def test_bytes_that_stayed_with_a_block_are_found_by_what_comes_after() -> None:
    """A block that took in its hole's rest shows it only when its neighbour's place is handed out above the gap."""
    heap = Heap()
    low = heap.alloc(9 * MIB)
    high = heap.alloc(9 * MIB + 512)
    heap.free(low)
    padded = heap.alloc(8 * MIB + 512)
    heap.free(high)
    heap.alloc(3 * MIB)
    heap.free(padded)
    assert state(block_map(heap.recording(3), event=0))[0] == heap.states[3][0]
    assert heap_agreement(heap.recording(len(heap.events) - 3))["equal_count"][0] == len(heap.state())


def pages(action: str, address: int, size: int) -> dict[str, Any]:
    return {"action": action, "address_id": address, "allocated_bytes": size, "stream": "0", "gpu": "0"}


def block(action: str, address: int, size: int) -> dict[str, Any]:
    return {"action": action, "address_id": address, "requested_bytes": size, "stream": "0", "gpu": "0"}


def test_pages_of_expandable_segments_join_and_part() -> None:
    base, chunk = 1 << 40, 20 * MIB
    events = [
        pages("segment_map", base, chunk),
        pages("segment_map", base + chunk, chunk),
        block("alloc", base, 30 * MIB),
        block("free", base, 30 * MIB),
        pages("segment_unmap", base, chunk),
        pages("segment_map", base + 2 * chunk, chunk),
    ]
    recording = recorded(events, [])
    whole = [(base, 40 * MIB, "inactive")]
    assert state(block_map(recording, event=1)) == whole == state(block_map(recording, event=3))
    assert state(block_map(recording, event=2))[0] == (base, 30 * MIB, "active")
    assert state(block_map(recording, event=5)) == [(base + chunk, 40 * MIB, "inactive")]
    final = [
        {**each, "snapshot": "s", "gpu": "0", "stream": "0", "is_expandable": True, "segment_kind": "large"}
        for each in (
            {
                "segment_id": base + chunk,
                "segment_bytes": 2 * chunk,
                "address_id": base + chunk,
                "size_bytes": 2 * chunk,
                "state": "inactive",
            },
        )
    ]
    late = recorded(events[4:], final)
    assert state(block_map(late, event=-1)) == [(base, 40 * MIB, "inactive")]
    assert heap_agreement(late)["equal_count"].to_list() == [1]


def test_a_log_without_segments_bounds_what_is_idle() -> None:
    rmm = Source(path="rmm.csv", format="rmm", engine="rmm")
    events = [
        block("alloc", 4096, 1000),
        block("alloc", 5120, 100),
        block("free", 4096, 1000),
        block("free", 9216, 512),
    ]
    recording = recorded(events, [], rmm)
    rows = heap_curves(recording).filter(scope="device")
    assert rows["basis"].unique().to_list() == ["touched"]
    assert rows["idle_bytes"].to_list() == [1024 + 256, 256, 0, 1024, 1024 + 512]
    assert state(block_map(recording))[:2] == [(4096, 1024, "inactive"), (5120, 256, "active")]


def test_a_pool_whose_segments_are_recorded_gives_exact_holes() -> None:
    cupy = Source(path="hooks.jsonl", format="cupy-hooks", engine="cupy")
    events = [
        pages("segment_alloc", 1 << 20, 4096),
        {**block("alloc", 1 << 20, 1000), "allocated_bytes": 1024},
        # The same addresses again: the pool gave the first segment back, which its hooks do not tell.
        pages("segment_alloc", 1 << 20, 8192),
    ]
    assert state(block_map(recorded(events, [], cupy))) == [(1 << 20, 8192, "inactive")]


def test_a_drivers_trace_tells_what_is_reserved_and_nothing_of_blocks() -> None:
    nsys = Source(path="a.sqlite", format="nsight-systems", engine="nsight-systems")
    events = [pages("segment_alloc", 1 << 20, 4096), pages("segment_free", 1 << 20, 4096)]
    row = heap_curves(recorded(events, [], nsys)).filter(scope="device").row(1, named=True)
    assert row["reserved_bytes"] == 4096
    assert row["active_bytes"] is row["idle_bytes"] is row["external_frag_ratio"] is None


def test_devices_and_sources_are_apart() -> None:
    events = [{**block("alloc", 4096, 512), "gpu": gpu} for gpu in ("0", "1")]
    curves = heap_curves(recorded(events, [], Source(path="a", format="rmm", engine="rmm")))
    assert curves.filter(scope="device").group_by("gpu").len()["len"].to_list() == [2, 2]


def test_a_time_finds_its_event_and_one_outside_is_refused() -> None:
    heap = Heap()
    heap.alloc(512)
    heap.alloc(512)
    recording = heap.recording()
    assert len(state(block_map(recording, at_s=0.001))) == 2
    with pytest.raises(DiagError, match="lies outside"):
        block_map(recording, at_s=5.0)
    with pytest.raises(DiagError, match="no event 9"):
        block_map(recording, event=9)
    untimed = recording.replace(allocator_events=recording.allocator_events.with_columns(time=pl.lit(None, BEGAN_TYPE)))
    with pytest.raises(DiagError, match="no times"):
        block_map(untimed, at_s=0.0)


BEGAN_TYPE = pl.Series([BEGAN]).dtype


def test_lost_events_are_counted_and_not_hidden() -> None:
    heap = Heap()
    first = heap.alloc(3 * MIB)
    heap.free(first)
    heap.alloc(2 * MIB)
    broken = [each for each in heap.events if each["action"] not in ("free", "free_requested")]
    row = heap_agreement(recorded(broken, heap.blocks())).row(0, named=True)
    assert row["overlapping_count"] == 1
    assert row["equal_count"] == row["block_count"] == 2


def test_nothing_recorded_gives_nothing() -> None:
    assert heap_curves(Recording()).is_empty()
    assert block_map(Recording()).is_empty()
    assert heap_agreement(Recording()).is_empty()
    empty = Recording(sources=(Source("a", "x", "y"),), allocator_events=framed(schema.AllocatorEvents, []))
    assert heap_curves(empty).is_empty()


@needs_corpus
@pytest.mark.parametrize(
    "name",
    [
        "llminf__1.3b_snapshot",
        "llminf__oom_snapshot",
        "mosaic__output",
        "silmont__mem_snapshot",
        "silmont__memory_forward_bf16_128",
    ],
)
def test_the_replayed_end_of_a_real_recording_is_its_snapshot(name: str) -> None:
    row = heap_agreement(load(str(CORPUS / "snapshots" / f"{name}.pickle"))).row(0, named=True)
    assert row["equal_count"] == row["block_count"] == row["replayed_count"] > 0
    assert row["sized_later_count"] == row["overlapping_count"] == row["unknown_free_count"] == 0


@needs_corpus
def test_a_traces_own_totals_agree_with_the_replay() -> None:
    """Kineto writes the allocator's totals beside each event; what the replayed blocks hold changes by the same."""
    recording = load(str(CORPUS / "kineto" / "hta__df_index_resolver.json.gz"))
    told = recording.allocator_events["total_allocated_bytes"].cast(pl.Int64)
    curves = heap_curves(recording, instants=200)
    device, pool = (curves.filter(pl.col("event_id") >= 0, scope=scope) for scope in ("device", "pool"))
    assert device["allocated_bytes"].to_list() == told.gather(device["event_id"]).to_list()
    assert (device["allocated_bytes"] - pool["allocated_bytes"]).n_unique() == 1
    assert device["reserved_bytes"].min() >= pool["allocated_bytes"].max()  # type: ignore[operator]


def test_without_numba_the_error_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['numba'] = None\n"
        "from infer_diag.recording import Recording, Source\n"
        "from infer_diag.attribution.heap.trace import simulator\n"
        "from infer_diag.errors import DiagError\n"
        "try:\n    simulator()\nexcept DiagError as error:\n    print(error)\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "infer-diag[sim]" in shown
