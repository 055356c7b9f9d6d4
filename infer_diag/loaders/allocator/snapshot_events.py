"""Events of PyTorch's recorder as `schema.AllocatorEvents`, and the failed allocations among them as `schema.Ooms`."""

from __future__ import annotations

import polars as pl

_YEAR_2000_US, _YEAR_2100_US = 946_684_800_000_000, 4_102_444_800_000_000
_SMALL_BYTES = 1 << 20
_GRAIN_BYTES = 512
"""Requests up to a MiB are rounded to the grain; in a larger one a rest of up to a MiB stays in its block."""

_SIGNS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


def allocator_events(recorded: pl.DataFrame, device: int) -> pl.DataFrame:
    """Rows of `schema.AllocatorEvents` without `source_id` out of the columns of `EventColumns`.

    A time that is no time since 2000 is null: early versions stamp with a counter of their own.
    """
    action = pl.col("action")
    of_segment = pl.any_horizontal(action == name for name in _SIGNS)
    failed, of_block = action == "oom", ~of_segment & (action != "snapshot")
    dated = pl.col("time_us").is_between(_YEAR_2000_US, _YEAR_2100_US)
    streams = recorded["stream"].unique()
    # Nearly every program uses one stream; writing out its number once is enough then.
    stream = pl.lit(streams[0], pl.UInt64) if len(streams) == 1 else pl.col("stream")
    return recorded.select(
        pl.lit(0, pl.UInt32).alias("line"),
        pl.when(dated).then(pl.col("time_us").cast(pl.Datetime("us", "UTC"))).alias("time"),
        "action",
        pl.lit(str(device)).cast(pl.Categorical).alias("gpu"),
        pl.when(~failed).then("addr").alias("address_id"),
        pl.when(of_block).then("size").alias("requested_bytes"),
        pl.when(of_segment).then("size").alias("allocated_bytes"),
        pl.col("device_free").alias("device_free_bytes"),
        stream.cast(pl.String).cast(pl.Categorical).alias("stream"),
    )


def failed_allocations(events: pl.DataFrame, blocks: pl.DataFrame, device: int) -> pl.DataFrame:
    """Rows of `schema.Ooms` (without `source_id`) of one device's events.

    What was reserved, allocated and idle then follows backwards from the blocks, which are the state after the last
    event. Events tell what was asked for and not how it was rounded, so what was allocated is known within bounds;
    these stand as its resolution. A block that a stream still waits for is neither allocated nor idle.
    """
    if events.is_empty() or not (events["action"] == "oom").any():
        return pl.DataFrame(schema={"line": pl.UInt32})
    own = blocks.filter(pl.col("gpu") == str(device))
    action = pl.col("action")
    whole = pl.col("allocated_bytes").cast(pl.Int64, strict=False)
    sign = pl.sum_horizontal(pl.when(action == name).then(value).otherwise(0) for name, value in _SIGNS.items())
    segment = sign * whole
    later = events.with_columns(
        _after(segment.fill_null(0)).alias("_reserved"),
        *(_after(change).alias(f"_allocated_{name}") for name, change in _changes("free_requested").items()),
        *(_after(change).alias(f"_active_{name}") for name, change in _changes("free").items()),
    ).filter(action == "oom")
    reserved = _reserved(own) - pl.col("_reserved")
    allocated, active = _in_state(own, "active"), _in_state(own, "active", "awaiting")
    return later.select(
        "line",
        "time",
        pl.lit("device").alias("memory"),
        "gpu",
        *_exact(pl.col("requested_bytes"), "requested"),
        *_exact(pl.col("device_free_bytes"), "free"),
        *_exact(_sensible(reserved), "reserved"),
        *_between(allocated - pl.col("_allocated_most"), allocated - pl.col("_allocated_least"), "allocated"),
        *_between(reserved - active + pl.col("_active_least"), reserved - active + pl.col("_active_most"), "idle"),
    )


def _changes(freeing: str) -> dict[str, pl.Expr]:
    """By how much the bytes of blocks change at each event, at least and at most, where `freeing` takes them back."""
    action, size = pl.col("action"), pl.col("requested_bytes").cast(pl.Int64, strict=False).fill_null(0)
    most = size + pl.when(size > _SMALL_BYTES).then(_SMALL_BYTES).otherwise(0) + _GRAIN_BYTES - 1
    taken, given = action == "alloc", action == freeing
    return {
        "least": pl.when(taken).then(size).when(given).then(-most).otherwise(0),
        "most": pl.when(taken).then(most).when(given).then(-size).otherwise(0),
    }


def _between(low: pl.Expr, high: pl.Expr, name: str) -> tuple[pl.Expr, pl.Expr]:
    middle = _sensible((low + high) / 2)
    half = pl.when(middle.is_not_null()).then(((high - low) / 2).abs())
    return middle.alias(f"{name}_bytes"), half.alias(f"{name}_resolution_bytes")


def _after(change: pl.Expr) -> pl.Expr:
    """What changed after each event."""
    return change.sum() - change.cum_sum()


def _sensible(size: pl.Expr) -> pl.Expr:
    """Null where the recorder lost events, so that the sums do not come out."""
    return pl.when(size >= 0).then(size).cast(pl.Float64)


def _exact(size: pl.Expr, name: str) -> tuple[pl.Expr, pl.Expr]:
    known = size.cast(pl.Float64)
    return known.alias(f"{name}_bytes"), pl.when(known.is_not_null()).then(0.0).alias(f"{name}_resolution_bytes")


def _reserved(own: pl.DataFrame) -> pl.Expr:
    if own.is_empty():
        return pl.lit(None, pl.Int64)
    sizes = own.group_by("segment_id").agg(pl.col("segment_bytes").first(), pl.col("size_bytes").sum())
    return _level(sizes.select(pl.coalesce("segment_bytes", "size_bytes").alias("_"))["_"])


def _in_state(own: pl.DataFrame, *states: str) -> pl.Expr:
    if own.is_empty():
        return pl.lit(None, pl.Int64)
    return _level(own.filter(pl.col("state").is_in(states))["size_bytes"])


def _level(sizes: pl.Series) -> pl.Expr:
    """The sum of sizes; null where it is none that a device could hold."""
    whole = sizes.cast(pl.Float64).sum()
    return pl.lit(int(whole) if whole < 1 << 60 else None, pl.Int64)
