"""A simulated heap and its log as the frames of a recorded one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from infer_diag.schema import AllocatorEvents, Blocks, MemoryStats, Ooms
from infer_diag.simulators.allocators.heap import (
    ACTIVE,
    ALLOCATED,
    ALLOCATED_PEAK,
    AWAITING,
    FAILURES,
    IDLE,
    LIVE,
    REQUESTED,
    RESERVED,
    RESERVED_PEAK,
    RETRIES,
    UNMAPPED,
    Heap,
    Ints,
    Records,
)
from infer_diag.simulators.allocators.kinds import (
    ACTIONS,
    OOM,
    SEGMENT_ALLOC,
    SEGMENT_UNMAP,
)

_NO_LINE = (pl.lit(0, pl.UInt32).alias("source_id"), pl.lit(0, pl.UInt32).alias("line"))
_STATES = {LIVE: "active", AWAITING: "awaiting", IDLE: "inactive"}


def heap_order(heap: Heap) -> Ints:
    """Nodes that memory backs, by address."""
    states = heap.nodes["state"]
    nodes = np.flatnonzero((states == LIVE) | (states == AWAITING) | (states == IDLE))
    return nodes[np.argsort(heap.nodes["address"][nodes], kind="stable")]


def blocks_frame(
    heap: Heap, streams: Sequence[str | None], pools: Sequence[str | None], *, is_torch: bool = True
) -> pl.DataFrame:
    """`schema.Blocks` of a heap, one row per block that memory backs, by address.

    `streams` and `pools` name the arenas; kinds of segments and the state `inactive` are PyTorch's alone. A range of an
    expandable segment with memory behind it is a segment of its own, as PyTorch reports it.
    """
    order = heap_order(heap)
    nodes = heap.nodes[order]
    if not len(nodes):
        return Blocks.create_empty()
    segment, sizes = _segments(heap, nodes)
    is_large = heap.sets.reshape(-1, 4)[nodes["arena"], 1] == nodes["free_set"]
    names = _STATES if is_torch else _STATES | {IDLE: "free"}
    frame = pl.DataFrame(
        {
            "snapshot": "simulated",
            "segment_id": segment,
            "segment_bytes": sizes,
            "segment_kind": np.where(is_large, "large", "small") if is_torch else [None] * len(nodes),
            "is_expandable": nodes["chunk"] > 0,
            "pool": pl.Series([pools[each] for each in nodes["arena"]], dtype=pl.String),
            "stream": pl.Series([streams[each] for each in nodes["arena"]], dtype=pl.String),
            "address_id": nodes["address"],
            "size_bytes": nodes["size"],
            "requested_bytes": pl.Series(nodes["requested"]),
            "state": [names[each] for each in nodes["state"].tolist()],
            "source_id": 0,
            "line": 0,
        }
    )
    idle = pl.col("state") == names[IDLE]
    frame = frame.with_columns(
        *(pl.lit(None, pl.String).alias(name) for name in ("gpu", "requester")),
        pl.when(~idle).then("requested_bytes").alias("requested_bytes"),
    )
    return Blocks.validate(frame.select(Blocks.column_names()), cast=True)


def _segments(heap: Heap, nodes: Records) -> tuple[Ints, Ints]:
    """(begin, size) of the segment of each block; the blocks come by address."""
    before = nodes["before"]
    follows = (before >= 0) & (heap.nodes["state"][before] != UNMAPPED)
    begins = ~(follows & (heap.nodes["origin"][before] == nodes["origin"]))
    group = np.cumsum(begins) - 1
    sizes = np.zeros(group[-1] + 1, np.int64)
    np.add.at(sizes, group, nodes["size"])
    return nodes["address"][begins][group], sizes[group]


def events_frame(log: Records, streams: Sequence[str | None], times: pl.Series | None = None) -> pl.DataFrame:
    """`schema.AllocatorEvents` of a log; `times` are those of the trace's steps, where it has any."""
    kind = log["kind"]
    of_segment = (kind >= SEGMENT_ALLOC) & (kind <= SEGMENT_UNMAP)
    frame = pl.DataFrame(
        {
            "action": pl.Series(ACTIONS, dtype=pl.Enum(ACTIONS)).gather(kind),
            "address_id": log["address"],
            "requested_bytes": log["requested"],
            "allocated_bytes": log["size"],
            "total_allocated_bytes": log["allocated"],
            "total_reserved_bytes": log["reserved"],
            "stream": pl.Series(streams, dtype=pl.String).gather(log["arena"].astype(np.int64)),
            "segment_id": log["origin"],
            "of_segment": pl.Series(of_segment, dtype=pl.Boolean),
            "event": log["event"],
        }
    )
    failed = pl.col("action") == "oom"
    when = pl.lit(None, pl.Datetime("us", "UTC")) if times is None else times.gather(frame["event"]).alias("time")
    frame = frame.with_columns(
        *_NO_LINE,
        when.alias("time"),
        pl.lit(None, pl.String).alias("gpu"),
        pl.lit(None, pl.UInt64).alias("device_free_bytes"),
        *(pl.when(~failed).then(name).alias(name) for name in ("address_id", "segment_id")),
        pl.when(~pl.col("of_segment")).then("requested_bytes").alias("requested_bytes"),
    )
    return AllocatorEvents.validate(frame.select(AllocatorEvents.column_names()), cast=True)


