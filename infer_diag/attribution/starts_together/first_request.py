"""What the first request after a start waits longer than a later one would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import dataframely as dy
import polars as pl

from infer_diag.attribution.quantiles import median
from infer_diag.attribution.rank_statistics import LEAST, Location, centre
from infer_diag.attribution.starts_together.frames import FirstRequests, StartRequests
from infer_diag.recording import Recording

STEADY_FROM = 21
"""Requests before this one still meet what the first ones left to be made."""
STEADY_LEAST = 3
_ALIKE = 2.0
"""Prompts are alike within a factor of two: prefill grows with them."""


@dataclass(frozen=True)
class Penalty:
    """First minus steady TTFT over the starts; `location` is null with the `reason` where they do not suffice."""

    starts: dy.DataFrame[FirstRequests]
    location: Location | None
    reason: str | None
    includes_cold_prefix: bool
    """Whether no line tells that the steady requests found nothing in the prefix cache, so its filling may be in it."""


def start_requests(recordings: Mapping[str, Recording]) -> dy.DataFrame[StartRequests]:
    """The requests after each start, by the clock: from its ready line to its shutdown, or the next start's first line.

    Frames in: Starts, Requests of recordings whose sources carry dates (requests and log of one server combined).
    Requests without first token, and recordings without dates, are left out. Where several servers run at once, a
    request is known to be of one only if that server's own log alone tells of it; the others are left out.
    TTFT is first token minus arrival.
    """
    parts = [_of_recording(name, recording) for name, recording in recordings.items()]
    empty = StartRequests.create_empty()
    return StartRequests.validate(pl.concat([empty, *(part for part in parts if part is not None)]), cast=True)


def _of_recording(name: str, recording: Recording) -> pl.DataFrame | None:
    begin = recording.first_time
    if begin is None or recording.requests.is_empty():
        return None
    if not _at_once(recording):
        return _of_server(name, recording, begin)
    servers = recording.starts.group_by("source_id").agg(pl.col("replica").n_unique())
    lone = [pl.col("source_id") == number for number in servers.filter(replica=1)["source_id"].sort()]
    parts = [
        recording.replace(starts=recording.starts.filter(own), requests=recording.requests.filter(own)) for own in lone
    ]
    found = [_of_server(name, part, begin) for part in parts]
    return pl.concat(found) if found else None


def _at_once(recording: Recording) -> bool:
    """Whether a server still runs when another one starts, as far as their logs reach."""
    seen = pl.Series("seen", [source.last_time for source in recording.sources], dtype=pl.Datetime("us", "UTC"))
    reach = seen.to_frame().with_row_index("source_id")
    end = pl.coalesce("stopped", "seen", "last_time").sort_by("first_time").last()
    lanes = (
        recording.starts.drop_nulls(["first_time", "ready_time"])
        .join(_stops(recording), on="start_id", how="left")
        .join(reach, on="source_id", how="left")
        .group_by("source_id", "replica")
        .agg(pl.col("first_time").min().alias("begin"), end.alias("end"))
        .sort("begin", "end")
    )
    return bool((lanes["begin"].shift(-1) < lanes["end"]).any())


def _stops(recording: Recording) -> pl.DataFrame:
    """`start_id, stopped`: when a start's run was shut down, where a line says so."""
    gone = recording.incidents.filter(pl.col("kind") == "shutdown").drop_nulls(["time", "start_id"])
    return gone.group_by("start_id").agg(pl.col("time").max().alias("stopped"))


def _of_server(name: str, recording: Recording, begin: datetime) -> pl.DataFrame:
    timed = recording.requests.drop_nulls(["arrival_s", "first_token_s"]).filter(
        pl.col("first_token_s") >= pl.col("arrival_s")
    )
    at = pl.lit(begin) + pl.duration(microseconds=(pl.col("arrival_s") * 1e6).round().cast(pl.Int64))
    came = timed.with_columns(at.cast(pl.Datetime("us", "UTC")).alias("at")).sort("at", maintain_order=True)
    starts = recording.starts.drop_nulls("ready_time").sort("ready_time")
    until = pl.min_horizontal("stopped", pl.col("first_time").shift(-1))
    bounds = starts.join(_stops(recording), on="start_id", how="left", maintain_order="left").select(
        "start_id", "ready_time", until.alias("until")
    )
    # Stamps of most logs are cut to the second, so a request may seem to come just before its server was ready.
    bounds = bounds.with_columns((pl.col("ready_time") - pl.duration(seconds=1)).alias("from"))
    served = came.join_asof(bounds.sort("from"), left_on="at", right_on="from", strategy="backward")
    own = served.filter(
        pl.col("start_id").is_not_null() & (pl.col("until").is_null() | (pl.col("at") < pl.col("until")))
    )
    return own.select(
        pl.lit(name).alias("deployment"),
        "start_id",
        pl.int_range(pl.len(), dtype=pl.UInt32).over("start_id").alias("order_id"),
        (pl.col("first_token_s") - pl.col("arrival_s")).alias("ttft_s"),
        "prompt_tokens",
        (pl.col("scheduled_s") - pl.col("queued_s")).clip(lower_bound=0.0).alias("queue_s"),
        "cached_tokens",
    )


def first_request_penalty(requests: pl.DataFrame, *, steady_from: int = STEADY_FROM) -> Penalty:
    """First TTFT minus the median TTFT of steady requests, per start, and its Hodges–Lehmann centre with an interval.

    Frame in: StartRequests. Steady: the `steady_from`-th request after the start and later, of a prompt length within a
    factor of two, that waited in no queue and found nothing in the prefix cache, as far as the log tells those; at
    least three. Below 6 such starts there is no location, and `reason` says so.
    """
    first = requests.filter(pl.col("order_id") == 0).select(
        "deployment", "start_id", pl.col("ttft_s").alias("first_ttft_s"), pl.col("prompt_tokens").alias("first_tokens")
    )
    steady = requests.filter(
        (pl.col("order_id") >= steady_from - 1)
        & (pl.col("queue_s").fill_null(0.0) <= 1e-3)
        & (pl.col("cached_tokens").fill_null(0) == 0)
    )
    ratio = pl.col("prompt_tokens") / pl.col("first_tokens")
    joined = steady.join(first, on=["deployment", "start_id"]).filter(
        ratio.is_null() | ratio.is_between(1 / _ALIKE, _ALIKE)
    )
    told = (
        joined.group_by("deployment", "start_id", maintain_order=True)
        .agg(
            pl.col("first_ttft_s").first(),
            median(pl.col("ttft_s")).alias("steady_ttft_s"),
            pl.len().alias("steady_count"),
        )
        .filter(pl.col("steady_count") >= STEADY_LEAST)
        .with_columns((pl.col("first_ttft_s") - pl.col("steady_ttft_s")).alias("penalty_s"))
    )
    starts = FirstRequests.validate(told, cast=True)
    cold = steady["cached_tokens"].null_count() > 0
    if len(starts) < LEAST:
        why = f"{len(starts)} starts have a first request and {STEADY_LEAST} steady ones; an interval needs {LEAST}"
        return Penalty(starts, None, why, cold)
    return Penalty(starts, centre(starts["penalty_s"].to_list()), None, cold)
