"""Memory probes on a simulated device, and the names that the adapter expects of the installed CuPy."""

from __future__ import annotations

import inspect
import random
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import infer_diag as diag
from infer_diag.errors import ProbeUnavailable
from infer_diag.probes import device as devices
from infer_diag.probes.budget import Budget
from infer_diag.probes.cupy_device import CuPyDevice, _hook
from infer_diag.probes.device import OutOfDeviceMemory
from infer_diag.probes.free_ranges import FreeRanges
from infer_diag.probes.memory.benchmark import CYCLES, allocator_run, requests
from infer_diag.probes.memory.blocks import block_map
from infer_diag.probes.memory.gpu_samples import GpuSampler
from infer_diag.probes.memory.largest import RESOLUTION_BYTES, largest_allocation
from infer_diag.probes.memory.probe import probe_memory
from infer_diag.probes.memory.recorder import EventRecorder
from infer_diag.probes.result import framed, read_result
from infer_diag.probes.simulated_device import SimulatedDevice
from infer_diag.probes.slab import SlabArena, rounded

MIB, GIB = 1 << 20, 1 << 30


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=120), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_idle_and_live_ranges_tile_their_segments(steps: list[tuple[bool, int]], seed: int) -> None:
    chosen = random.Random(seed)
    idle, live = FreeRanges(), {}
    segments = {100: 64, 164: 50}
    for base, size in segments.items():
        idle.add(base, size)
    for wants, size in steps:
        if wants or not live:
            address = idle.take(size)
            if address is None:
                assert all(room < size for _, room in idle.ranges())
            else:
                live[address] = size
        else:
            address = chosen.choice(sorted(live))
            idle.give(address, live.pop(address))
    for base, size in segments.items():
        parts = sorted((a, s) for a, s in [*idle.ranges(), *live.items()] if base <= a < base + size)
        assert [a for a, _ in parts] == [base + sum(s for _, s in parts[:place]) for place in range(len(parts))]
        assert sum(s for _, s in parts) == size
    held = idle.ranges()
    touching = [(a, b) for (a, s), (b, _) in pairwise(held) if a + s == b and b not in segments]
    assert not touching
    for address in list(live):
        idle.give(address, live.pop(address))
    assert idle.ranges() == sorted(segments.items())
    assert sorted(idle.release()) == sorted(segments)


def test_the_smallest_range_that_fits_serves() -> None:
    idle = FreeRanges()
    for base, size in ((0, 50), (100, 10), (200, 10), (300, 30)):
        idle.add(base, size)
    assert [idle.take(10), idle.take(10), idle.take(20), idle.take(60)] == [100, 200, 300, None]


@pytest.mark.parametrize(
    ("asked", "taken"), [(1, 2), (2 * MIB, 2), (4 * MIB, 4), (4 * MIB + 1, 16), (16 * MIB, 16), (17 * MIB, 32)]
)
def test_the_articles_rounding(asked: int, taken: int) -> None:
    assert rounded(asked) == taken * MIB
    arena = SlabArena(0, 64 * MIB)
    assert arena.malloc(asked) == 0
    assert arena.allocated_bytes == taken * MIB


@given(total=st.integers(1, 4000), used=st.integers(0, 4000), headroom=st.integers(0, 600), holes=st.integers(0, 6))
@settings(max_examples=80, deadline=None)
def test_bisection_finds_the_largest_block_and_keeps_out_of_the_headroom(
    total: int, used: int, headroom: int, holes: int
) -> None:
    device = SimulatedDevice(total * MIB, others_bytes=min(used, total) * MIB)
    held = []
    for number in range(holes):
        try:
            held.append(device.malloc((number + 1) * 50 * MIB))
        except OutOfDeviceMemory:
            break
    for address in held[::2]:
        device.free(address)
    device.largest_asked_bytes = 0
    free, _ = device.memory()
    row = largest_allocation(device, headroom_bytes=headroom * MIB)
    largest_hole = max((size for _, size in device._idle.ranges()), default=0)
    limit = max(free - headroom * MIB, 0)
    assert row["largest_bytes"] == min(largest_hole, limit) // RESOLUTION_BYTES * RESOLUTION_BYTES
    assert device.largest_asked_bytes <= limit
    assert device.memory()[0] == free
    assert row["attempt_count"] <= 16
    if row["next_failed_bytes"] is not None:
        assert row["next_failed_bytes"] == row["largest_bytes"] + RESOLUTION_BYTES
    framed("largest_allocations", [row])


