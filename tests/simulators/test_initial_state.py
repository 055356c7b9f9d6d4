"""A recording that begins in mid-life: undoing it gives the heap that was there, and the replay goes on from it."""

from __future__ import annotations

import random
from pathlib import Path

import polars as pl
import pytest

from infer_diag.loaders import load
from infer_diag.recording import Recording
from infer_diag.simulators.allocators import Allocator, Settings, TorchSettings
from infer_diag.simulators.allocators.trace import trace
from infer_diag.simulators.initial_state import initial_state
from infer_diag.simulators.replay import devices, replay

SNAPSHOTS = Path(__file__).parents[3] / "shared" / "corpus" / "snapshots"
MIB = 1 << 20
WHERE = ("segment_id", "address_id", "size_bytes", "requested_bytes", "state")
SETTINGS = {
    "default": TorchSettings(),
    "expandable": TorchSettings(expandable_segments=True),
}


def worked(allocator: Allocator, seed: int, calls: int, live: list[int]) -> None:
    """Requests and frees as a server makes them: many small ones, some large, a few that live long."""
    draw = random.Random(seed)
    for _ in range(calls):
        if len(live) > 60 or (live and draw.random() < 0.45):
            allocator.free(live.pop(draw.randrange(len(live))))
            continue
        size = draw.choice([draw.randrange(1, 4096), draw.randrange(1, MIB), draw.randrange(MIB, 30 * MIB)])
        address = allocator.malloc(size, draw.choice(["0", "0", "7"]))
        if address is not None:
            live.append(address)
        if draw.random() < 0.004:
            allocator.empty_cache()


def recorded_from(seed: int, settings: Settings, limit: int | None) -> tuple[pl.DataFrame, Recording]:
    """(the blocks when the recorder is switched on, what it records from then on)."""
    allocator = Allocator(settings, limit_bytes=limit)
    live: list[int] = []
    worked(allocator, seed, 400, live)
    blocks, before = allocator.blocks(), len(allocator.recording().allocator_events)
    worked(allocator, seed + 1000, 400, live)
    whole = allocator.recording()
    return blocks, whole.replace(allocator_events=whole.allocator_events.slice(before))


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("seed", range(4))
def test_undoing_a_recording_gives_the_blocks_at_its_beginning(seed: int, settings: Settings) -> None:
    true, recording = recorded_from(seed, settings, None)
    (device,) = devices(recording)
    state = initial_state(device.events, device.blocks, device.steps())
    found = state.blocks
    assert state.doubts == ()
    assert found["segment_bytes"].sum() == true["segment_bytes"].sum()
    exact = found.join(true, on=["address_id", "size_bytes", "state"], how="semi")
    # What is not exact is a rest of up to 1 MiB in a block whose size nothing tells, and the hole beside it.
    assert len(found) - len(exact) <= 2 * state.unsure_count
    live = found.filter(pl.col("state") == "active")
    assert live["address_id"].to_list() == true.filter(pl.col("state") == "active")["address_id"].to_list()
    assert int((state.objects >= 0).sum()) == len(live)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("seed", range(4))
def test_the_replay_goes_on_where_the_recording_begins(seed: int, settings: Settings) -> None:
    _, recording = recorded_from(seed, settings, None)
    (device,) = devices(recording)
    done = replay(device)
    assert done.begin == "reconstructed"
    assert done.placed_ratio is not None and done.placed_ratio >= 0.95
    moved = done.placements.filter(pl.col("simulated_address_id") != pl.col("recorded_address_id"))
    assert moved["reason"].null_count() == 0
    assert done.placements.filter(pl.col("reason").is_not_null()).height == len(moved)


def test_a_recording_with_failures_tells_the_limit_and_fails_again() -> None:
    _, recording = recorded_from(5, TorchSettings(), 320 * MIB)
    (device,) = devices(recording)
    assert device.limit_bytes == 320 * MIB
    failures = int((device.events["action"] == "oom").sum())
    assert failures > 5
    done = replay(device)
    assert done.counters.failure_count == failures
    assert done.avoided_count == done.new_failure_count == 0
    assert done.placed_ratio is not None and done.placed_ratio >= 0.95
    assert done.counters.retry_count > 0


def test_frees_that_end_nothing_are_doubted() -> None:
    allocator = Allocator()
    address = allocator.malloc(1000)
    assert address is not None
    allocator.free(address)
    recording = allocator.recording()
    events = recording.allocator_events
    twice = pl.concat([events, events.filter(pl.col("action") == "free")])
    told = trace(twice, recording.blocks)
    assert told.doubts == ("1 frees end nothing that lives and are left out",)
    assert len(told.before) == 0


def test_what_lived_outside_every_segment_is_left_out_and_said() -> None:
    allocator = Allocator()
    allocator.malloc(1000)
    recording = allocator.recording()
    stray = recording.allocator_events.tail(1).with_columns(
        pl.lit("free").cast(recording.allocator_events["action"].dtype).alias("action"),
        pl.lit(77, pl.UInt64).alias("address_id"),
    )
    events = stray
    told = trace(events, recording.blocks)
    state = initial_state(events, recording.blocks, told)
    assert state.doubts == ("1 objects that lived before the recording lie in no known segment",)
    assert state.blocks.filter(pl.col("state") == "active").height == 1


def snapshot(name: str) -> Recording:
    path = SNAPSHOTS / name
    if not path.exists():
        pytest.skip("the real snapshots are not here")
    return load(str(path))


def test_a_snapshot_from_the_first_allocation_on_is_met_address_by_address() -> None:
    recording = snapshot("silmont__mem_snapshot.pickle")
    (device,) = devices(recording)
    done = replay(device)
    assert done.begin == "empty"
    assert (len(done.placements), done.placed_ratio) == (36, 1.0)
    taken = done.recording().allocator_events.filter(pl.col("action") == "segment_alloc")
    told = recording.allocator_events.filter(pl.col("action") == "segment_alloc")
    assert taken.select("address_id", "allocated_bytes").equals(told.select("address_id", "allocated_bytes"))
    assert len(taken) == 9
    assert done.allocator.blocks().select(WHERE).equals(recording.blocks.sort("address_id").select(WHERE))


def test_a_snapshot_in_mid_life_is_met_from_its_undone_beginning() -> None:
    recording = snapshot("silmont__memory_forward_bf16_128.pickle")
    (device,) = devices(recording)
    done = replay(device)
    assert done.begin == "reconstructed"
    assert done.placed_ratio is not None and done.placed_ratio >= 0.95
    moved = done.placements.filter(pl.col("simulated_address_id") != pl.col("recorded_address_id"))
    assert moved["reason"].null_count() == 0
    assert done.allocator.blocks().select(WHERE).equals(recording.blocks.sort("address_id").select(WHERE))
    state = initial_state(device.events, device.blocks, device.steps())
    assert state.blocks["segment_bytes"].n_unique() <= state.blocks["segment_id"].n_unique() == 43
    assert int((state.objects >= 0).sum()) == 137
