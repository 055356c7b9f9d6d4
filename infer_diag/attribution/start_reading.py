"""One start of a recording as attribution reads it: bounds, marks of its workers, bars, and what is still running."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from infer_diag.attribution.intervals import clock_tick, microseconds
from infer_diag.attribution.line_numbers import numbered
from infer_diag.attribution.load_progress import Bar, bar, pace, placed
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
    """Everything that the lines of one start say, in microseconds since the epoch; lines are `line_numbers`."""

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
    served: bool
    tick: int
    marks: tuple[Mark, ...]
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
    read = _annotated([mark(row, _worker(row, several)) for row in phase_rows])
    marks = _anchored(read, _stamps(start, incident_rows))
    stated = {str(row["phase"]): str(row["inside"]) for row in phase_rows if row["inside"] is not None}
    parent = parents(marks, stated)
    ended, begun = occurrences(marks)
    up = start["ready_line"] is not None or bool(start["served"])
    over = [one for one in begun if up or _passed(one.phase, one.replica, one.begin, one.line, marks, parent)]
    bars = _placed(_bars(progress_rows, several), _known(_stamps(start, incident_rows), read), start)
    events = tuple(_event(row) for row in incident_rows)
    return StartReading(
        start_id=str(start["start_id"]),
        replica=text(start["replica"]),
        source_id=whole(start["source_id"]) or 0,
        first_line=whole(start["line"]) or 0,
        last_line=whole(start["last_line"]) or 0,
        first=whole(start["first_time"]),
        last=_last(start),
        acquired=whole(start["acquire_time"]),
        ready=whole(start["ready_time"]),
        ready_line=whole(start["ready_line"]),
        failed_line=whole(start["failed_line"]),
        wall=length_us(start["wall_s"]),
        served=bool(start["served"]),
        tick=clock_tick(_moments(start, events, marks)),
        marks=tuple(marks),
        parent=parent,
        ended=tuple(ended),
        running=tuple(one for one in begun if one not in over),
        lost=tuple(over),
        bars=tuple(bars),
        running_bars=tuple(found for found in bars if not up and _is_running(found, marks, ended, parent)),
        events=events,
    )


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


def _known(stamps: Sequence[tuple[int, int, int]], marks: Sequence[Mark]) -> list[tuple[int, int, int]]:
    """Source, line and time of every stamped line of a start that tells something, in order."""
    return sorted([*stamps, *((one.source_id, one.line, one.moment) for one in marks if one.moment is not None)])


def _anchored(marks: list[Mark], stamps: list[tuple[int, int, int]]) -> list[Mark]:
    """Durations whose line has no stamp end at the last stamped line above them, where the start has stamps at all."""
    known = _known(stamps, marks)
    return [_at_last_stamp(mark, known) if known and _floats(mark) else mark for mark in marks]


def _annotated(marks: list[Mark]) -> list[Mark]:
    """Totals that stand in the line of another phase were not printed at their own end and lose that line's stamp.

    Such a total of no worker's own only repeats what workers tell of the phase, where they do.
    """
    lines = {(mark.source_id, mark.line) for mark in marks if not mark.is_total}
    beside = [mark.is_total and (mark.source_id, mark.line) in lines for mark in marks]
    workers = {(mark.replica, mark.phase) for mark in marks if mark.worker}
    return [
        Mark(**{**mark.__dict__, "end": None}) if other else mark
        for mark, other in zip(marks, beside, strict=True)
        if not (other and not mark.worker and (mark.replica, mark.phase) in workers)
    ]


def _floats(mark: Mark) -> bool:
    return mark.length is not None and mark.moment is None and not mark.is_total


def _at_last_stamp(mark: Mark, known: Sequence[tuple[int, int, int]]) -> Mark:
    beside = [(line, time) for source, line, time in known if source == mark.source_id]
    above = [time for line, time in beside if line <= mark.line]
    below = [time for line, time in beside if line > mark.line]
    end = above[-1] if above else below[0] if below else known[0][2]
    # Where it fits between the stamps around its line, it lies there.
    room = above and below and end + (mark.length or 0) <= below[0]
    return Mark(**{**mark.__dict__, "end": end + (mark.length or 0) if room else end})


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