def test_the_requests_are_the_articles_and_depend_on_the_seed_alone() -> None:
    exact = list(requests(3, "exact"))
    assert len(exact) == 3 * CYCLES
    assert {each.size_bytes for each in exact} == {2 * MIB, 16 * MIB}
    assert exact == list(requests(3, "exact"))
    assert exact != list(requests(4, "exact"))
    jittered = [each.size_bytes / MIB for each in requests(3, "jittered")]
    assert 1.2 <= min(jittered) < 1.3
    assert 22.3 < max(jittered) <= 22.4


def test_the_articles_slab_fails_more_while_its_ratio_looks_better(tmp_path: Path) -> None:
    result = probe_memory(tmp_path, SimulatedDevice(8 * GIB), seeds=5)
    runs = result.frames["allocator_runs"].filter(pl.col("sizes") == "jittered")
    failures, ratios, wastes = (
        dict(runs.group_by("allocator").agg(pl.col(column).median()).iter_rows())
        for column in ("failure_count", "external_frag_ratio", "internal_waste_ratio")
    )
    assert failures["slab"] > 1.5 * failures["cupy"] > 0
    assert ratios["slab"] < ratios["cupy"]
    assert 0.25 < wastes["slab"] < 0.36
    assert wastes["cupy"] < 0.001
    assert result.basis == "simulated"


def test_what_the_probe_writes_is_read_back(tmp_path: Path) -> None:
    device = SimulatedDevice(8 * GIB)
    result = probe_memory(tmp_path, device, seeds=1)
    path = result.write(tmp_path)
    assert read_result(path).frames["allocator_runs"].equals(result.frames["allocator_runs"])
    recording = diag.load(tmp_path / result.recordings[0])
    events = recording.allocator_events
    assert recording.sources[0].format == "allocator-events"
    assert events["time"].is_sorted()
    assert events["time"].null_count() == 0
    counts = dict(events["action"].value_counts().iter_rows())
    assert counts["alloc"] + counts["oom"] == 3 * CYCLES
    assert set(events.filter(pl.col("action") == "free")["stream"]) == {"0"}
    blocks = result.frames["free_blocks"]
    sums = blocks.group_by("segment_id").agg(pl.col("size_bytes").sum(), pl.col("segment_bytes").first())
    assert sums["size_bytes"].equals(sums["segment_bytes"].alias("size_bytes"))
    assert device.memory() == (8 * GIB, 8 * GIB)


def test_a_crowded_device_is_left_alone(tmp_path: Path) -> None:
    device = SimulatedDevice(8 * GIB, others_bytes=7 * GIB)
    with pytest.raises(ProbeUnavailable, match="only 1 GiB of the GPU are free"):
        probe_memory(tmp_path, device)
    assert device.largest_asked_bytes == 0


def test_a_spent_budget_leaves_every_allocator_with_the_same_seeds(tmp_path: Path) -> None:
    now = [0.0]
    budget = Budget(1, clock=lambda: now[0])
    now[0] = 2.0
    runs = probe_memory(tmp_path, SimulatedDevice(8 * GIB), seeds=9, budget=budget).frames["allocator_runs"]
    assert set(runs["seed_id"]) == {1}
    assert len(runs) == 6


def test_a_segment_that_was_given_back_holds_no_block() -> None:
    recorder = EventRecorder()
    for address, size in ((1000, 512), (2000, 1024), (1000, 1024)):
        recorder.event("segment_alloc", gpu=0, address=address, allocated_bytes=size)
    recorder.event("alloc", gpu=0, address=1000, requested_bytes=100, allocated_bytes=512, stream=7)
    blocks = block_map(recorder.frame(), [(1512, 512), (2000, 512), (9000, 512)], "now")
    assert blocks.select("segment_id", "segment_bytes", "address_id", "size_bytes", "state").rows() == [
        (1000, 1024, 1000, 512, "active"),
        (1000, 1024, 1512, 512, "free"),
    ]


