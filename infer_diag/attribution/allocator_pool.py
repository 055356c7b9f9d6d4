"""What a framework's allocator holds: reserved, in use and idle bytes, and how broken up the idle ones are."""

from __future__ import annotations

import dataframely as dy
import polars as pl

from infer_diag.recording import Recording
from infer_diag.results import AllocatorPool

_SUMMED = ("reserved_bytes", "allocated_bytes", "active_bytes", "inactive_split_bytes")
_IDLE = ("inactive", "free")


def allocator_pool(recording: Recording) -> dy.DataFrame[AllocatorPool]:
    """One row per source whose allocator printed its counters or its blocks; none otherwise.

    Frames in: MemoryStats, Blocks, Ooms. Frame out: AllocatorPool. Counters come from the last table of each device,
    summed over devices, and from the last block map where there is no table. Of a source that is cut, a block map says
    nothing beyond what a table says: its largest hole and its totals are those of a part.
    external = 1 − largest idle block / idle bytes; unusable = 1 − idle bytes in blocks that hold the last failed
    request / idle bytes (Gorman and Whitcroft), null without such a request.
    """
    rows = []
    for source_id, source in enumerate(recording.sources):
        tables = recording.memory_stats.filter(source_id=source_id)
        maps = recording.blocks.filter(source_id=source_id)
        mapped = {} if maps.is_empty() or source.cut else _mapped(maps, _last_request(recording, source_id))
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
    summed = {name: last[name].sum() if not last[name].null_count() else None for name in (*_SUMMED, "segment_count")}
    told = {name: value for name, value in summed.items() if value is not None}
    return {**told, "oom_count": last["oom_count"].sum(), "lines": last["line"].sort().to_list()}


def _mapped(maps: pl.DataFrame, requested_bytes: float | None) -> dict[str, object]:
    last = maps.sort("line", maintain_order=True)["snapshot"][-1]
    blocks = maps.filter(snapshot=last).with_columns(pl.col("size_bytes").cast(pl.Float64))
    state = pl.col("state").cast(pl.String)
    size, idle = pl.col("size_bytes"), state.is_in(_IDLE)
    split = idle & (~idle).any().over("segment_id")
    usable = idle & (size >= requested_bytes) if requested_bytes is not None else None
    holes = blocks.filter(idle)["size_bytes"]
    whole = holes.sum()
    found = blocks.select(
        reserved_bytes=size.sum(),
        allocated_bytes=size.filter(state == "active").sum(),
        active_bytes=size.filter(~idle).sum(),
        inactive_split_bytes=size.filter(split).sum(),
        largest_free_bytes=size.filter(idle).max(),
        external_frag_ratio=1 - size.filter(idle).max() / whole if whole else pl.lit(None, pl.Float64),
        unusable_free_ratio=(
            1 - size.filter(usable).sum() / whole if whole and usable is not None else pl.lit(None, pl.Float64)
        ),
        segment_count=pl.col("segment_id").n_unique(),
    )
    return {**found.row(0, named=True), "lines": [blocks["line"].min(), blocks["line"].max()]}


def _last_request(recording: Recording, source_id: int) -> float | None:
    failed = recording.ooms.filter(source_id=source_id).drop_nulls("requested_bytes").sort("line")
    return failed["requested_bytes"][-1] if len(failed) else None
