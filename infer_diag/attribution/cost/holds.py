"""Since when and until when GPUs were held, and which part of that was a start."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import polars as pl

from infer_diag.fleet import Facts
from infer_diag.recording import Recording

Row = dict[str, Any]
CLUSTER = "kubernetes"
_SERVING = ("engine_samples", "engine_steps", "request_timings")


@dataclass(frozen=True)
class Hold:
    """One run of an engine on its GPUs: held from `begin` to `end`, ready from `ready` on (null: it never was).

    `acquired` says whether `begin` is when the device was assigned, and not only the first line; `released` whether
    `end` was seen, and not only the last stamp. `after_oom`: the run before it ended after a failed allocation.
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
    after_oom: bool = False
    is_start: bool = True


def holds(recording: Recording, facts: Facts) -> tuple[Hold, ...]:
    """Every hold of the recording, by its engine starts; where there is no start, by its statistics lines.

    Frames in: Starts, Incidents, Ooms, Deployments, EngineSamples. Runs of one engine follow each other in one pod
    unless a new device was assigned: the time between them is held, and belongs to the later start. Without a stamp
    there is no hold.
    """
    rows = [row for row in recording.starts.to_dicts() if row["acquire_time"] or row["first_time"]]
    engines = [row for row in rows if recording.sources[row["source_id"]].engine != CLUSTER]
    pods = [row for row in rows if recording.sources[row["source_id"]].engine == CLUSTER]
    lanes = _lanes(engines) if len(_lanes(engines)) >= len({row["replica"] for row in pods}) else _lanes(pods)
    found = [hold for lane in lanes.values() for hold in _of_lane(recording, facts, lane)]
    found += [] if lanes else _without_start(recording, facts)
    return tuple(sorted(found, key=lambda hold: (hold.begin, hold.source_id, hold.line)))


def gpu_count(recording: Recording, facts: Facts) -> int | None:
    """GPUs of one replica: as the facts say, else as the configuration that was printed last says; null if neither."""
    if facts.gpu_count is not None:
        return facts.gpu_count
    told = recording.deployments.sort("source_id", "line")["gpu_count"].drop_nulls()
    return int(told[-1]) if len(told) else None


def _lanes(rows: list[Row]) -> dict[tuple[int, str | None], list[Row]]:
    lanes: dict[tuple[int, str | None], list[Row]] = {}
    for row in sorted(rows, key=lambda row: (_begin(row), row["line"])):
        lanes.setdefault((row["source_id"], row["replica"]), []).append(row)
    return lanes


def _begin(row: Row) -> datetime:
    begin: datetime = row["acquire_time"] or row["first_time"]
    return begin


def _of_lane(recording: Recording, facts: Facts, lane: list[Row]) -> list[Hold]:
    found: list[Hold] = []
    failures = _failures(recording, lane[0])
    for number, row in enumerate(lane):
        after = lane[number + 1] if number + 1 < len(lane) else None
        begin, acquired = _begin(row), row["acquire_time"] is not None
        if found and not acquired:
            # The pod kept its GPUs while the engine was down.
            begin, acquired = found[-1].end, found[-1].acquired
        end, released = _end(recording, row, after)
        ready = row["ready_time"] if row["ready_time"] is not None else _first_served(recording, row, after)
        before = lane[number - 1] if number else None
        found.append(
            Hold(
                row["start_id"],
                row["source_id"],
                row["replica"],
                row["line"],
                begin,
                min(max(ready, begin), max(end, begin)) if ready is not None else None,
                max(end, begin),
                gpu_count(recording, facts) or 1,
                acquired,
                released,
                after_oom=before is not None and _failed_between(failures, before, row),
            )
        )
    return found


