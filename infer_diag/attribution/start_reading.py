"""One start of a recording as attribution reads it: bounds, marks of its workers, bars, and what is still running."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from infer_diag.attribution.clock_steps import set_back_us, within_clock
from infer_diag.attribution.intervals import clock_tick, microseconds
from infer_diag.attribution.line_numbers import numbered
from infer_diag.attribution.load_progress import Bar, bar, pace, placed
from infer_diag.attribution.mark_stamps import anchored, annotated, known_stamps
from infer_diag.attribution.occurrences import (
    CONTAINERS,
    ORDER,
    Begun,
    Mark,
    Occurrence,
    is_begin,
    is_bound,
    lineage,
    mark,
    occurrences,
    parents,
)
from infer_diag.attribution.row_values import length_us, text, whole
from infer_diag.recording import Recording

OF_SERVING = ("response", "preemption", "in_use")
"""Incidents that tell nothing of a start; a long log has very many of them."""

STRAGGLING = 1.25
"""An unlabelled bar may belong to a worker whose load is seen to end; it counts as that worker's unless its own pace
puts its end this much later than that of the slowest worker that ended."""


@dataclass(frozen=True)
class Event:
    """One discrete event of a start; `time` in microseconds since the epoch."""

    kind: str
    time: int | None
    source_id: int
    line: int
    fields: str | None


@dataclass(frozen=True)
class StartReading:
    """Everything that the lines of one start say, in microseconds since the epoch; lines are `line_numbers`.

    `set_back` is how far the clock was set back meanwhile; `absurd` are lines whose printed length no clock allows.
    """

    start_id: str
    replica: str | None
    source_id: int
    first_line: int
    last_line: int
    first: int | None
    last: int | None
    acquired: int | None
    ready: int | None
    ready_line: int | None
    failed_line: int | None
    wall: int | None
    set_back: int | None
    served: bool
    tick: int
    marks: tuple[Mark, ...]
    absurd: tuple[Mark, ...]
    parent: Mapping[str, str]
    ended: tuple[Occurrence, ...]
    running: tuple[Begun, ...]
    lost: tuple[Begun, ...]
    bars: tuple[Bar, ...]
    running_bars: tuple[Bar, ...]
    events: tuple[Event, ...]

    @property
    def up(self) -> bool:
        """Whether the engine is seen ready or serving."""
        return self.ready_line is not None or self.served

    @property
    def outcome(self) -> str:
        """`ready`, `failed`, `unfinished` (something is visibly still going on) or `unknown`."""
        if self.up:
            return "ready"
        if self.failed_line is not None:
            return "failed"
        return "unfinished" if self.running or self.running_bars else "unknown"


def start_readings(recording: Recording) -> list[StartReading]:
    """Every start of the recording, in order; a start may be told of by several sources."""
    phases = _by_start(recording.phases, ("begin", "end"))
    progress = _by_start(recording.progress, ("time",))
    incidents = _by_start(_cuts_of_starts(recording), ("time",))
    times = ("first_time", "last_time", "acquire_time", "ready_time")
    rows = _in_microseconds(recording.starts, times).to_dicts()
    own = {row["start_id"]: row["source_id"] for row in rows}
    for found in (phases, progress, incidents):
        for start, told in found.items():
            for each in told:
                each["line"] = numbered(each, own.get(start))
    return [
        _reading(
            row, phases.get(row["start_id"], []), progress.get(row["start_id"], []), incidents.get(row["start_id"], [])
        )
        for row in rows
    ]


def _cuts_of_starts(recording: Recording) -> pl.DataFrame:
    """The incidents, with a cut that names no start given to every start whose lines it lies in."""
    loose = (pl.col("kind") == "cut") & pl.col("start_id").is_null()
    told = recording.incidents.filter(~pl.col("kind").is_in(OF_SERVING))
    bounds = recording.starts.select("start_id", "source_id", first="line", last="last_line")
    cuts = told.filter(loose).drop("start_id").join(bounds, on="source_id")
    within = cuts.filter(pl.col("line").is_between("first", "last")).select(told.columns)
    return pl.concat([told.filter(~loose), within])


def _in_microseconds(frame: pl.DataFrame, times: Sequence[str]) -> pl.DataFrame:
    return frame.with_columns(pl.col(name).dt.epoch("us") for name in times)


def _by_start(frame: pl.DataFrame, times: Sequence[str]) -> dict[str, list[dict[str, object]]]:
    found: dict[str, list[dict[str, object]]] = defaultdict(list)
    ordered = frame.filter(pl.col("start_id").is_not_null()).sort("source_id", "line", maintain_order=True)
    for row in _in_microseconds(ordered, times).to_dicts():
        found[str(row["start_id"])].append(row)
    return found


def _reading(
    start: Mapping[str, object],
    phase_rows: list[dict[str, object]],
    progress_rows: list[dict[str, object]],
    incident_rows: list[dict[str, object]],
) -> StartReading:
    several = len({row["replica"] for row in (*phase_rows, *progress_rows) if row["replica"] is not None}) > 1
    events = tuple(_event(row) for row in incident_rows)
    told = annotated([mark(row, _worker(row, several)) for row in phase_rows])
    begin = _engine_begin(start, events)
    read, absurd = within_clock(told, begin)
    stamps = _stamps(start, incident_rows)
    marks, known = anchored(read, stamps), known_stamps(stamps, read)
    stated = {str(row["phase"]): str(row["inside"]) for row in phase_rows if row["inside"] is not None}
    parent = parents(marks, stated)
    ended, begun = occurrences(marks)
    up = start["ready_line"] is not None or bool(start["served"])
    over = [one for one in begun if up or _passed(one.phase, one.replica, one.begin, one.line, marks, parent)]
    bars = _placed(_bars(progress_rows, several), known, start)
    return StartReading(
        **_bounds(start),
        set_back=_set_back(start, known, begin) if up else None,
        tick=clock_tick(_moments(start, events, marks)),
        marks=tuple(marks),
        absurd=absurd,
        parent=parent,
        ended=tuple(ended),
        running=tuple(one for one in begun if one not in over),
        lost=tuple(over),
        bars=tuple(bars),
        running_bars=tuple(found for found in bars if not up and _is_running(found, marks, ended, parent)),
        events=events,
    )


def _bounds(start: Mapping[str, object]) -> dict[str, Any]:
    """The fields of `StartReading` that a row of `Starts` tells."""
    return {
        "start_id": str(start["start_id"]),
        "replica": text(start["replica"]),
        "source_id": whole(start["source_id"]) or 0,
        "first_line": whole(start["line"]) or 0,
        "last_line": whole(start["last_line"]) or 0,
        "first": whole(start["first_time"]),
        "last": _last(start),
        "acquired": whole(start["acquire_time"]),
        "ready": whole(start["ready_time"]),
        "ready_line": whole(start["ready_line"]),
        "failed_line": whole(start["failed_line"]),
        "wall": length_us(start["wall_s"]),
        "served": bool(start["served"]),
    }


def _set_back(
    start: Mapping[str, object], known: Sequence[tuple[int, int, int]], begin: tuple[int, int] | None
) -> int | None:
    until = whole(start["ready_line"]) or whole(start["last_line"]) or 0
    return set_back_us(known, whole(start["source_id"]) or 0, begin, until)


def _engine_begin(start: Mapping[str, object], events: Sequence[Event]) -> tuple[int, int] | None:
    """(line, time) of the first line that says that the engine begins, in the start's own source."""
    own = [event for event in events if event.kind == "engine_begin" and event.source_id == start["source_id"]]
    return next(((event.line, event.time) for event in own if event.time is not None), None)


