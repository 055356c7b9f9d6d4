"""TensorRT-LLM's ledger of device memory: what each component took, and the component that could not be created."""

from __future__ import annotations

import polars as pl

from infer_diag.loaders.oom_messages import ooms, resolution, size
from infer_diag.loaders.text.prefixes import ascii_classes

NEEDLES = (
    "[MemUsageChange]",
    "bytes for k/v cache",
    "GB for model weights",
    "component could not be created: ",
    "GPU memory (GiB): ",
    "component creation attempt (GiB): ",
    "Previously created components",
    " / ",
)
"""Literals of the lines that tell of memory; an entry of the ledger holds nothing but a name and ` / `."""

_GIB = float(1 << 30)
_MIB = float(1 << 20)
_BLOCK_LINES = 60
"""More lines than any ledger has; what stands further from its title is something else."""

_REPEATED_WITHIN_LINES = 200
_TITLE = "Previously created components"
_FAILED = r"^The following component could not be created: (.+)$"
_ENTRY = r"^([\w][\w .()/-]*?): ([0-9.]+) / ([0-9.]+)$"
_CHANGE = r"^\[MemUsageChange\] (.+?): CPU [+-][0-9]+, GPU ([+-][0-9]+), now: CPU [0-9]+, GPU [0-9]+ \(MiB\)"
_ALLOCATED = r"^\[MemUsageChange\] Allocated ([0-9.]+) (bytes|[KMGT]?i?B)(?: GPU memory)? for "
_ALLOCATED_FOR = r"(?: GPU memory)? for (.+?)(?: \([0-9]+\))?\.?$"
_KV_BYTES = r"^Allocate ([0-9]+) (bytes) for k/v cache"
_WEIGHTS = r"^(?:Rank [0-9]+ uses|Use) ([0-9.]+) (GB) for model weights"
_NAMES = {"max tokens in paged KV cache": "KV cache"}


def components(records: pl.DataFrame) -> pl.DataFrame:
    """Rows of `schema.Components` (without `source_id`): entries of the ledger, then single lines that name a size.

    An entry's size is the free memory before its creation less that after it.
    """
    found = pl.concat([_entries(records), _changes(records), _sizes(records)], how="diagonal")
    return found.unique(["rank", "name", "size_bytes", "free_before_bytes"], keep="first", maintain_order=True)


def failures(records: pl.DataFrame) -> pl.DataFrame:
    """Rows of `schema.Ooms` (without `source_id`): components that could not be created.

    Where the allocator's own message stands before the ledger it tells of the same failure, and with more numbers.
    """
    message = pl.col("message")
    numbered = records.with_columns(message.str.contains(_FAILED).fill_null(False).cum_sum().alias("_block"))
    blocks = numbered.filter((pl.col("_block") > 0) & _near("_block")).group_by("_block", maintain_order=True)
    number = {"total": r"^Total GPU memory \(GiB\): ([0-9.]+)", "free": r"creation attempt \(GiB\): ([0-9.]+)"}
    found = blocks.agg(
        pl.col("line").first(),
        pl.col("time").first(),
        pl.col("replica", "rank").first(),
        message.str.extract(ascii_classes(_FAILED)).first().alias("component"),
        *[
            _gib(message.str.extract(pattern)).drop_nulls().first().alias(f"{name}_bytes")
            for name, pattern in number.items()
        ],
        *[
            _half_digit(message.str.extract(pattern)).drop_nulls().first().alias(f"{name}_resolution_bytes")
            for name, pattern in number.items()
        ],
    ).drop("_block")
    found = found.unique(["rank", "component", "total_bytes", "free_bytes"], keep="first", maintain_order=True)
    return _untold(found, ooms(records)).with_columns(pl.lit("device").alias("memory"))


def _untold(found: pl.DataFrame, messages: pl.DataFrame) -> pl.DataFrame:
    if found.is_empty() or messages.is_empty():
        return found
    known = messages.select(pl.col("line").cast(pl.Int64).alias("_told")).sort("_told")
    at = found.with_columns(pl.col("line").cast(pl.Int64).alias("_line")).sort("_line")
    placed = at.join_asof(known, left_on="_line", right_on="_told", strategy="backward")
    told = (pl.col("_line") - pl.col("_told") <= _REPEATED_WITHIN_LINES).fill_null(False)
    return placed.filter(~told).drop("_line", "_told")


def _entries(records: pl.DataFrame) -> pl.DataFrame:
    titled = pl.col("message").str.starts_with(_TITLE).fill_null(False)
    within = records.with_columns(titled.cum_sum().alias("_block")).filter((pl.col("_block") > 0) & _near("_block"))
    group = {
        name: pl.col("message").str.extract(ascii_classes(_ENTRY), place)
        for place, name in enumerate(("name", "before", "after"), 1)
    }
    read = within.with_columns(expr.alias(f"_{name}") for name, expr in group.items()).drop_nulls("_name")
    before, after = _gib(pl.col("_before")), _gib(pl.col("_after"))
    return read.select(
        "line",
        "time",
        "rank",
        pl.col("_name").alias("name"),
        (before - after).alias("size_bytes"),
        (_half_digit(pl.col("_before")) + _half_digit(pl.col("_after"))).alias("resolution_bytes"),
        before.alias("free_before_bytes"),
        after.alias("free_after_bytes"),
    )


def _changes(records: pl.DataFrame) -> pl.DataFrame:
    message = pl.col("message")
    rows = records.with_columns(message.str.extract(_CHANGE, 1).alias("_name")).drop_nulls("_name")
    return rows.select(
        "line",
        "time",
        "rank",
        pl.col("_name").alias("name"),
        (message.str.extract(_CHANGE, 2).str.strip_prefix("+").cast(pl.Float64, strict=False) * _MIB).alias(
            "size_bytes"
        ),
        pl.lit(0.5 * _MIB).alias("resolution_bytes"),
    )


def _sizes(records: pl.DataFrame) -> pl.DataFrame:
    message = pl.col("message")
    patterns = (_ALLOCATED, _KV_BYTES, _WEIGHTS)
    named = (
        pl.when(message.str.contains(_ALLOCATED))
        .then(message.str.extract(_ALLOCATED_FOR).replace(_NAMES))
        .when(message.str.contains(_KV_BYTES))
        .then(pl.lit("KV cache"))
        .when(message.str.contains(_WEIGHTS))
        .then(pl.lit("model weights"))
    )
    return (
        records.with_columns(named.alias("_name"))
        .drop_nulls("_name")
        .select(
            "line",
            "time",
            "rank",
            pl.col("_name").alias("name"),
            pl.coalesce([size(message, pattern) for pattern in patterns]).alias("size_bytes"),
            pl.coalesce([resolution(message, pattern) for pattern in patterns]).alias("resolution_bytes"),
        )
    )


def _near(block: str) -> pl.Expr:
    return (pl.col("line") - pl.col("line").first().over(block)) <= _BLOCK_LINES


def _gib(text: pl.Expr) -> pl.Expr:
    return text.cast(pl.Float64, strict=False) * _GIB


def _half_digit(text: pl.Expr) -> pl.Expr:
    decimals = text.str.extract(r"\.([0-9]+)").str.len_chars().fill_null(0)
    return pl.when(text.is_not_null()).then(0.5 * pl.lit(10.0).pow(-decimals.cast(pl.Float64)) * _GIB)
