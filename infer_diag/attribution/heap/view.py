"""What a chart of memory needs of a recording: curves and bricks of the heap that holds the most."""

from __future__ import annotations

from dataclasses import dataclass

import dataframely as dy
import polars as pl

from infer_diag.attribution.heap.bricks import snapshot_bricks, trace_bricks
from infer_diag.attribution.heap.curves import trace_curves
from infer_diag.attribution.heap.frames import HeapCurves, MapBricks
from infer_diag.attribution.heap.maps import event_at, trace_agreement
from infer_diag.attribution.heap.trace import HeapTrace, heap_traces
from infer_diag.errors import DiagError
from infer_diag.recording import Recording


@dataclass(frozen=True, eq=False)
class HeapView:
    """Bricks of the heap that holds the most, its curves, and the event at which it is looked at (null: the last).

    `status` is `simulated` where the source says that nothing of it was recorded. `missing` says what is not shown and
    why, `doubt` what of the events does not fit together or with the snapshot; both are empty where there is nothing.
    """

    bricks: dy.DataFrame[MapBricks]
    curves: dy.DataFrame[HeapCurves]
    event: int | None = None
    status: str = "recorded"
    failure_count: int = 0
    missing: str = ""
    doubt: str = ""


def heap_view(recording: Recording, *, at_s: float | None = None) -> HeapView | None:
    """The heap at a time (the last state where none is said) and over time; null where no allocator is recorded.

    Frames in: AllocatorEvents, Blocks. Without numba a snapshot still has its block map, and `missing` says what lacks.

    Raises:
        DiagError: a time is asked for, and numba is not installed, the events carry no times, or it lies outside.
    """
    if recording.allocator_events.is_empty() and recording.blocks.is_empty():
        return None
    try:
        traces = heap_traces(recording)
    except DiagError as error:
        if at_s is not None:
            raise
        return HeapView(snapshot_bricks(recording), HeapCurves.create_empty(), missing=str(error))
    curves = [trace_curves(trace) for trace in traces]
    place = max(range(len(traces)), key=lambda each: _held(curves[each]))
    trace = traces[place]
    status = "simulated" if recording.sources[trace.source_id].is_simulated else "recorded"
    event = None if at_s is None else event_at(trace, at_s=at_s)
    return HeapView(
        trace_bricks(trace, event=event) if trace.has_blocks else MapBricks.create_empty(),
        HeapCurves.validate(curves[place], cast=True),
        trace.event_count - 1 if event is None else event,
        status,
        len(trace.failed),
        doubt=_doubt(trace),
    )


def _held(curves: pl.DataFrame) -> int:
    return int(curves["reserved_bytes"].max() or 0)  # type: ignore[arg-type]


def _doubt(trace: HeapTrace) -> str:
    """What of a heap's events does not fit together, or with its snapshot; empty where all does."""
    told = trace_agreement(trace)
    parts = []
    if told["equal_count"] < told["block_count"]:
        parts.append(
            f"the replay ends with {told['equal_count']:,} of the {told['block_count']:,} blocks of the snapshot"
        )
    words = {
        "outside": "allocations in no known segment",
        "overlapping": "blocks whose free was not recorded",
        "unknown_free": "frees of what was not there",
        "uncovered": "changes of segments that do not fit",
    }
    parts += [f"{count:,} {text}" for name, text in words.items() if (count := told[f"{name}_count"])]
    return ", ".join(parts)
