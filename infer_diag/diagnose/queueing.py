"""Findings on the queue: bursts, a limit that binds, a scheduler that stands still, and too little demand."""

from __future__ import annotations

import polars as pl

from infer_diag.attribution.serving import Serving
from infer_diag.attribution.streams import Stream
from infer_diag.diagnose.evidence import cited, ends
from infer_diag.diagnose.finding import Finding, Severity
from infer_diag.diagnose.pool import FREQUENT_RATIO, SUSTAINED_COUNT
from infer_diag.diagnose.remedies import setting
from infer_diag.diagnose.wording import between, pool_use, spread, top
from infer_diag.recording import Recording
from infer_diag.units import format_count, format_ratio, format_s

KV_ROOM_RATIO = 0.9
"""Below this use the KV pool is not what keeps requests out."""
KV_EMPTY_RATIO = 0.05
"""So little in the pool that nothing of weight can be running."""
PINNED_RATIO = 0.99
"""Running counts this close to their maximum stand at a limit."""
PINNED_SHARE = 0.6
"""Without a stated limit, running has to stand at its maximum in this share of the samples with a queue."""
IDLE_TOKENS_PER_S = 1.0
"""An output rate below this over a whole interval is no work."""
PERSISTENT_RATIO = 0.5
"""A queue in half of the samples is a state of the deployment."""
UNDERFILLED_RATIO = 0.25
"""Below a quarter of the slots, halving the replicas would still leave room."""
LITTLE_COUNT = 20
"""Little's law needs many requests per window; with fewer its edges rule the result."""
LITTLE_WINDOW_S = 60.0
"""The same in time."""


def concurrency_cap(recording: Recording, serving: Serving, stream: Stream) -> Finding | None:
    """Running stands at its maximum with requests waiting and room in the pool: a limit on sequences, not memory.

    Room is room for one more request of the mean size of those that run.
    """
    rows = stream.samples.drop_nulls(["running_count", "waiting_count"])
    queued = rows.filter((pl.col("waiting_count") > 0) & (pl.col("running_count") > 0))
    grown = pl.col("kv_usage_ratio") * (pl.col("running_count") + 1) / pl.col("running_count")
    roomy = queued.filter(grown.fill_null(0) < KV_ROOM_RATIO)
    limited = roomy.filter(pl.col("running_count") >= pl.col("max_running_count"))
    stated = len(limited) >= 2
    highest = top(rows["running_count"]) or 0.0
    # A limit that is not stated is told from a full pool only where the pool is known to have room.
    told = roomy.drop_nulls("kv_usage_ratio")
    pinned = limited if stated else told.filter(pl.col("running_count") >= PINNED_RATIO * highest)
    if not stated and not _stands(roomy, queued, pinned):
        return None
    share = len(pinned) / len(rows)
    severity: Severity = "high" if share >= FREQUENT_RATIO else "medium"
    limit = "the sequence limit that the log states" if stated else "their maximum; the log does not state a limit"
    sentence = (
        f"Running requests stand at {spread(pinned['running_count'], format_count)}, {limit}, in {len(pinned):,} of "
        f"{len(rows):,} samples while up to {format_count(top(pinned['waiting_count']))} wait"
        f"{pool_use(pinned)}.{_room(pinned)}{_modelled_wait(serving)}"
    )
    flag = setting(stream.engine, "sequence_limit")
    now = f" ({format_count(top(pinned['max_running_count']))} now)" if stated else ""
    remedy = f"Raise {flag}{now} and watch the time per output token, which grows with the batch."
    status = "measured" if stated else "modelled"
    evidence = cited(recording, ends(pinned, by="waiting_count"))
    return Finding("batching.concurrency_cap", severity, sentence, status, evidence, remedy)  # type: ignore[arg-type]


