"""Servers that batch whole requests: a batch is gathered, padded to its longest, and runs until its last output."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from infer_diag.simulators.serving.settings import EngineSettings
from infer_diag.simulators.serving.state import (
    CONTEXT_TOKENS,
    DECODE_COUNT,
    DECODE_TOKENS,
    END_S,
    PREFILL_COUNT,
    PREFILL_TOKENS,
    ROW_COUNTS,
    ROW_EMITTED,
    ROW_FINISHED,
    ROW_NEW,
    ROW_OUTPUTS,
    ROW_RUNNING,
    ROW_USED,
    ROW_WAITING,
    Floats,
    Ints,
    Outcome,
    Places,
    Requests,
)
from infer_diag.simulators.serving.step_time import StepTime


@dataclass
class _Bucket:
    """Requests of similar length in order of arrival, and how many of them have been taken."""

    members: Ints
    taken: int = 0


def batched(requests: Requests, settings: EngineSettings, step_time: StepTime) -> Outcome:
    """Batches of up to `batch_size`, one after another; fills the requests' times.

    `static` waits until a batch is full or nobody is left to come, `bucketed` does so for each bucket of prompt lengths
    (`bucket_tokens`: their upper ends), `dynamic-batch` waits `batch_wait_s` for the oldest. Every row of a batch
    computes the longest prompt and the longest output; a request's own tokens are delivered as they come.
    """
    buckets = _buckets(requests, settings)
    wait_s = settings.batch_wait_s
    if wait_s is None:
        wait_s = 0.0 if settings.scheduler == "dynamic-batch" else math.inf
    now_s, started, parts = 0.0, 0, []
    while any(bucket.taken < len(bucket.members) for bucket in buckets):
        begin_s, _, place = min(
            (_ready_s(requests, bucket, now_s, settings.batch_size, wait_s), _oldest(bucket), place)
            for place, bucket in enumerate(buckets)
            if bucket.taken < len(bucket.members)
        )
        bucket = buckets[place]
        left = bucket.members[bucket.taken : bucket.taken + settings.batch_size]
        chosen = left[requests["arrival_s"][left] <= begin_s]
        bucket.taken += len(chosen)
        started += len(chosen)
        times, rows = _run(requests, chosen, begin_s, step_time, settings.block_tokens)
        arrived = np.searchsorted(requests["arrival_s"], times[:, END_S], side="left")
        rows[:, ROW_WAITING] = np.maximum(arrived - started, 0)
        now_s = float(times[-1, END_S])
        parts.append((times, rows))
    return Outcome(
        np.concatenate([each for each, _ in parts]), np.concatenate([each for _, each in parts]), requests, None
    )


def _buckets(requests: Requests, settings: EngineSettings) -> list[_Bucket]:
    edges = np.sort(np.asarray(settings.bucket_tokens if settings.scheduler == "bucketed" else (), dtype=np.int64))
    which = np.searchsorted(edges, requests["prompt"], side="left")
    return [_Bucket(np.flatnonzero(which == each)) for each in np.unique(which)]


def _oldest(bucket: _Bucket) -> int:
    return int(bucket.members[bucket.taken])


def _ready_s(requests: Requests, bucket: _Bucket, now_s: float, size: int, wait_s: float) -> float:
    """When a bucket's next batch may begin: full, its oldest out of patience, or nobody left to come."""
    members, arrival_s = bucket.members, requests["arrival_s"]
    last = members[min(bucket.taken + size, len(members)) - 1]
    return float(max(now_s, min(arrival_s[last], arrival_s[members[bucket.taken]] + wait_s)))


def _run(
    requests: Requests, chosen: Ints, begin_s: float, step_time: StepTime, block_tokens: int
) -> tuple[Floats, Places]:
    """(times, rows) of a batch's steps: all prompts at once, then an output of every row until the longest ends."""
    batch, prompt = len(chosen), int(requests["prompt"][chosen].max())
    output = requests["output"][chosen].astype(np.int64)
    steps = np.arange(int(output.max()))
    first = steps == 0
    prefill, decode = np.where(first, batch * prompt, 0), np.where(first, 0, batch)
    context = batch * (prompt + steps)
    pairs = np.where(first, batch * 0.5 * prompt * (prompt + 1), 0.0)
    spent = step_time.seconds(prefill, decode, context, pairs)
    ends = begin_s + np.cumsum(spent)
    alive = batch - np.searchsorted(np.sort(output), steps, side="right")
    ended = batch - np.searchsorted(np.sort(output), steps + 1, side="right")
    rows: NDArray[np.int32] = np.zeros((len(steps), ROW_COUNTS), np.int32)
    rows[:, PREFILL_COUNT], rows[:, DECODE_COUNT] = np.where(first, batch, 0), decode
    rows[:, PREFILL_TOKENS], rows[:, DECODE_TOKENS], rows[:, ROW_OUTPUTS] = prefill, decode, decode
    rows[:, CONTEXT_TOKENS], rows[:, ROW_EMITTED] = context, alive
    rows[:, ROW_RUNNING], rows[:, ROW_FINISHED] = ended, alive - ended
    rows[:-1, ROW_USED] = batch * -(-(prompt + steps[:-1] + 1) // block_tokens)
    rows[0, ROW_NEW] = batch
    requests["queued_s"][chosen] = requests["arrival_s"][chosen]
    requests["scheduled_s"][chosen] = begin_s
    requests["first_s"][chosen], requests["last_s"][chosen] = ends[0], ends[output - 1]
    requests["emitted"][chosen], requests["computed"][chosen] = output, requests["prompt"][chosen] + output - 1
    requests["furthest"][chosen] = requests["computed"][chosen]
    return np.column_stack([ends, spent]), rows