def _end(recording: Recording, row: Row, after: Row | None) -> tuple[datetime, bool]:
    """When the run ended: at its shutdown, before the next start, or at the last stamp of all that tell of engines."""
    stops = recording.incidents.filter(
        (pl.col("kind") == "shutdown") & (pl.col("start_id") == row["start_id"]) & pl.col("time").is_not_null()
    )["time"]
    if len(stops):
        last: datetime = stops.max()  # type: ignore[assignment]
        return last, True
    if after is not None:
        crash = _crash(recording, row, after)
        if crash is not None:
            return crash, True
        same_pod = after["acquire_time"] is None
        return (after["first_time"] or _begin(after), True) if same_pod else (row["last_time"] or _begin(row), False)
    if row["failed_line"] is not None and row["ready_time"] is None and not row["served"]:
        return row["last_time"] or _begin(row), False
    own = recording.sources[row["source_id"]]
    # Without a date the stamps of two files cannot be compared.
    beside = [source for source in recording.sources if source is own or (own.dated and source.dated)]
    return max([*(source.last_time for source in beside if source.last_time is not None), _begin(row)]), False


def _crash(recording: Recording, row: Row, after: Row) -> datetime | None:
    """When the run broke off: at a failure after which its log tells of no work until the next start."""
    here, low, high = pl.col("source_id") == row["source_id"], _begin(row), _begin(after)
    inside = here & (pl.col("time") >= low) & (pl.col("time") < high)
    failures = recording.incidents.filter(pl.col("kind").cast(pl.String).is_in(["oom", "failed"]))
    failed = pl.concat([recording.ooms.filter(inside)["time"], failures.filter(inside)["time"]])
    worked = pl.concat([getattr(recording, name).filter(inside)["time"] for name in _SERVING])
    if failed.is_empty() or (len(worked) and worked.max() > failed.max()):
        return None
    last: datetime = failed.max()  # type: ignore[assignment]
    return last


def _first_served(recording: Recording, row: Row, after: Row | None) -> datetime | None:
    if not row["served"]:
        return None
    low, high = _begin(row), None if after is None else _begin(after)
    first: list[datetime] = []
    for name in _SERVING:
        times = getattr(recording, name).filter((pl.col("source_id") == row["source_id"]) & (pl.col("time") >= low))[
            "time"
        ]
        first += [] if times.is_empty() else [times.min()]
    return min((time for time in first if high is None or time < high), default=None)


def _failures(recording: Recording, row: Row) -> list[tuple[int, int, datetime | None]]:
    """(source, line, time) of every failed allocation on a device."""
    failed = recording.ooms.filter(pl.col("memory") == "device").select("source_id", "line", "time")
    told = recording.incidents.filter(pl.col("kind") == "oom").select("source_id", "line", "time")
    return list(pl.concat([failed, told]).iter_rows())


def _failed_between(failures: list[tuple[int, int, datetime | None]], before: Row, row: Row) -> bool:
    low, high = before["ready_time"] or _begin(before), row["first_time"] or _begin(row)
    for source_id, line, time in failures:
        if source_id == row["source_id"]:
            if before["line"] <= line < row["line"]:
                return True
        elif time is not None and low <= time <= high:
            return True
    return False


def _without_start(recording: Recording, facts: Facts) -> list[Hold]:
    """A hold per engine that prints statistics and is never seen to start: from its first stamp to its last."""
    stamped = [getattr(recording, name).select("source_id", "replica", "time", "line") for name in _SERVING]
    told = pl.concat([frame.with_columns(pl.col("replica").cast(pl.String)) for frame in stamped]).drop_nulls("time")
    streams = told.group_by("source_id", "replica").agg(
        pl.col("time").min().alias("first"), pl.col("time").max().alias("last"), pl.col("line").min()
    )
    logs = streams.filter(~pl.col("source_id").is_in(_scraped(recording)))
    rows = (streams if logs.is_empty() else logs).sort("source_id", "replica").to_dicts()
    count = gpu_count(recording, facts) or 1
    return [
        Hold(
            None,
            row["source_id"],
            row["replica"],
            row["line"],
            row["first"],
            row["first"],
            row["last"],
            count,
            acquired=False,
            released=False,
            is_start=False,
        )
        for row in rows
        if row["last"] > row["first"]
    ]


def _scraped(recording: Recording) -> list[int]:
    kinds = recording.engine_samples.group_by("source_id").agg((pl.col("kind") == "scrape").all().alias("scraped"))
    return kinds.filter("scraped")["source_id"].to_list()