def scheduler_stall(recording: Recording, stream: Stream) -> Finding | None:
    """Requests wait in consecutive samples while nothing runs, nothing is produced and the pool is nearly empty.

    Only samples that an engine prints by the clock count: a prefill line tells of work by being there.
    """
    idle = (
        (pl.col("waiting_count") > 0)
        & (pl.col("running_count") == 0)
        & (pl.col("kv_usage_ratio").fill_null(0) <= KV_EMPTY_RATIO)
    )
    nothing_made = pl.col("output_tokens_per_s").fill_null(0) < IDLE_TOKENS_PER_S
    rows = stream.samples.filter(pl.col("kind").is_in(["interval", "scrape"]))
    marked = rows.with_columns(idle=idle.fill_null(False)).with_columns(
        stalled=pl.col("idle") & pl.col("idle").shift(fill_value=False) & nothing_made
    )
    stalled = marked.filter(pl.col("stalled") | (pl.col("idle") & pl.col("stalled").shift(-1, fill_value=False)))
    if stalled.is_empty():
        return None
    pool_known = stalled["kv_usage_ratio"].null_count() == 0
    ruled_out = (
        "That is neither saturation nor an idle server."
        if pool_known
        else "That is no idle server; whether the KV pool has room the log does not tell."
    )
    sentence = (
        f"Requests wait ({spread(stalled['waiting_count'], format_count)}) in {len(stalled):,} "
        f"samples{between(stalled)} while nothing runs{pool_use(stalled)}: the scheduler does not schedule. {ruled_out}"
    )
    remedy = (
        "Look in the log before the first of these lines for a worker that died or hangs, an adapter or KV transfer "
        "that requests wait for, or a paused engine; a restart clears it, an upgrade may fix it."
    )
    evidence = cited(recording, ends(stalled, by="waiting_count"))
    return Finding("batching.scheduler_stall", "high", sentence, "measured", evidence, remedy)


def standstill(recording: Recording, stream: Stream) -> Finding | None:
    """Requests run in three samples or more in a row while no token goes in or out and the pool does not move.

    A long prompt that is computed in chunks shows no tokens either, but it fills the pool as it goes.
    """
    rows = stream.samples.filter(pl.col("kind").is_in(["interval", "scrape"]))
    quiet = (pl.col("running_count") > 0) & (pl.col("output_tokens_per_s") == 0) & (pl.col("prompt_tokens_per_s") == 0)
    same = (pl.col("running_count") == pl.col("running_count").shift()) & (
        pl.col("kv_usage_ratio") == pl.col("kv_usage_ratio").shift()
    )
    marked = rows.with_columns(still=(quiet & same).fill_null(False))
    marked = marked.with_columns(length=pl.col("still").sum().over(pl.col("still").rle_id()))
    still = marked.filter(pl.col("still") & (pl.col("length") >= SUSTAINED_COUNT))
    if still.is_empty():
        return None
    sentence = (
        f"In {len(still):,} samples in a row{between(still)} {spread(still['running_count'], format_count)} requests "
        "run and no token goes in or comes out, while the KV pool does not move: the engine stands still. That is "
        "neither load nor an idle server."
    )
    remedy = (
        "Look in the log before the first of these lines for a worker that died or hangs, and at the stacks of the "
        "engine's processes (py-spy); the requests end only with a restart."
    )
    evidence = cited(recording, ends(still, by="waiting_count"))
    return Finding("batching.scheduler_stall", "high", sentence, "measured", evidence, remedy)


def watchdog(recording: Recording, serving: Serving) -> Finding | None:
    """The engine's own watchdog gave up on a step: the scheduler hung for as long as the watchdog waits."""
    rows = recording.incidents.filter(kind="watchdog").sort("source_id", "line")
    if rows.is_empty():
        return None
    waited_s = rows.select(pl.col("fields").str.extract(r"watchdog_timeout=(\d+)").cast(pl.Float64).max()).item()
    workers = rows.select(pl.struct("source_id", "replica", "rank").n_unique()).item()
    told = f"{workers:,} workers say" if workers > 1 else "a worker says"
    before = serving.samples.filter(pl.col("measure") == "running")["last"]
    running = f" with {format_count(before[0])} requests running before" if len(before) and before[0] else ""
    sentence = (
        f"The engine's watchdog gives up after {format_s(waited_s)} without the end of a step ({told} so){running}: "
        "the scheduler stands still."
    )
    remedy = (
        "Look for what hangs in the lines just before and on the other nodes: a worker that died, a collective that "
        "one rank does not join, a kernel that never ends. A longer watchdog helps only where steps last so long."
    )
    return Finding("batching.scheduler_stall", "high", sentence, "measured", cited(recording, rows), remedy)


