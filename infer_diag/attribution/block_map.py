"""What an allocator's snapshot holds (reserved, used and idle bytes, how broken up these are), and its peak."""

from __future__ import annotations

import dataframely as dy
import polars as pl

from infer_diag.recording import Recording
from infer_diag.results import AllocatorPeaks, BlockSummary

_IDLE = ("inactive", "free")
_SMALL_BYTES = 1 << 20
"""PyTorch serves requests up to a MiB from small segments and larger ones from large segments only."""

_KEY = ("source_id", "snapshot", "gpu")


def block_summary(recording: Recording) -> dy.DataFrame[BlockSummary]:
    """One row per source, snapshot and device that tells of blocks; none otherwise.

    Frames in: Blocks, Ooms, AllocatorEvents. Frame out: BlockSummary. Reserved is what the segments say of themselves,
    where they do, else the sum of their blocks. external = 1 − largest idle block / idle bytes; unusable = 1 − idle
    bytes in blocks that could serve the last failed request (those of its stream, where both are told) / idle bytes
    (Gorman and Whitcroft, "Measuring the impact of the Linux memory anti-fragmentation policy", 2006), null without
    such a request: a block of a captured graph's pool serves nobody else, nor does a small segment a large request.
    Idle pieces of expandable segments are no `inactive_split`, since their pages go back to the driver one by one.
    """
    blocks = recording.blocks
    if blocks.is_empty():
        return BlockSummary.create_empty()
    whole = _summed(recording).join(_segments(blocks), on=_KEY, how="left", nulls_equal=True, maintain_order="left")
    some = pl.col("idle_bytes") > 0
    found = whole.with_columns(
        pl.when(some).then(1 - pl.col("largest_free_bytes") / pl.col("idle_bytes")).alias("external_frag_ratio"),
        pl.when(some & ~pl.col("_unknown"))
        .then(1 - pl.col("_usable") / pl.col("idle_bytes"))
        .alias("unusable_free_ratio"),
        pl.concat_list("_first", "_last").list.unique(maintain_order=True).alias("lines"),
    )
    return BlockSummary.validate(found.select(BlockSummary.column_names()), cast=True)


def _summed(recording: Recording) -> pl.DataFrame:
    """The blocks' sums per source, snapshot and device; `_unknown`: no failed request to hold idle blocks against."""
    state = pl.col("state").cast(pl.String)
    # A sum of damaged sizes may leave the range of whole numbers; one of real sizes is exact in either.
    idle, size = state.is_in(_IDLE), pl.col("size_bytes").cast(pl.Float64)
    parts = recording.blocks.with_columns(
        idle.alias("_idle"),
        (idle & (~idle).any().over(*_KEY, "segment_id") & ~pl.col("is_expandable").fill_null(False)).alias("_split"),
        (idle & _usable(recording)).alias("_usable"),
    )
    return parts.group_by(_KEY, maintain_order=True).agg(
        size.filter(state == "active").sum().alias("allocated_bytes"),
        size.filter(~idle).sum().alias("active_bytes"),
        size.filter("_idle").sum().alias("idle_bytes"),
        size.filter("_split").sum().alias("inactive_split_bytes"),
        size.filter("_idle").max().fill_null(0).alias("largest_free_bytes"),
        size.filter("_usable").sum().alias("_usable"),
        pl.col("_usable").is_null().any().alias("_unknown"),
        _requested(state).alias("requested_bytes"),
        pl.len().cast(pl.UInt32).alias("block_count"),
        pl.col("line").min().alias("_first"),
        pl.col("line").max().alias("_last"),
    )


def _usable(recording: Recording) -> pl.Expr:
    """Whether an idle block could serve the request that failed last in its source and on its device; null without."""
    failed = recording.ooms.drop_nulls("requested_bytes").select("source_id", "gpu", "requested_bytes")
    last = failed.group_by("source_id", "gpu", maintain_order=True).last()
    usable = pl.lit(None, pl.Boolean)
    for row in last.iter_rows(named=True):
        request = row["requested_bytes"]
        here = pl.col("source_id") == row["source_id"]
        if row["gpu"] is not None:
            here &= pl.col("gpu").is_null() | (pl.col("gpu") == row["gpu"])
        kind = "small" if request <= _SMALL_BYTES else "large"
        fits = (pl.col("size_bytes") >= request) & pl.col("pool").is_null()
        fits &= pl.col("segment_kind").is_null() | (pl.col("segment_kind").cast(pl.String) == kind)
        stream = _stream_of_last_failure(recording, row["source_id"], row["gpu"])
        if stream is not None:
            fits &= pl.col("stream").is_null() | (pl.col("stream") == stream)
        usable = pl.when(here).then(fits).otherwise(usable)
    return usable


