"""What a heap's holes mean, in words: where reserved bytes go, and which requests would fail for which reason."""

from __future__ import annotations

from typing import Any

import dataframely as dy
import polars as pl

from infer_diag.attribution.heap.bands import band_of
from infer_diag.attribution.heap.frames import MemoryWaste
from infer_diag.attribution.heap.policy import SMALL_BYTES
from infer_diag.attribution.heap.waste import memory_waste
from infer_diag.recording import Recording
from infer_diag.units import format_bytes, format_ratio

Row = dict[str, Any]

WASTE_KEYS = (
    "requested_bytes",
    "internal_bytes",
    "awaiting_bytes",
    "stuck_bytes",
    "cached_bytes",
    "unnamed_bytes",
)
FULL_RATIO = 0.01
"""A pool that has less than a hundredth idle is full, however its holes lie."""


def last_waste(recording: Recording) -> dy.DataFrame[MemoryWaste]:
    """The waste of the last block map of each source that is whole; a cut one shows a part of its heap.

    Frame in: Blocks. Frame out: MemoryWaste.
    """
    cut = [number for number, source in enumerate(recording.sources) if source.cut]
    last = pl.col("snapshot") == pl.col("snapshot").last().over("source_id")
    return memory_waste(recording.replace(blocks=recording.blocks.filter(last & ~pl.col("source_id").is_in(cut))))


def waste_document(waste: pl.DataFrame) -> dict[str, int | None] | None:
    """`memory.waste` of the JSON contract: parts that add up to the bytes that block maps show as reserved."""
    devices = waste.filter(pl.col("scope") == "device")
    if devices.is_empty():
        return None
    return {name: None if devices[name].null_count() else int(devices[name].sum()) for name in WASTE_KEYS}


def waste_sentence(row: Row) -> str:
    """Where the reserved bytes of a device go."""
    reserved = row["reserved_bytes"]
    parts = []
    if row["internal_bytes"] is not None:
        parts.append(f"rounding takes {format_bytes(row['internal_bytes'])}")
    parts.append(_part(row["stuck_bytes"], reserved, "lie idle beside live blocks and cannot go back"))
    parts.append(_part(row["cached_bytes"], reserved, "in segments that are idle as a whole and may go back"))
    for name, words in (("awaiting", "still wait for a stream"), ("unnamed", "are in no block that the map names")):
        if row[f"{name}_bytes"]:
            parts.append(f"{format_bytes(row[f'{name}_bytes'])} {words}")
    asked = row["requested_bytes"]
    begin = f"Of {format_bytes(reserved)} reserved {format_bytes(asked)} were asked for" if asked is not None else ""
    return f"{begin or f'{format_bytes(reserved)} are reserved'}; {', '.join(parts)}."


def _part(size: int, whole: int, words: str) -> str:
    return f"{format_bytes(size)} ({format_ratio(size / whole)}) {words}" if whole else f"{format_bytes(size)} {words}"


def holes_sentence(row: Row) -> str:
    """Which requests the holes of one pool serve, and why a larger one would fail."""
    idle, largest, count = row["stuck_bytes"] + row["cached_bytes"], row["largest_free_bytes"], row["hole_count"]
    name = " ".join(str(row[key]) for key in ("segment_kind", "pool") if row[key]) or "the only"
    stream = f", stream {row['stream']}" if row["stream"] is not None else ""
    if row["unnamed_bytes"]:
        return f"{name} pool{stream}: the map does not name all bytes of its segments, so its holes are unknown."
    if not count:
        return f"{name} pool{stream}: no hole; every request needs new memory from the driver."
    if row["segment_kind"] == "small" and largest >= SMALL_BYTES:
        return f"{name} pool{stream}: every request that it is for (up to {format_bytes(SMALL_BYTES)}) is served."
    full = idle < FULL_RATIO * row["reserved_bytes"]
    between = (
        f"; from there to {format_bytes(idle)} the bytes are there, in {count:,} pieces (fragmentation)"
        if count > 1
        else ""
    )
    band = band_of(row["external_frag_ratio"])
    ratio = f" 1 − largest / idle is {row['external_frag_ratio']:.2f} ({band.name})" if band is not None else ""
    nearly = ", so the pool is full rather than broken up" if full else ""
    return (
        f"{name} pool{stream}: requests up to {format_bytes(largest)} are served{between}; larger ones need new memory "
        f"whatever the holes (exhaustion){nearly}.{ratio}"
    )


def cache_remedy(row: Row) -> str:
    """What gives idle bytes back, by where they lie."""
    if row["stuck_bytes"] > row["cached_bytes"]:
        return (
            f"Emptying the cache would return {format_bytes(row['cached_bytes'])} only: the rest lies beside live "
            "blocks. Expandable segments (`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`) return single pages, and "
            "a lower `max_split_size_mb` keeps large blocks whole; both count from the next start."
        )
    return (
        f"Idle bytes serve the process's next requests, and nobody else's: where another process or a larger KV pool "
        f"needs them, emptying the cache returns {format_bytes(row['cached_bytes'])}."
    )
