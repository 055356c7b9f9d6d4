"""Starts to the frames that tell of them: which lines belong to each, and what those say."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from infer_diag.loaders.serving_lines import ServingLines
from infer_diag.loaders.starts import Row, Start
from infer_diag.recording import start_id
from infer_diag.schema import INSIDE


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
    stamps = _Stamps.of(context)
    last_line = context["line"].max()
    table = pl.DataFrame(
        [
            _summary(start, region, number, stamps)
            for number, (start, region) in enumerate(zip(starts, regions, strict=True))
        ],
        schema=_STARTS,
    )
    # The last start may be open to the end of the file.
    table = table.with_columns(pl.min_horizontal("last_line", pl.lit(last_line, pl.UInt32)))
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


@dataclass(frozen=True)
class _Stamps:
    """The stamped lines around the starts, in the order of the file."""

    lines: np.ndarray
    times: pl.Series
    replicas: pl.Series

    @classmethod
    def of(cls, context: pl.DataFrame) -> _Stamps:
        """Frame in: `line`, `time`, `replica`."""
        stamped = context.drop_nulls("time").sort("line", maintain_order=True)
        return cls(stamped["line"].to_numpy(), stamped["time"], stamped["replica"])

    def between(self, first: int, last: int, replica: str | None) -> pl.Series:
        """The times of these lines, both ends included: the replica's and those that name none; null takes all."""
        low, high = np.searchsorted(self.lines, [first, last + 1]).tolist()
        times = self.times.slice(low, high - low)
        if replica is None:
            return times
        spoken_for = self.replicas.slice(low, high - low)
        return times.filter(spoken_for.is_null() | (spoken_for == replica))


def _summary(start: Start, region: _Region, number: int, stamps: _Stamps) -> Row:
    stamped = stamps.between(region.first, region.last, start.replica)
    ready = next((row for row in reversed(start.rows) if row["kind"] == "ready"), None)
    failed = next((row for row in start.rows if row["kind"] == "failed"), None)
    if failed is None and ready is None and not start.served:
        failed = next((row for row in start.rows if row["kind"] == "oom"), None)
    ready_time = None
    if ready is not None:
        ready_time = ready["time"] or stamps.between(region.first, min(region.last, ready["line"]), start.replica).max()
    return {
        "line": region.first,
        "start_id": start_id(number),
        "replica": start.replica,
        "last_line": region.last,
        "first_time": stamped.min(),
        "last_time": stamped.max(),
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
