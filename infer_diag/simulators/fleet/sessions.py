"""A server that keeps the KV cache of chat sessions as tensors of their own: what its allocator makes of that.

Such servers (a pipeline with `past_key_values` kept per session) hold, beside the weights, tensors of many lengths that
are replaced by longer ones and dropped in another order than they came in. Whether the memory that is free in sum can
be used depends on the allocator's settings, which is what `Allocator` simulates.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import polars as pl

from infer_diag.simulators.allocators import Allocator, Counters, TorchSettings
from infer_diag.simulators.fleet.plan import GRAPH_BYTES, Plan
from infer_diag.simulators.fleet.starts import Life
from infer_diag.simulators.serving import Simulation

_PARTS = 4
"""Tensors of one session: keys and values of half of the layers each."""
_SESSIONS = 400
"""Sessions that talk at a time; each request goes on with one of them."""
_TURN_KEPT_TOKENS = 3000
_WEIGHT_PARTS = 24
_LOG_KEPT = 4000


@dataclass(frozen=True, eq=False)
class Wear:
    """The allocator at the end of a life: when an allocation failed (null: none did), of how many bytes, its counters.

    `blocks`: Blocks frame of that moment, `events` the last of its events.
    """

    failed_s: float | None
    wanted_bytes: int
    counters: Counters
    limit_bytes: int
    blocks: pl.DataFrame
    events: pl.DataFrame


def wear(plan: Plan, done: Simulation, life: Life) -> Wear:
    """The life's requests through the allocator in the order in which they were begun."""
    limit = int(plan.hardware.memory_bytes - GRAPH_BYTES)
    allocator = Allocator(TorchSettings(expandable_segments=plan.expandable_segments), limit_bytes=limit)
    for _ in range(_WEIGHT_PARTS):
        allocator.malloc(int(plan.weight_bytes / _WEIGHT_PARTS))
    server = _Sessions(allocator, plan, (limit - plan.weight_bytes) * plan.session_cache_ratio)
    random = np.random.default_rng(plan.seed(f"sessions {life.acquired_s:.0f}"))
    fared = done.requests.sort("scheduled_s").select("scheduled_s", "prompt_tokens", "output_tokens")
    failed_s, wanted = None, 0
    for scheduled_s, prompt, output in fared.drop_nulls("scheduled_s").iter_rows():
        wanted = server.turn(int(random.integers(_SESSIONS)), int(prompt), int(output))
        if wanted:
            failed_s = life.ready_s + scheduled_s
            break
    recording = allocator.recording()
    if failed_s is not None and failed_s >= life.ended_s:
        failed_s = None
    events = recording.allocator_events.tail(_LOG_KEPT)
    return Wear(failed_s, wanted, allocator.counters, limit, recording.blocks, events)


class _Sessions:
    """Sessions with their tensors, the one used longest ago first; `budget` is of the bytes that they ask for."""

    def __init__(self, allocator: Allocator, plan: Plan, budget: float) -> None:
        self.allocator, self.budget = allocator, budget
        self.token_bytes = plan.shape.kv_bytes_per_token
        self.prompt_bytes = 12.0 * plan.shape.query_heads * plan.shape.head_dim
        self.held: OrderedDict[int, tuple[int, list[int]]] = OrderedDict()
        self.asked = 0.0

    def turn(self, session: int, prompt: int, output: int) -> int:
        """One request of a session: 0, or the bytes of the allocation that failed."""
        before, old = self.held.pop(session, (0, []))
        self.asked -= before * self.token_bytes
        tokens = min(before + prompt, _TURN_KEPT_TOKENS) + output
        self._evict(tokens * self.token_bytes)
        work = self.allocator.malloc(int(prompt * self.prompt_bytes))
        if work is None:
            return int(prompt * self.prompt_bytes)
        fresh = []
        for _ in range(_PARTS):
            address = self.allocator.malloc(int(tokens * self.token_bytes / _PARTS))
            if address is None:
                return int(tokens * self.token_bytes / _PARTS)
            fresh.append(address)
        # The old tensors are read while the longer ones are written, and go afterwards.
        for address in (*old, work):
            self.allocator.free(address)
        self.held[session] = (tokens, fresh)
        self.asked += tokens * self.token_bytes
        return 0

    def _evict(self, need: float) -> None:
        while self.held and self.asked + need > self.budget:
            _, (tokens, addresses) = self.held.popitem(last=False)
            self.asked -= tokens * self.token_bytes
            for address in addresses:
                self.allocator.free(address)
