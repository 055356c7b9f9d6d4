"""Several files about one pod (events, the pod itself, a node's log) to one account of its start."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta
from typing import Any

import polars as pl

from infer_diag.recording import Recording

Row = dict[str, Any]

APART = timedelta(minutes=1)
"""Files that tell of one pod agree on its placing to seconds; a pod placed anew under its old name is another one."""


def one_per_pod(recording: Recording, pods: list[Row]) -> Recording:
    """The recording with one start for each pod of which several of the starts `pods` tell.

    Frames in and out: Starts, Phases, Incidents. Each phase is told by the one source that measures it most finely,
    since its rows in the others tell of the same stretch of time.
    """
    into: dict[str, str] = {}
    rows: dict[str, Row] = {}
    for group in _groups(pods):
        kept = group[0]
        rows[kept["start_id"]] = _whole(group)
        into |= {other["start_id"]: kept["start_id"] for other in group}
    if len(rows) == len(into):
        return recording
    kept_rows = [
        rows.get(row["start_id"], row)
        for row in recording.starts.to_dicts()
        if into.get(row["start_id"], row["start_id"]) == row["start_id"]
    ]
    starts = pl.DataFrame(kept_rows, schema=recording.starts.schema, orient="row")
    ids = pl.col("start_id").replace(into)
    phases = _told_once(recording.phases.with_columns(ids), list(rows))
    return recording.replace(starts=starts, phases=phases, incidents=recording.incidents.with_columns(ids))


def _groups(pods: list[Row]) -> list[list[Row]]:
    """The starts that tell of one pod: of one name, from different sources, and placed at one time."""
    groups: list[list[Row]] = []
    for pod in pods:
        mine = next((group for group in groups if _same(group[0], pod)), None)
        if mine is None or any(other["source_id"] == pod["source_id"] for other in mine):
            groups.append([pod])
        else:
            mine.append(pod)
    return groups


def _same(one: Row, other: Row) -> bool:
    if one["replica"] is None or one["replica"] != other["replica"]:
        return False
    apart: timedelta = (one["acquire_time"] or one["first_time"]) - (other["acquire_time"] or other["first_time"])
    return abs(apart) <= APART


def _whole(group: list[Row]) -> Row:
    """One row of Starts; what only one file tells is taken from it, and of two times of the placing the earlier one."""

    def told(name: str) -> list[datetime]:
        return [row[name] for row in group if row[name] is not None]

    return {
        **group[0],
        "first_time": min(told("first_time")),
        "last_time": max(told("last_time"), default=None),
        "acquire_time": min(told("acquire_time"), default=None),
        "ready_time": min(told("ready_time"), default=None),
    }


def _told_once(phases: pl.DataFrame, starts: list[str]) -> pl.DataFrame:
    mine = pl.col("start_id").is_in(starts)
    ranks: dict[tuple[str, str], list[tuple[bool, bool, int, int]]] = defaultdict(list)
    for (start, phase, source), rows in phases.filter(mine).group_by("start_id", "phase", "source_id"):
        measured = (rows["status"].cast(pl.String) == "measured").any()
        stamps = pl.concat([rows["begin"], rows["end"].alias("begin")]).drop_nulls()
        fine = bool((stamps.dt.microsecond() != 0).any())
        ranks[str(start), str(phase)].append((bool(measured), fine, -int(str(source)), int(str(source))))
    best = [{"start_id": start, "phase": phase, "_source": max(found)[-1]} for (start, phase), found in ranks.items()]
    table = pl.DataFrame(best, orient="row", schema=["start_id", "phase", "_source"]).cast(
        {"start_id": pl.String, "phase": phases.schema["phase"], "_source": pl.UInt32}
    )
    told = phases.join(table, on=["start_id", "phase"], how="left", maintain_order="left")
    return told.filter(pl.col("_source").is_null() | (pl.col("_source") == pl.col("source_id"))).drop("_source")
