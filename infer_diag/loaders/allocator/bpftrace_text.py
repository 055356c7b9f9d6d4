"""The maps that bpftrace prints as text: histograms under their name, single values beside theirs."""

from __future__ import annotations

from typing import Any

import polars as pl

SCHEMA: dict[str, Any] = {
    "line": pl.UInt32,
    "map": pl.String,
    "key": pl.String,
    "lower": pl.Float64,
    "upper": pl.Float64,
    "count": pl.UInt64,
    "value": pl.Float64,
}
"""One row per bucket of a histogram (`count`) or per single value (`value`)."""

_HEAD = r"^(?P<map>@[A-Za-z0-9_]*)(?:\[(?P<key>.*)\])?: ?(?P<value>-?[0-9]{1,19})?\s*$"
_NUMBER = r"-?[0-9]{1,19}[KMGTPE]?"
_BUCKET = (
    rf"^(?:\[(?P<one>{_NUMBER})\]|[\[(](?P<lower>{_NUMBER}|\.\.\.), (?P<upper>{_NUMBER}|\.\.\.)[)\]])"
    r" +(?P<count>[0-9]{1,19}) \|"
)
_POWERS = {letter: float(1 << 10 * power) for power, letter in enumerate("KMGTPE", 1)}
_KEPT_TEXT = 200


def maps_of_text(lines: pl.DataFrame) -> pl.DataFrame:
    """Rows of `SCHEMA` out of `line` and `text`; a bucket belongs to the name above it, with no other line between."""
    text = pl.col("text")
    mine = lines.filter(text.str.contains(r"^(?:@|\[|\()")).with_columns(
        text.str.extract_groups(_HEAD).alias("_h"), text.str.extract_groups(_BUCKET).alias("_b")
    )
    head, bucket = pl.col("_h").struct, pl.col("_b").struct
    told = mine.with_columns(
        head.field("map").alias("map"),
        head.field("key").str.slice(0, _KEPT_TEXT).alias("key"),
        head.field("value").cast(pl.Float64, strict=False).alias("value"),
        *(bucket.field(name).alias(name) for name in ("one", "lower", "upper")),
        bucket.field("count").cast(pl.UInt64, strict=False).alias("count"),
    )
    # Buckets stand on the lines right under their name.
    is_head = pl.col("map").is_not_null()
    broken = (pl.col("line").cast(pl.Int64).diff() != 1).fill_null(True) & ~is_head
    grouped = told.with_columns((is_head | broken).cum_sum().alias("_group")).with_columns(
        pl.col("map").first().over("_group").alias("_map"), pl.col("key").first().over("_group").alias("_key")
    )
    buckets = grouped.filter(pl.col("count").is_not_null() & pl.col("_map").is_not_null()).select(
        "line",
        pl.col("_map").alias("map"),
        pl.col("_key").alias("key"),
        pl.coalesce(_scaled(pl.col("one")), _scaled(pl.col("lower"))).alias("lower"),
        pl.coalesce(_scaled(pl.col("one")) + 1, _scaled(pl.col("upper"))).alias("upper"),
        "count",
        pl.lit(None, pl.Float64).alias("value"),
    )
    single = told.filter(is_head & pl.col("value").is_not_null()).with_columns(
        pl.lit(None, pl.Float64).alias("lower"), pl.lit(None, pl.Float64).alias("upper")
    )
    both = pl.concat(
        [part.select(pl.col(name).cast(kind) for name, kind in SCHEMA.items()) for part in (buckets, single)]
    )
    return both.sort("line", maintain_order=True)


def _scaled(number: pl.Expr) -> pl.Expr:
    """A bound as printed, in powers of 1024 where a letter follows; null where it is open."""
    digits = number.str.extract(r"^(-?[0-9]+)").cast(pl.Float64, strict=False)
    return digits * number.str.extract("([KMGTPE])$").replace_strict(_POWERS, default=1.0, return_dtype=pl.Float64)
