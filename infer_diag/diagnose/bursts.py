"""Many requests at once: counted from their arrivals, or read off the queue where no arrival is logged."""

from __future__ import annotations

import polars as pl

from infer_diag.attribution.arrivals import BURST_COUNT, WINDOW_S, Arrivals
from infer_diag.attribution.serving import Serving
from infer_diag.attribution.streams import Stream
from infer_diag.diagnose.evidence import cited, ends
from infer_diag.diagnose.finding import Finding, Severity
from infer_diag.diagnose.queueing import KV_ROOM_RATIO
from infer_diag.diagnose.remedies import setting
from infer_diag.diagnose.wording import seconds_between, spread, top
from infer_diag.recording import Recording
from infer_diag.units import format_count, format_ratio, format_s

JUMP_RATIO = 0.75
"""A queue that at least quadruples from one sample to the next did not build up, it arrived."""
DRAINED_RATIO = 0.6
"""A queue that has not come down this far is not seen to drain."""
EMPTIED_RATIO = 0.1
"""A tenth of the peak is what a busy engine's queue holds anyway."""
LONG_DRAIN_S = 10.0
"""Users notice a queue that lasts longer."""


def burst(recording: Recording, serving: Serving, stream: Stream) -> Finding | None:
    """Many requests come at once and wait while the pool has room.

    Where the log has the requests' arrivals they decide. Otherwise the queue does: it at least quadruples from one
    sample to the next and then drains.
    """
    counted = serving.arrivals.get(stream.source_id)
    return _of_queue(recording, stream) if counted is None else _of_arrivals(recording, stream, counted)


def _of_arrivals(recording: Recording, stream: Stream, counted: Arrivals) -> Finding | None:
    queued = stream.samples.filter(pl.col("waiting_count") > 0)
    usage = top(queued["kv_usage_ratio"])
    if not counted.burst_count or queued.is_empty() or (usage or 0.0) >= KV_ROOM_RATIO:
        return None
    times = "" if counted.burst_count == 1 else f", the largest of {counted.burst_count:,} such bursts"
    sentence = (
        f"{counted.peak_count:,} requests arrive within {format_s(WINDOW_S)} where {counted.usual_count:.2g} are "
        f"usual{times}; up to {format_count(top(queued['waiting_count']))} wait, with "
        f"{spread(queued['running_count'], format_count)} running{_pool(usage)}"
    )
    first = pl.DataFrame({"source_id": [stream.source_id], "line": [counted.line]}, schema=_PLACE)
    rows = pl.concat([first, ends(queued, by="waiting_count").select(list(_PLACE))])
    return Finding("batching.burst", "medium", sentence, "measured", cited(recording, rows), _remedy(stream))


def _of_queue(recording: Recording, stream: Stream) -> Finding | None:
    waiting = pl.col("waiting_count").cast(pl.Int64)
    before = waiting.shift(fill_value=0)
    jump = (waiting >= BURST_COUNT) & (waiting - before >= JUMP_RATIO * waiting)
    rows = stream.samples.drop_nulls("waiting_count").with_columns(episode=jump.cum_sum())
    episodes = (
        rows.filter(pl.col("episode") > 0)
        .group_by("episode", maintain_order=True)
        .agg(
            peak=waiting.max(),
            at=waiting.arg_max(),
            left=waiting.slice(waiting.arg_max()).min(),
            usage=pl.col("kv_usage_ratio").max(),
            ran=pl.col("running_count").max(),
        )
        .filter(
            (pl.col("at") <= 2)
            & (pl.col("left") <= DRAINED_RATIO * pl.col("peak"))
            & (pl.col("usage").fill_null(0) < KV_ROOM_RATIO)
            & (pl.col("ran") > 0)
        )
    )
    if episodes.is_empty():
        return None
    largest = episodes.sort("peak", "episode", descending=[True, False]).row(0, named=True)
    return _drained(recording, stream, rows.filter(episode=largest["episode"]), len(episodes))


def _drained(recording: Recording, stream: Stream, rows: pl.DataFrame, count: int) -> Finding:
    counts = rows["waiting_count"].cast(pl.Int64)
    peak_at = counts.arg_max() or 0
    peak, after = int(counts[peak_at]), counts[peak_at:]
    falling = rows[peak_at : peak_at + (after.arg_min() or 0) + 1]
    left, length_s = int(falling["waiting_count"][-1]), seconds_between(falling)
    drained_soon = length_s is not None and length_s < LONG_DRAIN_S and left <= EMPTIED_RATIO * peak
    severity: Severity = "low" if drained_soon else "medium"
    which = "" if count == 1 else f" (the largest of {count:,} such jumps)"
    sentence = (
        f"The queue jumps to {peak:,} requests {_jump(stream, rows)}{which} and falls to "
        f"{left:,}{_within(length_s)}, with {spread(rows['running_count'], format_count)} running"
        f"{_pool(top(rows['kv_usage_ratio']))}"
    )
    evidence = cited(recording, ends(falling, by="waiting_count"))
    return Finding("batching.burst", severity, sentence, "measured", evidence, _remedy(stream))


def _jump(stream: Stream, rows: pl.DataFrame) -> str:
    before = stream.samples.filter(pl.col("line") < rows["line"][0]).tail(1)
    if before.is_empty():
        return "by the first sample"
    length_s = seconds_between(pl.concat([before, rows.head(1).select(before.columns)]))
    return f"from {format_count(before['waiting_count'][0])} in the sample before{_within(length_s)}"


def _pool(usage: float | None) -> str:
    if usage is None:
        return ": a burst of arrivals; how full the KV pool is, the log does not tell."
    return f" and the KV pool at most {format_ratio(usage)} full: a burst of arrivals, not a lack of memory."


def _within(length_s: float | None) -> str:
    return "" if length_s is None else f" within {format_s(length_s)}"


def _remedy(stream: Stream) -> str:
    limit, budget = setting(stream.engine, "sequence_limit"), setting(stream.engine, "token_budget")
    return (
        f"Spread the arrivals, keep replicas ready for the peak, or let requests in faster ({limit}, {budget}); a "
        "larger KV pool would not help."
    )


_PLACE = {"source_id": pl.UInt32, "line": pl.UInt32}
