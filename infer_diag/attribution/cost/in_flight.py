"""The batch of an engine that prints none, from the times of single requests: how many it worked for at each moment."""

from __future__ import annotations

from datetime import datetime

import polars as pl

from infer_diag.attribution.cost.lanes import Lanes
from infer_diag.attribution.cost.spread import spread, window_of
from infer_diag.recording import Recording

TIMED_RATIO = 0.95
"""Share of the requests whose work is placed in time, below which the others could be most of a batch."""
_TIME = pl.Datetime("us", "UTC")
_ROW: dict[str, pl.DataType | type[pl.DataType]] = {
    "source_id": pl.UInt32,
    "replica": pl.String,
    "begin": _TIME,
    "end": _TIME,
    "output": pl.Float64,
    "prompt": pl.Float64,
}


def batches(recording: Recording, told: Lanes, replica_count: int, first: datetime, width: int) -> pl.DataFrame:
    """Window rows: `running_count`, `decode_tokens`, `prefill_tokens` and `step_count`; none where no batch is told.

    Frames in: Requests, RequestTimings. A request is in the batch from when it was scheduled to its last token, and its
    output is spread evenly over that. With n(t) requests and r(t) output tokens/s, steps = ∫ r/n dt, since a step
    gives each of them one token. A request whose waiting is not told from its work places nothing, and where more than
    a twentieth are so no batch is told. Requests that are of no replica in particular are shared out evenly.
    """
    rows = _worked(recording)
    good = rows.filter(pl.col("end") > pl.col("begin")).drop_nulls("output")
    if good.is_empty() or len(good) < TIMED_RATIO * len(rows):
        return pl.DataFrame(schema={"window": pl.Int64})
    keys = [(*key, number) for number, lane in enumerate(told.found) for key in lane.keys]
    table = pl.DataFrame(keys, schema={"source_id": pl.UInt32, "replica": pl.String, "lane": pl.Int64}, orient="row")
    placed = good.join(table, on=["source_id", "replica"], how="left", nulls_equal=True)
    segments = spread(_segments(placed), first, width)
    shared = pl.when(pl.col("lane").is_null()).then(max(replica_count, 1)).otherwise(1)
    count, seconds = pl.col("count") / shared, pl.col("seconds")
    told_by = segments.group_by("window").agg(
        running_count=(count * seconds).sum() / seconds.sum(),
        decode_tokens=(pl.col("rate") * seconds).sum(),
        step_count=(pl.col("rate") / count * seconds).sum(),
    )
    prompts = placed.with_columns(window_of(pl.col("begin"), first, width))
    asked = prompts.group_by("window").agg(prefill_tokens=pl.col("prompt").sum())
    if placed["prompt"].null_count():
        asked = asked.drop("prefill_tokens")
    return told_by.join(asked, on="window", how="full", coalesce=True)


def _worked(recording: Recording) -> pl.DataFrame:
    """When the engine worked for each request, null where its log does not tell waiting from work."""
    timings = recording.request_timings.drop_nulls("time")
    work_s = pl.coalesce("compute_s", pl.col("prefill_s") + pl.col("decode_s"), pl.col("e2e_s") - pl.col("queue_s"))
    parts = [
        timings.select(
            "source_id",
            "replica",
            begin=pl.col("time") - pl.duration(microseconds=(work_s * 1e6).round()),
            end="time",
            output="output_tokens",
            prompt="prompt_tokens",
        ).cast(_ROW)  # type: ignore[arg-type]
    ]
    for (source_id,), part in recording.requests.partition_by("source_id", as_dict=True).items():
        zero = recording.first_time or recording.sources[source_id].first_time
        ended = part.drop_nulls(["last_token_s", "output_tokens"])
        if zero is None or ended.is_empty():
            continue
        at = {
            name: pl.lit(zero) + pl.duration(microseconds=(pl.col(name) * 1e6).round())
            for name in ("scheduled_s", "last_token_s")
        }
        parts.append(
            ended.select(
                "source_id",
                replica=pl.lit(None, pl.String),
                begin=at["scheduled_s"],
                end=at["last_token_s"],
                output="output_tokens",
                prompt="prompt_tokens",
            ).cast(_ROW)  # type: ignore[arg-type]
        )
    return pl.concat(parts)


def _segments(placed: pl.DataFrame) -> pl.DataFrame:
    """Stretches of time over which the same requests are in the batch: `count` of them at `rate` output tokens/s."""
    rate = pl.col("output") / ((pl.col("end") - pl.col("begin")).dt.total_microseconds() / 1e6)
    edges = pl.concat(
        [
            placed.select("lane", at="begin", step=pl.lit(1), change=rate),
            placed.select("lane", at="end", step=pl.lit(-1), change=-rate),
        ]
    )
    levels = (
        edges.group_by("lane", "at")
        .agg(pl.col("step").sum(), pl.col("change").sum())
        .sort("lane", "at")
        .with_columns(
            count=pl.col("step").cum_sum().over("lane"),
            rate=pl.col("change").cum_sum().over("lane").clip(lower_bound=0.0),
            end=pl.col("at").shift(-1).over("lane"),
        )
    )
    return levels.filter((pl.col("count") > 0) & pl.col("end").is_not_null()).select(
        "lane", "count", "rate", "end", begin="at"
    )
