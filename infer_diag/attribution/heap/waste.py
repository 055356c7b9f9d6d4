"""What reserved memory is used for, and what it is lost to: rounding, holes beside live blocks, and idle segments."""

from __future__ import annotations

import dataframely as dy
import polars as pl

from infer_diag.attribution.heap.frames import HoleSizes, MemoryWaste
from infer_diag.attribution.heap.policy import SMALL_BYTES
from infer_diag.attribution.heap.segments import GROUP_KEY
from infer_diag.recording import Recording

_POOL = GROUP_KEY[:-1]
_MAP = ["source_id", "snapshot", "gpu"]
_IDLE = ("inactive", "free")


def memory_waste(recording: Recording) -> dy.DataFrame[MemoryWaste]:
    """Reserved bytes of every block map, split without rest: the device first, then its pools.

    Frame in: Blocks (a snapshot's, or those that `block_map` made for another moment). Frame out: MemoryWaste.
    internal = allocated − requested; stuck = idle bytes in segments with a live block (expandable segments have none:
    their pages go back one by one); cached = the other idle bytes; unnamed = bytes of segments that no block names.
    Requested and internal are null where a live block does not tell what was asked for.
    """
    if recording.blocks.is_empty():
        return MemoryWaste.create_empty()
    rows = _classified(recording.blocks)
    whole = _summed(rows, _MAP).with_columns(
        pl.lit("device").alias("scope"), *(pl.lit(None, pl.String).alias(name) for name in _POOL)
    )
    pools = _summed(rows, [*_MAP, *_POOL]).with_columns(pl.lit("pool").alias("scope"))
    found = pl.concat([whole, pools], how="diagonal_relaxed").sort(
        *_MAP, "scope", *_POOL, nulls_last=True, maintain_order=True
    )
    return MemoryWaste.validate(found.select(MemoryWaste.column_names()), cast=True)


def _classified(blocks: pl.DataFrame) -> pl.DataFrame:
    """The blocks with what each byte of them is lost to, and the bytes that their segment has beyond them."""
    state = pl.col("state").cast(pl.String)
    segment = [*_MAP, "segment_id"]
    idle = state.is_in(_IDLE)
    size = pl.col("size_bytes").cast(pl.Int64)
    stuck = idle & (~idle).any().over(segment) & ~pl.col("is_expandable").fill_null(False)
    unnamed = pl.col("segment_bytes").cast(pl.Int64) - size.sum().over(segment)
    first = pl.int_range(pl.len()).over(segment) == 0
    return blocks.with_columns(
        pl.col("gpu", "segment_kind", "pool", "stream").cast(pl.String),
        size.alias("size"),
        pl.when(idle).then(size).otherwise(0).alias("idle"),
        pl.when(stuck).then(size).otherwise(0).alias("stuck"),
        pl.when(state == "awaiting").then(size).otherwise(0).alias("awaiting"),
        pl.when(state == "active").then(size).otherwise(0).alias("allocated"),
        pl.when(state == "active").then(pl.col("requested_bytes").cast(pl.Int64)).otherwise(0).alias("requested"),
        pl.when(first).then(unnamed.fill_null(0).clip(lower_bound=0)).otherwise(0).alias("unnamed"),
    )


def _summed(rows: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    sums = rows.group_by(keys, maintain_order=True).agg(
        pl.col("size", "idle", "stuck", "awaiting", "allocated", "unnamed").sum(),
        pl.when(pl.col("requested").null_count() == 0).then(pl.col("requested").sum()).alias("requested_bytes"),
        pl.col("idle").max().alias("largest_free_bytes"),
        (pl.col("idle") > 0).sum().alias("hole_count"),
    )
    internal = pl.col("allocated") - pl.col("requested_bytes")
    named = sums.with_columns(
        (pl.col("size") + pl.col("unnamed")).alias("reserved_bytes"),
        pl.when(internal >= 0).then(internal).alias("internal_bytes"),
        pl.col("awaiting").alias("awaiting_bytes"),
        pl.col("stuck").alias("stuck_bytes"),
        (pl.col("idle") - pl.col("stuck")).alias("cached_bytes"),
        pl.col("unnamed").alias("unnamed_bytes"),
    )
    some, held = pl.col("idle") > 0, pl.col("reserved_bytes") > 0
    return named.with_columns(
        pl.when(internal >= 0).then("requested_bytes").alias("requested_bytes"),
        pl.when(pl.col("allocated") > 0)
        .then(pl.col("internal_bytes") / pl.col("allocated"))
        .alias("internal_frag_ratio"),
        pl.when(held).then(pl.col("stuck_bytes") / pl.col("reserved_bytes")).alias("stuck_ratio"),
        pl.when(held).then(pl.col("cached_bytes") / pl.col("reserved_bytes")).alias("cached_ratio"),
        pl.when(some).then(1 - pl.col("largest_free_bytes") / pl.col("idle")).alias("external_frag_ratio"),
    )


def hole_sizes(recording: Recording) -> dy.DataFrame[HoleSizes]:
    """Holes of the last block map of every device by power of two, beside the recorded requests of the same sizes.

    Frames in: Blocks, AllocatorEvents. Frame out: HoleSizes.
    """
    blocks = recording.blocks.filter(pl.col("snapshot") == pl.col("snapshot").last().over("source_id"))
    keys = ["source_id", "gpu", "segment_kind", "stream", "power"]
    named = pl.col("gpu", "segment_kind", "stream").cast(pl.String)
    holes = (
        blocks.filter(pl.col("state").cast(pl.String).is_in(_IDLE) & (pl.col("size_bytes") > 0))
        .with_columns(named, pl.col("size_bytes").log(2).floor().cast(pl.Int64).alias("power"))
        .group_by(keys)
        .agg(
            pl.len().cast(pl.UInt32).alias("hole_count"), pl.col("size_bytes").cast(pl.Int64).sum().alias("idle_bytes")
        )
    )
    requests = _requests_by_power(recording)
    known = requests.select("source_id", "gpu").unique().with_columns(pl.lit(True).alias("asked"))
    found = (
        holes.join(requests, on=["source_id", "gpu", "segment_kind", "power"], how="left", nulls_equal=True)
        .join(known, on=["source_id", "gpu"], how="left", nulls_equal=True)
        .with_columns(
            pl.when("asked").then(pl.col("request_count").fill_null(0)).alias("request_count"),
            pl.lit(2).pow(pl.col("power")).cast(pl.Int64).alias("size_bytes"),
        )
        .sort(keys, nulls_last=True)
    )
    return HoleSizes.validate(found.select(HoleSizes.column_names()), cast=True)


def _requests_by_power(recording: Recording) -> pl.DataFrame:
    """Recorded requests by power of two: those that segments of each kind serve, and all (kind null)."""
    size = pl.coalesce("requested_bytes", "allocated_bytes")
    asked = recording.allocator_events.filter((pl.col("action") == "alloc") & (size > 0)).select(
        "source_id",
        pl.col("gpu").cast(pl.String),
        size.log(2).floor().cast(pl.Int64).alias("power"),
        pl.when(size <= SMALL_BYTES).then(pl.lit("small")).otherwise(pl.lit("large")).alias("segment_kind"),
    )
    keys = ["source_id", "gpu", "segment_kind", "power"]
    whole = asked.with_columns(pl.lit(None, pl.String).alias("segment_kind"))
    return pl.concat([asked, whole]).group_by(keys).agg(pl.len().cast(pl.UInt64).alias("request_count"))
