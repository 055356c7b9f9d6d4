"""Which lines of a file only a serving engine prints, engine by engine: they end its start and begin no other's."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import polars as pl


def speaks_for(place: str | None, replica: str) -> bool:
    """Whether a record of this place tells of the replica: its own, its pod's, or one without a place."""
    return place is None or place == replica or replica.startswith(f"{place} ")


class ServingLines:
    """Sorted line numbers by replica; null stands for lines that name none."""

    def __init__(self, frames: Iterable[pl.DataFrame], apart: pl.DataFrame | None = None) -> None:
        """`frames` hold `line` and may hold `replica`; the lines of `apart` are left out."""
        named = [_named(frame) for frame in frames]
        rows = pl.concat(named) if named else pl.DataFrame(schema={"line": pl.UInt32, "replica": pl.Categorical})
        if apart is not None:
            rows = rows.filter(~pl.col("line").is_in(apart["line"].implode()))
        # Signed like Python's own numbers: numpy would otherwise convert the whole array at every search.
        parts = rows.partition_by("replica", as_dict=True, include_key=False)
        self._by_place = {key[0]: part["line"].cast(pl.Int64).to_numpy() for key, part in parts.items()}
        self._known: dict[str | None, np.ndarray] = {}

    def of(self, replica: str | None) -> np.ndarray:
        """The lines that tell of this replica; all of them where replicas are not told apart."""
        if replica not in self._known:
            parts = [lines for place, lines in self._by_place.items() if replica is None or speaks_for(place, replica)]
            # Stable sorting merges the parts, each of which is nearly in order already.
            merged = np.sort(np.concatenate(parts), kind="stable") if parts else np.array([], np.int64)
            self._known[replica] = merged
        return self._known[replica]

    def counts_before(self, replica: str | None, lines: np.ndarray) -> list[int]:
        """For each line how many of the replica's stand before it: two lines with the same count have none between."""
        counts: list[int] = np.searchsorted(self.of(replica), lines).tolist()
        return counts

    def count(self, replica: str | None) -> int:
        """How many lines the replica has."""
        return len(self.of(replica))


def _named(frame: pl.DataFrame) -> pl.DataFrame:
    place = pl.col("replica") if "replica" in frame.columns else pl.lit(None)
    return frame.select("line", place.cast(pl.Categorical).alias("replica"))
