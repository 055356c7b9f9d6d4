"""The block map of a heap at any event or time, and how the replayed end compares with the snapshot."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import dataframely as dy
import numpy as np
import polars as pl
from numpy.typing import NDArray

from infer_diag.attribution.heap.frames import HeapAgreement
from infer_diag.attribution.heap.trace import HeapTrace, heap_traces, simulator
from infer_diag.errors import DiagError
from infer_diag.recording import Recording
from infer_diag.schema import Blocks
from infer_diag.units import format_s

Ints = NDArray[np.int64]

_LIVE = ("inactive", "active", "awaiting")
_COLUMNS = ("place", "address_id", "size_bytes", "requested_bytes", "group", "state", "event", "segment_id", "until")


def block_map(recording: Recording, *, event: int | None = None, at_s: float | None = None) -> dy.DataFrame[Blocks]:
    """Every block and hole after an event, or at a time; the last state where neither is said.

    Frames in: AllocatorEvents, Blocks. Frame out: Blocks, its `snapshot` the number of the event and its `line` that of
    the allocation (0 where it lived before the recording or the source has no lines). `event` counts from 0, -1 is the
    state before the first; `at_s` counts seconds from the first stamped event of each source.

    Raises:
        DiagError: numba is not installed, no event has that number, or the events carry no times.
    """
    found = []
    for trace in heap_traces(recording):
        number = trace.event_count - 1 if event is None and at_s is None else event_at(trace, event=event, at_s=at_s)
        found.append(map_rows(trace, np.array([number])))
    return (
        Blocks.validate(pl.concat(found).select(Blocks.column_names()), cast=True) if found else Blocks.create_empty()
    )


def event_at(trace: HeapTrace, *, event: int | None = None, at_s: float | None = None) -> int:
    """The number of the last event at or before a time, or the number itself once it is known to exist.

    Raises:
        DiagError: no event has that number, or the events carry no times.
    """
    if event is not None:
        if not -1 <= event < trace.event_count:
            raise DiagError(f"there is no event {event}", hint=f"events go from -1 to {trace.event_count - 1}")
        return event
    first, last = trace.times.min(), trace.times.max()
    if not isinstance(first, datetime) or not isinstance(last, datetime) or at_s is None:
        raise DiagError("the allocator's events carry no times", hint="say event=… instead of at_s=…")
    span_s = (last - first).total_seconds()
    if not 0 <= at_s <= span_s:
        raise DiagError(
            f"{format_s(at_s)} lies outside of the recording", hint=f"it goes from 0 s to {format_s(span_s)}"
        )
    before = (trace.times.fill_null(strategy="forward") <= first + timedelta(seconds=at_s)).fill_null(True)
    return int(before.arg_true()[-1])


def map_rows(trace: HeapTrace, events: Ints) -> pl.DataFrame:
    """Rows of `schema.Blocks` after each of the sorted events, with `place` and the allocating `event`."""
    maps = trace.replayed(events, np.ones(len(events), np.bool_)).maps
    rows = pl.DataFrame({name: maps[:, place] for place, name in enumerate(_COLUMNS)})
    groups = trace.groups.with_row_index("group").with_columns(pl.col("group").cast(pl.Int64))
    number = pl.Series("number", events.astype(str))
    event = pl.col("event") - trace.ahead
    lines = trace.lines if trace.event_count else pl.Series([0], dtype=pl.UInt32)
    inside = pl.col("segment_id") >= 0
    named = (
        _with_requesters(rows, trace, events)
        .join(groups, on="group", how="left", maintain_order="left")
        .with_columns(
            event.alias("event"),
            pl.lit(number).gather(pl.col("place")).alias("number"),
            pl.lit(lines).gather(event.clip(0)).alias("line"),
        )
    )
    return named.select(
        pl.lit(trace.source_id, pl.UInt32).alias("source_id"),
        pl.when(pl.col("event") >= 0).then("line").otherwise(0).alias("line"),
        pl.concat_str(pl.lit("event "), "number").alias("snapshot"),
        pl.lit(trace.gpu, pl.String).alias("gpu"),
        pl.when(inside).then("segment_id").otherwise("address_id").cast(pl.UInt64).alias("segment_id"),
        pl.when(inside).then(pl.col("until") - pl.col("segment_id")).cast(pl.UInt64).alias("segment_bytes"),
        "segment_kind",
        "is_expandable",
        "pool",
        "stream",
        pl.col("address_id").cast(pl.UInt64),
        pl.col("size_bytes").cast(pl.UInt64),
        pl.when((pl.col("state") == 1) & trace.has_requested).then("requested_bytes").cast(pl.UInt64),
        pl.col("state").replace_strict(dict(enumerate(_LIVE)), return_dtype=pl.String).alias("state"),
        "requester",
        "place",
        pl.when(pl.col("event") >= 0).then("event").alias("event"),
    )


def _with_requesters(rows: pl.DataFrame, trace: HeapTrace, events: Ints) -> pl.DataFrame:
    """Adds who asked for the blocks that live to the end, which alone have a stack in the snapshot.

    A block is the same at two moments where address and allocating event are; the last event has to be among them.
    """
    known = trace.final.select(pl.col("address_id").cast(pl.Int64), "requester").drop_nulls()
    if known.is_empty() or not len(events) or events[-1] != trace.event_count - 1:
        return rows.with_columns(pl.lit(None, pl.String).alias("requester"))
    last = rows.filter((pl.col("place") == len(events) - 1) & (pl.col("state") > 0))
    named = last.join(known, on="address_id").select("address_id", "event", "requester")
    return rows.join(named, on=["address_id", "event"], how="left", maintain_order="left")


def heap_agreement(recording: Recording) -> dy.DataFrame[HeapAgreement]:
    """How the replay of every recorded heap ends beside its snapshot, and what of its events does not fit.

    Frames in: AllocatorEvents, Blocks. Frame out: HeapAgreement. A state between is as good as the end: where not all
    blocks are equal, events were lost or the allocator rounds otherwise than its default.

    Raises:
        DiagError: numba is not installed.
    """
    rows = [trace_agreement(trace) for trace in heap_traces(recording)]
    shape = HeapAgreement.create_empty().schema
    return HeapAgreement.validate(pl.DataFrame(rows, schema=shape, orient="row"), cast=True)


def trace_agreement(trace: HeapTrace) -> dict[str, Any]:
    """A row of `HeapAgreement` of one heap."""
    found = trace.replayed(np.array([trace.event_count - 1]), np.ones(1, np.bool_))
    own = pl.DataFrame({name: found.maps[:, place] for place, name in enumerate(_COLUMNS)})
    names = {"active": 1, "awaiting": 2, "inactive": 0, "free": 0}
    told = trace.final.select(
        pl.col("address_id", "size_bytes").cast(pl.Int64),
        pl.col("state").cast(pl.String).replace_strict(names, return_dtype=pl.Int64),
    )
    allocs = (trace.settled.kinds == 0) & (np.arange(len(trace.settled.kinds)) >= trace.ahead)
    later = (trace.settled.fixed != trace.events.fixed) & allocs
    return {
        "source_id": trace.source_id,
        "gpu": trace.gpu,
        "basis": trace.basis,
        "block_count": len(told),
        "equal_count": len(own.join(told, on=["address_id", "size_bytes", "state"], how="inner")),
        "replayed_count": int((own["segment_id"] >= 0).sum()),
        "sized_by_rule_count": int((allocs & (trace.settled.fixed == 0)).sum()),
        "sized_later_count": int(later.sum()),
        **{f"{name}_count": int(count) for name, count in zip(simulator().FAULTS, found.faults, strict=True)},
    }