def test_events_carry_a_clock_that_never_runs_backwards_and_the_stream_of_their_allocation() -> None:
    ticks = iter(range(0, 10_000_000, 1000))
    recorder = EventRecorder(clock=lambda: next(ticks), wall=lambda: 1_800_000_000_000_000_000)
    recorder.event("alloc", gpu=0, address=1, requested_bytes=5, allocated_bytes=512, stream=3)
    recorder.event("alloc", gpu=1, address=1, requested_bytes=5, allocated_bytes=512, stream=4)
    recorder.event("free", gpu=0, address=1, allocated_bytes=512)
    recorder.event("free", gpu=1, address=1, allocated_bytes=512)
    recorder.event("free", gpu=1, address=99, allocated_bytes=512)
    frame = recorder.frame()
    assert frame["stream"].to_list() == ["3", "4", "3", "4", None]
    assert frame["time"].is_sorted()
    assert frame["time"][0] == datetime(2027, 1, 15, 8, microsecond=1, tzinfo=UTC)
    assert len(recorder) == 5


class FakeNvml:
    """NVML with one device whose used memory grows."""

    nvmlMemory_v2 = 2

    class NVMLError(Exception):
        """What every call of NVML raises."""

    def __init__(self, driver: bool = True, version2: bool = True) -> None:
        self.used, self.driver, self.version2 = 0, driver, version2

    def nvmlInit(self) -> None:
        if not self.driver:
            raise self.NVMLError("no library")

    def nvmlShutdown(self) -> None:
        self.used = -1

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: int | None = None) -> Any:
        if version is not None and not self.version2:
            raise self.NVMLError("too old")
        self.used += 3 * MIB + 1
        return type("Info", (), {"used": self.used, "free": 10 * GIB, "reserved": 5 * MIB})

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        raise self.NVMLError("not supported")


@pytest.mark.parametrize(("version2", "reserved"), [(True, 5 * MIB), (False, None)])
def test_samples_are_read_back_to_the_byte(tmp_path: Path, version2: bool, reserved: int | None) -> None:
    with GpuSampler(3600, nvml=FakeNvml(version2=version2)) as sampler:
        sampler.sample()
    samples = diag.load(sampler.write(tmp_path / "gpu.csv")).gpu_samples
    assert samples["used_bytes"].to_list() == [(3 * MIB + 1) * place for place in (1, 2, 3)]
    assert samples["reserved_bytes"].to_list() == [reserved] * 3
    assert samples["power_w"].to_list() == [None] * 3
    assert samples["time"].null_count() == 0


def test_no_driver_means_no_samples() -> None:
    with pytest.raises(ProbeUnavailable, match="NVML finds no driver"), GpuSampler(nvml=FakeNvml(driver=False)):
        raise AssertionError


def test_the_names_of_nvml_are_those_of_the_installed_library() -> None:
    pynvml = pytest.importorskip("pynvml")
    for name in vars(FakeNvml):
        if name.startswith("nvml") or name == "NVMLError":
            assert hasattr(pynvml, name)


def cupy() -> Any:
    return pytest.importorskip("cupy", reason="CuPy is not installed")


def test_the_names_of_cupy_are_those_of_the_installed_library() -> None:
    cuda = cupy().cuda
    named = {
        cuda: ["MemoryHook", "get_current_stream", "Device", "MemoryAsyncPool"],
        cuda.memory: ["SingleDeviceMemoryPool", "PythonFunctionAllocator", "OutOfMemoryError", "MemoryAsyncPool"],
        cuda.runtime: [
            *("CUDARuntimeError", "getDeviceCount", "getDeviceProperties", "memGetInfo", "malloc", "free"),
            *("driverGetVersion", "runtimeGetVersion", "deviceGetAttribute", "cudaDevAttrMemoryPoolsSupported"),
        ],
        cuda.memory.SingleDeviceMemoryPool: [
            *("malloc", "set_limit", "total_bytes", "used_bytes", "free_all_blocks", "_debug_arena_get_index"),
        ],
        cuda.MemoryAsyncPool: ["malloc", "total_bytes", "used_bytes", "free_all_blocks"],
    }
    missing = [name for home, names in named.items() for name in names if not hasattr(home, name)]
    assert not missing
    assert cuda.runtime.CUDARuntimeError(2).status == 2
    assert "malloc_func, free_func" in cuda.memory.PythonFunctionAllocator.__doc__


