"""How many running requests were sent back to the queue, or why a log cannot tell."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from infer_diag.attribution.streams import scraped_beside_logs
from infer_diag.recording import Recording

WARNS_EVERY = 50
"""vLLM's old warning is printed at the 1st, 51st, 101st … preemption of a process."""

_CUMULATIVE = r"cumulative_preemptions?(?:_cnt)?\s*[=:]\s*(\d+)"
_RETRACTED = r"retracted_reqs?\s*[=:]\s*(\d+)"
_BARE = r"^\s*(\d+)\s*$"


@dataclass(frozen=True)
class Preemptions:
    """`count` is null where the log cannot tell; `upper` exceeds it where the engine prints only some of them."""

    count: int | None
    upper: int | None


def preemptions(recording: Recording) -> Preemptions:
    """Preemptions (SGLang: retractions) seen while serving.

    Frames in: EngineSamples, Incidents, Requests. Per source, the first of these that it has: counts in its statistics
    lines; SGLang's retraction lines, added up per rank, the largest rank taken because each prints the same; vLLM's
    old warning, whose cumulative number counts and not its lines; counts per request. None of them means 0 only for
    SGLang with decode lines in a whole log that shows the engine's start: a filtered excerpt proves nothing. vLLM's
    silence proves nothing either: its statistics line has a part for preemptions that 0.32 never prints. Where the
    metrics of an engine count them, its log of the same time is not asked.
    """
    asked = [source for source in _sources_that_serve(recording) if source not in _told_by_scrapes(recording)]
    found = [_of_source(recording, source_id) for source_id in asked]
    known = [each for each in found if each.count is not None and each.upper is not None]
    count = sum(each.count or 0 for each in known)
    if not known or (len(known) < len(found) and not count):
        return Preemptions(None, None)
    open_above = len(known) < len(found)
    return Preemptions(count, None if open_above else sum(each.upper or 0 for each in known))


def _sources_that_serve(recording: Recording) -> list[int]:
    frames = [
        recording.engine_samples.select("source_id"),
        recording.requests.select("source_id"),
        recording.incidents.filter(kind="preemption").select("source_id"),
    ]
    return pl.concat(frames)["source_id"].unique().sort().to_list()


def _told_by_scrapes(recording: Recording) -> set[int]:
    """Sources of logs whose engine's scrapes of the same time count preemptions."""
    counting = recording.engine_samples.drop_nulls("preemption_count")["source_id"].unique()
    beside = scraped_beside_logs(recording)
    return {log for scraped, logs in beside.items() if scraped in counting for log in logs}


def _of_source(recording: Recording, source_id: int) -> Preemptions:
    here = pl.col("source_id") == source_id
    samples = recording.engine_samples.filter(here)
    if samples["preemption_count"].count():
        return _exactly(int(samples["preemption_count"].sum()))
    reported = recording.incidents.filter(here & (pl.col("kind") == "preemption"))
    if not reported.is_empty():
        return _reported(reported, cumulative=recording.sources[source_id].engine == "vllm")
    per_request = recording.requests.filter(here)["preemption_count"]
    if per_request.count():
        return _exactly(int(per_request.sum()))
    return _exactly(0) if _silence_is_zero(recording, source_id, samples) else Preemptions(None, None)


def _reported(lines: pl.DataFrame, *, cumulative: bool) -> Preemptions:
    bare = pl.col("fields").str.extract(_BARE)
    nothing = pl.lit(None, pl.String)
    told = lines.select(
        "start_id",
        "replica",
        "rank",
        cumulative=pl.coalesce(pl.col("fields").str.extract(_CUMULATIVE), bare if cumulative else nothing).cast(
            pl.Int64, strict=False
        ),
        retracted=pl.coalesce(pl.col("fields").str.extract(_RETRACTED), nothing if cumulative else bare).cast(
            pl.Int64, strict=False
        ),
    )
    process = ["start_id", "replica"]
    warned = told.drop_nulls("cumulative").group_by(process).agg(pl.col("cumulative").max())["cumulative"]
    counted = told.filter(pl.col("cumulative").is_null()).with_columns(pl.col("retracted").fill_null(1))
    by_rank = counted.group_by(*process, "rank").agg(pl.col("retracted").sum())
    once = by_rank.group_by(process).agg(pl.col("retracted").max())["retracted"]
    count = int(warned.sum()) + int(once.sum())
    return Preemptions(count, count + len(warned) * (WARNS_EVERY - 1))


def _silence_is_zero(recording: Recording, source_id: int, samples: pl.DataFrame) -> bool:
    source = recording.sources[source_id]
    whole = not recording.starts.filter(source_id=source_id).is_empty() and not source.cut
    return source.engine == "sglang" and whole and "decode" in samples["kind"]


def _exactly(count: int) -> Preemptions:
    return Preemptions(count, count)
