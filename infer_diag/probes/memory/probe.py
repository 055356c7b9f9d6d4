"""The memory probe: allocators compared on the device, one run recorded event by event, the largest allocation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from infer_diag.errors import ProbeUnavailable
from infer_diag.probes import device as devices
from infer_diag.probes import machine
from infer_diag.probes.budget import Budget
from infer_diag.probes.device import Device, OutOfDeviceMemory, Pool
from infer_diag.probes.memory.benchmark import LIMIT_BYTES, SEEDS, allocator_run
from infer_diag.probes.memory.blocks import block_map
from infer_diag.probes.memory.gpu_samples import GpuSampler
from infer_diag.probes.memory.largest import HEADROOM_BYTES, largest_allocation
from infer_diag.probes.memory.recorder import EventRecorder
from infer_diag.probes.result import ProbeResult, framed
from infer_diag.probes.settings import Settings
from infer_diag.units import format_bytes

EVENTS, SAMPLES = "allocator_events.parquet", "gpu_samples.csv"
_KEPT_BLOCK_BYTES = 64 << 20


def run(out: Path, settings: Settings, budget: Budget) -> ProbeResult:
    """`probe_memory` on the current GPU."""
    return probe_memory(out, devices.current(), seeds=settings.repeats or SEEDS, budget=budget)


def probe_memory(out: Path, device: Device, *, seeds: int = SEEDS, budget: Budget | None = None) -> ProbeResult:
    """The benchmark of every allocator, a recorded run of CuPy's pool with its block map, and the largest allocation.

    Writes `allocator_events.parquet` and, where NVML answers, `gpu_samples.csv` into `out`. It needs about 1.5 GiB of
    the device, frees all of it, and stays away from the last of what is free.

    Raises:
        ProbeUnavailable: less than 2 GiB of the device are free.
    """
    free, _ = device.memory()
    if free < LIMIT_BYTES + 2 * HEADROOM_BYTES:
        raise ProbeUnavailable(
            f"only {format_bytes(free)} of the GPU are free, and the probe needs 2 GiB",
            hint="stop what else runs on it, or choose another one by CUDA_VISIBLE_DEVICES",
        )
    with ExitStack() as stack:
        sampler = _sampler(stack, device)
        largest = _largest(device)
        blocks = _recorded(device, out / EVENTS)
        runs = _benchmark(device, seeds, budget or Budget(120.0))
    if sampler is not None:
        sampler.write(out / SAMPLES)
    return ProbeResult(
        probe="memory",
        basis=device.basis,
        machine=machine.facts(),
        device=device.facts(),
        frames={"largest_allocations": largest, "allocator_runs": runs, "free_blocks": blocks},
        sentences=(*_failures(runs), *_reach(largest)),
        recordings=(EVENTS,) if sampler is None else (EVENTS, SAMPLES),
    )


def _sampler(stack: ExitStack, device: Device) -> GpuSampler | None:
    """NVML's samples beside a real device; a container may have CUDA without NVML, and then there are none."""
    if device.basis != "measured":
        return None
    with suppress(ProbeUnavailable):
        return stack.enter_context(GpuSampler())
    return None


def _benchmark(device: Device, seeds: int, budget: Budget) -> pl.DataFrame:
    """Every allocator with every seed, seeds outermost, so that a budget that ends leaves all with as many."""
    rows: list[dict[str, Any]] = []
    for seed in range(1, seeds + 1):
        if seed > 1 and budget.spent:
            break
        for sizes in ("exact", "jittered"):
            for name, made in device.pools().items():
                rows.append(_with_pool(made, partial(allocator_run, name, sizes=sizes, seed=seed)))
    return framed("allocator_runs", rows)


def _with_pool(made: Callable[[int], Pool], use: Callable[[Pool], Any]) -> Any:
    pool = made(LIMIT_BYTES)
    try:
        return use(pool)
    finally:
        pool.close()


def _recorded(device: Device, path: Path) -> pl.DataFrame:
    """The block map at the end of a recorded run; empty where the pool does not tell its idle blocks."""
    recorder = EventRecorder()

    def use(pool: Pool) -> pl.DataFrame:
        with device.recording(recorder):
            allocator_run("cupy", pool, "jittered", 1)
        events = recorder.frame()
        events.write_parquet(path)
        idle = pool.free_blocks()
        return framed("free_blocks", []) if idle is None else block_map(events, idle, "end of the recorded run")

    frame: pl.DataFrame = _with_pool(device.pools()["cupy"], use)
    return frame


def _largest(device: Device) -> pl.DataFrame:
    """Before a pool holds idle blocks, while it does, and after it gave them back."""
    rows = [largest_allocation(device, "as found")]
    pool = device.pools()["cupy"](LIMIT_BYTES)
    try:
        held = []
        for _ in range(LIMIT_BYTES // _KEPT_BLOCK_BYTES):
            try:
                held.append(pool.malloc(_KEPT_BLOCK_BYTES))
            except OutOfDeviceMemory:
                break
        for address in held:
            pool.free(address)
        rows.append(largest_allocation(device, "a pool keeps idle blocks"))
    finally:
        pool.close()
    rows.append(largest_allocation(device, "the pool gave them back"))
    return framed("largest_allocations", rows)


def _failures(runs: pl.DataFrame) -> list[str]:
    """Median failures and ratios by allocator for the jittered sizes, where the ratio ranks them the wrong way."""
    told = []
    for sizes in ("exact", "jittered"):
        mine = runs.filter(pl.col("sizes") == sizes)
        if mine.is_empty():
            continue
        table = mine.group_by("allocator", maintain_order=True).agg(
            pl.col("failure_count").median(), pl.col("external_frag_ratio").median()
        )
        parts = [
            f"{row['allocator']} {row['failure_count']:g}" + _ratio(row["external_frag_ratio"])
            for row in table.to_dicts()
        ]
        count = int(mine["request_count"][0])
        told.append(
            f"Failed allocations of {count:,} with {sizes} sizes under {format_bytes(LIMIT_BYTES)}, median of "
            f"{len(mine['seed_id'].unique())} seeds: {', '.join(parts)}."
        )
    return told


def _ratio(value: float | None) -> str:
    return "" if value is None else f" (1 − largest/total {value:.2f})"


def _reach(largest: pl.DataFrame) -> list[str]:
    row = largest.row(0, named=True)
    size, free, kept = (format_bytes(row[f"{name}_bytes"]) for name in ("largest", "free", "headroom"))
    if row["next_failed_bytes"] is None:
        return [
            f"One allocation of {size} was served with {free} free; the last {kept} were not asked for, so the limit "
            "lies above."
        ]
    return [f"The largest allocation served with {free} free was {size}."]
