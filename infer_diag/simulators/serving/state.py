"""What a simulated engine holds while it runs: arrays in named tuples, as the compiled loops take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Places = NDArray[np.int32]
Floats = NDArray[np.float64]

END_S, DURATION_S = range(2)
REPLICA, PREFILL_COUNT, DECODE_COUNT, PREFILL_TOKENS, DECODE_TOKENS, CONTEXT_TOKENS = range(6)
ROW_RECOMPUTED, ROW_PREEMPTED, ROW_CACHED, ROW_NEW = range(6, 10)
ROW_RUNNING, ROW_WAITING, ROW_SWAPPED, ROW_USED, ROW_FINISHED, ROW_EMITTED, ROW_OUTPUTS = range(10, 17)
"""Columns of the steps' times and counts; those from ROW_RUNNING on tell of the engine when the step has ended."""
ROW_COUNTS = 17

NOT_SENT, QUEUED, AT_WORK, SWAPPED_OUT, FINISHED = range(5)
"""Values of `stage` in REQUEST."""

VLLM_V1, VLLM_V0, ORCA, PUNICA = range(4)
"""Values of `Limits.policy`."""


REQUEST = np.dtype(
    [(name, np.float64) for name in ("arrival_s", "key", "queued_s", "scheduled_s", "first_s", "last_s")]
    + [(name, np.int64) for name in ("own_content", "shared_content")]
    + [(name, np.int32) for name in ("prompt", "output", "reserved", "adapter", "shared_blocks", "stage", "computed")]
    + [(name, np.int32) for name in ("emitted", "furthest", "cached", "preempted", "held", "slot", "behind", "ahead")]
    + [("replica", np.int32)],
    align=True,
)
"""A request: what is asked, up to `shared_blocks`, how far it is, and when it got there.

`key` orders a queue that is not first come, first served; `furthest` is the most tokens that were ever computed of it;
`behind` and `ahead` are its neighbours in the queue.
"""
SEQUENCE = np.dtype([(name, np.int32) for name in ("running", "planned", "planned_tokens", "free_slot")], align=True)
"""Four lists of an engine, each as long as its sequence limit, filled up to the count of `NOW`."""
BLOCK = np.dtype([("content", np.int64), *((name, np.int32) for name in ("users", "before", "after"))], align=True)
"""A block of the KV pool: what it holds, who uses it, its neighbours among the free ones."""
ADAPTER = np.dtype([("ready_s", np.float64), ("users", np.int32)], align=True)
FLIGHT = np.dtype([(name, np.int32) for name in ("request", "emitted")], align=True)
"""A request of a step that has begun, and how many outputs it has when the step ends."""
NOW = np.dtype(
    [(name, np.int64) for name in ("running", "waiting", "head", "tail", "free", "first_free", "last_free", "planned")]
    + [(name, np.int64) for name in ("slots", "swapped", "preempted", "cached", "new", "moved", "carried")],
    align=True,
)
"""An engine's counts; from `preempted` on they are of the step being planned.

`carried`: preemptions of plans that came to nothing, told with the next step.
"""

Requests = Any
"""An array of REQUEST; numba reads its fields as attributes, which numpy's own types do not have."""


class Limits(NamedTuple):
    """The engine's settings as the compiled loops take them."""

    policy: int
    max_seqs: int
    max_batch_tokens: int
    block_tokens: int
    long_prefill_tokens: int
    chunked: bool
    caching: bool
    whole_prompt_fits: bool
    ordered: bool
    swap: bool
    depth: int
    max_adapters: int
    one_adapter: bool
    resort_count: int
    resort_load_ratio: float
    resort_s: float
    swap_block_s: float
    adapter_load_s: float
    adapter_step_s: float
    adapter_token_s: float
    watermark_blocks: int
    swap_blocks: int


class Engine(NamedTuple):
    """One engine: its counts, its lists, its KV pool, its adapters and the steps that have begun."""

    now: Any
    seqs: Any
    table: Places
    blocks: Any
    place: Places
    swapped: Places
    adapters: Any
    flights: Any
    flight_size: Places
    flight_row: Places


def new_engines(requests: Requests, limits: Limits, engines: int, blocks: int, contents: int, longest: int) -> Engine:
    """Idle engines side by side, each array with one more dimension in front.

    The pool of each has `blocks` blocks, and a request holds `longest` of them at most.
    """
    seqs = np.zeros((engines, limits.max_seqs), SEQUENCE)
    seqs["free_slot"] = np.arange(limits.max_seqs)
    pool = np.zeros((engines, blocks), BLOCK)
    pool["content"] = -1
    pool["before"] = np.arange(blocks) - 1
    pool["after"] = np.where(np.arange(blocks) < blocks - 1, np.arange(blocks) + 1, -1)
    adapters = np.zeros((engines, int(requests["adapter"].max()) + 1), ADAPTER)
    adapters["ready_s"] = np.inf
    now = np.zeros((engines, 1), NOW)
    now["head"] = now["tail"] = -1
    now["free"], now["last_free"], now["slots"] = blocks, blocks - 1, limits.max_seqs
    return Engine(
        now=now,
        seqs=seqs,
        table=np.zeros((engines, limits.max_seqs, longest), np.int32),
        blocks=pool,
        place=np.full((engines, contents if limits.caching else 1), -1, np.int32),
        swapped=np.zeros((engines, len(requests) if limits.swap else 1), np.int32),
        adapters=adapters,
        flights=np.zeros((engines, limits.depth, limits.max_seqs), FLIGHT),
        flight_size=np.zeros((engines, limits.depth), np.int32),
        flight_row=np.full((engines, limits.depth), -1, np.int32),
    )


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a loop leaves: when each step ended and what it did, how each request fared, blocks of the pool if known.

    `requests` is an array of REQUEST, the served ones in order of arrival. A pool's blocks are those of one engine.
    """

    times: Floats
    rows: Places
    requests: Requests
    pool_blocks: int | None
