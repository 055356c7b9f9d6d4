"""When requests arrive: evenly, or many at once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import polars as pl

WINDOW_S = 2.0
"""Request lines of most engines have stamps of one second, so no shorter window can be counted."""
AROUND_S = 60.0
"""What is usual is counted over a minute on both sides, so that a busy hour is no burst of the day."""
MIN_ARRIVALS = 20
"""Fewer arrivals than this have no usual rate."""
BURST_COUNT = 8
"""Fewer requests at once than this are ordinary scatter."""
BURST_FACTOR = 3.0
"""Real traffic scatters more than chance alone, so a window has to hold three times what is usual as well."""
CHANCE = 1e-3
"""Chance, over all windows, that arrivals independent of each other would do the same."""


@dataclass(frozen=True)
class Arrivals:
    """The fullest window of 2 s of one source: `peak_count` arrivals where `usual_count` are usual, from `line` on.

    `burst_count` windows (apart from each other) stand out from what is usual around them; 0 says that none does.
    """

    peak_count: int
    usual_count: float
    burst_count: int
    line: int


def arrivals(requests: pl.DataFrame) -> dict[int, Arrivals]:
    """The fullest window of each source with 20 arrivals or more; a source without them is left out.

    Frame in: Requests. A window stands out if it holds 8 arrivals or more, three times those usual within a minute on
    both sides, and more than independent arrivals would give by a chance of 1 in 1000 over all windows (Chernoff's
    bound on the Poisson tail: ln P(N ≥ k) ≤ k − m − k ln(k/m)).
    """
    known = requests.drop_nulls("arrival_s").sort("source_id", "arrival_s", "line")
    parts = known.partition_by("source_id", as_dict=True, maintain_order=True)
    return {key[0]: _fullest(part) for key, part in parts.items() if len(part) >= MIN_ARRIVALS}


def counted_windows(ordered: pl.DataFrame, window_s: float) -> pl.DataFrame:
    """Arrivals in the window that begins with each: `at`, `line`, `inside`, what is `usual` around it, `stands_out`.

    Frame in: Requests of one source in order of arrival.
    """
    at = ordered["arrival_s"]

    def before(moments: pl.Series) -> pl.Series:
        return at.search_sorted(moments, side="left").cast(pl.Int64)

    inside = before(at + window_s) - before(at)
    near = before(at + window_s + AROUND_S) - before(at - AROUND_S)
    first, last = float(at[0]), float(at[-1])
    seen_s = pl.min_horizontal(pl.col("at") + window_s + AROUND_S, last) - pl.max_horizontal(
        pl.col("at") - AROUND_S, first
    )
    usual = pl.when(seen_s > window_s).then((pl.col("near") - pl.col("inside")) * window_s / (seen_s - window_s))
    windows = pl.DataFrame({"at": at, "inside": inside, "near": near, "line": ordered["line"]})
    mean = pl.col("usual").clip(lower_bound=0.1)
    log_chance = pl.col("inside") - mean - pl.col("inside") * (pl.col("inside") / mean).log()
    stands_out = (
        (pl.col("inside") >= BURST_COUNT)
        & (pl.col("inside") >= BURST_FACTOR * pl.col("usual"))
        & (log_chance < math.log(CHANCE / len(windows)))
    )
    return windows.with_columns(usual=usual.otherwise(0.0)).with_columns(stands_out=stands_out).drop("near")


def _fullest(ordered: pl.DataFrame) -> Arrivals:
    windows = counted_windows(ordered, WINDOW_S)
    bursts = windows.filter("stands_out")
    peak = (windows if bursts.is_empty() else bursts).sort("inside", "at", descending=[True, False]).row(0, named=True)
    apart = bursts.select((pl.col("at").diff().fill_null(math.inf) > WINDOW_S).sum()).item()
    return Arrivals(peak["inside"], peak["usual"], int(apart), peak["line"])
