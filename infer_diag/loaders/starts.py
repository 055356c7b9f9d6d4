"""Observations to starts: where one start of an engine ends and the next begins, and which lines belong to each."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import polars as pl

from infer_diag.loaders.serving_lines import ServingLines, speaks_for
from infer_diag.recording import start_id
from infer_diag.schema import INSIDE

_ENDS = {"ready", "failed", "shutdown"}
_BEFORE_START = {"shutdown", "oom", "failed", "ready"}
_LOADS = ("weights_fetch", "weights_load", "weights_read")
_AFTER_LOAD = ("warmup", "server_ready", "first_request")
_LATE = timedelta(seconds=2)
_SINGLE_PROCESSES = ("APIServer", "EngineCore")

Row = dict[str, Any]


@dataclass
class Start:
    """One start while it is put together; rows are observations in the order of the log.

    `served_through`: how many serving lines of its replica the file holds up to its last row.
    """

    replica: str | None
    rows: list[Row] = field(default_factory=list)
    served: bool = False
    closed: bool = False
    failed: bool = False
    loaded: bool = False
    served_through: int = 0
    closed_time: datetime | None = None
    pids: dict[str, str] = field(default_factory=dict)
    sized: set[tuple[str | None, str | None]] = field(default_factory=set)

    def add(self, row: Row) -> None:
        """Takes one more observation."""
        self.rows.append(row)
        if row["process"] and row["pid"] and row["process"].startswith(_SINGLE_PROCESSES):
            self.pids.setdefault(row["process"], row["pid"])
        self.loaded = self.loaded or row["phase"] is not None
        self.failed = self.failed or row["kind"] == "failed"
        if row["kind"] == "kv_pool":
            self.sized.add((row["process"], row["pid"]))
        if row["kind"] in _ENDS or (row["phase"] == "init_engine" and row["edge"] != "begin"):
            self.closed = True
            self.closed_time = row["time"] or self.closed_time

    def ends_before(self, row: Row) -> bool:
        """Whether this observation opens another start."""
        if row["kind"] == "engine_begin":
            return self.loaded or self.closed
        if row["kind"] == "process_begin":
            return self.failed
        if row["edge"] == "verdict":
            return self.served or any(one["kind"] == "ready" for one in self.rows)
        if row["kind"] is not None or row["phase"] in _AFTER_LOAD or row["edge"] == "bound":
            return False
        known = self.pids.get(row["process"] or "")
        if known is not None and row["pid"] is not None and known != row["pid"]:
            return True
        # One process sizes its KV pool after all of its weights are there.
        if row["phase"] in _LOADS and (row["process"], row["pid"]) in self.sized:
            return True
        printed_late = (
            self.closed_time is not None and row["time"] is not None and row["time"] <= self.closed_time + _LATE
        )
        return self.closed and not (printed_late and not self.served) and row["phase"] != "kernel_warmup"


def segmented(observations: pl.DataFrame, serving: ServingLines) -> list[Start]:
    """The starts of one file in order.

    Rows without a replica belong to every replica's start that is open, since front ends and launchers speak for all of
    them; a line of a serving engine ends the start of its own replica only.
    """
    replicas = [name for name in observations["replica"].unique(maintain_order=True).to_list() if name is not None]
    names: list[str | None] = list(replicas) if len(replicas) > 1 else [None]
    lines = observations["line"].to_numpy().astype(np.int64)
    before = {name: serving.counts_before(name, lines) for name in names}
    through = {name: serving.counts_before(name, lines + 1) for name in names}
    spoken_for = {place: _spoken_for(place, names) for place in observations["replica"].unique()}
    open_starts: dict[str | None, Start] = {}
    starts: list[Start] = []
    for number, row in enumerate(observations.to_dicts()):
        for name in spoken_for[row["replica"]]:
            current = open_starts.get(name)
            if current is not None and before[name][number] > current.served_through:
                current.served = current.closed = True
            if current is None or current.ends_before(row):
                if row["kind"] in _BEFORE_START and row["edge"] != "verdict":
                    continue
                current = open_starts[name] = Start(name)
                starts.append(current)
            current.add(row)
            current.served_through = through[name][number]
    for name, current in open_starts.items():
        if serving.count(name) > current.served_through:
            current.served = current.closed = True
    return [start for start in starts if start.loaded or any(_announces(row) for row in start.rows)]


def _announces(row: Row) -> bool:
    """Whether this observation alone shows that there was a start."""
    return bool(row["kind"] == "engine_begin" or row["edge"] == "verdict")


def _spoken_for(replica: str | None, names: list[str | None]) -> list[str | None]:
    """The replicas that a record tells of: its own, all of its pod, or all there are."""
    if replica is None:
        return names
    own = [name for name in names if name is not None and speaks_for(replica, name)]
    return list(own) or names


@dataclass(frozen=True)
class _Region:
    first: int
    last: int


_END = 1 << 31


def _regions(starts: list[Start], serving: ServingLines, within: bool) -> list[_Region]:
    """The lines of each start: its own, and those around them that no other start or serving line claims."""
    following = _first_lines_after(starts)
    last_of: dict[str | None, int] = {}
    regions = []
    for start, next_begin in zip(starts, following, strict=True):
        own = [row["line"] for row in start.rows if row["kind"] != "shutdown"]
        stops = [row["line"] for row in start.rows if row["kind"] == "shutdown"]
        ready = next((row["line"] for row in reversed(start.rows) if row["kind"] == "ready"), None)
        serving_lines = serving.of(start.replica)
        before = int(np.searchsorted(serving_lines, own[0]))
        after = int(np.searchsorted(serving_lines, max(own)))
        floor = max(last_of.get(start.replica, 0), int(serving_lines[before - 1]) if before else 0)
        announced = start.rows[0]["kind"] in ("engine_begin", "process_begin") and start.replica in last_of
        ceiling = int(serving_lines[after]) - 1 if after < len(serving_lines) else _END
        open_end = min([ceiling, next_begin - 1, *[stop - 1 for stop in stops if stop > max(own)]])
        regions.append(_Region(own[0] if announced or within else floor + 1, ready or max(open_end, max(own))))
        last_of[start.replica] = max([*own, *stops])
    return regions


def _first_lines_after(starts: list[Start]) -> list[int]:
    """For each start the first line of the next one of the same replica."""
    upcoming: dict[str | None, int] = {}
    out = []
    for start in reversed(starts):
        out.append(upcoming.get(start.replica, _END))
        upcoming[start.replica] = start.rows[0]["line"]
    return out[::-1]


def start_frames(
    starts: list[Start], context: pl.DataFrame, serving: ServingLines, *, within: bool = False
) -> dict[str, pl.DataFrame]:
    """The frames `starts`, `phases`, `progress` and `incidents` of one file, without `source_id`.

    `context` holds `line, time, replica` of the records around the starts; `within` says that starts begin with their
    own first line, whatever stands before it.
    """
    if not starts:
        return {}
    regions = _regions(starts, serving, within)
    rows = _rows(starts)
    context = context.sort("line", maintain_order=True)
    table = pl.DataFrame(
        [
            _summary(start, region, number, context)
            for number, (start, region) in enumerate(zip(starts, regions, strict=True))
        ],
        schema=_STARTS,
    )
    return {"starts": table, "phases": _phases(rows), "progress": _progress(rows), "incidents": _incidents(rows)}


_TIME = pl.Datetime("us", "UTC")
_STARTS: dict[str, pl.DataType | type[pl.DataType]] = {
    "line": pl.UInt32,
    "start_id": pl.String,
    "replica": pl.String,
    "last_line": pl.UInt32,
    "first_time": _TIME,
    "last_time": _TIME,
    "acquire_time": _TIME,
    "ready_time": _TIME,
    "ready_line": pl.UInt32,
    "failed_line": pl.UInt32,
    "wall_s": pl.Float64,
    "served": pl.Boolean,
}


def _rows(starts: list[Start]) -> pl.DataFrame:
    """All observations, each with the start and the replica that it counts for."""
    frame = pl.DataFrame([row for start in starts for row in start.rows], schema=_OBSERVATION, orient="row")
    counts = [len(start.rows) for start in starts]
    return frame.with_columns(
        pl.Series("start_id", [start_id(number) for number, count in enumerate(counts) for _ in range(count)]),
        pl.Series("replica", [start.replica for start in starts for _ in start.rows], dtype=pl.String),
    )


_OBSERVATION: dict[str, pl.DataType | type[pl.DataType]] = {
    "line": pl.UInt32,
    "part": pl.UInt32,
    "time": _TIME,
    "process": pl.String,
    "pid": pl.String,
    "replica": pl.String,
    "rank": pl.String,
    "phase": pl.String,
    "inside": pl.String,
    "kind": pl.String,
    "edge": pl.String,
    "is_total": pl.Boolean,
    "seconds": pl.Float64,
    "resolution_s": pl.Float64,
    "size_bytes": pl.Float64,
    "done_count": pl.UInt32,
    "total_count": pl.UInt32,
    "elapsed_s": pl.Float64,
    "fields": pl.String,
}


def _summary(start: Start, region: _Region, number: int, context: pl.DataFrame) -> Row:
    low = context["line"].search_sorted(region.first)
    high = context["line"].search_sorted(region.last, side="right")
    stamped = context[low:high].drop_nulls("time")
    if start.replica is not None:
        stamped = stamped.filter(pl.col("replica").is_null() | (pl.col("replica") == start.replica))
    ready = next((row for row in reversed(start.rows) if row["kind"] == "ready"), None)
    failed = next((row for row in start.rows if row["kind"] == "failed"), None)
    if failed is None and ready is None and not start.served:
        failed = next((row for row in start.rows if row["kind"] == "oom"), None)
    ready_time = None
    if ready is not None:
        ready_time = ready["time"] or stamped.filter(pl.col("line") <= ready["line"])["time"].max()
    return {
        "line": region.first,
        "start_id": start_id(number),
        "replica": start.replica,
        "last_line": min(region.last, context["line"][-1] if len(context) else start.rows[-1]["line"]),
        "first_time": stamped["time"].min(),
        "last_time": stamped["time"].max(),
        "acquire_time": None,
        "ready_time": ready_time,
        "ready_line": ready["line"] if ready else None,
        "failed_line": failed["line"] if failed else None,
        "wall_s": next((row["seconds"] for row in start.rows if row["kind"] == "shutdown"), None),
        "served": start.served,
    }


def _phases(rows: pl.DataFrame) -> pl.DataFrame:
    told = rows.filter(pl.col("phase").is_not_null() & (pl.col("edge") != "bar"))
    timed, edge = pl.col("time"), pl.col("edge")
    # SGLang prints no duration that encloses all; a phase is inside only what the start itself tells of.
    enclosed = (pl.col("phase") == "init_engine").any().over("start_id") | (pl.col("_inside") != "init_engine")
    told = told.with_columns(
        pl.col("phase").replace_strict(INSIDE, default=None, return_dtype=pl.String).alias("_inside")
    )
    return told.select(
        "line",
        "start_id",
        "replica",
        "rank",
        "phase",
        pl.coalesce("inside", pl.when(enclosed).then(pl.col("_inside"))).alias("inside"),
        pl.when(edge == "begin").then(timed).alias("begin"),
        pl.when(~edge.is_in(["begin", "bound"])).then(timed).alias("end"),
        pl.when(edge != "bound").then("seconds").alias("duration_s"),
        pl.when(edge == "bound").then("seconds").alias("upper_s"),
        "resolution_s",
        "is_total",
        pl.when(edge == "bound")
        .then(pl.lit("bounded"))
        .when(pl.col("seconds").is_not_null())
        .then(pl.lit("measured"))
        .otherwise(pl.lit("not_identifiable"))
        .alias("status"),
        "size_bytes",
    )


def _progress(rows: pl.DataFrame) -> pl.DataFrame:
    bars = rows.filter(
        (pl.col("edge") == "bar") & pl.col("total_count").is_not_null() & pl.col("done_count").is_not_null()
    )
    return bars.select("line", "start_id", "replica", "rank", "phase", "time", "done_count", "total_count", "elapsed_s")


def _incidents(rows: pl.DataFrame) -> pl.DataFrame:
    told = rows.filter(pl.col("kind").is_not_null())
    return told.select("line", "start_id", "replica", "rank", "time", "kind", "fields")
