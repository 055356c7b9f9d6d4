"""Memory: failed allocations, what the framework's allocator holds, devices, and the engine's ledger of components."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import dataframely as dy
import polars as pl

from infer_diag.attribution.allocator_pool import allocator_pool
from infer_diag.attribution.gpu_memory import gpu_memory
from infer_diag.attribution.heap.frames import MemoryWaste
from infer_diag.attribution.memory_growth import MemoryGrowth, memory_growth
from infer_diag.attribution.ooms import oom_readings
from infer_diag.diagnose import failed_allocations
from infer_diag.diagnose import gpu_memory as devices
from infer_diag.diagnose.evidence import cited
from infer_diag.diagnose.finding import Finding
from infer_diag.diagnose.fragmentation import cache_remedy, last_waste, waste_document
from infer_diag.diagnose.memory_growth import allocator_findings as memory_growth_findings
from infer_diag.recording import Recording
from infer_diag.results import AllocatorPool, GpuMemory, OomReadings
from infer_diag.units import format_bytes, format_ratio

IDLE_RATIO = 0.2
"""Reservations of a fifth beyond use are what a cache keeps between steps of different size."""

_OOM_SIZES = (
    "requested_bytes",
    "total_bytes",
    "free_bytes",
    "process_bytes",
    "allocated_bytes",
    "reserved_bytes",
    "reserved_unallocated_bytes",
    "usable_idle_lower_bytes",
    "usable_idle_upper_bytes",
    "private_pools_bytes",
    "allowed_bytes",
    "other_bytes",
)
_POOL_SIZES = (
    "reserved_bytes",
    "allocated_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "largest_free_bytes",
)


@dataclass(frozen=True, eq=False)
class Memory:
    """What the logs tell of memory: failed allocations, devices, the allocator's pools, and the engine's ledger.

    `waste` splits what the last block maps show as reserved, by device and pool; `growth` tells trends of totals.
    """

    ooms: dy.DataFrame[OomReadings]
    gpus: dy.DataFrame[GpuMemory]
    blocks: dy.DataFrame[AllocatorPool]
    components: pl.DataFrame
    waste: dy.DataFrame[MemoryWaste]
    growth: dy.DataFrame[MemoryGrowth]


def observed_memory(recording: Recording) -> Memory | None:
    """Everything that the logs tell of memory; null where they hold nothing of it."""
    told = Memory(
        ooms=oom_readings(recording),
        gpus=gpu_memory(recording),
        blocks=allocator_pool(recording),
        components=recording.components.sort("source_id", "line", maintain_order=True),
        waste=last_waste(recording),
        growth=memory_growth(recording),
    )
    frames = (told.ooms, told.gpus, told.blocks, told.components)
    return None if all(frame.is_empty() for frame in frames) else told


def findings(recording: Recording, told: Memory | None) -> list[Finding]:
    """Findings with ids `memory.*` and what samples of devices leave open; none where nothing tells of memory."""
    if told is None:
        return []
    return [
        *failed_allocations.findings(recording, told.ooms),
        *_reserved_idle(recording, told.blocks, told.waste),
        *memory_growth_findings(recording, told.growth),
        *devices.findings(recording, told.gpus, told.growth),
    ]


def document(recording: Recording, told: Memory) -> dict[str, Any]:
    """`memory` of the JSON contract; sizes in whole bytes."""
    return {
        "ooms": [_oom(recording, row) for row in told.ooms.iter_rows(named=True)],
        "gpus": [_gpu(row) for row in told.gpus.iter_rows(named=True)],
        "blocks": _blocks(told.blocks),
        "waste": waste_document(told.waste),
        "components": [
            {"name": row["name"], "bytes": _whole(row["size_bytes"])} for row in told.components.iter_rows(named=True)
        ],
    }


def _oom(recording: Recording, row: dict[str, Any]) -> dict[str, Any]:
    return {
        **{name: _whole(row[name]) for name in _OOM_SIZES},
        **{name: row[name] for name in ("verdict", "compaction_would_help", "recovered", "gpu", "component")},
        "evidence": [recording.evidence(row["source_id"], row["line"])] if row["line"] else [],
    }


def _gpu(row: dict[str, Any]) -> dict[str, Any]:
    sizes = ("used_bytes", "free_bytes", "reserved_bytes", "growth_bytes")
    plain = {"gpu": row["gpu"], "instance": row["instance"], "samples": row["sample_count"]}
    return {**plain, **{name: row[name] for name in sizes}}


def _blocks(pools: pl.DataFrame) -> dict[str, Any] | None:
    """One pool as it is; of several sources' the sums, and no ratio, since each has its own holes."""
    if pools.is_empty():
        return None
    alone = pools.row(0, named=True) if len(pools) == 1 else {}
    summed = {name: pools[name].sum() if not pools[name].null_count() else None for name in _POOL_SIZES[:-1]}
    segments = None if pools["segment_count"].null_count() else int(pools["segment_count"].sum())
    return {
        **{name: _whole(alone.get(name, summed.get(name))) for name in _POOL_SIZES},
        "external_frag_ratio": alone.get("external_frag_ratio"),
        "unusable_free_ratio": alone.get("unusable_free_ratio"),
        "segments": segments,
    }


def _whole(size: float | None) -> int | None:
    return None if size is None else round(size)


def _reserved_idle(recording: Recording, pools: pl.DataFrame, waste: pl.DataFrame) -> list[Finding]:
    """Pools that hold a fifth or more beyond what is in use."""
    found = []
    for row in pools.drop_nulls(["reserved_bytes", "allocated_bytes"]).iter_rows(named=True):
        idle = row["reserved_bytes"] - row["allocated_bytes"] if row["idle_bytes"] is None else row["idle_bytes"]
        if row["reserved_bytes"] <= 0 or idle < IDLE_RATIO * row["reserved_bytes"]:
            continue
        pieces = row["inactive_split_bytes"]
        stuck = f"; {format_bytes(pieces)} of it in pieces beside live blocks" if pieces else ""
        failed = " No allocation had failed by then." if row["oom_count"] == 0 else ""
        places = pl.DataFrame({"source_id": [row["source_id"]] * len(row["lines"]), "line": row["lines"]})
        found.append(
            Finding(
                id="memory.reserved_idle",
                severity="low",
                sentence=(
                    f"The framework holds {format_bytes(row['reserved_bytes'])} of device memory and uses "
                    f"{format_bytes(row['allocated_bytes'])}: {format_bytes(idle)} "
                    f"({format_ratio(idle / row['reserved_bytes'])}) lie idle in its cache{stuck}.{failed}"
                ),
                status="measured",
                evidence=cited(recording, places.cast(pl.UInt32)),
                remedy=_remedy(waste.filter(scope="device", source_id=row["source_id"])),
            )
        )
    return found


def _remedy(devices: pl.DataFrame) -> str:
    """What returns the idle bytes; by where they lie, once the block map of one device tells."""
    if len(devices) == 1:
        return cache_remedy(devices.row(0, named=True))
    return (
        "Idle bytes serve the process's next requests, and nobody else's: where another process or a larger KV pool "
        "needs them, empty the cache after loading, or let segments shrink "
        "(`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`)."
    )