def ooms_frame(log: Records, limit_bytes: int | None) -> pl.DataFrame:
    """`schema.Ooms` of a log: every failed allocation with what was reserved, allocated and idle then."""
    failed = log[log["kind"] == OOM]
    exact = {
        "requested": failed["requested"],
        "allocated": failed["allocated"],
        "reserved": failed["reserved"],
        "idle": failed["reserved"] - failed["allocated"],
    }
    if limit_bytes is not None:
        exact |= {"free": limit_bytes - failed["reserved"], "total": np.full(len(failed), limit_bytes)}
    frame = pl.DataFrame(
        {f"{name}_bytes": values.astype(np.float64) for name, values in exact.items()}
        | {f"{name}_resolution_bytes": np.zeros(len(failed)) for name in exact}
    ).with_columns(*_NO_LINE, pl.lit("device").alias("memory"))
    wanted = Ooms.create_empty().schema
    missing = [pl.lit(None, kind).alias(name) for name, kind in wanted.items() if name not in frame.columns]
    return Ooms.validate(frame.with_columns(missing).select(wanted.names()), cast=True)


def stats_frame(heap: Heap, *, is_torch: bool = True) -> pl.DataFrame:
    """`schema.MemoryStats` of a heap: one row of its counters, exact; `inactive_split` is PyTorch's alone."""
    nodes, counts = heap.nodes, heap.counts
    order = heap_order(heap)
    mine = nodes[order]
    whole = (mine["before"] < 0) & (mine["after"] < 0)
    split = (mine["state"] == IDLE) & ~whole & (mine["chunk"] == 0)
    row = {
        "source_id": 0,
        "line": 0,
        "reserved_bytes": counts[RESERVED],
        "allocated_bytes": counts[ALLOCATED],
        "active_bytes": counts[ACTIVE],
        "requested_bytes": counts[REQUESTED],
        "inactive_split_bytes": mine["size"][split].sum() if is_torch else None,
        "peak_reserved_bytes": counts[RESERVED_PEAK],
        "peak_allocated_bytes": counts[ALLOCATED_PEAK],
        "resolution_bytes": 0,
        "segment_count": int((mine["before"] < 0).sum()),
        "oom_count": counts[FAILURES],
        "retry_count": counts[RETRIES],
    }
    wanted = MemoryStats.create_empty().schema
    frame = pl.DataFrame({name: [None if value is None else float(value)] for name, value in row.items()})
    missing = [pl.lit(None, kind).alias(name) for name, kind in wanted.items() if name not in frame.columns]
    return MemoryStats.validate(frame.with_columns(missing).select(wanted.names()), cast=True)