def _stream_of_last_failure(recording: Recording, source_id: int, gpu: str | None) -> str | None:
    gpus = pl.col("gpu").cast(pl.String).eq_missing(pl.lit(gpu, pl.String))
    failed = recording.allocator_events.filter((pl.col("action") == "oom") & (pl.col("source_id") == source_id) & gpus)
    return failed["stream"].cast(pl.String)[-1] if len(failed) else None


def _requested(state: pl.Expr) -> pl.Expr:
    """What live tensors asked for; null where a live block does not say."""
    live = pl.col("requested_bytes").filter(state == "active")
    return pl.when(live.null_count() == 0).then(live.sum())


def _segments(blocks: pl.DataFrame) -> pl.DataFrame:
    sizes = blocks.group_by(*_KEY, "segment_id").agg(pl.col("segment_bytes").first(), pl.col("size_bytes").sum())
    return sizes.group_by(_KEY).agg(
        pl.coalesce("segment_bytes", "size_bytes").cast(pl.Float64).sum().alias("reserved_bytes"),
        pl.len().alias("segment_count"),
    )


def allocator_peaks(recording: Recording) -> dy.DataFrame[AllocatorPeaks]:
    """One row per source and device whose allocator recorded its events; none otherwise.

    Frame in: AllocatorEvents. Frame out: AllocatorPeaks. The peak is the largest running sum of allocations minus
    frees, in requested bytes where the recorder has them and in allocated bytes otherwise, counted from nothing: what
    was in use before the first event is not in it (Mosaic counts in the same way). A recorder that keeps its last
    events only forgets allocations whose frees are still there; how many tells `orphan_free_count`.
    """
    action = pl.col("action")
    events = recording.allocator_events.filter((action == "alloc") | (action == "free") | (action == "oom"))
    if events.is_empty():
        return AllocatorPeaks.create_empty()
    requested, allocated = _running("requested_bytes"), _running("allocated_bytes")
    is_requested = pl.col("requested_bytes").filter(action != "oom").null_count() == 0
    # An address is handed out again only after it was freed, so the first event of one that is a free has no begin.
    orphan = (action == "free") & pl.col("address_id").is_not_null() & pl.col("address_id").is_first_distinct()
    time = pl.col("time")
    told = [
        pl.when(is_requested).then(requested.max()).otherwise(allocated.max()).clip(lower_bound=0).alias("peak_bytes"),
        pl.when(is_requested).then(pl.lit("requested")).otherwise(pl.lit("allocated")).alias("basis"),
        pl.when(is_requested)
        .then(time.get(requested.arg_max()))
        .otherwise(time.get(allocated.arg_max()))
        .alias("time"),
        (action == "alloc").sum().alias("alloc_count"),
        (action == "free").sum().alias("free_count"),
        (action == "oom").sum().alias("oom_count"),
        orphan.sum().alias("orphan_free_count"),
    ]
    peaks = _by_device(events, told).with_columns(
        pl.when(pl.col("peak_bytes") > 0).then("time").alias("time"), pl.col("gpu").cast(pl.String)
    )
    return AllocatorPeaks.validate(peaks.select(AllocatorPeaks.column_names()), cast=True)


def _by_device(events: pl.DataFrame, told: list[pl.Expr]) -> pl.DataFrame:
    """The expressions per source and device; where there is but one, without the copy that a grouping makes."""
    keys = events.select("source_id", "gpu").unique(maintain_order=True)
    if len(keys) == 1:
        return pl.concat([keys, events.select(told)], how="horizontal")
    return events.group_by("source_id", "gpu", maintain_order=True).agg(told)


def _running(size: str) -> pl.Expr:
    """The running sum of allocations minus frees."""
    action, change = pl.col("action"), pl.col(size).cast(pl.Int64).fill_null(0)
    return pl.when(action == "alloc").then(change).when(action == "free").then(-change).otherwise(0).cum_sum()
