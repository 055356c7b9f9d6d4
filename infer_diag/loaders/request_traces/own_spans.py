"""Spans that infer_diag exported, read back: the same starts, and the same intervals of their phases."""

from __future__ import annotations

import json
from typing import Any

import polars as pl

from infer_diag.loaders.conformed import Frames
from infer_diag.loaders.request_traces.values import amount, count, objects, text, values
from infer_diag.recording import start_id
from infer_diag.schema import PHASES

_TIME = pl.Datetime("us", "UTC")
_LENGTHS = ("duration_s", "lower_s", "upper_s")
_NUMBERS = ("duration_s", "resolution_s", "size_bytes")


def of_own(spans: pl.DataFrame) -> pl.DataFrame:
    """The spans of starts that infer_diag exported, and of their phases."""
    return spans.filter(pl.col("own_start_id").is_not_null())


def own_frames(spans: pl.DataFrame, before: int) -> Frames:
    """`starts` and `phases`; starts of several traces are numbered in the order of time, behind `before` others."""
    if spans.is_empty():
        return {}
    order = spans.group_by("trace", "own_start_id").agg(pl.col("begin_ns").min().alias("first"))
    order = order.sort("first", "trace", "own_start_id").with_row_index("place")
    names = pl.Series("start_id", [start_id(before + place) for place in range(len(order))], dtype=pl.String)
    named = spans.join(order.with_columns(names).drop("first", "place"), on=["trace", "own_start_id"])
    bars, parts = named.filter(pl.col("own_bar").is_in(PHASES)), named.filter(pl.col("own_phase").is_not_null())
    whole = named.filter(pl.col("own_phase").is_null() & pl.col("own_bar").is_null())
    phases = pl.concat([_phases(parts), _unplaced(whole)], how="diagonal")
    return {"starts": _starts(whole), "phases": phases, "progress": _progress(bars)}


def _starts(whole: pl.DataFrame) -> pl.DataFrame:
    ready, failed = pl.col("own_ready_unix_nano").is_not_null(), pl.col("own_outcome") == "failed"
    return whole.select(
        "line",
        "start_id",
        pl.col("own_replica").alias("replica"),
        pl.col("line").alias("last_line"),
        pl.coalesce(_nano("first"), pl.col("begin_ns") // 1000).cast(_TIME).alias("first_time"),
        pl.coalesce(_nano("last"), pl.col("end_ns") // 1000).cast(_TIME).alias("last_time"),
        _nano("acquired").cast(_TIME).alias("acquire_time"),
        _nano("ready").cast(_TIME).alias("ready_time"),
        pl.when(ready).then("line").alias("ready_line"),
        pl.when(failed).then("line").alias("failed_line"),
        (pl.col("own_served").fill_null("false").str.to_lowercase() == "true").alias("served"),
    )


def _phases(parts: pl.DataFrame) -> pl.DataFrame:
    """A phase that was still open when the recording ended has a begin and no end."""
    open_ = pl.col("own_open").is_not_null()
    known = parts.filter(pl.col("own_phase").is_in(PHASES))
    return known.sort("begin_ns").select(
        "line",
        "start_id",
        *(pl.col(f"own_{name}").alias(name) for name in ("replica", "rank", "phase")),
        pl.when(pl.col("own_inside").is_in(PHASES)).then("own_inside").alias("inside"),
        (pl.col("begin_ns") // 1000).cast(_TIME).alias("begin"),
        pl.when(~open_).then(pl.col("end_ns") // 1000).cast(_TIME).alias("end"),
        *(pl.col(f"own_{name}").cast(pl.Float64, strict=False).alias(name) for name in _NUMBERS),
        pl.col("own_is_total").is_not_null().alias("is_total"),
        pl.lit("measured").alias("status"),
    )


def _unplaced(whole: pl.DataFrame) -> pl.DataFrame:
    """Durations whose place in the start no stamp tells; they travel in an attribute of its span, as JSON."""
    rows = [
        {"line": row["line"], "start_id": row["start_id"], **told}
        for row in whole.drop_nulls("own_unplaced").iter_rows(named=True)
        for told in _told(row["own_unplaced"])
    ]
    shape = {"line": pl.UInt32, **dict.fromkeys(("start_id", "phase", "replica", "rank"), pl.String)}
    lengths = dict.fromkeys(_LENGTHS, pl.Float64)
    frame = pl.DataFrame(rows, schema={**shape, **lengths, "end_us": pl.Int64, "is_total": pl.Boolean})
    return frame.select(
        pl.all().exclude("end_us"), pl.col("end_us").cast(_TIME).alias("end"), pl.lit("measured").alias("status")
    )


def _progress(bars: pl.DataFrame) -> pl.DataFrame:
    shape = {"line": pl.UInt32, **dict.fromkeys(("start_id", "replica", "rank", "phase"), pl.String), "us": pl.Int64}
    rows = [
        (row["line"], row["start_id"], row["own_replica"], row["own_rank"], row["own_bar"], *reading)
        for row in bars.drop_nulls("own_readings").iter_rows(named=True)
        for reading in _readings(row["own_readings"])
    ]
    counts = {"done_count": pl.UInt32, "total_count": pl.UInt32, "elapsed_s": pl.Float64}
    frame = pl.DataFrame(rows, schema={**shape, **counts}, orient="row")
    return frame.select(pl.all().exclude("us"), pl.col("us").cast(_TIME).alias("time"))


def _readings(written: str) -> list[tuple[int | None, int, int, float | None]]:
    found = []
    for each in _decoded(written):
        stamp, done, total, elapsed = each if isinstance(each, list) and len(each) == 4 else (None,) * 4
        if (known := count(done)) is not None and (end := count(total)) is not None:
            found.append((stamp // 1000 if isinstance(stamp, int) else None, known, end, amount(elapsed)))
    return found


def _decoded(written: str) -> list[Any]:
    try:
        return values(json.loads(written))
    except (ValueError, RecursionError):
        return []


def _told(written: str) -> list[dict[str, Any]]:
    found = objects(_decoded(written))
    return [
        {
            **{name: text(each.get(name)) for name in ("phase", "replica", "rank")},
            **{name: amount(each.get(name)) for name in _LENGTHS},
            "end_us": int(stamp) // 1000 if (stamp := str(each.get("end_unix_nano"))).isdecimal() else None,
            "is_total": each.get("is_total") is True,
        }
        for each in found
        if each.get("phase") in PHASES
    ]


def _nano(name: str) -> pl.Expr:
    return pl.col(f"own_{name}_unix_nano").cast(pl.Int64, strict=False) // 1000
