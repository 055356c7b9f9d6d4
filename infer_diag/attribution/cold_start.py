"""Cold start: how long each phase of a start took, what no line explains, and how the start came out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import dataframely as dy
import polars as pl

from infer_diag.attribution.exclusive_slices import Slice, envelope, silent_us, slices
from infer_diag.attribution.intervals import Span, seconds
from infer_diag.attribution.line_numbers import located
from infer_diag.attribution.load_progress import Bar, pace
from infer_diag.attribution.phase_rows import PhaseRow, phase_rows
from infer_diag.attribution.reconcile import Reconciled, reconciled
from infer_diag.attribution.start_reading import StartReading, start_readings
from infer_diag.recording import Recording
from infer_diag.results import StartPhases, StartSlices, StartSummary


class StartFrames(NamedTuple):
    """The three frames about the starts of one recording."""

    phases: dy.DataFrame[StartPhases]
    slices: dy.DataFrame[StartSlices]
    summary: dy.DataFrame[StartSummary]
    readings: tuple[StartReading, ...] = ()
    """What the frames were made of, for those who ask further."""


def start_frames(recording: Recording) -> StartFrames:
    """`start_phases`, `start_slices` and `start_summary` of the recording in one pass."""
    phases: list[dict[str, Any]] = []
    pieces: list[dict[str, Any]] = []
    summaries: list[dict[str, Any]] = []
    readings = start_readings(recording)
    for reading in readings:
        values = reconciled(reading.ended, reading.parent, reading.tick)
        whole = envelope(reading, values)
        rows = phase_rows(reading, values)
        found = slices(reading, values, rows)
        phases += [_phase_record(reading, row, whole) for row in rows]
        pieces += [_slice_record(reading, one) for one in found]
        summaries.append(_summary_record(reading, values, whole, found))
    return StartFrames(
        StartPhases.validate(_frame(StartPhases, phases)),
        StartSlices.validate(_frame(StartSlices, pieces)),
        StartSummary.validate(_frame(StartSummary, summaries)),
        tuple(readings),
    )


def start_phases(recording: Recording) -> dy.DataFrame[StartPhases]:
    """Length of every phase of every start, on the wall clock (rank null) and by worker.

    A printed duration wins over a stamp difference unless the two contradict each other. A worker's occurrences of one
    phase add up; the wall clock of a barrier phase is the union of the workers' intervals, or the slowest worker where
    there are no stamps. Where a worker has begun a phase and not ended it, the wall clock is null and `lower_s` is what
    is proven. Of two values for one thing the one that the enclosing phase and the stamps agree with is `chosen`.
    """
    return start_frames(recording).phases


def start_slices(recording: Recording) -> dy.DataFrame[StartSlices]:
    """Every start cut into exclusive slices and gaps.

    Each moment belongs to the deepest phase active in it; workers of one phase count once. Moments without a phase are
    gaps, `inside` the phase that encloses them where a printed total does. The lengths add up to the span exactly, in
    whole microseconds. Without stamps a slice has no begin, and the rest of an enclosing printed duration is a gap.
    """
    return start_frames(recording).slices


def start_summary(recording: Recording) -> dy.DataFrame[StartSummary]:
    """One row per start: outcome, span, hold, unlogged time, caches, and how far a load was that still ran."""
    return start_frames(recording).summary


def _frame(schema: type[dy.Schema], rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=schema.create_empty().schema, orient="row")


def _phase_record(reading: StartReading, row: PhaseRow, whole: Span | None) -> dict[str, Any]:
    span = row.span if whole is not None else None
    zero = whole.begin if whole is not None else 0
    return {
        "start_id": reading.start_id,
        "phase": row.phase,
        "rank": row.rank,
        "inside": row.inside,
        "begin_s": seconds(span.begin - zero) if span is not None else None,
        "end_s": seconds(span.end - zero) if span is not None else None,
        "duration_s": seconds(row.length) if row.length is not None else None,
        "lower_s": seconds(row.lower) if row.lower is not None else None,
        "upper_s": seconds(row.upper) if row.upper is not None else None,
        "status": row.status,
        "chosen": row.chosen,
        **_places(reading, row.lines),
    }


def _slice_record(reading: StartReading, one: Slice) -> dict[str, Any]:
    return {
        "start_id": reading.start_id,
        "begin_s": seconds(one.begin) if one.begin is not None else None,
        "duration_s": seconds(one.length),
        "phase": one.phase,
        "after": one.after,
        "before": one.before,
        "inside": one.inside,
        "reason": one.reason,
        **_places(reading, one.lines),
        **_next_place(reading, one.lines),
    }


def _places(reading: StartReading, numbers: Sequence[int]) -> dict[str, Any]:
    """The source of the first of these lines and the lines that lie in it."""
    found = [located(number, reading.source_id) for number in numbers]
    source = found[0][0] if found else reading.source_id
    return {"source_id": source, "lines": [line for of, line in found if of == source]}


def _next_place(reading: StartReading, numbers: Sequence[int]) -> dict[str, Any]:
    """The last of these lines where it lies in another source than the first one."""
    found = [located(number, reading.source_id) for number in numbers]
    if not found or found[-1][0] == found[0][0]:
        return {"next_source_id": None, "next_lines": None}
    return {"next_source_id": found[-1][0], "next_lines": [found[-1][1]]}


def _summary_record(
    reading: StartReading, values: Reconciled, whole: Span | None, found: Sequence[Slice]
) -> dict[str, Any]:
    unlogged = silent_us(found, values.values, reading.wall)
    return {
        "start_id": reading.start_id,
        "replica": reading.replica,
        "outcome": reading.outcome,
        "span_s": seconds(whole.end - whole.begin) if whole is not None else None,
        "hold_s": _hold_s(reading),
        "unlogged_s": seconds(unlogged) if unlogged is not None else None,
        **_caches(reading),
        **_progress(reading),
    }


def _hold_s(reading: StartReading) -> float | None:
    if reading.acquired is None or reading.ready is None or reading.set_back is not None:
        return None
    if reading.ready < reading.acquired:
        return None
    return seconds(reading.ready - reading.acquired)


def _caches(reading: StartReading) -> dict[str, str | None]:
    """`miss` as soon as anything had to be compiled, `hit` where all that the log shows came out of the cache."""
    kinds = {event.kind for event in reading.events}
    compiled = "miss" if "compile_cache_miss" in kinds else "hit" if "compile_cache_hit" in kinds else None
    return {
        "compile_cache": compiled,
        "engine_cache": "hit" if "engine_cache_hit" in kinds else None,
        "weights_cache": "hit" if "weights_cache_hit" in kinds else None,
    }


def _progress(reading: StartReading) -> dict[str, float | int | None]:
    bar = newest_running_bar(reading)
    found = pace(bar) if bar is not None else None
    return {
        "done_count": bar.newest.done if bar is not None else None,
        "total_count": bar.newest.total if bar is not None else None,
        "seconds_each_s": found.seconds_each if found is not None else None,
        "predicted_total_s": found.predicted_total_s if found is not None else None,
    }


def newest_running_bar(reading: StartReading) -> Bar | None:
    """The bar with the latest reading among those that are visibly not at their end."""
    return max(
        reading.running_bars,
        key=lambda bar: (bar.newest.time or 0, bar.newest.source_id, bar.newest.line),
        default=None,
    )
