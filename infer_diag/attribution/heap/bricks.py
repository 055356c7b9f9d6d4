"""Block maps as bricks that a chart can draw: each block its own as far as there is room, small neighbours together."""

from __future__ import annotations

import dataframely as dy
import numpy as np
import polars as pl

from infer_diag.attribution.heap.frames import BRICK_STATES, MapBricks
from infer_diag.attribution.heap.maps import event_at, map_rows
from infer_diag.attribution.heap.trace import HeapTrace
from infer_diag.recording import Recording

MOST_BRICKS = 7_500
"""So many of one moment keep a figure of it below 2 MB; maps with fewer blocks are drawn block by block."""
MOST_IN_FRAMES = 7_500
FRAMES = 24
_SEGMENT = ["source_id", "gpu", "snapshot", "segment_id"]


def snapshot_bricks(recording: Recording, *, most: int = MOST_BRICKS) -> dy.DataFrame[MapBricks]:
    """Bricks of the last block map of the device that holds the most; none without a block map.

    Frame in: Blocks. Frame out: MapBricks. Blocks smaller than the least size that gives at most `most` bricks share a
    brick with the small neighbours of their segment, whose state is that of most of its bytes.
    """
    blocks = recording.blocks.filter(pl.col("snapshot") == pl.col("snapshot").last().over("source_id"))
    if blocks.is_empty():
        return MapBricks.create_empty()
    sums = blocks.group_by("source_id", "gpu", maintain_order=True).agg(pl.col("size_bytes").sum())
    source_id, gpu, _ = sums.sort("size_bytes", descending=True, maintain_order=True).row(0)
    own = blocks.filter(pl.col("gpu").eq_missing(pl.lit(gpu, pl.String)), source_id=source_id)
    events = len(recording.allocator_events.filter(source_id=source_id))
    marked = own.with_columns(
        pl.lit(events - 1, pl.Int64).alias("event_id"),
        pl.lit(None, pl.Float64).alias("time_s"),
        pl.lit(None, pl.Int64).alias("event"),
    )
    return MapBricks.validate(_bricks(marked, most), cast=True)


def trace_bricks(
    trace: HeapTrace, *, event: int | None = None, at_s: float | None = None, frames: int = FRAMES
) -> dy.DataFrame[MapBricks]:
    """Bricks of one heap at evenly spaced events, coarser, and at the one that is asked for (the last one), finer.

    Frame out: MapBricks, by event.

    Raises:
        DiagError: no event has that number, or the events carry no times.
    """
    last = trace.event_count - 1
    shown = last if event is None and at_s is None else event_at(trace, event=event, at_s=at_s)
    spaced = np.linspace(-1, last, max(min(frames, trace.event_count + 1), 1)).round().astype(np.int64)
    events = np.unique(np.append(spaced, shown))
    rows = map_rows(trace, events)
    start = trace.times.drop_nulls().min()
    time = pl.lit(trace.times).gather(pl.col("event_id").clip(0)) if trace.event_count else pl.lit(None, pl.Datetime)
    since = (time - pl.lit(start, pl.Datetime("us", "UTC"))).dt.total_microseconds() / 1e6
    marked = rows.with_columns(pl.lit(pl.Series(events)).gather(pl.col("place")).alias("event_id")).with_columns(
        since.alias("time_s")
    )
    most = {int(number): MOST_IN_FRAMES // len(events) for number in events} | {shown: MOST_BRICKS}
    parts = [_bricks(marked.filter(pl.col("event_id") == number), limit) for number, limit in sorted(most.items())]
    return MapBricks.validate(pl.concat(parts, how="vertical_relaxed"), cast=True)


def _bricks(rows: pl.DataFrame, most: int) -> pl.DataFrame:
    """Rows of `MapBricks` of one moment's rows of `schema.Blocks`."""
    idle = pl.col("state").cast(pl.String).is_in(["inactive", "free"])
    stuck = (~idle).any().over(_SEGMENT) & ~pl.col("is_expandable").fill_null(False)
    size = pl.col("size_bytes").cast(pl.Int64)
    kind = pl.col("segment_kind", "pool", "stream").cast(pl.String)
    placed = (
        rows.with_columns(kind, size.alias("size"))
        .filter(pl.col("size") > 0)
        .sort("segment_kind", "pool", "stream", "segment_id", "address_id", nulls_last=False)
        .with_columns(
            (pl.col("size").cum_sum() - pl.col("size")).alias("begin_bytes"),
            pl.when(idle & stuck)
            .then(pl.lit("stuck"))
            .when(idle)
            .then(pl.lit("cached"))
            .otherwise(pl.col("state").cast(pl.String))
            .alias("kept"),
        )
    )
    return _joined(placed.with_columns(_runs(placed, most).alias("brick")))


def _runs(placed: pl.DataFrame, most: int) -> pl.Series:
    """The number of the brick of each row: small neighbours share one, those of one segment first."""
    other = (pl.col("segment_id") != pl.col("segment_id").shift()).fill_null(True)
    for apart in (other, pl.lit(False)):
        for least in (0, *(1 << power for power in range(63))):
            small = pl.col("size") < least
            alone = ~(small & small.shift(fill_value=False)) | apart
            bricks = placed.select(alone.cast(pl.UInt32).cum_sum().alias("brick"))["brick"]
            if not len(bricks) or bricks[-1] <= most:
                return bricks
    return bricks


def _joined(placed: pl.DataFrame) -> pl.DataFrame:
    live = pl.col("kept") == "active"
    states = [pl.col("size").filter(pl.col("kept") == state).sum() for state in BRICK_STATES]
    joined = placed.group_by("brick", maintain_order=True).agg(
        pl.col("source_id", "gpu", "event_id", "time_s", "begin_bytes", "address_id", "segment_id").first(),
        pl.col("segment_kind", "pool", "stream").first(),
        pl.col("size").sum().alias("size_bytes"),
        pl.coalesce(pl.col("segment_bytes").first().cast(pl.Int64), pl.col("size").sum()).alias("segment_bytes"),
        pl.concat_list(states).list.arg_max().first().alias("most"),
        pl.len().cast(pl.UInt32).alias("block_count"),
        pl.col("size").filter(live).sum().alias("live_bytes"),
        pl.when(pl.col("requested_bytes").filter(live).null_count() == 0)
        .then(pl.col("requested_bytes").filter(live).sum())
        .cast(pl.Int64)
        .alias("requested_bytes"),
        pl.when(pl.len() == 1).then(pl.col("event").first()).alias("allocated_event_id"),
        pl.when(pl.len() == 1).then(pl.col("requester").first()).alias("requester"),
    )
    named = joined.with_columns(
        pl.col("most")
        .cast(pl.Int64)
        .replace_strict(dict(enumerate(BRICK_STATES)), return_dtype=pl.String)
        .alias("state")
    )
    return named.select(MapBricks.column_names())
