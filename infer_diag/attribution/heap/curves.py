"""Curves of a heap over its recording: what is reserved, used, idle and stuck, and what its holes are good for."""

from __future__ import annotations

import dataframely as dy
import numpy as np
import polars as pl
from numpy.typing import NDArray

from infer_diag.attribution.heap.frames import HeapCurves
from infer_diag.attribution.heap.segments import GROUP_KEY
from infer_diag.attribution.heap.trace import HeapTrace, heap_traces
from infer_diag.recording import Recording

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

INSTANTS = 1000
"""A screen has about as many columns; the most that was active between two instants is kept beside them."""
MOST_FAILURES = 200
LEVELS = ("allocated", "active", "requested", "reserved", "most_active", "idle", "largest", "holes", "split", "usable")
_OF_BLOCKS = ("active_bytes", "allocated_bytes", "requested_bytes", "peak_active_bytes")
_OF_HOLES = (
    "idle_bytes",
    "inactive_split_bytes",
    "largest_free_bytes",
    "hole_count",
    "external_frag_ratio",
    "weighted_unusable_ratio",
    "beyond_largest_ratio",
)


def heap_curves(recording: Recording, *, instants: int = INSTANTS) -> dy.DataFrame[HeapCurves]:
    """Levels and hole metrics of every recorded heap at evenly spaced events, and at failed allocations (200 at most).

    Frames in: AllocatorEvents, Blocks. Frame out: HeapCurves, by source and device, then instant, the device before its
    pools. external = 1 − largest / idle; weighted unusable = Σ_r w_r (1 − Σ_{holes ≥ r} hole / idle) with w_r the share
    of the requested bytes that requests of size r ask for (Gorman and Whitcroft's index averaged over the recording's
    own requests; bytes of segments that do not serve r are unusable for it); beyond largest = share of requests larger
    than the largest hole that may serve them. Ratios are null where nothing is idle or nothing was requested.

    Raises:
        DiagError: numba is not installed.
    """
    found = [trace_curves(trace, instants) for trace in heap_traces(recording)]
    return HeapCurves.validate(pl.concat(found), cast=True) if found else HeapCurves.create_empty()


def trace_curves(trace: HeapTrace, instants: int = INSTANTS) -> pl.DataFrame:
    """Rows of `HeapCurves` of one heap."""
    events = _instants(trace, instants)
    found = trace.replayed(events)
    levels = found.levels
    levels[:, : len(trace.unnamed_bytes), LEVELS.index("reserved")] += trace.unnamed_bytes
    pools = [_pool_rows(trace, events, levels, group) for group in range(len(trace.groups))]
    device = _with_recorded(trace, events, _device_rows(trace, events, levels))
    rows = pl.concat([device, *pools], how="vertical_relaxed").sort("event_id", maintain_order=True)
    if not trace.has_blocks:
        rows = rows.with_columns(pl.lit(None).alias(name) for name in _OF_BLOCKS)
    if not trace.has_blocks or found.faults[0] or trace.unnamed_bytes.any():
        # Where segments or parts of them are unknown, so are the holes.
        rows = rows.with_columns(pl.lit(None).alias(name) for name in _OF_HOLES)
    if not trace.has_requested:
        rows = rows.with_columns(pl.lit(None).alias("requested_bytes"))
    return rows.select(HeapCurves.column_names())


def _instants(trace: HeapTrace, count: int) -> Ints:
    spaced = np.linspace(-1, trace.event_count - 1, max(min(count, trace.event_count + 1), 1)).round()
    return np.unique(np.concatenate([spaced.astype(np.int64), trace.failed[:MOST_FAILURES]]))


def _pool_rows(trace: HeapTrace, events: Ints, levels: Floats, group: int) -> pl.DataFrame:
    own = levels[:, group]
    kind, pool = trace.groups["segment_kind"][group], trace.groups["pool"][group]
    has_requests = pool is None and len(trace.requests.of_kind(kind)[0]) > 0
    largest = own[:, LEVELS.index("largest")]
    beyond = trace.requests.beyond(kind, largest) if has_requests else np.full(len(events), np.nan)
    unusable = _share(own, "usable") if has_requests else np.full(len(events), np.nan)
    rows = _rows(trace, events, own, unusable, beyond)
    named = [pl.lit(trace.groups[name][group], pl.String).alias(name) for name in GROUP_KEY[:-1]]
    return rows.with_columns(pl.lit("pool").alias("scope"), *named)


