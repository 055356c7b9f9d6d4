"""Since when and until when GPUs were held, and which part of that was a start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

import polars as pl

from infer_diag.attribution.cost.gpu_counts import gpu_count
from infer_diag.attribution.cost.lanes import Key, Lane, Lanes, pods_alone
from infer_diag.attribution.cost.life import (
    Row,
    beside,
    broke_off,
    failed_between,
    failure_times,
    failures,
    last_stamp,
    life,
    signs,
    stops,
    told_cold,
)
from infer_diag.fleet import Facts
from infer_diag.recording import Recording


@dataclass(frozen=True)
class Hold:
    """One run of an engine on its GPUs: held from `begin` to `end`, ready from `ready` on (null: never, or not told).

    `acquired` says whether `begin` is when the device was assigned, and not only the first line; `released` whether
    `end` was seen, and not only the last stamp: it may then lie anywhere from `end_earliest` to `end_latest`. Up to
    `cold_end` the run is known to have been starting; where it lies before `end` and `ready` is null, no log tells
    what came between. `ready_seen`: a line or condition says when it was ready; otherwise it was so at the latest.
    `never_told`: nothing says that it was ready, nor that it failed. `lane` numbers the replica. `after_oom`: the run
    before it ended after a failed allocation.
    """

    start_id: str | None
    source_id: int
    replica: str | None
    line: int
    begin: datetime
    ready: datetime | None
    end: datetime
    gpu_count: int
    acquired: bool
    released: bool
    cold_end: datetime
    end_earliest: datetime
    end_latest: datetime
    ready_seen: bool = True
    never_told: bool = False
    after_oom: bool = False
    is_start: bool = True
    lane: int = 0


def holds(recording: Recording, facts: Facts, told: Lanes) -> tuple[Hold, ...]:
    """Every hold of the recording, replica by replica: its starts, and its lines where it is never seen to start.

    Frames in: Starts, Incidents, Ooms, Deployments, EngineSamples, EngineSteps, Requests, RequestTimings. Runs of one
    engine follow each other in one pod unless a new device was assigned: the time between them is held, and belongs to
    the later start. Without a stamp there is no hold.
    """
    chosen, left = _replicas(recording, told)
    alone = len(chosen) + len(left) == 1
    found: list[Hold] = []
    for number, mine in chosen.items():
        lane = told.found[number]
        counts = gpu_count(recording, facts, lane) or 1
        found += _of_replica(_replica(recording, sorted(mine, key=_order), number, counts, lane, alone=alone))
    counts = gpu_count(recording, facts) or 1
    for number, mine in enumerate(left, len(told.found)):
        one = _replica(recording, sorted(mine, key=_order), number, counts, None, alone=alone)
        found += _of_replica(replace(one, until=_replaced(mine, left)))
    if not found:
        found = _of_scrapes(recording, counts)
    return tuple(sorted(found, key=lambda hold: (hold.begin, hold.source_id, hold.line)))


def _replicas(recording: Recording, told: Lanes) -> tuple[dict[int, list[Row]], list[list[Row]]]:
    """(starts by the lane that printed them, starts by the pod of which no log is told)."""
    starts: dict[int, list[Row]] = {number: [] for number in range(len(told.found))}
    for row in recording.starts.to_dicts():
        for number in told.of(row["source_id"], row["replica"]):
            if (row["acquire_time"] or row["first_time"]) and not _copied(row, starts[number]):
                starts[number].append(row)
    lone = [number for number, mine in starts.items() if all(row["acquire_time"] is None for row in mine)]
    left = _by_pod(pods_alone(recording))
    if len(left) <= len(lone):
        return starts, []
    # Which of the pods wrote these logs is not told, and the pods are all there were.
    return {number: mine for number, mine in starts.items() if number not in lone}, left


def _copied(row: Row, others: list[Row]) -> bool:
    """Whether another file of the same replica tells of this very start, as a copy of a log does."""
    return any(
        other["source_id"] != row["source_id"]
        and all(other[name] == row[name] for name in ("first_time", "last_time", "ready_time", "acquire_time"))
        for other in others
    )


def _replaced(mine: list[Row], pods: list[list[Row]]) -> datetime | None:
    """When the next pod was placed, if that was after all that is told of this one."""
    last = max(row["last_time"] or _begin(row) for row in mine)
    later = [_begin(rows[0]) for rows in pods if rows is not mine and _begin(rows[0]) >= last]
    return min(later, default=None)


def _by_pod(rows: list[Row]) -> list[list[Row]]:
    found: dict[Key, list[Row]] = {}
    for row in sorted(rows, key=_order):
        found.setdefault((row["source_id"], row["replica"]), []).append(row)
    return list(found.values())


def _begin(row: Row) -> datetime:
    begin: datetime = row["acquire_time"] or row["first_time"]
    return begin


def _order(row: Row) -> tuple[datetime, int]:
    return _begin(row), row["line"]


@dataclass(frozen=True)
class _Replica:
    """One replica: its starts in order, when it is seen at work, and when what tells of it ends.

    `mine`: by its own logs; `own`: by all that tells of it. Without a lane it is a pod that the cluster alone tells of;
    `until`: when another pod was placed that may have taken its place.
    """

    recording: Recording
    rows: list[Row]
    number: int
    gpus: int
    lane: Lane | None
    mine: pl.Series
    own: pl.Series
    earliest: datetime
    latest: datetime
    stops: dict[str, datetime]
    failed: pl.Series
    until: datetime | None = None


def _replica(
    recording: Recording, rows: list[Row], number: int, gpus: int, lane: Lane | None, *, alone: bool
) -> _Replica:
    keys = frozenset((row["source_id"], row["replica"]) for row in rows) if lane is None else lane.keys
    ids = frozenset(source_id for source_id, _ in keys)
    mine = life(recording, keys)
    own = life(recording, None, beside(recording, ids)) if alone else mine
    latest = last_stamp(recording, lane, rows)
    last = lane.last if lane is not None else max(row["last_time"] or _begin(row) for row in rows)
    ends = latest if alone else last, latest
    ended = stops(recording), failure_times(recording, ids)
    return _Replica(recording, rows, number, gpus, lane, mine, own, *ends, *ended)


def _of_replica(one: _Replica) -> list[Hold]:
    """The runs of one replica in order."""
    found = [] if one.lane is None else _before_starts(one, one.lane)
    failed = failures(one.recording)
    for place, row in enumerate(one.rows):
        before = one.rows[place - 1] if place else None
        after = one.rows[place + 1] if place + 1 < len(one.rows) else None
        oom = before is not None and failed_between(failed, before, row)
        found.append(replace(_run(one, row, after, found[-1] if found else None), after_oom=oom))
    return found


def _run(one: _Replica, row: Row, after: Row | None, previous: Hold | None) -> Hold:
    """The hold of one start; between it and the run before the pod kept its GPUs."""
    begin, acquired = _begin(row), row["acquire_time"] is not None
    if previous is not None and not acquired:
        begin, acquired = previous.end, previous.acquired
    last = one.until or one.latest if one.lane is None else max(one.earliest, _begin(row))
    end, released = _end(one, row, after, last)
    end = max(end, begin)
    ready, seen = _ready(
        one.mine if row["served"] else one.own, row, begin, end if after is None else min(_begin(after), end)
    )
    over = _is_over(row, after)
    cold_end = ready or (end if over else told_cold(one.recording, row, one.lane, begin, end))
    is_open = after is None and not released
    return Hold(
        row["start_id"],
        row["source_id"],
        row["replica"],
        row["line"],
        begin,
        ready,
        end,
        one.gpus,
        acquired,
        released,
        cold_end,
        end_earliest=max(min(one.earliest, end), begin) if is_open else end,
        end_latest=max(one.latest, end) if is_open else end,
        ready_seen=seen,
        never_told=ready is None and not over and (one.lane is None or cold_end < end),
        lane=one.number,
    )


def _is_over(row: Row, after: Row | None) -> bool:
    """Whether a run that never came up is known to have ended as a start: it failed, or another one followed it."""
    return after is not None or (row["failed_line"] is not None and not row["served"])


def _ready(own: pl.Series, row: Row, begin: datetime, end: datetime) -> tuple[datetime | None, bool]:
    """When the run was ready, and whether that was seen: a line says so, or the engine's own first work shows it."""
    if row["ready_time"] is not None:
        return min(max(row["ready_time"], begin), end), True
    if row["failed_line"] is not None and not row["served"]:
        return None, True
    worked = own.filter((own >= max(begin, row["first_time"] or begin)) & (own < end))
    if worked.is_empty():
        return None, True
    first: datetime = worked.min()  # type: ignore[assignment]
    return min(max(first, begin), end), bool(row["served"])


