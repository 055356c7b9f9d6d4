"""Which sizes a recording asks for: the yardstick that tells whether a hole is of any use."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from infer_diag.attribution.heap.policy import SMALL_BYTES, Policy

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_MOST_SIZES = 4096
_STEPS = 64
"""Beyond the most sizes, those within 1/64 of each other count as the largest of them."""


@dataclass(frozen=True, eq=False)
class Requests:
    """Sorted sizes as the allocator rounds them, how often each was asked for, and the kind of segment that serves it.

    `kind` is null throughout where the allocator makes no difference.
    """

    sizes: Ints
    counts: Ints
    small_count: int
    has_kinds: bool

    def of_kind(self, kind: str | None) -> tuple[Ints, Ints]:
        """(sizes, counts) of the requests that segments of this kind serve."""
        if not self.has_kinds or kind is None:
            return self.sizes, self.counts
        part = slice(0, self.small_count) if kind == "small" else slice(self.small_count, None)
        return self.sizes[part], self.counts[part]

    def tables(self, groups: pl.DataFrame) -> tuple[Ints, Floats, Ints]:
        """(sizes, cumulated share of the bytes asked for, bounds) of every group, one after another.

        A private pool serves nobody but its graph, so no request counts for it.
        """
        parts, shares = [], []
        for kind, pool in groups.select("segment_kind", "pool").iter_rows():
            sizes, counts = self.of_kind(kind)
            if pool is not None:
                sizes, counts = sizes[:0], counts[:0]
            weight = sizes.astype(np.float64) * counts
            parts.append(sizes)
            shares.append(np.cumsum(weight) / weight.sum() if len(weight) else weight)
        bounds = np.cumsum([0, *(len(part) for part in parts)]).astype(np.int64)
        none = np.zeros(0, np.int64)
        return np.concatenate([none, *parts]), np.concatenate([none.astype(np.float64), *shares]), bounds

    def beyond(self, kind: str | None, largest: Floats) -> Floats:
        """The share of requests of a kind that are larger than each of these holes; nan without requests."""
        sizes, counts = self.of_kind(kind)
        if not len(sizes):
            return np.full(len(largest), np.nan)
        below = np.concatenate([[0], np.cumsum(counts)])
        found: Floats = 1 - below[np.searchsorted(sizes, largest, side="right")] / below[-1]
        return found

    def kind_share(self, kind: str | None, *, of_bytes: bool) -> float:
        """The share of all requests, or of all bytes asked for, that segments of this kind serve."""
        sizes, counts = self.of_kind(kind)
        weights = [
            float((size * many).sum() if of_bytes else many.sum())
            for size, many in ((sizes, counts), (self.sizes, self.counts))
        ]
        return weights[0] / weights[1] if weights[1] else 0.0


def recorded_requests(moves: pl.DataFrame, policy: Policy) -> Requests:
    """The requests among the events of blocks, rounded as the allocator rounds them."""
    unit = policy.unit_bytes
    rounded = pl.max_horizontal("fixed", (pl.col("size") + unit - 1) // unit * unit, pl.lit(unit))
    asked = moves.filter(pl.col("kind") == 0).select(rounded.alias("size"))
    sizes = asked.group_by("size").agg(pl.len().alias("count")).sort("size")
    if len(sizes) > _MOST_SIZES:
        power = (pl.col("size").log(2).floor() - _STEPS.bit_length() + 1).clip(0)
        step = pl.lit(2.0).pow(power).cast(pl.Int64)
        coarse = ((pl.col("size") + step - 1) // step * step).alias("size")
        sizes = sizes.with_columns(coarse).group_by("size").agg(pl.col("count").sum()).sort("size")
    values = sizes["size"].to_numpy().astype(np.int64)
    return Requests(
        values,
        sizes["count"].to_numpy().astype(np.int64),
        int(np.searchsorted(values, SMALL_BYTES, side="right")),
        policy.has_kinds,
    )
