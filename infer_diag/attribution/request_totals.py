"""Requests of which only sums and histograms are told: exact means, and quantiles as far as buckets bound them."""

from __future__ import annotations

import math

import dataframely as dy
import polars as pl

from infer_diag.recording import Recording
from infer_diag.results import QuantileBounds

QUANTILES = (0.5, 0.95)


def told_totals(recording: Recording) -> pl.DataFrame:
    """`measure`, `request_count` and `mean` over all models, one row per measure that one source tells.

    Frame in: RequestTotals. mean = Σ(count · mean) / Σ count. A measure that several sources tell is left out: two
    scrapes of one engine and one of each of two engines look alike, and adding up would count the former twice.
    """
    totals = _of_one_source(recording)
    counts = pl.col("request_count").cast(pl.Float64)
    return totals.group_by("measure", maintain_order=True).agg(
        pl.col("request_count").sum().cast(pl.UInt32, strict=False),
        ((counts * pl.col("mean")).sum() / counts.sum()).alias("mean"),
    )


def quantile_bounds(recording: Recording) -> dy.DataFrame[QuantileBounds]:
    """Between which bounds the median and the 95th percentile of a measure lie.

    Frame in: RequestTotals with buckets. Frame out: QuantileBounds. The linear quantile q of N values lies between the
    values of rank ⌊q(N−1)⌋ and ⌈q(N−1)⌉, and each of these lies in a known bucket: its lower and upper bound are
    proven, and nothing in between is. Measures of several models are left out, since their buckets may differ.
    """
    totals = _of_one_source(recording).drop_nulls("bucket_max")
    rows = []
    for row in totals.filter(pl.len().over("measure") == 1).iter_rows(named=True):
        for share in QUANTILES:
            low, high = _between(row["bucket_max"], row["bucket_counts"], share)
            if low is not None:
                rows.append({"measure": row["measure"], "quantile_ratio": share, "min": low, "max": high})
    frame = pl.DataFrame(rows, schema=QuantileBounds.create_empty().schema, orient="row")
    return QuantileBounds.validate(frame, cast=True)


def total_shares(recording: Recording) -> dict[str, float | None]:
    """Shares (0 to 1) of the requests' time in `queue`, `prefill` and `decode`; null unless all requests have both.

    Frame in: RequestTotals. share = mean of the part / mean of e2e, where both were counted over equally many requests.
    """
    told = {str(measure): (count, mean) for measure, count, mean in told_totals(recording).iter_rows()}
    count, whole = told.get("e2e_s", (0, 0.0))
    shares: dict[str, float | None] = {}
    for part in ("queue", "prefill", "decode"):
        counted, mean = told.get(f"{part}_s", (None, None))
        shares[part] = mean / whole if mean is not None and counted == count and whole and mean <= whole else None
    return shares


def _of_one_source(recording: Recording) -> pl.DataFrame:
    totals = recording.request_totals.filter(pl.col("request_count") > 0).sort("source_id", "line", "measure")
    return totals.filter(pl.col("source_id").n_unique().over("measure") == 1)


def _between(limits: list[float | None], counts: list[int], share: float) -> tuple[float | None, float | None]:
    """Lower and upper bound of the linear quantile; the upper one is null in the bucket without a bound."""
    whole = sum(counts)
    if not whole:
        return None, None
    rank = share * (whole - 1)
    low, high = _bucket(counts, math.floor(rank)), _bucket(counts, math.ceil(rank))
    below = limits[low - 1] if low else 0.0
    return below, limits[high]


def _bucket(counts: list[int], rank: int) -> int:
    """The bucket that holds the value of this rank, counted from 0."""
    passed = 0
    for place, count in enumerate(counts):
        passed += count
        if rank < passed:
            return place
    return len(counts) - 1
