"""What seeds say together: the middle of simulated allocators' runs, the mean of KV placements'."""

from __future__ import annotations

import polars as pl


def medians(runs: pl.DataFrame, column: str) -> pl.DataFrame:
    """The median of a column over the seeds, one row per allocator, the smallest first.

    Frame in: AllocatorComparison. Frame out: `allocator` and the column, null where no run has it.
    """
    return runs.group_by("allocator").agg(pl.col(column).median()).sort(column, "allocator")


def mean_shares(runs: pl.DataFrame) -> pl.DataFrame:
    """The mean of every share (0 to 1) over the seeds, one row per placement, in the order of the runs.

    Frame in: that of `kv_placement.kv_placement_table`. Frame out: its columns.
    """
    return runs.group_by("placement", maintain_order=True).mean()
