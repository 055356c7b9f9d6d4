"""The heap as it was when a recording began, found by undoing what was recorded from the blocks at its end.

What lives at the end and was not allocated meanwhile lived at the beginning, and so did what was freed without having
been allocated; the segments follow in the same way. The size of a block that was freed is not recorded: it is what was
asked for, rounded, and in a large segment up to 1 MiB more. A large pool never leaves a hole of 1 MiB or less, so a
smaller gap before the next block belongs to the block; where the gap was larger all along, none of it does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from infer_diag.schema import Blocks
from infer_diag.simulators.allocators.heap import Ints
from infer_diag.simulators.allocators.trace import Trace

_GRAIN = 512
_SMALL = 1 << 20
_SEGMENT_CHANGES = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


@dataclass(frozen=True)
class InitialState:
    """`blocks`: `schema.Blocks` at the beginning; `objects`: the number in the trace of each live one, else -1.

    `unsure_count`: blocks whose size is not certain; `doubts`: what the recording says that cannot be so.
    """

    blocks: pl.DataFrame
    objects: Ints
    unsure_count: int
    doubts: tuple[str, ...]


def initial_state(events: pl.DataFrame, blocks: pl.DataFrame, trace: Trace) -> InitialState:
    """The blocks of one device before the first of its events.

    Frames in: AllocatorEvents, Blocks, each of one source and device, and the trace made of them. The blocks tile the
    segments; idle ones are as large as they can be, since allocators join neighbours at once. Objects that lie in no
    known segment are left out and counted in `doubts`.
    """
    segments = _segments(events, blocks)
    live, lost = _inside(trace.before, segments)
    sizes, unsure_count = _sizes(live, trace)
    live = live.with_columns(pl.Series("size_bytes", sizes, dtype=pl.Int64))
    both = pl.concat([live, _holes(live, segments)], how="diagonal").sort("address_id")
    doubts = (f"{lost:,} objects that lived before the recording lie in no known segment",) if lost else ()
    objects = both["object"].fill_null(-1).to_numpy()
    return InitialState(_shaped(both, segments, blocks), np.asarray(objects, np.int64), unsure_count, doubts)


def _segments(events: pl.DataFrame, blocks: pl.DataFrame) -> pl.DataFrame:
    """Segments at the beginning (begin, end, kind, stream, pool, is_expandable), by address."""
    final = blocks.unique("segment_id", maintain_order=True).select(
        pl.col("segment_id").cast(pl.Int64).alias("begin"),
        (pl.col("segment_id") + pl.col("segment_bytes")).cast(pl.Int64).alias("end"),
        "segment_kind",
        "is_expandable",
        "pool",
        pl.col("stream").fill_null("0"),
    )
    changes = events.select(
        pl.col("action").cast(pl.String),
        pl.col("address_id").cast(pl.Int64).alias("begin"),
        (pl.col("address_id") + pl.col("allocated_bytes")).cast(pl.Int64).alias("end"),
        pl.col("stream").cast(pl.String).fill_null("0"),
    ).filter(pl.col("action").is_in(list(_SEGMENT_CHANGES)))
    spans = {row["begin"]: row for row in final.iter_rows(named=True)}
    for action, begin, end, stream in changes.reverse().iter_rows():
        if _SEGMENT_CHANGES[action] > 0:
            _take_out(spans, begin, end)
        elif begin is not None and end is not None:
            kind = "small" if end - begin <= 2 * _SMALL else "large"
            expandable = action == "segment_unmap"
            spans[begin] = {"begin": begin, "end": end, "segment_kind": kind, "is_expandable": expandable}
            spans[begin] |= {"pool": None, "stream": stream}
    rows = [spans[begin] for begin in sorted(spans)]
    return _merged(pl.DataFrame(rows, schema=final.schema))


def _take_out(spans: dict[int, dict[str, object]], begin: int | None, end: int | None) -> None:
    """Takes [begin, end) out of the span that holds it, if one does."""
    if begin is None or end is None:
        return
    # A segment is nearly always undone as a whole; pages of an expandable one leave what lies beside them.
    holder = spans.get(begin)
    if holder is None:
        holder = next((span for span in spans.values() if span["begin"] <= begin < span["end"]), None)  # type: ignore[operator]
    if holder is None:
        return
    low, high = holder["begin"], holder["end"]
    del spans[low]  # type: ignore[arg-type]
    if low < begin:  # type: ignore[operator]
        spans[low] = {**holder, "end": begin}  # type: ignore[index]
    if end < high:  # type: ignore[operator]
        spans[end] = {**holder, "begin": end}


def _merged(spans: pl.DataFrame) -> pl.DataFrame:
    """Ranges of an expandable segment that touch are one."""
    both = pl.col("is_expandable").fill_null(False) & pl.col("is_expandable").shift(1).fill_null(False)
    same = (pl.col("begin") == pl.col("end").shift(1)) & both
    for name in ("stream", "pool", "segment_kind"):
        same &= pl.col(name).eq_missing(pl.col(name).shift(1))
    marked = spans.with_columns((~same.fill_null(False)).cum_sum().alias("_run"))
    return (
        marked.group_by("_run", maintain_order=True)
        .agg(pl.col("begin").first(), pl.col("end").last(), pl.exclude("begin", "end", "_run").first())
        .drop("_run")
    )


def _inside(before: pl.DataFrame, segments: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """(objects with the begin and end of their segment, how many lie in none or overlap the one before)."""
    placed = before.select(
        "object",
        pl.col("address_id").cast(pl.Int64),
        pl.col("requested_bytes").cast(pl.Int64),
        "last_row",
        "size_bytes",
    ).sort("address_id")
    found = placed.join_asof(segments, left_on="address_id", right_on="begin", check_sortedness=False)
    size = pl.coalesce(pl.col("size_bytes").cast(pl.Int64), _rounded(pl.col("requested_bytes")))
    end = pl.col("address_id") + size
    fits = (end <= pl.col("end")) & ((pl.col("address_id").shift(-1) >= end) | pl.col("address_id").shift(-1).is_null())
    kept = found.filter(fits.fill_null(False))
    return kept, len(found) - len(kept)


def _rounded(size: pl.Expr) -> pl.Expr:
    return pl.max_horizontal(1, (size.fill_null(1) + _GRAIN - 1) // _GRAIN) * _GRAIN


def _sizes(live: pl.DataFrame, trace: Trace) -> tuple[Ints, int]:
    """(size of each block, how many are not certain)."""
    least = live.select(_rounded(pl.col("requested_bytes"))).to_series().to_numpy()
    begins, told = live["address_id"].to_numpy(), live["size_bytes"].cast(pl.Int64).to_list()
    ends = live["end"].to_numpy()
    last_rows = live["last_row"].to_list()
    born = trace.rows.filter((pl.col("action") == "alloc") & pl.col("address_id").is_not_null()).sort("address_id")
    addresses, rows = born["address_id"].cast(pl.Int64).to_numpy(), born["row"].to_numpy()
    sizes, unsure = np.zeros(len(live), np.int64), 0
    large = (live["segment_kind"] == "large").fill_null(False).to_numpy()
    for place in range(len(live)):
        known = told[place]
        if known is not None:
            sizes[place] = known
            continue
        low = begins[place] + least[place]
        limit = min(ends[place], begins[place + 1] if place + 1 < len(live) else ends[place])
        if large[place]:
            window = slice(np.searchsorted(addresses, low), np.searchsorted(addresses, low + _SMALL, side="right"))
            near = addresses[window][rows[window] < last_rows[place]]
            limit = min(limit, int(near.min())) if len(near) else limit
        owns = large[place] and 0 <= limit - low <= _SMALL
        sizes[place] = least[place] + (limit - low if owns else 0)
        unsure += bool(large[place] and not owns)
    return sizes, unsure


def _holes(live: pl.DataFrame, segments: pl.DataFrame) -> pl.DataFrame:
    """What lies between the live blocks of each segment."""
    ends = live.select("begin", (pl.col("address_id") + pl.col("size_bytes")).alias("low"))
    lows = pl.concat([segments.select("begin", pl.col("begin").alias("low")), ends])
    highs = pl.concat(
        [
            live.select("begin", pl.col("address_id").alias("high")),
            segments.select("begin", pl.col("end").alias("high")),
        ]
    )
    lows, highs = lows.sort("begin", "low"), highs.sort("begin", "high")
    gaps = pl.concat([lows, highs.select("high")], how="horizontal").filter(pl.col("high") > pl.col("low"))
    return gaps.select("begin", pl.col("low").alias("address_id"), (pl.col("high") - pl.col("low")).alias("size_bytes"))


def _shaped(both: pl.DataFrame, segments: pl.DataFrame, blocks: pl.DataFrame) -> pl.DataFrame:
    whole = both.select("begin", "address_id", "size_bytes", "requested_bytes", "object").join(
        segments, on="begin", how="left", maintain_order="left"
    )
    is_live = pl.col("object").is_not_null()
    frame = whole.select(
        pl.lit("begin").alias("snapshot"),
        pl.lit(blocks["gpu"][0] if len(blocks) else None, pl.String).alias("gpu"),
        pl.col("begin").alias("segment_id"),
        (pl.col("end") - pl.col("begin")).alias("segment_bytes"),
        "segment_kind",
        "is_expandable",
        "pool",
        "stream",
        "address_id",
        "size_bytes",
        pl.when(is_live).then("requested_bytes").alias("requested_bytes"),
        pl.when(is_live).then(pl.lit("active")).otherwise(pl.lit("inactive")).alias("state"),
        pl.lit(None, pl.String).alias("requester"),
        pl.lit(blocks["source_id"][0] if len(blocks) else 0, pl.UInt32).alias("source_id"),
        pl.lit(0, pl.UInt32).alias("line"),
    )
    return Blocks.validate(frame.select(Blocks.column_names()), cast=True)