def test_the_hook_takes_what_cupy_calls_it_with() -> None:
    module = cupy()
    recorder = EventRecorder()
    stream = type("Stream", (), {"ptr": 9})
    fake = type("Module", (), {"cuda": type("Cuda", (), {"MemoryHook": module.cuda.MemoryHook})})
    fake.cuda.get_current_stream = staticmethod(lambda: stream)
    hook = _hook(fake, recorder)
    assert isinstance(hook, module.cuda.MemoryHook)
    assert inspect.signature(module.cuda.MemoryHook.malloc_postprocess).parameters["kwargs"]
    hook.alloc_postprocess(device_id=0, mem_size=1024, mem_ptr=4096)
    hook.malloc_postprocess(device_id=0, size=5, mem_size=512, mem_ptr=4096, pmem_id=1)
    hook.malloc_postprocess(device_id=0, size=5, mem_size=512, mem_ptr=0, pmem_id=0)
    hook.malloc_postprocess(device_id=0, size=0, mem_size=0, mem_ptr=0, pmem_id=1)
    hook.alloc_postprocess(device_id=0, mem_size=1024, mem_ptr=0)
    hook.free_postprocess(device_id=0, mem_size=512, mem_ptr=4096, pmem_id=1)
    frame = recorder.frame()
    assert frame["action"].to_list() == ["segment_alloc", "alloc", "oom", "free"]
    assert frame["address_id"].to_list() == [4096, 4096, None, 4096]
    assert frame["stream"].to_list() == ["9", "9", "9", "9"]


def live_device() -> CuPyDevice:
    try:
        return CuPyDevice.current()
    except ProbeUnavailable as error:
        pytest.skip(str(error))


def test_without_a_gpu_the_probe_says_what_to_do(tmp_path: Path) -> None:
    try:
        devices.current()
    except ProbeUnavailable as error:
        assert error.hint
    else:
        pytest.skip("there is a GPU here")


@pytest.mark.gpu
def test_the_simulated_pool_does_what_cupys_does(tmp_path: Path) -> None:
    device = live_device()
    simulated = SimulatedDevice(device.memory()[1])
    rows, actions = [], []
    for each in (device, simulated):
        recorder = EventRecorder()
        pool = each.pools()["cupy"](GIB)
        with each.recording(recorder):
            rows.append(allocator_run("cupy", pool, "jittered", 1))
        pool.close()
        actions.append(recorder.frame()["action"].to_list())
    # Among blocks of one size CuPy takes any (it sorts by the place of its own object), so later events may differ.
    until = min(found.index("oom") for found in actions)
    assert actions[0][: until // 2] == actions[1][: until // 2]
    assert rows[0]["failure_count"] == pytest.approx(rows[1]["failure_count"], rel=0.3, abs=5)
    assert rows[0]["peak_reserved_bytes"] == pytest.approx(rows[1]["peak_reserved_bytes"], rel=0.02)


@pytest.mark.gpu
def test_the_memory_probe_gives_the_device_back(tmp_path: Path) -> None:
    device = live_device()
    free, _ = device.memory()
    result = probe_memory(tmp_path, device, seeds=2)
    assert result.basis == "measured"
    assert abs(device.memory()[0] - free) < 256 * MIB
    assert set(result.frames["allocator_runs"]["allocator"]) >= {"cupy", "slab"}
    assert len(diag.load(tmp_path / "gpu_samples.csv").gpu_samples) >= 2
