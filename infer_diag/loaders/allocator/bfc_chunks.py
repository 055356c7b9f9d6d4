"""Chunks and totals of the BFC allocator's dumps, old and new wording."""

from __future__ import annotations

import polars as pl

_CHUNK = r"(?P<state>InUse|Free |Chunk) at (?:0x)?(?P<address>[0-9a-fA-F]+) of size (?P<size>[0-9]+)"
_REGION = r"Next region of size ([0-9]+)"
_DUMP = "Bin (256):"
_STATES = {"InUse": "active", "Chunk": "active", "Free ": "free"}


def chunks(lines: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """(rows of `schema.Blocks` without `source_id`, what the dumps say that cannot be so).

    A region is what its own line begins, or where none is printed a stretch of chunks without a hole between them.
    """
    text = pl.col("text")
    marked = lines.with_columns(
        text.str.contains(_DUMP, literal=True).cum_sum().alias("_dump"),
        text.str.extract(_REGION).cast(pl.UInt64, strict=False).alias("_size"),
    )
    marked = marked.with_columns(pl.col("_size").is_not_null().cum_sum().alias("_region"))
    regions = marked.filter(pl.col("_size").is_not_null()).select("_region", "_size")
    read = marked.with_columns(text.str.extract_groups(_CHUNK).alias("_g")).unnest("_g")
    found = read.filter(pl.col("state").is_not_null()).select(
        "line",
        "gpu",
        "_region",
        pl.concat_str(pl.lit("dump "), pl.max_horizontal("_dump", 1)).alias("snapshot"),
        pl.col("address").str.to_integer(base=16, dtype=pl.UInt64, strict=False).alias("address_id"),
        pl.col("size").cast(pl.UInt64, strict=False).alias("size_bytes"),
        pl.col("state").replace_strict(_STATES).alias("state"),
    )
    found = found.drop_nulls(["address_id", "size_bytes"])
    if found.is_empty():
        return found.drop("_region"), []
    end = (pl.col("address_id") + pl.col("size_bytes")).shift(1)
    begins = (pl.col("address_id") != end).fill_null(True) | (pl.col("snapshot") != pl.col("snapshot").shift(1))
    parts = (begins & (pl.col("_region") == 0)).cum_sum()
    found = found.with_columns(pl.struct(parts.alias("a"), "_region", "snapshot").alias("_key"))
    found = found.join(regions, on="_region", how="left", maintain_order="left").with_columns(
        pl.col("address_id").first().over("_key").alias("segment_id"), pl.col("_size").alias("segment_bytes")
    )
    return found.drop("_key", "_region", "_size"), _doubts(found)


def _doubts(found: pl.DataFrame) -> list[str]:
    sums = found.group_by("snapshot", "segment_id").agg(pl.col("size_bytes").sum(), pl.col("segment_bytes").first())
    short = len(sums.filter(pl.col("size_bytes") != pl.col("segment_bytes")))
    if not short:
        return []
    return [
        f"the chunks of {short:,} of {len(sums):,} regions do not fill them, as if lines were left out, so what "
        "is idle is that of the chunks that are there"
    ]


def statistics(lines: pl.DataFrame) -> pl.DataFrame:
    """Rows of `schema.MemoryStats` without `source_id` and with `limit_bytes`, one for each block of totals.

    `LargestFreeBlock` is left alone: the allocator prints 0 there whatever is free.
    """
    text = pl.col("text")
    pool = text.str.extract(r"(?:total_region_allocated_bytes_|Total bytes in pool): ([0-9]+)").cast(pl.Float64)
    placed = lines.with_columns(text.str.contains(r"^\W*Limit: +[0-9]").cum_sum().alias("_block"), pool.alias("_pool"))
    placed = placed.with_columns(pl.col("_pool").forward_fill())
    rows = placed.filter(pl.col("_block") > 0)
    if rows.is_empty():
        return pl.DataFrame(schema={"line": pl.UInt32})
    return (
        rows.group_by("_block", maintain_order=True)
        .agg(
            pl.col("line").first(),
            pl.col("time").drop_nulls().first(),
            pl.col("gpu").first(),
            pl.col("_pool").first().alias("reserved_bytes"),
            _total("InUse").alias("allocated_bytes"),
            _total("MaxInUse").alias("peak_allocated_bytes"),
            _total("Limit").alias("limit_bytes"),
            pl.lit(0.0).alias("resolution_bytes"),
        )
        .drop("_block")
    )


def _total(name: str) -> pl.Expr:
    return pl.col("text").str.extract(rf"^\W*{name}: +([0-9]+)").cast(pl.Float64).drop_nulls().first()
