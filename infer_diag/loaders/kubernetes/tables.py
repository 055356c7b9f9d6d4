"""Event tables as `kubectl describe` and `kubectl get events` print them, as one frame of events."""

from __future__ import annotations

import polars as pl

from infer_diag.loaders.kubernetes.amounts import AGE, NOW_US, SECOND_US, age_s, age_step_s

EVENT = pl.Schema(
    {
        "line": pl.UInt32,
        "pod": pl.String,
        "reason": pl.String,
        "message": pl.String,
        "count": pl.Int64,
        "first_us": pl.Int64,
        "last_us": pl.Int64,
        "step_us": pl.Int64,
        "age_s": pl.Int64,
        "place": pl.Int64,
    }
)
"""An event: first and last time it was seen, how exactly that is known, how long ago it was first seen where the table
tells (null for absolute times), and its place in a listing that is in the order of time (0 where it is in none)."""

_AGES = rf"(?P<last>{AGE})(?: \(x(?P<count>[0-9]+) over (?P<first>{AGE})\))?"
_SOURCE = r"[A-Za-z][A-Za-z0-9_./-]*(?:, [A-Za-z0-9_.-]+)?"
_DESCRIBED = rf"^\s*(?:Normal|Warning)\s+(?P<reason>[A-Z][A-Za-z]+)\s+{_AGES}\s+{_SOURCE}\s+(?P<message>\S.*)$"
_LISTED = (
    rf"^\s*(?:[a-z0-9][a-z0-9.-]*\s+)?{_AGES}\s+(?:Normal|Warning)\s+(?P<reason>[A-Z][A-Za-z]+)\s+"
    rf"(?P<kind>[A-Za-z]+)/(?P<name>[a-z0-9][a-z0-9.-]*)\s+(?P<message>\S.*)$"
)
_CLAIM = r"^\s*(?:Normal|Warning)\s{2,}[A-Z][a-z]"
_WIDE = rf"^(?:spec\.\S+\s+)?{_SOURCE}\s{{2,}}(?P<text>.+?)\s{{2,}}(?P<seen>{AGE})\s+(?P<times>[0-9]+)\s+\S+\s*$"
_NAME = r"^Name:\s+([a-z0-9][a-z0-9.-]*)\s*$"
_ASSIGNED = r"^Successfully assigned (?:[^\s/]+/)?(\S+) to "
NEEDLES = r"(?:Normal|Warning)\s+[A-Z][a-z]|^Name:\s|^Events:|LAST SEEN|^\s*-+\s+-+"
"""What the lines that matter hold."""


def table_events(lines: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """(events, rows of a table that cannot be read) of the lines `line, text`."""
    described, damaged = _described(lines)
    listed = _listed(lines)
    return pl.concat([described, listed]).sort("line"), damaged


def _described(lines: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    text = pl.col("text")
    heads = text.str.contains(r"^\s*-+\s+-+|^\s*Events:")
    read = lines.with_columns(
        text.str.extract_groups(_DESCRIBED).alias("_g"),
        text.str.extract(_NAME).forward_fill().alias("named"),
        (heads | text.str.contains(_NAME)).cum_sum().alias("table"),
    )
    fits = pl.col("_g").struct.field("reason").is_not_null()
    claimed = text.str.contains(_CLAIM) & ~text.str.contains("LAST SEEN")
    damaged = read.filter(claimed & ~fits & ~text.str.contains(_LISTED)).select(
        "line", pl.lit("a row of an event table").alias("rule"), "text"
    )
    rows = read.filter(fits).with_columns(pl.col("_g").struct.unnest())
    assigned = pl.col("message").str.extract(_ASSIGNED)
    one_of_table = assigned.drop_nulls().first().over("table")
    unnamed = pl.format("table {}", pl.col("table"))
    rows = rows.with_columns(pl.coalesce("named", one_of_table, unnamed).alias("pod"), pl.col("line").alias("place"))
    return _timed(rows), damaged


def _listed(lines: pl.DataFrame) -> pl.DataFrame:
    read = lines.with_columns(pl.col("text").str.extract_groups(_LISTED).alias("_g"))
    rows = read.filter(pl.col("_g").struct.field("reason").is_not_null()).with_columns(pl.col("_g").struct.unnest())
    rows = rows.filter(pl.col("kind").str.to_lowercase() == "pod")
    if lines["text"].str.contains("SUBOBJECT").any():
        wide = pl.col("message").str.extract_groups(_WIDE)
        rows = rows.with_columns(wide.alias("_w")).with_columns(
            pl.coalesce(pl.col("_w").struct.field("text"), "message").alias("message"),
            pl.coalesce(pl.col("_w").struct.field("seen"), "first").alias("first"),
            pl.coalesce(pl.col("_w").struct.field("times"), "count").alias("count"),
        )
    return _timed(rows.with_columns(pl.col("name").alias("pod"), pl.lit(0).alias("place")))


def _timed(rows: pl.DataFrame) -> pl.DataFrame:
    first = pl.coalesce("first", "last")
    return rows.select(
        "line",
        "pod",
        "reason",
        "message",
        pl.col("count").cast(pl.Int64, strict=False).fill_null(1),
        (NOW_US - age_s(first) * SECOND_US).alias("first_us"),
        (NOW_US - age_s(pl.col("last")) * SECOND_US).alias("last_us"),
        (age_step_s(first) * SECOND_US).alias("step_us"),
        age_s(first).alias("age_s"),
        pl.col("place").cast(pl.Int64),
    ).cast(EVENT)