def _last(start: Mapping[str, object]) -> int | None:
    """The last stamp of the start itself: a pod goes on telling of itself long after it became ready."""
    first, last, ready = (whole(start[name]) for name in ("first_time", "last_time", "ready_time"))
    if first is None or last is None or ready is None:
        return last
    return min(last, max(first, ready))


def _moments(start: Mapping[str, object], events: Sequence[Event], marks: Sequence[Mark]) -> list[int]:
    """Every stamp of the start."""
    bounds = [whole(start["first_time"]), whole(start["last_time"]), *(event.time for event in events)]
    edges = [edge for one in marks for edge in (one.begin, one.end)]
    return [time for time in (*bounds, *edges) if time is not None]


def _worker(row: Mapping[str, object], several_replicas: bool) -> str:
    names = [row["replica"] if several_replicas else None, row["rank"]]
    return " ".join(str(name) for name in names if name is not None)


def _stamps(start: Mapping[str, object], incidents: Sequence[Mapping[str, object]]) -> list[tuple[int, int, int]]:
    rows = [(start["source_id"], start["line"], start["first_time"])]
    rows += [(row["source_id"], row["line"], row["time"]) for row in incidents]
    return [(whole(source) or 0, whole(line) or 0, time) for source, line, time in rows if isinstance(time, int)]


