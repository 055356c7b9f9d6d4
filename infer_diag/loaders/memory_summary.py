"""What PyTorch's allocator prints of itself: tables of `memory_summary()` and segments dumped as Python text."""

from __future__ import annotations

import polars as pl

from infer_diag.loaders.oom_messages import resolution, size

NEEDLES = (
    "memory summary, device ID",
    "CUDA OOMs: ",
    "memory   ",
    " segments ",
    "|=====",
    "'size': ",
    "_size': ",
    "'state': ",
    "'blocks': ",
    "'device': ",
    "'address': ",
    "'segment_type': ",
)
"""Literals of the lines that a table or a dump stands on."""

_TITLE = r"PyTorch (?:CUDA|HIP|XPU) memory summary, device ID ([0-9]+)"
_ROWS = {
    "allocated": "Allocated memory",
    "active": "Active memory",
    "requested": "Requested memory",
    "reserved": "GPU reserved memory",
    "inactive_split": "Non-releasable memory",
}
_CELL = r"\|\s*([0-9]+) *(B|[KMGT]i?B)\s*"
_COUNT = r"\|\s*([0-9]+) ([KM])?\s*\|"
_RULER = r"^\|={20,}\|?"
_RULERS_BELOW_TITLE = 2

_TOKEN = r"'blocks': \[|\{[^{}]*'state': '[a-z_]+'[^{}]*\}"
_DUMPED = r"^[\[{ ]*'[a-z_]+': "
_STATES = {
    "active_allocated": "active",
    "active_pending_free": "awaiting",
    "active_awaiting_free": "awaiting",
    "inactive": "inactive",
}


def printed(records: pl.DataFrame) -> pl.DataFrame:
    """The records that a table or a dump consists of."""
    return records.filter(pl.col("message").str.contains(rf"^\||{_DUMPED}").fill_null(False))


def memory_stats(records: pl.DataFrame) -> pl.DataFrame:
    """Rows of `schema.MemoryStats` (without `source_id`), one per table.

    Memory is printed in whole units, rounded down; `MB` and `MiB` are both 2²⁰ bytes.
    """
    message = pl.col("message")
    begins = message.str.contains(_TITLE).fill_null(False)
    rows = records.with_columns(begins.cum_sum().alias("_table")).filter(pl.col("_table") > 0)
    if rows.is_empty():
        return pl.DataFrame(schema={"line": pl.UInt32})
    values = [_first(f"^\\|\\s*{label}\\s*", _CELL, f"{name}_bytes") for name, label in _ROWS.items()] + [
        _first(f"^\\|\\s*{_ROWS[name]}\\s*\\|[^|]*", _CELL, f"peak_{name}_bytes") for name in ("allocated", "reserved")
    ]
    steps = [resolution(message, f"^\\|\\s*{label}\\s*{_CELL}") * 2 for label in _ROWS.values()]
    tables = rows.group_by("_table", maintain_order=True).agg(
        pl.col("line").first(),
        pl.col("time").drop_nulls().first(),
        message.str.extract(_TITLE).drop_nulls().first().alias("gpu"),
        *values,
        pl.max_horizontal(steps).max().alias("resolution_bytes"),
        _count(f"GPU reserved segments\\s*{_COUNT}", "segment_count"),
        _count("CUDA OOMs: ([0-9]+)", "oom_count"),
        _count("cudaMalloc retries: ([0-9]+)", "retry_count"),
    )
    known = pl.any_horizontal(pl.col("reserved_bytes", "allocated_bytes").is_not_null())
    return tables.filter(known).drop("_table")


def cuts(records: pl.DataFrame) -> pl.DataFrame:
    """Incidents `cut`: tables without the ruler below them, and a dump whose last line closes no bracket."""
    message = pl.col("message")
    numbered = records.with_columns(message.str.contains(_TITLE).fill_null(False).cum_sum().alias("_table"))
    tables = numbered.filter(pl.col("_table") > 0).group_by("_table", maintain_order=True)
    rows = message.str.contains(r"^\|.*\|")
    short = tables.agg(
        pl.col("line").filter(rows).max(), (message.str.contains(_RULER).sum() < _RULERS_BELOW_TITLE).alias("_cut")
    ).filter("_cut")
    dumped = records.filter(message.str.contains(_DUMPED).fill_null(False)).tail(1)
    broken = dumped.filter(~message.str.contains(r"[\]})],?$"))
    lines = pl.concat([short["line"], broken["line"]]).drop_nulls().unique().sort()
    return pl.DataFrame({"line": lines}).with_columns(
        pl.lit("cut").alias("kind"), pl.lit("the text breaks off here").alias("fields")
    )


def _first(label: str, cell: str, name: str) -> pl.Expr:
    return size(pl.col("message"), label + cell).drop_nulls().first().alias(name)


def _count(pattern: str, name: str) -> pl.Expr:
    """A count of a table; one that is printed in thousands or millions is no exact number and stays unknown."""
    number = pl.col("message").str.extract(pattern, 1).cast(pl.UInt64, strict=False)
    if pattern.endswith(_COUNT):
        number = pl.when(pl.col("message").str.extract(pattern, 2).is_null()).then(number)
    return number.drop_nulls().first().alias(name)


def blocks(records: pl.DataFrame) -> pl.DataFrame:
    """Rows of `schema.Blocks` (without `source_id`) from segments that a Python program printed, cut ones included.

    Segments are numbered in the order of the text, since their addresses may have been made unreadable.
    """
    told = records.filter(pl.col("message").str.contains("'state': '", literal=True).fill_null(False))
    if told.is_empty():
        return pl.DataFrame(schema={"line": pl.UInt32})
    tokens = told.select("line", pl.col("message").str.extract_all(_TOKEN).alias("_token")).explode("_token")
    tokens = tokens.drop_nulls("_token").with_columns(
        pl.col("_token").str.starts_with("'blocks'").cum_sum().cast(pl.UInt64).alias("segment_id")
    )
    found = tokens.filter(pl.col("_token").str.starts_with("{")).select(
        "line",
        pl.lit("dump").alias("snapshot"),
        "segment_id",
        _field("address").alias("_address"),
        _field("size").alias("size_bytes"),
        _field("requested_size").alias("requested_bytes"),
        pl.col("_token").str.extract("'state': '([a-z_]+)'").replace_strict(_STATES, default=None).alias("state"),
    )
    found = found.drop_nulls(["size_bytes", "state"])
    place = (pl.col("size_bytes").cum_sum() - pl.col("size_bytes")).over("segment_id")
    return found.with_columns(pl.coalesce("_address", place).alias("address_id")).drop("_address")


def _field(name: str) -> pl.Expr:
    return pl.col("_token").str.extract(f"'{name}': ([0-9]+)").cast(pl.UInt64, strict=False)
