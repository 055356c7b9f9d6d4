"""What a benchmark tells of all its requests together: means stay means, and no request is made up from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

TOTALS: dict[str, Any] = {
    "line": pl.UInt32,
    "model": pl.String,
    "measure": pl.String,
    "request_count": pl.UInt64,
    "mean": pl.Float64,
}


def totals_frame(rows: Iterable[tuple[Any, ...]]) -> pl.DataFrame:
    """The rows as a frame."""
    return pl.DataFrame(list(rows), schema=TOTALS, orient="row")


def mean_rows(
    line: int, model: str | None, finished: int | None, means: Mapping[str, float | None]
) -> list[tuple[Any, ...]]:
    """One row per measure whose mean over the finished requests is told; none where their number is not."""
    if not finished:
        return []
    return [(line, model, measure, finished, mean) for measure, mean in means.items() if mean is not None]


def seconds(milliseconds: float | None) -> float | None:
    """Seconds of milliseconds."""
    return None if milliseconds is None else milliseconds / 1e3


def shared(total: float | None, finished: int | None) -> float | None:
    """A sum over the finished requests, per request."""
    return total / finished if total is not None and finished else None
