"""Findings that metrics can carry, as alerts: the same conditions and thresholds as in a diagnosis of the logs.

What metrics cannot tell has no alert: which requests wait, how long a start's phases last, how an allocator's free
blocks lie (a device's gauges hold sums and no block), and what lengths cost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from infer_diag.diagnose.finding import Severity
from infer_diag.diagnose.memory_growth import GROWTH_SHARE
from infer_diag.diagnose.pool import FREQUENT_RATIO, KV_FULL_RATIO
from infer_diag.diagnose.queueing import (
    IDLE_TOKENS_PER_S,
    KV_EMPTY_RATIO,
    KV_ROOM_RATIO,
    PERSISTENT_RATIO,
    PINNED_RATIO,
    PINNED_SHARE,
    UNDERFILLED_RATIO,
)
from infer_diag.diagnose.remedies import more_pool, setting
from infer_diag.diagnose.request_time import PREFILL_RATIO, QUEUE_RATIO
from infer_diag.observability.recorded_series import series

GPU_USED = "infer_diag:gpu_used:bytes"
"""Recorded series of a device: what is in use."""


@dataclass(frozen=True)
class Alert:
    """One alert on the recorded series of an engine; `{{name}}` in a text is Prometheus' own template.

    `needs`: recorded series (without `infer_diag:`) that the engine has to have. `condition`: from the engine's name to
    an expression. `threshold` says in words what the expression compares with, `source` where the number is defined.
    `for_s`: how long it has to hold before it fires. `states`: recorded 0/1 series that only this alert reads.
    """

    name: str
    finding: str
    severity: Severity
    needs: tuple[str, ...]
    condition: Callable[[str], str]
    threshold: str
    source: str
    for_s: int
    summary: str
    action: Callable[[str], str]
    states: tuple[tuple[str, Callable[[str], str]], ...] = ()


def _share_of_time(state: str, window: str, share: float) -> Callable[[str], str]:
    return lambda engine: f"avg_over_time({series(state, engine)}[{window}]) >= {share}"


def _kv_full(engine: str) -> str:
    full, waiting = series("kv_usage:ratio", engine), series("waiting:count", engine)
    return f"({full} >= bool {KV_FULL_RATIO})\n* ({waiting} > bool 0)"


def _at_limit(engine: str) -> str:
    running, waiting, used = (series(n, engine) for n in ("running:count", "waiting:count", "kv_usage:ratio"))
    return (
        f"({running} >= bool {PINNED_RATIO} * max_over_time({running}[1h]))\n"
        f"* ({running} > bool 0)\n"
        f"* ({waiting} > bool 0)\n"
        # Room for one more request of the mean size of those that run; 0/0 is compared as false.
        f"* ({used} * ({running} + 1) / {running} < bool {KV_ROOM_RATIO})"
    )


def _queued(engine: str) -> str:
    return f"{series('waiting:count', engine)} > bool 0"


def _stalled(engine: str) -> str:
    waiting, running, used = (series(n, engine) for n in ("waiting:count", "running:count", "kv_usage:ratio"))
    return f"({waiting} > 0)\nand ({running} == 0)\nand ({used} <= {KV_EMPTY_RATIO})"


def _standing(engine: str) -> str:
    running, used = series("running:count", engine), series("kv_usage:ratio", engine)
    made, read = series("output_tokens:rate5m", engine), series("prompt_tokens:rate5m", engine)
    return f"({running} > 0)\nand ({made} == 0)\nand ({read} == 0)\nand (changes({used}[5m]) == 0)"


def _waits_for_another_reason(engine: str) -> str:
    full, limit = series("kv_full_with_queue:bool", engine), series("at_limit_with_room:bool", engine)
    return (
        f"(avg_over_time({series('queued:bool', engine)}[15m]) >= {PERSISTENT_RATIO})\n"
        f"unless (avg_over_time({full}[15m]) >= {FREQUENT_RATIO})\n"
        f"unless (avg_over_time({limit}[15m]) >= {PINNED_SHARE})"
    )


def _part_of_requests(part: str, share: float) -> Callable[[str], str]:
    return lambda engine: f"{series(part, engine)}\n/ ({series('e2e_seconds:mean5m', engine)} > 0)\n>= {share}"


def _underfilled(engine: str) -> str:
    running, waiting, used = (series(n, engine) for n in ("running:count", "waiting:count", "kv_usage:ratio"))
    return (
        f"(max_over_time({used}[1h]) < {UNDERFILLED_RATIO})\n"
        f"and (max_over_time({waiting}[1h]) == 0)\n"
        f"and (avg_over_time({running}[1h]) > 0)"
    )


_POOL = ("kv_usage:ratio", "waiting:count")
_SCHEDULER = (*_POOL, "running:count")

ENGINE_ALERTS = (
    Alert(
        "KvPoolFull",
        "batching.kv_saturation",
        "high",
        _POOL,
        _share_of_time("kv_full_with_queue:bool", "10m", FREQUENT_RATIO),
        f"KV use >= {KV_FULL_RATIO} with requests waiting, in {FREQUENT_RATIO:.0%} of 10 minutes",
        "infer_diag.diagnose.pool: KV_FULL_RATIO, FREQUENT_RATIO",
        120,
        "The KV pool is full in {{ $value | humanizePercentage }} of the last 10 minutes while requests wait.",
        more_pool,
        (("kv_full_with_queue:bool", _kv_full),),
    ),
    Alert(
        "RequestsPreempted",
        "batching.preemption",
        "medium",
        ("preemptions:rate5m",),
        lambda engine: f"{series('preemptions:rate5m', engine)} > 0",
        "more than none, over 5 minutes at a time",
        "infer_diag.diagnose.pool: preemption",
        600,
        "Running requests lose their place in the KV pool {{ $value | humanize }} times a second; "
        "their work is done again.",
        lambda engine: (
            f"Lower {setting(engine, 'sequence_limit')} so that fewer sequences share the pool, or enlarge "
            f"the pool. {more_pool(engine)}"
        ),
    ),
    Alert(
        "SequenceLimitBinds",
        "batching.concurrency_cap",
        "high",
        _SCHEDULER,
        _share_of_time("at_limit_with_room:bool", "10m", PINNED_SHARE),
        f"running within {1 - PINNED_RATIO:.0%} of its maximum of an hour, requests waiting and room in the pool "
        f"(< {KV_ROOM_RATIO} with one more), in {PINNED_SHARE:.0%} of 10 minutes",
        "infer_diag.diagnose.queueing: PINNED_RATIO, KV_ROOM_RATIO, PINNED_SHARE",
        120,
        "Requests wait with room in the KV pool in {{ $value | humanizePercentage }} of the last 10 minutes: a limit "
        "on sequences binds (modelled: metrics do not state the limit).",
        lambda engine: (
            f"Raise {setting(engine, 'sequence_limit')} and watch the time per output token, which grows "
            "with the batch."
        ),
        (("at_limit_with_room:bool", _at_limit),),
    ),
    Alert(
        "SchedulerStalled",
        "batching.scheduler_stall",
        "high",
        _SCHEDULER,
        _stalled,
        f"requests wait, none runs, KV use <= {KV_EMPTY_RATIO}",
        "infer_diag.diagnose.queueing: KV_EMPTY_RATIO",
        60,
        "{{ $value | humanize }} requests wait while nothing runs and the KV pool is empty.",
        lambda engine: (
            "Look in the engine's log for a worker that died or hangs, an adapter or KV transfer that "
            "requests wait for, or a paused engine; a restart clears it."
        ),
    ),
    Alert(
        "EngineStandsStill",
        "batching.scheduler_stall",
        "high",
        ("running:count", "kv_usage:ratio", "output_tokens:rate5m", "prompt_tokens:rate5m"),
        _standing,
        f"requests run, no token goes in or out (diagnosed below {IDLE_TOKENS_PER_S:g}/s), the pool does not move",
        "infer_diag.diagnose.queueing: standstill",
        60,
        "{{ $value | humanize }} requests run and no token has gone in or come out for 5 minutes.",
        lambda engine: (
            "Look in the log for a worker that died or hangs, and at the stacks of the engine's processes "
            "(py-spy); the requests end only with a restart."
        ),
    ),
    Alert(
        "RequestsQueue",
        "batching.queue",
        "medium",
        _SCHEDULER,
        _waits_for_another_reason,
        f"requests wait in {PERSISTENT_RATIO:.0%} of 15 minutes, and neither pool nor sequence limit is seen to bind",
        "infer_diag.diagnose.queueing: PERSISTENT_RATIO",
        300,
        "Requests wait in {{ $value | humanizePercentage }} of the last 15 minutes; neither limit is seen to bind.",
        lambda engine: (
            f"Demand exceeds what this engine takes in: raise {setting(engine, 'token_budget')} if prompts "
            "are what waits, or add a replica."
        ),
        (("queued:bool", _queued),),
    ),
    Alert(
        "QueueTimeDominates",
        "batching.queue",
        "medium",
        ("queue_seconds:mean5m", "e2e_seconds:mean5m"),
        _part_of_requests("queue_seconds:mean5m", QUEUE_RATIO),
        f"{QUEUE_RATIO:.0%} of the time of the requests that finish",
        "infer_diag.diagnose.request_time: QUEUE_RATIO",
        600,
        "{{ $value | humanizePercentage }} of the requests' time is spent in the queue.",
        lambda engine: "Computing is not the problem: add a replica, or raise the limit that keeps requests out.",
    ),
    Alert(
        "PrefillDominates",
        "batching.prefill_bound",
        "medium",
        ("prefill_seconds:mean5m", "e2e_seconds:mean5m"),
        _part_of_requests("prefill_seconds:mean5m", PREFILL_RATIO),
        f"{PREFILL_RATIO:.0%} of the time of the requests that finish",
        "infer_diag.diagnose.request_time: PREFILL_RATIO",
        900,
        "{{ $value | humanizePercentage }} of the requests' time goes into their prompts.",
        lambda engine: (
            f"Reuse prefixes, shorten prompts, or compute more of a prompt at once ({setting(engine, 'token_budget')})."
        ),
    ),
    Alert(
        "EngineUnderfilled",
        "batching.underfilled",
        "info",
        _SCHEDULER,
        _underfilled,
        f"KV use < {UNDERFILLED_RATIO} and nobody waiting over an hour in which requests ran",
        "infer_diag.diagnose.queueing: UNDERFILLED_RATIO",
        3600,
        "The KV pool has not been above {{ $value | humanizePercentage }} for an hour and nobody waits: demand limits "
        "the batch.",
        lambda engine: "Not a fault. Fewer replicas with the same load, or work that can wait, would fill the batch.",
    ),
)
"""Alerts on an engine's recorded series, each where the engine has what it needs."""

DEVICE_ALERTS = (
    Alert(
        "GpuMemoryGrows",
        "memory.growth",
        "medium",
        (),
        lambda _: (
            f"({GPU_USED} - {GPU_USED} offset 6h)\n/ {GPU_USED}\n>= {GROWTH_SHARE}\n"
            f"and (min_over_time({GPU_USED}[1h]) > max_over_time({GPU_USED}[1h] offset 5h))\n"
            # An engine that starts fills the device; that is no growth over a life.
            f"and (min_over_time({GPU_USED}[6h]) >= 0.5 * {GPU_USED})"
        ),
        f"{GROWTH_SHARE:.0%} of what is in use, over 6 hours, the last hour wholly above the first, no start within",
        "infer_diag.diagnose.memory_growth: GROWTH_SHARE",
        1800,
        "Memory in use grew by {{ $value | humanizePercentage }} of what is in use now, in 6 hours without a start.",
        lambda _: (
            "A device's gauges hold sums: they tell neither who holds the memory nor how the free blocks lie. "
            "Take snapshots of the framework's allocator early and late in a life "
            "(torch.cuda.memory._dump_snapshot) and compare them."
        ),
    ),
)
"""Alerts on the recorded series of devices."""
