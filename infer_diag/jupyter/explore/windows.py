"""Rows of a recording on one axis of seconds, sorted once, so that a window of them is found by two searches."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import polars as pl

from infer_diag.attribution.requests import each_request
from infer_diag.recording import Recording

Window = tuple[float, float] | None
"""Seconds since the begin of the timeline; null for all of it."""

_EVENTS = ("arrival_s", "queued_s", "scheduled_s", "first_token_s", "last_token_s")


def since(origin: datetime | None) -> pl.Expr:
    """`x`: seconds of `time` since the origin."""
    return ((pl.col("time") - pl.lit(origin, pl.Datetime("us", "UTC"))).dt.total_microseconds() / 1e6).alias("x")


def origin_of(recording: Recording) -> datetime | None:
    """Where the seconds of requests count from; where sources share no clock, the first sample."""
    if recording.first_time is not None:
        return recording.first_time
    if len(recording.sources) == 1 and recording.sources[0].first_time is not None:
        return recording.sources[0].first_time
    first = recording.engine_samples["time"].min()
    return first if isinstance(first, datetime) else None


def requests_of(recording: Recording, origin: datetime | None) -> pl.DataFrame:
    """One row per request in the order of `x`: its arrival, or the line that tells of it where only that is known.

    Events count from each source's own begin where sources share no clock, so they have no place on a common axis then.
    """
    shares = recording.first_time is not None or len(recording.sources) <= 1
    events, timings = recording.requests, recording.request_timings
    arrival = pl.coalesce(_EVENTS) if shares else pl.lit(None, pl.Float64)
    places: Sequence[pl.DataFrame] = (
        events.select(
            arrival.alias("x"), pl.col("last_token_s").is_not_null().alias("ended"), pl.col("request_id").alias("name")
        ),
        timings.select(since(origin), pl.lit(True).alias("ended"), pl.col("request_id").alias("name")),
    )
    return pl.concat([each_request(recording), pl.concat(places)], how="horizontal").sort("x", nulls_last=True)


def within(frame: pl.DataFrame, window: Window) -> pl.DataFrame:
    """The rows whose `x` lies in the window: two searches in a sorted column, no pass over it."""
    x: Any = frame["x"]
    placed = len(frame) - x.null_count()
    if window is None:
        return frame.head(placed)
    known = x.head(placed)
    low, high = (int(known.search_sorted(end, side=side)) for end, side in zip(window, ("left", "right"), strict=True))
    return frame.slice(low, high - low)
