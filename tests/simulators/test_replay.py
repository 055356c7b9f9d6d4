"""Replays under the recorded settings and others: what is met, what deviates and why, what fails and what does not."""

from __future__ import annotations

import importlib.util
import pickle
from pathlib import Path

import polars as pl
import pytest

from infer_diag.errors import DiagError
from infer_diag.loaders import load
from infer_diag.recording import Recording, Source
from infer_diag.simulators import replay_reasons
from infer_diag.simulators.allocators import Allocator, CupySettings, RmmPoolSettings, TorchSettings
from infer_diag.simulators.replay import Device, devices, recorded_peaks, recorded_settings, replay

GENERATOR = Path(__file__).parents[3] / "shared" / "bench" / "gen_snapshot.py"
MIB = 1 << 20


def pinned() -> Recording:
    """A live block pins a segment of 100 MiB, so that 80 MiB fail on a device of 160 MiB of which 130 are idle."""
    allocator = Allocator(limit_bytes=160 * MIB)
    whole = allocator.malloc(100 * MIB)
    assert whole is not None
    allocator.free(whole)
    assert allocator.malloc(30 * MIB) == whole
    assert allocator.malloc(80 * MIB) is None
    return allocator.recording()


def only(recording: Recording) -> Device:
    (device,) = devices(recording)
    return device


def test_a_request_that_fails_for_its_holes_is_served_by_expandable_segments() -> None:
    device = only(pinned())
    assert device.limit_bytes == 160 * MIB
    same = replay(device)
    assert (same.counters.failure_count, same.avoided_count, same.new_failure_count) == (1, 0, 0)
    assert same.placed_ratio == 1.0
    other = replay(device, TorchSettings(expandable_segments=True))
    assert (other.counters.failure_count, other.avoided_count, other.new_failure_count) == (0, 1, 0)
    assert other.placed_ratio is None
    assert other.counters.reserved_peak_bytes == 120 * MIB


def test_a_smaller_device_makes_other_requests_fail() -> None:
    done = replay(only(pinned()), limit_bytes=50 * MIB)
    assert done.new_failure_count > 0
    assert done.counters.reserved_peak_bytes <= 50 * MIB


def test_the_run_reads_like_a_recording_of_its_own() -> None:
    done = replay(only(pinned()))
    again = replay(only(done.recording()))
    assert again.placed_ratio == 1.0
    assert again.allocator.blocks().equals(done.allocator.blocks())


