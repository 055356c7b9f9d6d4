"""How many of the idle bytes at a failed allocation lay where the allocator could have served the request from."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from infer_diag.attribution.heap.policy import SMALL_BYTES, Policy, policy_of
from infer_diag.attribution.heap.segments import GROUP_KEY, final_segments, segment_rows
from infer_diag.attribution.heap.trace import moves_of
from infer_diag.attribution.oom_verdict import Span
from infer_diag.recording import Recording
from infer_diag.units import format_bytes

_ALLOC, _FREE, _TAKEN, _RETURNED, _MAPPED = 0, 1, 3, 4, 5
_MOST_ROWS = 50_000_000
"""Events times failures beyond which the failures are left without an answer, since each looks at all that follow."""


def usable_idle(recording: Recording, ooms: pl.DataFrame) -> list[tuple[Span, str] | None]:
    """For each failed allocation the idle bytes that may serve it, and what those segments are, in words; else null.

    Frames in: AllocatorEvents, Blocks, and `ooms` (rows of `schema.Ooms`). PyTorch serves a request up to 1 MiB from
    small segments and a larger one from large ones, of the request's stream only, and never from the pool of a captured
    graph (CUDACachingAllocator.cpp). Idle at the failure = reserved − active there: the final blocks with everything
    undone that came later. A block that is gone by the end is known up to its rounding, and a segment without kind or
    stream may or may not serve; both widen the answer. Null without a block map, and of other allocators.
    """
    found: list[tuple[Span, str] | None] = [None] * len(ooms)
    rows = ooms.with_row_index("_row").filter(pl.col("memory").cast(pl.String) == "device")
    for source_id, gpu in rows.select("source_id", "gpu").unique(maintain_order=True).iter_rows():
        here = (pl.col("source_id") == source_id) & pl.col("gpu").cast(pl.String).eq_missing(pl.lit(gpu, pl.String))
        events, blocks = recording.allocator_events.filter(here), recording.blocks.filter(here)
        failed = events.with_row_index("_event").filter(pl.col("action") == "oom")
        asked = rows.filter(here)
        if blocks["segment_kind"].drop_nulls().is_empty() or not _same(failed, asked):
            continue
        if len(failed) * len(events) > _MOST_ROWS:
            continue
        # Only PyTorch has kinds of segments.
        policy = replace(policy_of(recording.sources[source_id], events), has_kinds=True)
        state = _State(events, blocks, policy)
        for row, event, stream, size in zip(
            asked["_row"], failed["_event"], failed["stream"].cast(pl.String), asked["requested_bytes"], strict=True
        ):
            span = state.idle_for(event, size, stream)
            found[row] = None if span is None else (span, _words(size, stream))
    return found


def _same(failed: pl.DataFrame, asked: pl.DataFrame) -> bool:
    """Whether the failures that are told are those among the events, in the same order."""
    sizes = failed["requested_bytes"].cast(pl.Float64).to_list()
    return sizes == asked["requested_bytes"].to_list() and None not in sizes


def _words(size: float, stream: str | None) -> str:
    kind = "small" if size <= SMALL_BYTES else "large"
    of_stream = f" of stream {stream}" if stream is not None else ""
    return f"{kind} segments{of_stream}, which alone serve {format_bytes(size)}"


class _State:
    """One device's final blocks and its events, ready to be undone down to a failure."""

    def __init__(self, events: pl.DataFrame, blocks: pl.DataFrame, policy: Policy) -> None:
        last = blocks.filter(pl.col("snapshot") == pl.col("snapshot").last())
        self.policy = policy
        self.segments = final_segments(last)
        self.is_whole = bool((self.segments["whole"] == self.segments["end"] - self.segments["address"]).all())
        live = last.filter(pl.col("state").cast(pl.String).is_in(["active", "awaiting"]))
        self.live = live.select(
            pl.col("address_id").cast(pl.Int64).alias("address"),
            pl.col("size_bytes").cast(pl.Int64).alias("size"),
            *(pl.col(name).cast(pl.String) for name in GROUP_KEY[:3]),
        )
        text = events.with_columns(pl.col("gpu", "stream").cast(pl.String))
        moves = moves_of(text)
        self.moves = self._placed(moves.with_row_index("event").filter(pl.col("kind").is_in([_ALLOC, _FREE])), text)
        self.taken = segment_rows(moves, self.segments, policy)

    def _placed(self, moves: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
        """Events of blocks with the least and most bytes that each takes, and the segment where it survives."""
        told = events["allocated_bytes"].cast(pl.Int64, strict=False)
        unit, size = self.policy.unit_bytes, pl.col("size")
        rounded = (size + unit - 1) // unit * unit
        rest = pl.when(self.policy.keeps_rests & (size > SMALL_BYTES)).then(SMALL_BYTES).otherwise(0)
        known = self.segments.select("address", pl.col("end").alias("until"), pl.col("pool"))
        rows = moves.with_columns(
            pl.lit(told).gather("event").alias("told"),
            pl.when(size <= SMALL_BYTES).then(pl.lit("small")).otherwise(pl.lit("large")).alias("segment_kind"),
        )
        rows = rows.with_columns(
            pl.coalesce("told", rounded).alias("least"), pl.coalesce("told", rounded + rest).alias("most")
        )
        placed = rows.sort("address", maintain_order=True).join_asof(known, on="address", strategy="backward")
        inside = pl.col("address") < pl.col("until")
        return placed.with_columns(pl.when(inside).then("pool").alias("pool")).sort("event")

    def idle_for(self, event: int, request: float, stream: str | None) -> Span | None:
        """Idle bytes at an event in segments that may serve a request; null where blocks and segments disagree."""
        if not self.is_whole:
            return None
        kind = "small" if request <= SMALL_BYTES else "large"
        matches = _is(pl.col("segment_kind"), kind) & _is(pl.col("stream"), stream) & pl.col("pool").is_null()
        later = self.moves.filter((pl.col("event") > event) & (pl.col("address") >= 0))
        first = later.unique("address", keep="first", maintain_order=True)
        freed = first.filter(pl.col("kind") == _FREE)
        stayed = self.live.join(later.select("address").unique(), on="address", how="anti")
        sign = pl.when(pl.col("kind").is_in([_TAKEN, _MAPPED])).then(1).otherwise(-1)
        moved = self.taken.filter(pl.col("event") > event).with_columns(
            (sign * (pl.col("end") - pl.col("address"))).alias("size")
        )
        parts = [
            _sums(self.segments.with_columns(pl.col("whole").alias("size")), matches, 1),
            _sums(moved, matches, -1),
            _sums(stayed, matches, -1),
            _sums(freed, matches, -1, least="least", most="most"),
        ]
        low, high = sum(part[0] for part in parts), sum(part[1] for part in parts)
        return Span(max(float(low), 0.0), float(high)) if high >= 0 else None


def _is(column: pl.Expr, value: str | None) -> pl.Expr:
    """Whether a column has a value; null where either is unknown."""
    return column == pl.lit(value, pl.String)


def _sums(rows: pl.DataFrame, matches: pl.Expr, sign: int, least: str = "size", most: str = "size") -> tuple[int, int]:
    """(least, most) that rows add: those that match for sure, and those that may where that moves the bound."""
    low, high = (least, most) if sign > 0 else (most, least)
    sure, maybe = matches.fill_null(False), matches.is_null()
    told = rows.select(
        ((pl.col(low) * sign).filter(sure).sum() + (pl.col(low) * sign).filter(maybe & (pl.col(low) * sign < 0)).sum()),
        (pl.col(high) * sign).filter(sure).sum().alias("high")
        + (pl.col(high) * sign).filter(maybe & (pl.col(high) * sign > 0)).sum(),
    ).row(0)
    return int(told[0]), int(told[1])
