"""Intervals and moments cut into windows of equal length; what is cut adds up to what was there."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import polars as pl

LADDER_S = (5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 86_400.0)
MOST_WINDOWS = 400
SPACINGS = 3
"""A window holds so many samples at least."""


def width_us(span_s: float, spacing_s: float | None) -> int:
    """Length of a window in whole microseconds: the shortest of the ladder with at most 400 in the span.

    It holds at least 3 samples where the spacing of samples is known.
    """
    least = max(span_s / MOST_WINDOWS, SPACINGS * (spacing_s or 0.0))
    return round(next((step for step in LADDER_S if step >= least), least) * 1e6)


def microseconds(time: datetime) -> int:
    """Whole microseconds since 1970."""
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def spread(intervals: pl.DataFrame, first: datetime, width: int) -> pl.DataFrame:
    """One row per interval and window that it touches: its columns, `window`, and `seconds` inside of it.

    In: `begin` and `end` (UTC). An interval that ends where it begins is left out. The seconds of an interval add up to
    its length in whole microseconds.
    """
    zero = microseconds(first)
    placed = intervals.with_columns(
        (pl.col("begin").cast(pl.Int64) - zero).alias("_b"), (pl.col("end").cast(pl.Int64) - zero).alias("_e")
    ).filter(pl.col("_e") > pl.col("_b"))
    each = placed.with_columns(window=pl.int_ranges(pl.col("_b") // width, (pl.col("_e") - 1) // width + 1)).explode(
        "window"
    )
    low = pl.max_horizontal("_b", pl.col("window") * width)
    high = pl.min_horizontal("_e", (pl.col("window") + 1) * width)
    return each.with_columns(seconds=(high - low) / 1e6).drop("_b", "_e")


def window_of(time: pl.Expr, first: datetime, width: int) -> pl.Expr:
    """The window of a moment."""
    return ((time.cast(pl.Int64) - microseconds(first)) // width).alias("window")


def overlaps(intervals: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    """Every piece that an interval and another one share: the columns of both, `begin` and `end` of the piece."""
    right = others.rename({"begin": "_begin", "end": "_end"})
    pairs = intervals.join_where(right, pl.col("begin") < pl.col("_end"), pl.col("_begin") < pl.col("end"))
    return pairs.with_columns(begin=pl.max_horizontal("begin", "_begin"), end=pl.min_horizontal("end", "_end")).drop(
        "_begin", "_end"
    )


def merged(intervals: pl.DataFrame) -> pl.DataFrame:
    """The union of intervals: `begin` and `end` of stretches that do not touch."""
    ordered = intervals.select("begin", "end").sort("begin")
    fresh = (pl.col("begin") > pl.col("end").cum_max().shift(1)).fill_null(True)
    return (
        ordered.with_columns(stretch=fresh.cum_sum())
        .group_by("stretch", maintain_order=True)
        .agg(pl.col("begin").min(), pl.col("end").max())
        .drop("stretch")
    )


def disjoint(runs: pl.DataFrame) -> pl.DataFrame:
    """Intervals in order of time, each without what an earlier one covers already; what is left of none is dropped."""
    ordered = runs.sort("begin", maintain_order=True)
    begin = pl.max_horizontal("begin", pl.col("end").cum_max().shift(1))
    return ordered.with_columns(begin=begin).filter(pl.col("begin") < pl.col("end"))


def uncovered(whole: pl.DataFrame, covers: pl.DataFrame) -> pl.DataFrame:
    """What of the stretches of `whole` no interval of `covers` covers; both `begin` and `end`."""
    if covers.is_empty() or whole.is_empty():
        return whole.select("begin", "end")
    inside = merged(overlaps(whole.select("begin", "end"), merged(covers)))
    edges = pl.concat(
        [
            whole.select(time="begin", step=pl.lit(1)),
            whole.select(time="end", step=pl.lit(-1)),
            inside.select(time="begin", step=pl.lit(-1)),
            inside.select(time="end", step=pl.lit(1)),
        ]
    )
    levels = edges.group_by("time").agg(pl.col("step").sum()).sort("time").with_columns(level=pl.col("step").cum_sum())
    pieces = levels.with_columns(end=pl.col("time").shift(-1)).filter(
        (pl.col("level") > 0) & pl.col("end").is_not_null()
    )
    return pieces.select(begin="time", end="end")
