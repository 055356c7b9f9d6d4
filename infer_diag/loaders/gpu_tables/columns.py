"""Rows under the header that was printed last above them: a monitor's columns depend on its options and version."""

from __future__ import annotations

import polars as pl

CELL: dict[str, pl.DataType | type[pl.DataType]] = {"line": pl.UInt32, "column": pl.String, "cell": pl.String}
"""One cell of a table under the name of its column."""


def cells(rows: pl.DataFrame, headers: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """(cells of the rows, rows that are shorter than their header).

    `rows` and `headers` hold `line` and `words`; a row belongs to the last header above it. Words beyond the last
    column belong to it (a command with spaces).
    """
    named = rows.sort("line").join_asof(
        headers.sort("line").select("line", pl.col("words").alias("names")), on="line", strategy="backward"
    )
    named = named.filter(pl.col("names").is_not_null())
    width = pl.col("names").list.len()
    whole = named.filter(pl.col("words").list.len() >= width)
    short = named.filter(pl.col("words").list.len() < width)
    paired = whole.select("line", pl.col("names"), pl.col("words").list.head(width))
    told = paired.explode("names", "words").rename({"names": "column", "words": "cell"})
    return told.select(pl.col(name).cast(kind) for name, kind in CELL.items()), short.select("line")


def wide(told: pl.DataFrame, wanted: tuple[str, ...]) -> pl.DataFrame:
    """One row per line with the wanted columns, null where a row has none of that name."""
    mine = told.filter(pl.col("column").is_in(wanted))
    columns = [pl.col("cell").filter(pl.col("column") == name).first().alias(name) for name in wanted]
    return mine.group_by("line", maintain_order=True).agg(columns)