def _bars(rows: Sequence[Mapping[str, object]], several_replicas: bool) -> list[Bar]:
    lanes: dict[tuple[str, str, str | None], list[Mapping[str, object]]] = defaultdict(list)
    for row in rows:
        lanes[str(row["phase"]), _worker(row, several_replicas), text(row["replica"])].append(row)
    return [bar(phase, worker, replica, lane) for (phase, worker, replica), lane in sorted(lanes.items(), key=str)]


def _placed(bars: list[Bar], known: Sequence[tuple[int, int, int]], start: Mapping[str, object]) -> list[Bar]:
    last = whole(start["last_time"])
    firsts = [(found.readings[0].source_id, found.readings[0].line) for found in bars]
    above = [[time for source, line, time in known if source == of and line < first] for of, first in firsts]
    return [placed(found, times[-1] if times else None, last) for found, times in zip(bars, above, strict=True)]


def _passed(
    phase: str, replica: str | None, begin: int | None, line: int, marks: Sequence[Mark], parent: Mapping[str, str]
) -> bool:
    """Whether a worker of the replica is seen in a later phase, from which a barrier keeps all before this one ends."""
    for other in marks:
        if other.replica != replica or is_bound(other) or phase in lineage(other.phase, parent):
            continue
        whole_over = other.phase in CONTAINERS and other.phase in lineage(phase, parent) and not is_begin(other)
        if ORDER[other.phase] <= ORDER[phase] and not whole_over:
            continue
        moment = other.moment
        if moment >= begin if moment is not None and begin is not None else other.line > line:
            return True
    return False


def _is_running(found: Bar, marks: Sequence[Mark], ended: Sequence[Occurrence], parent: Mapping[str, str]) -> bool:
    newest = found.newest
    if found.complete or _passed(found.phase, found.replica, newest.time, newest.line, marks, parent):
        return False
    chain = lineage(found.phase, parent)
    closers = [one for one in ended if one.phase in chain and one.replica == found.replica]
    if any(one.worker == found.worker and max(one.lines) > newest.line for one in closers):
        return False
    later = [one for one in closers if max(one.lines) > newest.line and not found.worker]
    if not later:
        return True
    speed = pace(found)
    lengths = [one.length for one in later if one.length is not None]
    if speed is None or not lengths:
        return False
    return microseconds(speed.predicted_total_s) > STRAGGLING * max(lengths)


def _event(row: Mapping[str, object]) -> Event:
    source, line = whole(row["source_id"]) or 0, whole(row["line"]) or 0
    return Event(str(row["kind"]), whole(row["time"]), source, line, text(row["fields"]))
