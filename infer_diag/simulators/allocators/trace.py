"""Recorded allocator events as the steps that a simulated allocator can take.

An object is what one allocation created. Objects that lived before the first event come first, in the order of
`before`; the others follow in the order in which they were allocated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from infer_diag.simulators.allocators.heap import Ints, Records
from infer_diag.simulators.allocators.kinds import ALLOC, EMPTY_CACHE, FREE, FREE_REQUESTED
from infer_diag.simulators.allocators.loop import STEP

_TOLD = ("address_id", "requested_bytes", "allocated_bytes")
_BLOCK_ACTIONS = ("alloc", "free", "free_requested")
_FROM_DRIVER = ("segment_alloc", "segment_map")
_TO_DRIVER = ("segment_free", "segment_unmap")
_STEPS = {"alloc": ALLOC, "oom": ALLOC, "free": FREE, "free_requested": FREE_REQUESTED, "empty_cache": EMPTY_CACHE}


@dataclass(frozen=True)
class Trace:
    """Steps of `loop.STEP` and, beside each, `rows`: row of the event, its action, time and recorded address.

    `before`: one row per object that lived before the first event (address_id, requested_bytes, stream, pool, last_row:
    the row that ends it, null where it outlives the recording). `doubts`: what in the events cannot be so.
    """

    steps: Records
    rows: pl.DataFrame
    before: pl.DataFrame
    streams: tuple[str, ...]
    pools: tuple[str | None, ...]
    object_count: int
    doubts: tuple[str, ...] = ()

    @property
    def recorded_address(self) -> Ints:
        """The address that each step got in the recording, -1 where it got none."""
        return self.rows["address_id"].cast(pl.Int64, strict=False).fill_null(-1).to_numpy()


def trace(events: pl.DataFrame, blocks: pl.DataFrame, *, limit_bytes: int | None = None) -> Trace:
    """The steps of one device's events; `blocks` are those after the last event, none where nobody recorded them.

    Frames in: AllocatorEvents, Blocks, each of one source and device. A request that failed becomes one that is freed
    at once if it is served. Memory that went back to the driver between two requests becomes a call that empties the
    cache, unless the request after it needed the room (`limit_bytes` tells; where it is null, none is taken to).
    """
    told = events.with_columns(
        pl.int_range(pl.len(), dtype=pl.Int64).alias("row"),
        pl.col("stream").cast(pl.String).fill_null("0"),
        pl.coalesce("requested_bytes", "allocated_bytes").alias("requested_bytes"),
    ).select("row", "time", pl.col("action").cast(pl.String), *_TOLD, "stream")
    lives, doubts = _lives(told)
    before = _before(lives, blocks)
    of_blocks = _with_objects(lives, before)
    failed = _failed(told, len(before) + int((of_blocks["action"] == "alloc").sum()))
    emptied = _emptied(told, _reserved(blocks), limit_bytes)
    rows = pl.concat([of_blocks, failed, emptied], how="diagonal").sort("row", "after", maintain_order=True)
    rows = _without_immediate(rows).join(_offered(told), on="row", how="left", maintain_order="left")
    rows = _with_pool(rows, blocks)
    arenas = pl.concat([rows.select("stream", "pool"), before.select("stream", "pool")]).drop_nulls("stream").unique()
    arenas = arenas.sort("pool", "stream", nulls_last=False).with_row_index("arena")
    rows = rows.join(arenas, on=["stream", "pool"], how="left", nulls_equal=True, maintain_order="left")
    before = before.join(arenas, on=["stream", "pool"], how="left", nulls_equal=True, maintain_order="left")
    return Trace(
        _steps(rows),
        rows.select("row", "time", "action", "address_id", "requested_bytes"),
        before,
        tuple(arenas["stream"]),
        tuple(arenas["pool"]),
        int(rows["object"].max() or -1) + 1 if len(rows) else len(before),  # type: ignore[arg-type]
        doubts,
    )


def _lives(told: pl.DataFrame) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Events of blocks with `life`: how many allocations their address had seen; ends that end nothing are left out."""
    action = pl.col("action")
    found = told.filter(action.is_in(_BLOCK_ACTIONS) & pl.col("address_id").is_not_null())
    found = found.with_columns((action == "alloc").cum_sum().over("address_id").alias("life"))
    first = pl.struct("address_id", "life", "action").is_first_distinct()
    kept = found.filter(first)
    ended = kept.filter(action == "free").select("address_id", "life", pl.col("row").alias("end"))
    kept = kept.join(ended, on=["address_id", "life"], how="left", maintain_order="left")
    kept = kept.filter((pl.col("row") <= pl.col("end")).fill_null(True))
    lost = len(found) - len(kept)
    doubts = (f"{lost:,} frees end nothing that lives and are left out",) if lost else ()
    return kept, doubts


def _before(lives: pl.DataFrame, blocks: pl.DataFrame) -> pl.DataFrame:
    """What lived before the first event: freed without being allocated, or live at the end and in no event."""
    freed = (
        lives.filter(pl.col("life") == 0)
        .group_by("address_id", maintain_order=True)
        .agg(
            pl.col("requested_bytes").drop_nulls().first(),
            pl.col("stream").first(),
            pl.col("row").filter(pl.col("action") == "free").first().alias("last_row"),
            pl.lit(None, pl.UInt64).alias("size_bytes"),
        )
    )
    seen = lives.select("address_id").unique()
    kept = blocks.filter(pl.col("state").is_in(["active", "awaiting"])).select(
        "address_id",
        pl.coalesce("requested_bytes", "size_bytes").alias("requested_bytes"),
        pl.col("stream").fill_null("0"),
        pl.lit(None, pl.Int64).alias("last_row"),
        "size_bytes",
    )
    both = pl.concat([freed, kept.join(seen, on="address_id", how="anti")])
    known = both.join(kept.select("address_id", pl.col("size_bytes").alias("_size")), on="address_id", how="left")
    outlives = pl.col("last_row").is_null()
    sized = known.with_columns(pl.when(outlives).then(pl.coalesce("size_bytes", "_size")).alias("size_bytes"))
    placed = _with_pool(sized.drop("_size").sort("address_id"), blocks)
    return placed.with_row_index("object").with_columns(pl.col("object").cast(pl.Int64))


