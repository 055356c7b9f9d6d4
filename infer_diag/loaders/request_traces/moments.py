"""Moments of requests on any one clock to the columns of `Requests`, which count seconds from the first of them."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

MOMENTS = ("arrival", "queued", "scheduled", "first_token", "last_token")
"""Events of a request in order; as columns of a source they hold numbers on its clock."""

NANOSECONDS = 1_000_000_000
MICROSECONDS = 1_000_000
_LAST_S = 4_102_444_800
"""The year 2100: what lies beyond is no stamp of a log."""


def counted(rows: pl.DataFrame, per_s: int, first: float | None = None) -> tuple[pl.DataFrame, float | None]:
    """(rows with `arrival_s` and so on in place of the moments, the earliest moment); counted from `first` if given.

    Integers are subtracted as such, so that nanoseconds since 1970 lose nothing. Rows without `request_id` are called
    by their place in the file.
    """
    present = [name for name in MOMENTS if name in rows.columns]
    if first is None:
        first = min(_bounds(rows), default=None)
    origin = 0 if first is None else first
    told = rows.with_columns(((pl.col(name) - origin) / per_s).alias(f"{name}_s") for name in present).drop(present)
    place = (pl.int_range(pl.len()) + 1).cast(pl.String)
    named = pl.coalesce(pl.col("request_id").cast(pl.String), place) if "request_id" in rows.columns else place
    return told.with_columns(named.alias("request_id")), first


def times_of(rows: pl.DataFrame, per_s: int) -> pl.Series:
    """First and last moment of the rows as times, where they count from 1970."""
    return epoch_times(_bounds(rows), per_s)


def epoch_times(moments: Sequence[object], per_s: int) -> pl.Series:
    """Numbers since 1970 as times; those that no calendar holds are left out."""
    known = [round(value * MICROSECONDS / per_s) for value in moments if isinstance(value, (int, float))]
    within = [value for value in known if 0 <= value < _LAST_S * MICROSECONDS]
    return pl.Series("time", within, dtype=pl.Int64).cast(pl.Datetime("us", "UTC"))


def _bounds(rows: pl.DataFrame) -> list[float]:
    """The least and the greatest value of each moment."""
    ends = [end for name in MOMENTS if name in rows.columns for end in (rows[name].min(), rows[name].max())]
    return [end for end in ends if isinstance(end, (int, float))]
