"""Segments of PyTorch's snapshots as `schema.Blocks`."""

from __future__ import annotations

from typing import Any

import polars as pl

from infer_diag import redact
from infer_diag.loaders.allocator.event_columns import column

_STATES = {
    "active_allocated": "active",
    "active_pending_free": "awaiting",
    "active_awaiting_free": "awaiting",
    "inactive": "inactive",
}
_SEGMENT: dict[str, type[pl.DataType]] = {
    "device": pl.UInt64,
    "address": pl.UInt64,
    "total_size": pl.UInt64,
    "allocated_size": pl.UInt64,
    "segment_type": pl.String,
    "stream": pl.UInt64,
}
_BLOCK: dict[str, type[pl.DataType]] = {"address": pl.UInt64, "size": pl.UInt64, "state": pl.String}
_DEFAULT_POOL = "0,0"
_MOST_NAMED = 120
_MOST_FRAMES = 200
"""The frames of C++ above the first one of Python are a few dozen; beyond this a stack is none."""


def snapshot_blocks(segments: list[Any]) -> tuple[pl.DataFrame, list[str]]:
    """(rows of `schema.Blocks` without `source_id`, what the segments say that cannot be so).

    Early versions give a block no address: it follows from the sizes of the blocks before it. A segment without an
    address is numbered by its place.
    """
    whole = [segment for segment in segments if isinstance(segment, dict) and isinstance(segment.get("blocks"), list)]
    if not whole:
        return pl.DataFrame(schema={"line": pl.UInt32}), _damaged(len(segments))
    table = pl.DataFrame([column(key, [each.get(key) for each in whole], kind) for key, kind in _SEGMENT.items()])
    table = table.with_columns(
        column("is_expandable", [_flag(each.get("is_expandable")) for each in whole], pl.Boolean),
        column("pool", [_pool(each.get("segment_pool_id")) for each in whole], pl.String),
        pl.int_range(pl.len(), dtype=pl.UInt64).alias("place"),
    )
    inside = [(place, block) for place, each in enumerate(whole) for block in each["blocks"] if isinstance(block, dict)]
    found = pl.DataFrame(
        [
            pl.Series("place", [place for place, _ in inside], pl.UInt64),
            *(column(f"block_{key}", [block.get(key) for _, block in inside], kind) for key, kind in _BLOCK.items()),
            column("requested", [_requested(block) for _, block in inside], pl.UInt64),
            pl.Series("requester", [_requester(block) for _, block in inside], pl.String),
        ]
    )
    rows = found.join(table, on="place", how="left", maintain_order="left")
    blocks = _shaped(rows)
    return blocks, [*_damaged(len(segments) - len(whole)), *_contradictions(table, blocks)]


def _shaped(rows: pl.DataFrame) -> pl.DataFrame:
    size = pl.col("block_size")
    segment = pl.coalesce("address", "place")
    follows = segment + (size.cum_sum() - size).over("place")
    state = pl.col("block_state").replace_strict(_STATES, default=None, return_dtype=pl.String)
    kind = pl.col("segment_type")
    return rows.select(
        pl.lit(0, pl.UInt32).alias("line"),
        pl.lit("snapshot").alias("snapshot"),
        pl.col("device").cast(pl.String).alias("gpu"),
        segment.alias("segment_id"),
        pl.col("total_size").alias("segment_bytes"),
        pl.when(kind.is_in(["small", "large"])).then(kind).alias("segment_kind"),
        "is_expandable",
        pl.when(pl.col("pool") != _DEFAULT_POOL).then("pool").alias("pool"),
        pl.col("stream").cast(pl.String),
        pl.coalesce("block_address", follows).alias("address_id"),
        size.alias("size_bytes"),
        pl.when(state != "inactive").then("requested").alias("requested_bytes"),
        state.alias("state"),
        pl.when(state != "inactive").then(_named(rows["requester"])).alias("requester"),
    ).drop_nulls(["size_bytes", "state"])


def _contradictions(table: pl.DataFrame, blocks: pl.DataFrame) -> list[str]:
    """Clauses about segments whose own sizes are not those of their blocks."""
    sums = blocks.group_by("gpu", "segment_id").agg(
        pl.col("size_bytes").sum().alias("blocks"),
        pl.col("size_bytes").filter(pl.col("state") == "active").sum().alias("active"),
    )
    told = table.select(
        pl.col("device").cast(pl.String).alias("gpu"),
        pl.coalesce("address", "place").alias("segment_id"),
        "total_size",
        "allocated_size",
    ).join(sums, on=["gpu", "segment_id"], how="left", nulls_equal=True)
    other = len(told.filter(pl.col("total_size") != pl.col("blocks").fill_null(0)))
    live = len(told.filter(pl.col("allocated_size") != pl.col("active").fill_null(0)))
    found = []
    if other:
        found.append(
            f"the blocks of {other:,} of {len(told):,} segments do not add up to their segment, so what is reserved is "
            "taken from the segments and what is idle from the blocks"
        )
    if live:
        found.append(f"{live:,} segments say that other bytes are allocated than their blocks do; the blocks count")
    return found


def _damaged(count: int) -> list[str]:
    return [f"{count:,} segments hold no list of blocks and are left out"] if count else []


def _requested(block: dict[str, Any]) -> Any:
    """What was asked for; the versions before `requested_size` keep it in the block's history."""
    if "requested_size" in block:
        return block["requested_size"]
    history = block.get("history")
    last = history[0] if isinstance(history, list) and history else None
    return last.get("real_size") if isinstance(last, dict) else None


def _requester(block: dict[str, Any]) -> str | None:
    """The innermost Python frame of a live block's stack: the last two parts of its file's path, line, function."""
    if block.get("state") == "inactive":
        return None
    history = block.get("history")
    last = history[0] if isinstance(history, list) and history and isinstance(history[0], dict) else block
    frames = block.get("frames", last.get("frames"))
    for frame in frames[:_MOST_FRAMES] if isinstance(frames, list) else ():
        file = frame.get("filename") if isinstance(frame, dict) else None
        if isinstance(file, str) and file.endswith(".py"):
            short = "/".join(file.replace("\\", "/").rsplit("/", 2)[-2:])
            line, function = frame.get("line"), frame.get("name")
            place = f":{line}" if type(line) is int else ""
            return f"{short}{place} {function}" if isinstance(function, str) else f"{short}{place}"
    return None


def _named(requesters: pl.Series) -> pl.Expr:
    """Requesters as they may be shown; few distinct ones stand at many blocks."""
    told = requesters.unique().drop_nulls().to_list()
    clean = pl.Series("clean", told, pl.String).to_frame().select(redact.redacted(pl.col("clean").str.slice(0, 400)))
    shown = dict(zip(told, clean["clean"].str.slice(0, _MOST_NAMED), strict=True))
    return pl.lit(requesters.replace_strict(shown, default=None, return_dtype=pl.String))


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _pool(value: Any) -> str | None:
    pair = isinstance(value, (tuple, list)) and len(value) == 2 and all(type(each) is int for each in value)
    return f"{value[0]},{value[1]}" if pair else None
