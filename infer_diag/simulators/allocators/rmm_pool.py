"""RMM's pool: best fit, every rest cut off, grown by doubling or by half of what is left; never given back.

Source: rapidsai/rmm at commit 5d50a37. RMM keeps one list of idle blocks a stream and joins them when a request finds
nothing in its own; here all streams share one list, which is what a request that would fail finds.
"""

from __future__ import annotations

from typing import NamedTuple

from infer_diag.simulators.allocators.blocks import (
    best_fit,
    hand_out_cut,
    idle,
    new_segment,
    refuse,
    rounded,
    take_back_joined,
)
from infer_diag.simulators.allocators.compiled import compiled
from infer_diag.simulators.allocators.heap import (
    AWAITED,
    DEVICE_MALLOCS,
    NOTHING,
    RESERVED,
    RETRIES,
    SMALL_SET,
    UNLIMITED,
    Heap,
    Records,
)

GRAIN = 256


class RmmPoolPolicy(NamedTuple):
    """`limit` (the device), `initial` and `maximum` size of the pool in bytes; `UNLIMITED` where there is none."""

    limit: int
    initial: int
    maximum: int


@compiled
def serve(policy: RmmPoolPolicy, heap: Heap, log: Records, event: int, requested: int, arena: int) -> int:
    """The node that serves a request, or `NOTHING` where it fails."""
    size = rounded(requested, GRAIN)
    free_set = heap.sets[SMALL_SET]
    if heap.counts[DEVICE_MALLOCS] == 0 and policy.initial > 0:
        idle(heap, new_segment(heap, log, event, 0, free_set, policy.initial))
    node = best_fit(heap, free_set, size)
    if node < 0 and heap.counts[AWAITED] >= 0:
        trim(policy, heap, log, event)
        node = best_fit(heap, free_set, size)
    if node < 0:
        node = _grown(policy, heap, log, event, free_set, size)
    if node < 0:
        return refuse(heap, log, event, arena, size, requested)
    return hand_out_cut(heap, log, event, node, size, requested)


@compiled
def _grown(policy: RmmPoolPolicy, heap: Heap, log: Records, event: int, free_set: int, size: int) -> int:
    reserved = heap.counts[RESERVED]
    if policy.maximum < UNLIMITED:
        if reserved + size > policy.maximum:
            return NOTHING
        wanted = max(size, rounded((policy.maximum - reserved) // 2, GRAIN))
    else:
        wanted = max(size, reserved)
    while reserved + wanted > policy.limit:
        if wanted == size:
            return NOTHING
        heap.counts[RETRIES] += 1
        wanted = max(size, rounded(wanted // 2, GRAIN))
    return new_segment(heap, log, event, 0, free_set, wanted)


@compiled
def give_back(policy: RmmPoolPolicy, heap: Heap, log: Records, event: int, node: int) -> None:
    """Takes a block back into the pool."""
    take_back_joined(heap, log, event, node)


@compiled
def trim(policy: RmmPoolPolicy, heap: Heap, log: Records, event: int) -> None:
    """Waits for the streams; the pool gives nothing back before it is destroyed."""
    while heap.counts[AWAITED] >= 0:
        give_back(policy, heap, log, event, heap.counts[AWAITED])
