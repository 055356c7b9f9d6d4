"""The block map of a pool whose idle blocks are known: they and what was recorded as live fill its segments."""

from __future__ import annotations

from bisect import bisect_left

import polars as pl

from infer_diag.schema import Blocks


def block_map(events: pl.DataFrame, idle: list[tuple[int, int]], snapshot: str) -> pl.DataFrame:
    """`schema.Blocks` of one device: live blocks out of `schema.AllocatorEvents`, idle ones as the pool tells them.

    A block belongs to the segment that begins last at or below its address; blocks outside every recorded segment are
    left out, as the segment was taken before the recording.
    """
    segments = _segments(events)
    free = pl.DataFrame(idle, schema={"address_id": pl.UInt64, "size_bytes": pl.UInt64}, orient="row").with_columns(
        pl.lit(None, pl.UInt64).alias("requested_bytes"),
        pl.lit(None, pl.String).alias("stream"),
        pl.lit("free").alias("state"),
    )
    blocks = pl.concat([_live(events), free]).sort("address_id")
    placed = blocks.join_asof(
        segments, left_on="address_id", right_on="segment_id", coalesce=False, check_sortedness=False
    ).filter(pl.col("address_id") + pl.col("size_bytes") <= pl.col("segment_id") + pl.col("segment_bytes"))
    kinds = Blocks.create_empty().schema
    known = placed.with_columns(
        pl.lit(snapshot).alias("snapshot"), pl.lit(0).alias("source_id"), pl.lit(0).alias("line")
    )
    absent = [pl.lit(None).alias(name) for name in kinds if name not in known.columns]
    return Blocks.validate(known.with_columns(absent).select(kinds.names()), cast=True)


def _segments(events: pl.DataFrame) -> pl.DataFrame:
    """The segments that may still be there, by address.

    No hook tells when a segment goes back to the driver; that a later one overlaps it tells that it did.
    """
    taken = events.filter(pl.col("action") == "segment_alloc").select("address_id", "allocated_bytes")
    kept: list[tuple[int, int]] = []
    for begin, size in reversed(taken.rows()):
        place = bisect_left(kept, (begin, 0))
        before = kept[place - 1] if place else (0, 0)
        if sum(before) <= begin and (place == len(kept) or begin + size <= kept[place][0]):
            kept.insert(place, (begin, size))
    return pl.DataFrame(kept, schema={"segment_id": pl.UInt64, "segment_bytes": pl.UInt64}, orient="row")


def _live(events: pl.DataFrame) -> pl.DataFrame:
    """What was allocated and not freed: the last event of an address tells."""
    told = events.filter(pl.col("action").is_in(["alloc", "free"]))
    last = told.group_by("address_id", maintain_order=True).last().filter(pl.col("action") == "alloc")
    return last.select(
        "address_id",
        pl.col("allocated_bytes").alias("size_bytes"),
        "requested_bytes",
        pl.col("stream").cast(pl.String),
        pl.lit("active").alias("state"),
    )
