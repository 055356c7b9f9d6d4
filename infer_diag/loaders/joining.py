"""Cluster events and an engine's log of one start: when the device was assigned on which the engine then started."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import polars as pl

from infer_diag.recording import Recording, Source

Row = dict[str, Any]

CLUSTER = "kubernetes"
SKEW = timedelta(seconds=5)
"""Nodes keep their clocks by NTP; an engine that seems to begin longer before its pod was placed has another clock."""


def with_acquire_times(recording: Recording) -> Recording:
    """The recording with `acquire_time` of each engine start whose pod is known.

    Frame in and out: Starts. The pod is that of the engine's replica by name, or the only pod there is; it was placed
    before the engine's first stamp, and is the last one placed before it. Only sources with a date and a zone are
    joined: without them two clocks cannot be compared. Of several starts in one pod only the first acquires its device.
    """
    rows = recording.starts.to_dicts()
    comparable = {number for number, source in enumerate(recording.sources) if _comparable(source)}
    known = [row for row in rows if row["source_id"] in comparable]
    pods = [row for row in known if _of_cluster(recording, row) and row["acquire_time"] is not None]
    engines = [row for row in known if not _of_cluster(recording, row) and row["first_time"] is not None]
    found: dict[str, datetime] = {}
    for pod in pods:
        mine = [row for row in engines if _is_in(row, pod, alone=len(pods) == 1)]
        if mine:
            first = min(mine, key=lambda row: (row["first_time"], row["start_id"]))
            if len(pods) > 1 or _one_replica(mine):
                found[first["start_id"]] = max(pod["acquire_time"], found.get(first["start_id"], pod["acquire_time"]))
    if not found:
        return recording
    told = pl.col("start_id").replace_strict(found, default=None, return_dtype=pl.Datetime("us", "UTC"))
    return recording.replace(starts=recording.starts.with_columns(pl.coalesce("acquire_time", told)))


def _comparable(source: Source) -> bool:
    return source.dated and any(clock.zone is not None for clock in source.clocks)


def _of_cluster(recording: Recording, row: Row) -> bool:
    return recording.sources[row["source_id"]].engine == CLUSTER


def _is_in(engine: Row, pod: Row, *, alone: bool) -> bool:
    """Whether the engine's start may have been in the pod; a replica is named after its pod and container."""
    if engine["first_time"] < pod["acquire_time"] - SKEW:
        return False
    if engine["replica"] is not None and pod["replica"] is not None:
        return str(engine["replica"]).split(" ")[0].split("/")[0] == str(pod["replica"])
    return alone


def _one_replica(engines: list[Row]) -> bool:
    """Whether the starts follow one another in one engine: several side by side cannot all be in one pod."""
    return len({row["replica"] for row in engines}) == 1
