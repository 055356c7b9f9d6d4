"""Serving samples engine by engine, and added up over the engines that run side by side.

A stream is what one engine of one source printed: each data-parallel replica is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from infer_diag.attribution.quantiles import median
from infer_diag.recording import Recording

SUMMED = ("output_tokens_per_s", "prompt_tokens_per_s", "running_count", "waiting_count")
AVERAGED = ("kv_usage_ratio",)
_LIMITS = ("max_running_count", "max_batch_tokens", "kv_cache_tokens")
_STREAM = ("source_id", "replica")


@dataclass(frozen=True, eq=False)
class Stream:
    """The samples of one engine in order, each with the limits that were in force when it was printed."""

    source_id: int
    replica: str | None
    engine: str
    samples: pl.DataFrame


def in_order(frame: pl.DataFrame) -> pl.DataFrame:
    """Rows by time where each has one, by source and line otherwise; equal stamps keep the order of their lines."""
    keys = ["source_id", "line"] if frame["time"].null_count() else ["time", "source_id", "line"]
    return frame.sort(keys)


def counted_once(recording: Recording) -> pl.DataFrame:
    """The samples without the scrapes of an engine whose own log covers the same time: both tell of one engine.

    Frame in and out: EngineSamples. Added up, they would double what ran and what waited. Sources without dates are
    taken to overlap.
    """
    samples = recording.engine_samples
    twice = scraped_beside_logs(recording)
    return samples.filter(~pl.col("source_id").is_in(list(twice))) if twice else samples


def scraped_beside_logs(recording: Recording) -> dict[int, tuple[int, ...]]:
    """Sources of scrapes, each with the sources of logs that tell of the same engine at the same time."""
    windows = recording.engine_samples.group_by("source_id").agg(
        (pl.col("kind") == "scrape").all().alias("scraped"), first=pl.col("time").min(), last=pl.col("time").max()
    )
    rows = windows.sort("source_id").to_dicts()
    found = {}
    for scraped in (row for row in rows if row["scraped"]):
        engine = recording.sources[scraped["source_id"]].engine
        logs = [row for row in rows if not row["scraped"] and recording.sources[row["source_id"]].engine == engine]
        beside = tuple(row["source_id"] for row in logs if _overlap(recording, row, scraped))
        if beside:
            found[int(scraped["source_id"])] = beside
    return found


def _overlap(recording: Recording, one: dict[str, Any], other: dict[str, Any]) -> bool:
    dated = recording.sources[one["source_id"]].dated and recording.sources[other["source_id"]].dated
    if not dated or one["first"] is None or other["first"] is None:
        return True
    return bool(one["first"] <= other["last"] and other["first"] <= one["last"])


def streams(recording: Recording) -> list[Stream]:
    """One stream per source and replica that has samples, none counted twice.

    Frame in: EngineSamples, Deployments. The samples of a stream carry `max_running_count`, `max_batch_tokens` and
    `kv_cache_tokens` of the last configuration printed before them, null where none was.
    """
    samples = counted_once(recording)
    if samples.is_empty():
        return []
    configured = samples.sort("line").join_asof(
        _limits(recording.deployments), on="line", by="source_id", strategy="backward", check_sortedness=False
    )
    parts = configured.partition_by(_STREAM, as_dict=True)
    ordered = sorted(parts.items(), key=lambda item: (item[0][0], str(item[0][1] or "")))
    return [Stream(key[0], key[1], recording.sources[key[0]].engine, in_order(part)) for key, part in ordered]


def totals(samples: pl.DataFrame) -> pl.DataFrame:
    """The samples of the whole deployment: one engine as printed, several added up.

    Frame in: EngineSamples. Out: the columns SUMMED and AVERAGED, in order. With several engines there is a row per
    instant at which any of them prints: counts and rates are the sum, and `kv_usage_ratio` the mean, of each engine's
    latest value. An engine counts from half of its usual spacing before its first sample to as much after its last,
    so that replicas that print a second apart are one instant's worth and a rotated log does not count twice.
    """
    measures = [*SUMMED, *AVERAGED]
    parts = samples.partition_by(_STREAM, maintain_order=True)
    if len(parts) < 2:
        return in_order(samples).select(measures)
    at = pl.col("time").cast(pl.Int64) if not samples["time"].null_count() else pl.int_range(pl.len(), dtype=pl.Int64)
    placed = in_order(samples).with_columns(at.alias("at"))
    instants = placed.select(pl.col("at").unique().sort())
    held = [_held(part, instants, measures) for part in placed.partition_by(_STREAM, maintain_order=True)]
    columns = {name: [frame[name].alias(str(index)) for index, frame in enumerate(held)] for name in measures}
    wide = {name: pl.DataFrame(series) for name, series in columns.items()}
    return pl.DataFrame(
        [wide[name].select(_sum_of_known(wide[name].columns)).to_series().alias(name) for name in SUMMED]
        + [wide[name].mean_horizontal().alias(name) for name in AVERAGED]
    )


def _limits(deployments: pl.DataFrame) -> pl.DataFrame:
    # One start may print its limits on several lines; what an earlier start printed does not hold for the next one.
    carried = deployments.sort("source_id", "line").with_columns(
        pl.col(*_LIMITS).forward_fill().over("source_id", "start_id")
    )
    return carried.select("source_id", "line", *_LIMITS).sort("line")


def _held(part: pl.DataFrame, instants: pl.DataFrame, measures: list[str]) -> pl.DataFrame:
    known = part.with_columns(pl.col(measures).forward_fill()).group_by("at", maintain_order=True).last()
    first, last = known["at"][0], known["at"][-1]
    spacing = known.select(median(pl.col("at").diff())).item()
    slack = 0 if spacing is None else round(spacing / 2)
    at = pl.col("at")
    joined = instants.select(
        at.clip(first, last), inside=(at >= first - slack) & (at < last + max(slack, 1))
    ).join_asof(known.select("at", *measures), on="at", strategy="backward")
    return joined.select(pl.when("inside").then(pl.col(name)).alias(name) for name in measures)


def _sum_of_known(columns: list[str]) -> pl.Expr:
    known = pl.any_horizontal(pl.col(column).is_not_null() for column in columns)
    return pl.when(known).then(pl.sum_horizontal(pl.col(column).cast(pl.Float64) for column in columns))