def queue(recording: Recording, serving: Serving, stream: Stream) -> Finding | None:
    """Requests wait in half of the samples or more, whatever the cause."""
    rows = stream.samples.drop_nulls("waiting_count")
    queued = rows.filter(pl.col("waiting_count") > 0)
    if len(queued) < SUSTAINED_COUNT or len(queued) < PERSISTENT_RATIO * len(rows):
        return None
    sentence = (
        f"Requests wait in {len(queued):,} of {len(rows):,} samples, up to "
        f"{format_count(top(queued['waiting_count']))}, with {spread(queued['running_count'], format_count)} running "
        f"and the KV pool at {spread(queued['kv_usage_ratio'], format_ratio)}: neither limit is seen to bind."
        f"{_modelled_wait(serving)}"
    )
    budget = setting(stream.engine, "token_budget")
    remedy = f"Demand exceeds what this engine takes in: raise {budget} if prompts are what waits, or add a replica."
    return Finding(
        "batching.queue", "medium", sentence, "measured", cited(recording, ends(queued, by="waiting_count")), remedy
    )


def underfilled(recording: Recording, stream: Stream) -> Finding | None:
    """Few of the slots are in use and nobody waits: demand, not the engine, limits the batch."""
    rows = stream.samples.drop_nulls(["running_count", "waiting_count"])
    busy = rows.filter(pl.col("running_count") > 0)
    if len(busy) < SUSTAINED_COUNT or rows["waiting_count"].max() != 0:
        return None
    limits = busy["max_running_count"].drop_nulls().unique()
    running, usage = busy["running_count"].cast(pl.Float64), top(busy["kv_usage_ratio"])
    mean = float(running.mean() or 0.0)  # type: ignore[arg-type]
    if len(limits) == 1 and mean < UNDERFILLED_RATIO * limits[0]:
        used = f"{format_count(mean)} of {format_count(limits[0])} sequence slots are in use on average"
    elif limits.is_empty() and usage is not None and usage < UNDERFILLED_RATIO:
        used = f"{format_count(mean)} requests run on average and the KV pool is never above {format_ratio(usage)}"
    else:
        return None
    sentence = f"While the engine is busy {used}, and nobody waits: demand limits the batch, not the engine."
    remedy = "Not a fault. Fewer replicas with the same load, or work that can wait, would fill the batch."
    evidence = cited(recording, ends(busy, by="running_count"))
    return Finding("batching.underfilled", "info", sentence, "measured", evidence, remedy)


def healthy(recording: Recording, stream: Stream) -> Finding | None:
    """Something runs, nobody ever waits and the pool has room, over three samples or more."""
    rows = stream.samples
    usage, running = top(rows["kv_usage_ratio"]), top(rows["running_count"])
    told = rows["waiting_count"].null_count() == 0 and usage is not None and running
    if len(rows) < SUSTAINED_COUNT or not told or rows["waiting_count"].max() != 0 or usage >= KV_ROOM_RATIO:  # type: ignore[operator]
        return None
    sentence = (
        f"Nobody waits in any of {len(rows):,} samples, with up to {format_count(running)} running and the KV pool at "
        f"most {format_ratio(usage)} full: batching shows no fault in this log."
    )
    evidence = cited(recording, ends(rows, by="running_count"))
    return Finding("batching.healthy", "info", sentence, "measured", evidence)


def _stands(roomy: pl.DataFrame, queued: pl.DataFrame, pinned: pl.DataFrame) -> bool:
    unknown_limit = roomy["max_running_count"].null_count() == len(roomy)
    return unknown_limit and len(pinned) >= SUSTAINED_COUNT and len(pinned) >= PINNED_SHARE * len(queued)


def _room(pinned: pl.DataFrame) -> str:
    per_use = pinned.filter(pl.col("kv_usage_ratio") > 0.02).select(
        (KV_ROOM_RATIO * pl.col("running_count") / pl.col("kv_usage_ratio")).min()
    )
    fits = per_use.item()
    return "" if fits is None else f" At these lengths the pool holds about {format_count(int(fits))} (modelled)."


def _modelled_wait(serving: Serving) -> str:
    waiting = serving.samples.filter(pl.col("measure") == "waiting")["mean"]
    count, window_s = serving.request_count, serving.window_s
    if waiting.is_empty() or not count or count < LITTLE_COUNT or window_s is None or window_s < LITTLE_WINDOW_S:
        return ""
    return f" By Little's law a request waits about {format_s(waiting[0] * window_s / count)} (modelled)."
