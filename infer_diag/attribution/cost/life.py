"""Signs of life of a replica: when it worked, when it broke off, and the last stamp of what tells of it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import polars as pl

from infer_diag.attribution.cost.lanes import Key, Lane
from infer_diag.recording import Recording, Source

Row = dict[str, Any]
Failure = tuple[int, int, datetime | None]
_EDGE = timedelta(minutes=5)
"""A log and the scrapes of the same hours begin and end so close together, where no zone lies between."""
_SERVING = ("engine_samples", "engine_steps", "request_timings")


def signs(recording: Recording) -> pl.DataFrame:
    """`source_id`, `replica`, `time`, `line` of every sample, step and finished request that a clock places."""
    stamped = [
        getattr(recording, name).select("source_id", pl.col("replica").cast(pl.Categorical), "time", "line")
        for name in _SERVING
    ]
    told: pl.DataFrame = pl.concat(stamped)
    return told.drop_nulls("time")


def life(recording: Recording, keys: frozenset[Key] | None, ids: frozenset[int] = frozenset()) -> pl.Series:
    """When a replica is seen at work, in order: by its own streams; without them by all that these sources tell."""
    told = signs(recording)
    if keys is not None:
        mine = pl.DataFrame(list(keys), schema={"source_id": pl.UInt32, "replica": pl.Categorical}, orient="row")
        return told.join(mine, on=["source_id", "replica"], how="semi", nulls_equal=True)["time"].sort()
    times = [told.filter(pl.col("source_id").is_in(list(ids)))["time"]]
    for (source_id,), part in recording.requests.partition_by("source_id", as_dict=True).items():
        zero = recording.first_time or recording.sources[source_id].first_time
        if zero is not None and source_id in ids:
            done = pl.coalesce("last_token_s", "first_token_s")
            at = pl.lit(zero) + pl.duration(microseconds=(done * 1e6).round())
            times.append(part.select(time=at.cast(pl.Datetime("us", "UTC")))["time"].drop_nulls())
    return pl.concat(times).sort()


def beside(recording: Recording, ids: frozenset[int]) -> frozenset[int]:
    """Sources whose stamps can be compared with those of these: they have a date too, and a zone or the same hours."""
    own = [recording.sources[source_id] for source_id in ids]
    if not all(source.dated for source in own):
        return ids
    return ids | {
        number
        for number, source in enumerate(recording.sources)
        if source.dated and all(_alike(source, each) for each in own)
    }


def _alike(one: Source, other: Source) -> bool:
    """Stamps of which only one names a zone are of one clock where one source's hours lie within the other's.

    Logs of the same hours of which each begins before the other, or ends after it, are rather in two zones.
    """
    zoned = [any(clock.zone is not None for clock in source.clocks) for source in (one, other)]
    ends = (one.first_time, one.last_time, other.first_time, other.last_time)
    if zoned[0] == zoned[1] or None in ends:
        return True
    first, last, begin, end = (time for time in ends if time is not None)
    within = begin <= first + _EDGE and last <= end + _EDGE
    return within or (first <= begin + _EDGE and end <= last + _EDGE)


def last_stamp(recording: Recording, lane: Lane | None, rows: list[Row]) -> datetime:
    """The last stamp of all that can be compared with a replica's own: without a date no two files can."""
    ids = {row["source_id"] for row in rows} if lane is None else {stream.source_id for stream in lane.streams}
    near = beside(recording, frozenset(ids))
    own = [] if lane is None else [lane.last]
    told = [source.last_time for number, source in enumerate(recording.sources) if number in near]
    last: datetime = max([*own, *filter(None, told), *(row["acquire_time"] or row["first_time"] for row in rows)])
    return last


def stops(recording: Recording) -> dict[str, datetime]:
    """When the run of a start was shut down, by start, where its log or its pod says so."""
    ended = recording.incidents.filter(pl.col("kind").cast(pl.String).is_in(["shutdown", "released"]))
    return dict(ended.drop_nulls(["start_id", "time"]).group_by("start_id").agg(pl.col("time").max()).iter_rows())


def failure_times(recording: Recording, ids: frozenset[int]) -> pl.Series:
    """Times at which sources tell of a failure, whatever failed."""
    told = recording.incidents.filter(pl.col("kind").cast(pl.String).is_in(["oom", "failed"]))
    return pl.concat(
        frame.filter(pl.col("source_id").is_in(list(ids)))["time"].drop_nulls() for frame in (recording.ooms, told)
    )


def broke_off(failed: pl.Series, own: pl.Series, low: datetime, high: datetime) -> datetime | None:
    """When a run broke off: at a failure after which nothing tells of its work until the next start."""
    within = failed.filter((failed >= low) & (failed < high))
    if within.is_empty():
        return None
    worked = own.filter((own >= low) & (own < high))
    if len(worked) and worked.max() > within.max():  # type: ignore[operator]
        return None
    last: datetime = within.max()  # type: ignore[assignment]
    return last


def told_cold(recording: Recording, row: Row, lane: Lane | None, begin: datetime, end: datetime) -> datetime:
    """Until when a run that is never seen to be ready, nor to fail, is known to have been starting."""
    if lane is not None:
        return min(max(lane.last, begin), end)
    phases = recording.phases.filter(pl.col("start_id") == row["start_id"])
    last = phases.select(pl.max_horizontal(pl.col("begin").max(), pl.col("end").max())).item()
    return min(max(last or begin, begin), end)


def failures(recording: Recording) -> list[Failure]:
    """(source, line, time) of every failed allocation on a device."""
    failed = recording.ooms.filter(pl.col("memory") == "device").select("source_id", "line", "time")
    told = recording.incidents.filter(pl.col("kind") == "oom").select("source_id", "line", "time")
    return list(pl.concat([failed, told]).iter_rows())


def failed_between(found: list[Failure], before: Row, row: Row) -> bool:
    """Whether an allocation failed between two starts: by lines within one file, by time otherwise."""
    low, high = before["ready_time"] or before["first_time"], row["first_time"] or row["acquire_time"]
    together = before["source_id"] == row["source_id"]
    for source_id, line, time in found:
        if together and source_id == row["source_id"]:
            if before["line"] <= line < row["line"]:
                return True
        elif time is not None and low is not None and low <= time <= high:
            return True
    return False
