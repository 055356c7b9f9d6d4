"""Segments of a recording: those of its snapshot, and those that its events take and give back, by group."""

from __future__ import annotations

import polars as pl

from infer_diag.attribution.heap.policy import Policy

GROUP_KEY = ["segment_kind", "pool", "stream", "is_expandable"]
"""Blocks of different groups never share a hole."""

_TAKEN, _RETURNED, _MAPPED, _UNMAPPED = 3, 4, 5, 6
_SCHEMA = {
    "address": pl.Int64,
    "end": pl.Int64,
    "whole": pl.Int64,
    "segment_kind": pl.String,
    "pool": pl.String,
    "stream": pl.String,
    "is_expandable": pl.Boolean,
}


def final_segments(final: pl.DataFrame) -> pl.DataFrame:
    """One row per segment of a snapshot: the bytes that its blocks name (`address` to `end`), its size, its group.

    Frame in: Blocks.
    """
    if final.is_empty():
        return pl.DataFrame(schema=_SCHEMA)
    size, begin = pl.col("size_bytes").cast(pl.Int64), pl.col("address_id").cast(pl.Int64)
    named = final.group_by("segment_id", maintain_order=True).agg(
        begin.min().alias("address"),
        (begin + size).max().alias("end"),
        pl.coalesce(pl.col("segment_bytes").first(), size.sum()).cast(pl.Int64).alias("whole"),
        *(pl.col(name).first().cast(_SCHEMA[name]) for name in GROUP_KEY),
    )
    return named.select(*_SCHEMA).with_columns(pl.col("is_expandable").fill_null(False)).sort("address")


def segment_rows(moves: pl.DataFrame, segments: pl.DataFrame, policy: Policy) -> pl.DataFrame:
    """Events of segments with their number, ends and groups.

    A group is the snapshot's where the segment survives there; else the kind follows from the size.
    """
    pages = pl.col("kind") >= _MAPPED
    rows = (
        moves.with_row_index("event")
        .filter(pl.col("kind").is_between(_TAKEN, _UNMAPPED) & (pl.col("size") > 0))
        .with_columns(
            (pl.col("address") + pl.col("size")).alias("end"),
            policy.kind(pl.col("size"), pages).alias("guess"),
            pages.alias("is_expandable"),
        )
    )
    last = pl.col("event") == pl.col("event").max().over("address")
    known = segments.select("address", pl.col("end").alias("until"), "segment_kind", "pool", stream_known="stream")
    rows = rows.sort("address", maintain_order=True).join_asof(known, on="address", strategy="backward")
    inside = (pl.col("end") <= pl.col("until")) & (pages | (last & (pl.col("kind") == _TAKEN)))
    return (
        rows.with_columns(
            pl.when(inside).then("segment_kind").otherwise("guess").alias("segment_kind"),
            pl.when(inside).then("pool").alias("pool"),
            pl.when(inside).then("stream_known").otherwise("stream").alias("stream"),
        )
        .select("event", "kind", "address", "end", *GROUP_KEY)
        .sort("event")
    )


def grouped(before: pl.DataFrame, taken: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """(the groups in a fixed order, both frames with the number of their group)."""
    keys = pl.concat([before.select(GROUP_KEY), taken.select(GROUP_KEY)], how="vertical_relaxed").unique()
    groups = keys.sort(GROUP_KEY, nulls_last=True).with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("group"))

    def numbered(rows: pl.DataFrame) -> pl.DataFrame:
        return rows.join(groups, on=GROUP_KEY, how="left", nulls_equal=True, maintain_order="left")

    return groups.drop("group"), numbered(before), numbered(taken)
