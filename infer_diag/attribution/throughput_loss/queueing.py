"""Bursts of arrivals and what their requests wait; how short a burst the stamps can show at all."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise

import dataframely as dy
import numpy as np
import polars as pl

from infer_diag.attribution.arrivals import BURST_FACTOR, MIN_ARRIVALS, counted_windows
from infer_diag.attribution.cost.jackknife import effective_count
from infer_diag.attribution.intervals import MICROSECONDS, clock_tick
from infer_diag.attribution.quantiles import median
from infer_diag.attribution.streams import counted_once
from infer_diag.attribution.throughput_loss.change_points import LEAST_BINS, anscombe, change_points
from infer_diag.attribution.throughput_loss.frames import Bursts
from infer_diag.attribution.throughput_loss.rows import Row
from infer_diag.recording import Recording

BINS = 4
"""An event is seen where at least so many bins lie in it."""
SEEN_COUNT = 100_000
"""Arrivals that tell the tick of the clock; more would tell the same."""
BESIDE_S = 20.0
"""Counts so many seconds before and after a burst show where it begins and ends."""
SHORTEST_S = 0.5
"""Finer stamps count windows of this length: shorter ones hold too few requests of a usual server."""


@dataclass(frozen=True)
class BurstsSeen:
    """Bursts of arrivals; none that lasts less than `resolution_s` can be seen. `refusal`: why none could be.

    `resolution_s` = 4 · the tick of the arrivals' stamps, or 4 · the spacing of samples where no arrival is told.
    """

    bursts: dy.DataFrame[Bursts] = field(default_factory=Bursts.create_empty)
    resolution_s: float | None = None
    refusal: str | None = None


def bursts_seen(recording: Recording) -> BurstsSeen:
    """Windows in which far more requests arrive than around them, joined where they touch. Measured.

    Frame in: Requests. A window of max(0.5 s, 4 · tick) stands out if it holds 8 arrivals or more, three times those
    usual within a minute on both sides, and more than independent arrivals would give by a chance of 1 in 1000 over all
    windows (Chernoff's bound on the Poisson tail). Where stamps are that fine, a burst begins and ends with the
    segments that PELT finds in the counts around it and that hold three times the usual; the price of a segment grows
    with the correlation of the counts beside the burst.
    """
    known = recording.requests.drop_nulls("arrival_s").sort("source_id", "arrival_s", "line")
    parts = [part for part in known.partition_by("source_id", maintain_order=True) if len(part) >= MIN_ARRIVALS]
    if not parts:
        spacing = (
            counted_once(recording)
            .drop_nulls("time")
            .sort("source_id", "replica", "time")
            .select(median(pl.col("time").diff().over("source_id", "replica").dt.total_microseconds() / 1e6))
        )
        seconds = spacing.item() if len(spacing) else None
        told = (
            "" if seconds is None else f"; samples {seconds:.3g} s apart show none shorter than {BINS * seconds:.3g} s"
        )
        return BurstsSeen(
            resolution_s=None if seconds is None else BINS * seconds,
            refusal=f"{MIN_ARRIVALS} arrivals are needed{told}",
        )
    found, resolutions = [], []
    for part in parts:
        tick_s = (
            clock_tick([round(each * MICROSECONDS) for each in part["arrival_s"].head(SEEN_COUNT).to_list()])
            / MICROSECONDS
        )
        resolutions.append(BINS * tick_s)
        window_s = max(SHORTEST_S, BINS * tick_s)
        found.append(_joined(part, counted_windows(part, window_s).filter("stands_out"), window_s))
    rows = pl.concat(found)
    return BurstsSeen(Bursts.validate(rows, cast=True), max(resolutions))


def burst_queueing(recording: Recording) -> Row:
    """Request-seconds that requests of bursts wait before they are scheduled, beside the engines' time."""
    seen = bursts_seen(recording)
    if seen.refusal is not None:
        return Row("burst_queueing", None, None, None, "not_identifiable", False, seen.refusal)
    limit = f"bursts shorter than {seen.resolution_s:.3g} s cannot be seen"
    if seen.bursts.is_empty():
        return Row("burst_queueing", 0.0, None, None, "measured", False, f"no burst of arrivals; {limit}")
    waited = seen.bursts["queue_s"]
    if waited.null_count() == len(waited):
        basis = f"{_named(seen)}; when their requests are scheduled the log does not tell; {limit}"
        return Row("burst_queueing", None, None, None, "not_identifiable", False, basis)
    basis = f"request-seconds of {_named(seen)}; {limit}"
    untold = int(seen.bursts["untold_count"].sum())
    if untold:
        basis = f"at least: {untold:,} requests in bursts do not tell when they are scheduled; {basis}"
        return Row("burst_queueing", float(waited.sum()), float(waited.sum()), None, "bounded", False, basis)
    return Row("burst_queueing", float(waited.sum()), None, None, "measured", False, basis)


def _named(seen: BurstsSeen) -> str:
    return "1 burst" if len(seen.bursts) == 1 else f"{len(seen.bursts):,} bursts"


def _joined(ordered: pl.DataFrame, full: pl.DataFrame, window_s: float) -> pl.DataFrame:
    """Windows that touch as one burst each, with what its requests wait."""
    apart = full.with_columns(burst=(pl.col("at").diff().fill_null(math.inf) > window_s).cum_sum())
    spans = apart.group_by("burst", maintain_order=True).agg(
        begin_s=pl.col("at").min(),
        end_s=pl.col("at").max() + window_s,
        usual_s=pl.col("usual").median() / window_s,
        line=pl.col("line").first(),
    )
    spans = _placed(ordered, spans, window_s)
    begun = pl.coalesce("queued_s", "arrival_s")
    waits = ordered.select("arrival_s", queue=pl.col("scheduled_s") - begun).sort("arrival_s")
    held = [
        waits.filter(pl.col("arrival_s").is_between(b, e, closed="left"))
        for b, e in spans.select("begin_s", "end_s").iter_rows()
    ]
    sums = [None if each["queue"].null_count() == len(each) else float(each["queue"].sum()) for each in held]
    return spans.select(
        pl.lit(ordered["source_id"][0], pl.UInt32).alias("source_id"),
        "begin_s",
        "end_s",
        pl.Series("request_count", [len(each) for each in held], pl.UInt32),
        usual_count=pl.col("usual_s") * (pl.col("end_s") - pl.col("begin_s")),
        queue_s=pl.Series(sums, dtype=pl.Float64),
        untold_count=pl.Series([each["queue"].null_count() for each in held], dtype=pl.UInt32),
        line="line",
    )


def _placed(ordered: pl.DataFrame, spans: pl.DataFrame, window_s: float) -> pl.DataFrame:
    """The spans with the edges of their segments of many arrivals; as they are where stamps are too coarse for that."""
    at = ordered["arrival_s"].to_numpy()
    bin_s = window_s / LEAST_BINS
    if window_s > SHORTEST_S:  # a window of 4 ticks has no 8 bins
        return spans
    begins, ends = [], []
    for begin_s, end_s, usual_s in spans.select("begin_s", "end_s", "usual_s").iter_rows():
        first_s = max(begin_s - BESIDE_S, float(at[0]))
        edges = np.arange(first_s, min(end_s + BESIDE_S, float(at[-1]) + bin_s) + bin_s, bin_s)
        counts = np.diff(np.searchsorted(at, edges)).astype(np.float64)
        quiet = counts[(edges[:-1] < begin_s) | (edges[:-1] >= end_s)]
        variance = len(quiet) / max(1.0, effective_count(anscombe(quiet))) if len(quiet) > LEAST_BINS else 1.0
        starts = [*change_points(anscombe(counts), variance=max(1.0, variance)), len(counts)]
        full = [
            (edges[low], edges[high])
            for low, high in pairwise(starts)
            if edges[low] < end_s
            and edges[high] > begin_s
            and counts[low:high].mean() >= BURST_FACTOR * usual_s * bin_s
            and counts[low:high].any()
        ]
        begins.append(float(full[0][0]) if full else begin_s)
        ends.append(float(full[-1][1]) if full else end_s)
    return spans.with_columns(begin_s=pl.Series(begins, dtype=pl.Float64), end_s=pl.Series(ends, dtype=pl.Float64))
