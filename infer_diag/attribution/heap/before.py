"""What a heap held before its recording began: found by undoing the events, without a step through them."""

from __future__ import annotations

import polars as pl

from infer_diag.attribution.heap.policy import Policy
from infer_diag.attribution.heap.segments import GROUP_KEY

_ALLOC, _FREE, _FREE_REQUESTED, _TAKEN, _RETURNED, _MAPPED, _UNMAPPED = range(7)
_COLUMNS = ("kind", "address", "end", *GROUP_KEY)


def blocks_before(moves: pl.DataFrame, final: pl.DataFrame) -> pl.DataFrame:
    """Blocks that lived before the first event, from the highest address down, as rows of events.

    An address whose first event is a free was live; so was every live block of the snapshot that no event names. The
    order lets each block of unknown size see the one above it.
    """
    known = moves.drop_nulls("address")
    first = known.filter(pl.col("address").is_first_distinct())
    freed = first.filter(pl.col("kind") != _ALLOC).select("address", "size", pl.lit(0, pl.Int64).alias("fixed"))
    live = final.filter(pl.col("state").is_in(["active", "awaiting"])).select(
        pl.col("address_id").cast(pl.Int64).alias("address"),
        pl.col("requested_bytes").cast(pl.Int64).alias("size"),
        pl.col("size_bytes").cast(pl.Int64).alias("fixed"),
        (pl.col("state") == "awaiting").alias("awaits"),
    )
    silent = live.join(first, on="address", how="anti").with_columns(pl.col("size").fill_null(pl.col("fixed")))
    blocks = pl.concat([freed, silent], how="diagonal").sort("address", descending=True)
    made = blocks.select(pl.lit(_ALLOC, pl.UInt8).alias("kind"), "address", "size", "fixed")
    awaited = blocks.filter("awaits").select(pl.lit(_FREE_REQUESTED, pl.UInt8).alias("kind"), "address")
    return pl.concat([made, awaited], how="diagonal")


def segments_before(taken: pl.DataFrame, segments: pl.DataFrame) -> pl.DataFrame:
    """Segments that were there before the first event, as rows of events with their groups."""
    whole = taken.filter(pl.col("kind") <= _RETURNED)
    first = whole.filter(pl.col("address").is_first_distinct() & (pl.col("kind") == _RETURNED))
    last = whole.filter(pl.col("address").is_last_distinct() & (pl.col("kind") == _TAKEN))
    kept = segments.filter(~pl.col("is_expandable")).join(last, on="address", how="anti")
    kept = kept.join(first, on="address", how="anti")
    fixed = pl.concat([first.select("address", "end", *GROUP_KEY), kept.select("address", "end", *GROUP_KEY)])
    pages = _pages_before(taken.filter(pl.col("kind") >= _MAPPED), segments.filter("is_expandable"))
    return pl.concat(
        [
            fixed.select(pl.lit(_TAKEN, pl.UInt8).alias("kind"), *_COLUMNS[1:]),
            pages.select(pl.lit(_MAPPED, pl.UInt8).alias("kind"), *_COLUMNS[1:]),
        ]
    ).sort("address")


def _pages_before(moves: pl.DataFrame, segments: pl.DataFrame) -> pl.DataFrame:
    """Runs of pages mapped at first: in each stretch between two ends the first event that touches it tells."""
    shape = ["address", "end", *GROUP_KEY]
    if moves.is_empty():
        return segments.select(shape)
    ends = pl.concat([moves["address"], moves["end"], segments["address"], segments["end"].alias("address")])
    cuts = ends.unique().sort()
    stretches = pl.DataFrame({"address": cuts.head(-1), "stop": cuts.tail(-1)})
    ranges = pl.concat(
        [
            moves.select(*shape, "kind", "event"),
            # The snapshot is what stands after all events.
            segments.select(*shape, pl.lit(_UNMAPPED, pl.UInt8).alias("kind"), pl.lit(1 << 31).alias("event")),
        ],
        how="vertical_relaxed",
    )
    inside = stretches.join_where(
        ranges.rename({"address": "begin"}),
        pl.col("address") >= pl.col("begin"),
        pl.col("stop") <= pl.col("end"),
    )
    first = inside.sort("event").unique("address", keep="first", maintain_order=True)
    mapped = first.filter(pl.col("kind") == _UNMAPPED).with_columns(pl.col("stop").alias("end"))
    return mapped.sort("address").select(shape)


def touched(moves: pl.DataFrame, taken: pl.DataFrame, policy: Policy) -> pl.DataFrame:
    """Stretches of addresses that were handed out at some time and lie in no known segment, as segments."""
    unit = policy.unit_bytes
    size = pl.max_horizontal("fixed", (pl.col("size") + unit - 1) // unit * unit, pl.lit(unit))
    used = moves.drop_nulls("address").select("address", (pl.col("address") + size).alias("end")).unique()
    known = taken.filter(pl.col("kind").is_in([_TAKEN, _MAPPED])).select("address", until="end").sort("address")
    used = used.sort("address").join_asof(known, on="address", strategy="backward")
    loose = used.filter((pl.col("address") >= pl.col("until")).fill_null(True)).sort("address")
    begins = pl.col("address") > pl.col("end").cum_max().shift()
    runs = loose.with_columns(begins.fill_null(True).cum_sum().alias("run"))
    return (
        runs.group_by("run", maintain_order=True)
        .agg(pl.col("address").min(), pl.col("end").max())
        .select(
            pl.lit(_TAKEN, pl.UInt8).alias("kind"),
            "address",
            "end",
            *(pl.lit(None, pl.String).alias(name) for name in GROUP_KEY[:-1]),
            pl.lit(False).alias("is_expandable"),
        )
    )