def test_every_deviation_has_its_reason() -> None:
    allocator = Allocator(TorchSettings(roundup_power2_divisions=2))
    live = []
    for size in range(1, 60):
        live.append(allocator.malloc(size * 1000 + size * size * 3000))
        if size % 3 == 0:
            address = live.pop(len(live) // 2)
            assert address is not None
            allocator.free(address)
    device = only(allocator.recording())
    done = replay(device, TorchSettings(), begin="empty")
    told = done.placements
    moved = pl.col("simulated_address_id").ne_missing(pl.col("recorded_address_id"))
    assert 0 < told.filter(moved).height < len(told)
    assert (told.select(moved).to_series() == told["reason"].is_not_null()).all()
    known = {value for name, value in vars(replay_reasons).items() if name.isupper() and isinstance(value, str)}
    assert set(told["reason"].drop_nulls()) <= known
    assert done.placed_ratio == pytest.approx(1 - told.filter(moved).height / len(told))
    first = told.filter(moved).row(0, named=True)
    assert first["reason"] not in (replay_reasons.TAKEN, replay_reasons.FAILED)


def test_a_failure_that_the_recording_did_not_have_is_a_reason() -> None:
    allocator = Allocator()
    for _ in range(3):
        allocator.malloc(20 * MIB)
    done = replay(only(allocator.recording()), limit_bytes=40 * MIB)
    assert done.placements["reason"].to_list() == [None, None, replay_reasons.FAILED]


def test_the_cache_is_emptied_where_the_program_emptied_it() -> None:
    allocator = Allocator()
    first = allocator.malloc(100 * MIB)
    assert first is not None
    allocator.free(first)
    allocator.empty_cache()
    allocator.malloc(300 * MIB)
    device = only(allocator.recording())
    done = replay(device)
    assert done.placed_ratio == 1.0
    assert done.counters.reserved_peak_bytes == 300 * MIB == recorded_peaks(device)[0]
    assert replay(device, CupySettings()).counters.reserved_peak_bytes == 300 * MIB


def test_what_a_retry_gave_back_stays_where_the_device_is_larger() -> None:
    allocator = Allocator(limit_bytes=300 * MIB)
    first = allocator.malloc(100 * MIB)
    assert first is not None
    allocator.free(first)
    allocator.malloc(250 * MIB)
    allocator.malloc(200 * MIB)
    device = only(allocator.recording())
    assert device.limit_bytes == 300 * MIB
    assert replay(device).counters.retry_count == allocator.counters.retry_count == 2
    larger = replay(device, limit_bytes=1 << 30)
    assert larger.counters.retry_count == 0
    assert larger.counters.reserved_peak_bytes == 550 * MIB
    assert larger.avoided_count == 1


def test_another_allocator_begins_with_what_lived_allocated_anew() -> None:
    allocator = Allocator()
    lived = [allocator.malloc(3 * MIB) for _ in range(4)]
    before = len(allocator.recording().allocator_events)
    assert lived[1] is not None
    allocator.free(lived[1])
    allocator.malloc(5 * MIB)
    whole = allocator.recording()
    device = only(whole.replace(allocator_events=whole.allocator_events.slice(before)))
    done = replay(device, CupySettings())
    assert done.begin == "packed"
    assert done.counters.allocated_peak_bytes == 14 * MIB
    assert done.counters.reserved_peak_bytes == 17 * MIB
    assert len(done.placements) == 1
    assert len(done.recording().allocator_events) >= 7
    with pytest.raises(DiagError, match="no blocks to begin with"):
        replay(only(whole.replace(blocks=whole.blocks.clear())), begin="reconstructed")


def test_several_devices_are_apart() -> None:
    one, pages = pinned(), Allocator(TorchSettings(expandable_segments=True))
    pages.malloc(30 * MIB)
    other = pages.recording()
    kind = one.allocator_events["gpu"].dtype
    both = one.replace(
        allocator_events=pl.concat(
            [
                one.allocator_events.with_columns(pl.lit("0").cast(kind).alias("gpu")),
                other.allocator_events.with_columns(pl.lit("1").cast(kind).alias("gpu")),
            ]
        ),
        blocks=pl.concat(
            [one.blocks.with_columns(pl.lit("0").alias("gpu")), other.blocks.with_columns(pl.lit("1").alias("gpu"))]
        ),
        ooms=one.ooms.with_columns(pl.lit("0").alias("gpu")),
    )
    first, second = devices(both)
    assert (first.gpu, second.gpu) == ("0", "1")
    assert recorded_settings(first) == TorchSettings()
    assert recorded_settings(second) == TorchSettings(expandable_segments=True)
    assert (first.limit_bytes, second.limit_bytes) == (160 * MIB, None)


def test_where_only_the_rounded_size_is_recorded_it_is_what_was_asked_for() -> None:
    allocator = Allocator(CupySettings())
    for size in (3 * MIB, 5 * MIB):
        allocator.malloc(size)
    events = allocator.recording().allocator_events.filter(pl.col("action") == "alloc")
    told = events.with_columns(pl.lit(None, pl.UInt64).alias("requested_bytes"))
    recording = Recording(sources=(Source("trace", "kineto", "pytorch"),), allocator_events=told)
    done = replay(only(recording))
    assert done.placed_ratio is None
    assert done.counters.allocated_peak_bytes == 8 * MIB


def test_a_damaged_address_costs_its_own_event() -> None:
    recording = pinned()
    events = recording.allocator_events
    far = events.head(1).with_columns(pl.lit((1 << 64) - 4096, pl.UInt64).alias("address_id"))
    device = only(recording.replace(allocator_events=pl.concat([events, far])))
    done = replay(device)
    assert done.doubts == ("1 events have an address that no device has and are left out",)
    assert done.placed_ratio == 1.0


@pytest.mark.parametrize(("engine", "settings"), [("cupy", CupySettings()), ("rmm", RmmPoolSettings())])
def test_events_without_blocks_are_replayed_by_their_own_allocator(engine: str, settings: object) -> None:
    allocator = Allocator(CupySettings())
    addresses = [allocator.malloc(size * 1000) for size in (5, 1, 9)]
    assert addresses[0] is not None
    allocator.free(addresses[0])
    allocator.malloc(4000)
    whole = allocator.recording()
    recording = Recording(sources=(Source("log", engine, engine),), allocator_events=whole.allocator_events)
    device = only(recording)
    assert recorded_settings(device) == settings
    if engine == "cupy":
        assert replay(device).placed_ratio == 1.0
    else:
        events = recording.allocator_events.filter(pl.col("action").is_in(["alloc", "free"]))
        done = replay(only(recording.replace(allocator_events=events)))
        assert done.placed_ratio is None
        assert done.counters.allocated_peak_bytes > 0


@pytest.mark.parametrize("limit_gib", [24.0, 11.4])
def test_another_model_of_the_same_allocator_agrees_address_by_address(limit_gib: float, tmp_path: Path) -> None:
    if not GENERATOR.exists():
        pytest.skip("the generator of snapshots is not here")
    spec = importlib.util.spec_from_file_location("gen_snapshot", GENERATOR)
    assert spec is not None and spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    heap, snapshot = generator.build(20_000, seed=3, depth=1, limit=int(limit_gib * (1 << 30)))
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot, protocol=4))
    device = only(load(str(path)))
    done = replay(device)
    assert done.placed_ratio == 1.0
    assert done.counters.failure_count == heap.ooms
    assert (done.counters.reserved_bytes, done.counters.allocated_bytes) == (heap.reserved, heap.allocated)
    if limit_gib < 24:
        assert heap.ooms > 100