def _device_rows(trace: HeapTrace, events: Ints, levels: Floats) -> pl.DataFrame:
    whole = levels[:, :-1, : len(LEVELS)].sum(axis=1)
    # The peaks of pools are not of the same moment, so the device keeps its own.
    whole[:, LEVELS.index("most_active")] = levels[:, -1, LEVELS.index("most_active")]
    largest = levels[:, :, LEVELS.index("largest")]
    whole[:, LEVELS.index("largest")] = largest.max(axis=1)
    kinds = trace.groups["segment_kind"].to_list()
    usable, beyond = np.zeros(len(events)), np.zeros(len(events))
    for kind in dict.fromkeys(kinds):
        own = [
            place
            for place, (each, pool) in enumerate(trace.groups.select("segment_kind", "pool").iter_rows())
            if each == kind and pool is None
        ]
        share = trace.requests.kind_share(kind, of_bytes=True)
        usable += levels[:, own, LEVELS.index("usable")].sum(axis=1) * share
        top = largest[:, own].max(axis=1) if own else np.zeros(len(events))
        beyond += np.nan_to_num(trace.requests.beyond(kind, top)) * trace.requests.kind_share(kind, of_bytes=False)
    # Requests of a kind for which there is no segment yet find no hole at all.
    missing = 1 - sum(trace.requests.kind_share(kind, of_bytes=False) for kind in dict.fromkeys(kinds))
    whole[:, LEVELS.index("usable")] = usable
    none = np.full(len(events), np.nan)
    asked = len(trace.requests.sizes) > 0
    rows = _rows(trace, events, whole, _share(whole, "usable") if asked else none, beyond + missing if asked else none)
    nothing = [pl.lit(None, pl.String).alias(name) for name in GROUP_KEY[:-1]]
    return rows.with_columns(pl.lit("device").alias("scope"), *nothing)


def _with_recorded(trace: HeapTrace, events: Ints, device: pl.DataFrame) -> pl.DataFrame:
    """The device's totals where the recorder wrote them itself: they hold what no event of the recording names."""
    if not trace.event_count:
        return device
    past = pl.Series(np.maximum(events, 0))
    for told, column in (("total_reserved_bytes", "reserved_bytes"), ("total_allocated_bytes", "allocated_bytes")):
        recorded = trace.totals[told].cast(pl.Int64, strict=False)
        if recorded.null_count() < len(recorded):
            value = pl.when(pl.col("event_id") >= 0).then(pl.lit(recorded.gather(past)))
            device = device.with_columns(value.alias(column))
    return device


def _share(levels: Floats, name: str) -> Floats:
    """1 − this / idle, nan where nothing is idle."""
    idle = levels[:, LEVELS.index("idle")]
    found: Floats = 1 - np.divide(levels[:, LEVELS.index(name)], idle, out=np.full(len(idle), np.nan), where=idle > 0)
    return found


def _rows(trace: HeapTrace, events: Ints, levels: Floats, unusable: Floats, beyond: Floats) -> pl.DataFrame:
    whole = {name: pl.Series(levels[:, place]).cast(pl.Int64) for place, name in enumerate(LEVELS)}
    ratios = {
        "external_frag_ratio": _share(levels, "largest"),
        "weighted_unusable_ratio": unusable,
        "beyond_largest_ratio": beyond,
    }
    past = pl.Series(np.maximum(events, 0))
    times = trace.times.gather(past) if trace.event_count else pl.Series([None], dtype=trace.times.dtype)
    first = trace.times.drop_nulls().min()
    rows = pl.DataFrame(
        {
            "event_id": events,
            "line": trace.lines.gather(past) if trace.event_count else pl.Series([0], dtype=pl.UInt32),
            "time": times,
            "is_failure": np.isin(events, trace.failed),
            "reserved_bytes": whole["reserved"],
            "active_bytes": whole["active"],
            "allocated_bytes": whole["allocated"],
            "requested_bytes": whole["requested"],
            "peak_active_bytes": whole["most_active"],
            "idle_bytes": whole["idle"],
            "inactive_split_bytes": whole["split"],
            "largest_free_bytes": whole["largest"],
            "hole_count": whole["holes"],
            **{name: pl.Series(values).fill_nan(None).clip(0, 1) for name, values in ratios.items()},
        }
    )
    return rows.with_columns(
        pl.lit(trace.source_id, pl.UInt32).alias("source_id"),
        pl.lit(trace.gpu, pl.String).alias("gpu"),
        pl.lit(trace.basis).alias("basis"),
        (pl.col("time") - pl.lit(first, pl.Datetime("us", "UTC"))).dt.total_microseconds().truediv(1e6).alias("time_s"),
    )