def _end(one: _Replica, row: Row, after: Row | None, last: datetime) -> tuple[datetime, bool]:
    """When the run ended: at its shutdown, before the next start, or at the last stamp of what tells of it."""
    stop = one.stops.get(row["start_id"])
    if stop is not None:
        return stop, True
    if after is not None:
        crash = broke_off(one.failed, one.mine, _begin(row), _begin(after))
        if crash is not None:
            return crash, True
        if after["acquire_time"] is None:
            return after["first_time"] or _begin(after), True
        worked = one.mine.filter((one.mine >= _begin(row)) & (one.mine < _begin(after)))
        seen: datetime = max([row["last_time"] or _begin(row), *worked.tail(1)])
        return seen, False
    if row["failed_line"] is not None and row["ready_time"] is None and not row["served"]:
        return row["last_time"] or _begin(row), False
    return last, False


def _before_starts(one: _Replica, lane: Lane) -> list[Hold]:
    """What a replica did before the first start in its logs: it served already when they begin, or all along."""
    until = _begin(one.rows[0]) if one.rows else None
    worked = one.own.filter(one.own < until) if until is not None else one.own
    if worked.is_empty() or (until is not None and one.rows[0]["acquire_time"] is not None):
        return []
    first: datetime = worked.min()  # type: ignore[assignment]
    end: datetime = until or max([lane.last, *worked.tail(1)])
    if end <= first:
        return []
    served = _serving_hold(lane.streams[0].key, 1, first, end, one.gpus, one.number)
    return [replace(served, released=until is not None, end_latest=end if until is not None else max(one.latest, end))]


def _serving_hold(key: Key, line: int, first: datetime, last: datetime, gpus: int, number: int) -> Hold:
    """A hold of which no start is seen: from the first to the last sign of life."""
    return Hold(
        None,
        *key,
        line,
        first,
        first,
        last,
        gpus,
        acquired=False,
        released=False,
        cold_end=first,
        end_earliest=last,
        end_latest=last,
        is_start=False,
        lane=number,
    )


def _of_scrapes(recording: Recording, gpus: int) -> list[Hold]:
    """A hold per engine of which scrapes alone tell: from its first stamp to its last."""
    streams = (
        signs(recording)
        .group_by("source_id", "replica")
        .agg(first=pl.col("time").min(), last=pl.col("time").max(), line=pl.col("line").min())
        .filter(pl.col("last") > pl.col("first"))
        .sort("source_id", "replica")
    )
    return [
        _serving_hold((row["source_id"], row["replica"]), row["line"], row["first"], row["last"], gpus, number)
        for number, row in enumerate(streams.to_dicts())
    ]
