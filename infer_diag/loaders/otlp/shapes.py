"""OTLP's JSON, whole batches of lines at once: declared shapes in which every scalar is text.

64-bit integers are text in that encoding and enumerations may be numbers or names, so nothing is lost by reading text.
"""

from __future__ import annotations

import polars as pl

VALUE = pl.Struct(dict.fromkeys(("stringValue", "intValue", "doubleValue", "boolValue"), pl.String))
ATTRIBUTES = pl.List(pl.Struct({"key": pl.String, "value": VALUE}))
RESOURCE = pl.Struct({"attributes": ATTRIBUTES})


def exports(lines: pl.DataFrame, shape: pl.DataType) -> tuple[pl.DataFrame, pl.DataFrame]:
    """(`line` and `export`, lines that cannot be decoded); halves are tried apart until each bad line is alone."""
    empty = pl.DataFrame(schema={"line": pl.UInt32, "export": shape})
    if lines.is_empty():
        return empty, lines
    try:
        return lines.select(
            pl.col("line").cast(pl.UInt32), pl.col("text").str.json_decode(shape).alias("export")
        ), lines.clear()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        if len(lines) == 1:
            return empty, lines
    middle = len(lines) // 2
    parts = [exports(lines[:middle], shape), exports(lines[middle:], shape)]
    return pl.concat([good for good, _ in parts]), pl.concat([bad for _, bad in parts])


def plain(value: pl.Expr) -> pl.Expr:
    """A value as text; null where it is a list or a map."""
    return pl.coalesce(value.struct.field(name) for name in ("stringValue", "intValue", "doubleValue", "boolValue"))


def pairs(rows: pl.DataFrame, key: str) -> pl.DataFrame:
    """`key`, `name` and `text` of every attribute in the column `attributes`."""
    told = rows.select(key, "attributes").explode("attributes").drop_nulls("attributes").unnest("attributes")
    return told.select(key, pl.col("key").alias("name"), plain(pl.col("value")).alias("text")).drop_nulls("text")