def _with_objects(lives: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
    born = lives.filter(pl.col("action") == "alloc").select("address_id", "life")
    born = born.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("object") + len(before))
    old = before.select("address_id", pl.lit(0, born["life"].dtype).alias("life"), "object")
    both = pl.concat([old, born])
    return lives.join(both, on=["address_id", "life"], how="left", maintain_order="left").with_columns(
        pl.lit(0).alias("after")
    )


def _failed(told: pl.DataFrame, first_object: int) -> pl.DataFrame:
    """Requests that failed, each followed by the free that ends it at once where it is served."""
    asked = told.filter((pl.col("action") == "oom") & pl.col("requested_bytes").is_not_null())
    asked = asked.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("object") + first_object)
    ended = asked.with_columns(pl.lit("free").alias("action"), pl.lit(1).alias("after"))
    return pl.concat([asked.with_columns(pl.lit(0).alias("after")), ended])


def _emptied(told: pl.DataFrame, reserved_bytes: int, limit_bytes: int | None) -> pl.DataFrame:
    """The first row of each run of segments that went back to the driver although nothing needed their room."""
    action, size = pl.col("action"), pl.col("allocated_bytes").cast(pl.Int64).fill_null(0)
    taken, given = action.is_in(_FROM_DRIVER), action.is_in(_TO_DRIVER)
    change = pl.when(taken).then(size).when(given).then(-size).otherwise(0)
    runs = told.filter(taken | given | action.is_in(["alloc", "oom"])).with_columns(
        (change.cum_sum() - change).alias("level"), (given != given.shift(1, fill_value=False)).cum_sum().alias("run")
    )
    follows = runs.group_by("run", maintain_order=True).agg(pl.all().first())
    needed = pl.col("action").shift(-1).is_in([*_FROM_DRIVER, "oom"])
    if limit_bytes is None:
        retried = pl.lit(False)
    else:
        begin_bytes = reserved_bytes - int(told.select(change.sum()).item())
        wanted = pl.col("level") + begin_bytes + pl.col("allocated_bytes").shift(-1).fill_null(0).cast(pl.Int64)
        retried = needed & (wanted > limit_bytes)
    retried |= pl.col("action").shift(-1) == "oom"
    return (
        follows.with_columns(retried.fill_null(False).alias("retried"))
        .filter(given & ~pl.col("retried"))
        .select("row", "time", pl.lit("empty_cache").alias("action"), pl.lit(0).alias("after"), "stream")
    )


def _reserved(blocks: pl.DataFrame) -> int:
    return int(blocks.select("segment_id", "segment_bytes").unique()["segment_bytes"].sum() or 0)


def _without_immediate(rows: pl.DataFrame) -> pl.DataFrame:
    """A request to free that is followed by its completion says nothing more."""
    same = pl.col("object") == pl.col("object").shift(-1)
    said = (pl.col("action") == "free_requested") & (pl.col("action").shift(-1) == "free") & same
    return rows.filter(~said.fill_null(False))


def _offered(told: pl.DataFrame) -> pl.DataFrame:
    """For each request the segment that was taken between it and the request of its stream before it, if any."""
    action = pl.col("action")
    asked = told.filter(action.is_in(["alloc", "oom"])).select("row", "stream")
    asked = asked.with_columns(pl.col("row").shift(1).over("stream").fill_null(-1).alias("previous"))
    taken = told.filter(action.is_in(_FROM_DRIVER)).select(
        pl.col("row").alias("taken"),
        "stream",
        pl.col("address_id").alias("offered_address"),
        pl.col("allocated_bytes").alias("offered_size"),
    )
    found = asked.join_asof(taken, left_on="row", right_on="taken", by="stream", check_sortedness=False)
    return found.filter(pl.col("taken") > pl.col("previous")).select("row", "offered_address", "offered_size")


def _with_pool(rows: pl.DataFrame, blocks: pl.DataFrame) -> pl.DataFrame:
    """Adds `pool`: that of the segment around the address at the end of the recording; null: the shared one."""
    private = blocks.drop_nulls("pool").unique("segment_id").sort("segment_id")
    if private.is_empty():
        return rows.with_columns(pl.lit(None, pl.String).alias("pool"))
    spans = private.select("segment_id", (pl.col("segment_id") + pl.col("segment_bytes")).alias("end"), "pool")
    placed = rows.with_row_index("_place").sort("address_id", nulls_last=True)
    found = placed.join_asof(spans, left_on="address_id", right_on="segment_id", check_sortedness=False)
    inside = pl.when(pl.col("address_id") < pl.col("end")).then("pool").alias("pool")
    return found.with_columns(inside).sort("_place").drop("_place", "end", "segment_id")


def _steps(rows: pl.DataFrame) -> Records:
    steps = np.zeros(len(rows), STEP)
    steps["action"] = rows["action"].replace_strict(_STEPS, return_dtype=pl.Int8).to_numpy()
    for name, column in (
        ("arena", "arena"),
        ("thing", "object"),
        ("size", "requested_bytes"),
        ("offered_address", "offered_address"),
        ("offered_size", "offered_size"),
    ):
        steps[name] = rows[column].cast(pl.Int64, strict=False).fill_null(0).to_numpy()
    return steps
