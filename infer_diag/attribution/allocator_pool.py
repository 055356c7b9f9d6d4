"""What a framework's allocator holds: reserved, in use and idle bytes, and how broken up the idle ones are."""

from __future__ import annotations

import dataframely as dy
import polars as pl

from infer_diag.attribution.block_map import block_summary
from infer_diag.recording import Recording
from infer_diag.results import AllocatorPool

_SUMMED = ("reserved_bytes", "allocated_bytes", "active_bytes", "inactive_split_bytes")
_NUMBERS = ("segment_count", "oom_count")


def allocator_pool(recording: Recording) -> dy.DataFrame[AllocatorPool]:
    """One row per source whose allocator printed its counters or its blocks; none otherwise.

    Frames in: MemoryStats, Blocks, Ooms. Frame out: AllocatorPool. Counters come from the last table of each device,
    summed over devices, and from the last block map (`block_summary`) where there is no table. Of several devices the
    ratios are null, since each has its own holes. Of a source that is cut, a block map says nothing beyond what a table
    says: its largest hole and its totals are those of a part.
    """
    rows = []
    maps = block_summary(recording)
    for source_id, source in enumerate(recording.sources):
        tables = recording.memory_stats.filter(source_id=source_id)
        own = maps.filter(pl.col("source_id") == source_id)
        mapped = {} if own.is_empty() or source.cut else _mapped(own)
        if tables.is_empty() and not mapped:
            continue
        rows.append({"source_id": source_id, **mapped, **_counted(tables)})
    return AllocatorPool.validate(
        pl.DataFrame(rows, schema=AllocatorPool.create_empty().schema, orient="row"), cast=True
    )


def _counted(tables: pl.DataFrame) -> dict[str, object]:
    if tables.is_empty():
        return {}
    last = tables.sort("line").group_by("gpu", maintain_order=True).last()
    summed = {name: last[name].sum() if not last[name].null_count() else None for name in (*_SUMMED, *_NUMBERS)}
    told = {name: value for name, value in summed.items() if value is not None}
    return {**told, "lines": last["line"].sort().to_list()}


def _mapped(maps: pl.DataFrame) -> dict[str, object]:
    """The last block map, its devices together."""
    devices = maps.filter(pl.col("snapshot") == maps["snapshot"][-1])
    alone = devices.row(0, named=True) if len(devices) == 1 else {}
    return {
        **{name: float(devices[name].sum()) for name in (*_SUMMED, "idle_bytes")},
        "largest_free_bytes": float(devices["largest_free_bytes"].max()),  # type: ignore[arg-type]
        "external_frag_ratio": alone.get("external_frag_ratio"),
        "unusable_free_ratio": alone.get("unusable_free_ratio"),
        "segment_count": devices["segment_count"].sum(),
        "lines": devices["lines"].explode().unique().sort().to_list(),
    }
