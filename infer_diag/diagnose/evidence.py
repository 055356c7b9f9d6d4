"""The lines behind a finding."""

from __future__ import annotations

import polars as pl

from infer_diag.recording import Recording

MOST_LINES = 5
"""More lines than this are no longer looked up by anyone; the first rows given are the ones that matter most."""


def cited(recording: Recording, rows: pl.DataFrame, most: int = MOST_LINES) -> tuple[str, ...]:
    """`path:line` of the first `most` rows, in the order of their lines; rows without a line are left out."""
    places = rows.filter(pl.col("line") > 0).select("source_id", "line").unique(maintain_order=True).head(most)
    return tuple(recording.evidence(source, line) for source, line in places.sort("source_id", "line").iter_rows())


def ends(rows: pl.DataFrame, *, by: str) -> pl.DataFrame:
    """The rows worth citing of a stretch: its first, its last, and those in which `by` is greatest."""
    # The greatest without a sort of all: of a long log's steps there are millions.
    greatest = rows.filter(pl.col(by) >= pl.col(by).top_k(3).min()).sort(by, "line", descending=[True, False]).head(3)
    return pl.concat([rows.head(1), rows.tail(1), greatest])
