"""CuPy's memory pool: exact sizes, one arena a stream, best fit, every rest cut off; a miss is one call of the driver.

Source: cupy/cuda/memory.pyx at v14.2.0. Not modelled: the collection of Python's garbage before the last attempt.
"""

from __future__ import annotations

from typing import NamedTuple

from infer_diag.simulators.allocators.blocks import (
    best_fit,
    hand_out_cut,
    new_segment,
    refuse,
    return_whole_segments,
    rounded,
    take_back_joined,
)
from infer_diag.simulators.allocators.compiled import compiled
from infer_diag.simulators.allocators.heap import (
    AWAITED,
    RESERVED,
    RETRIES,
    SETS_PER_ARENA,
    SMALL_SET,
    Heap,
    Records,
)

GRAIN = 512


class CupyPolicy(NamedTuple):
    """`limit` in bytes (`MemoryPool.set_limit` or the device), `UNLIMITED` where there is none; `grain` is 512."""

    limit: int
    grain: int


@compiled
def serve(policy: CupyPolicy, heap: Heap, log: Records, event: int, requested: int, arena: int) -> int:
    """The node that serves a request, or `NOTHING` where it fails."""
    size = rounded(requested, policy.grain)
    free_set = heap.sets[SETS_PER_ARENA * arena + SMALL_SET]
    node = best_fit(heap, free_set, size)
    if node < 0:
        if heap.counts[RESERVED] + size > policy.limit:
            trim(policy, heap, log, event)
            heap.counts[RETRIES] += 1
        if heap.counts[RESERVED] + size > policy.limit:
            return refuse(heap, log, event, arena, size, requested)
        node = new_segment(heap, log, event, arena, free_set, size)
    return hand_out_cut(heap, log, event, node, size, requested)


@compiled
def give_back(policy: CupyPolicy, heap: Heap, log: Records, event: int, node: int) -> None:
    """Takes a block back into the pool."""
    take_back_joined(heap, log, event, node)


@compiled
def trim(policy: CupyPolicy, heap: Heap, log: Records, event: int) -> None:
    """`free_all_blocks`: gives every chunk that nobody uses back to the driver."""
    while heap.counts[AWAITED] >= 0:
        give_back(policy, heap, log, event, heap.counts[AWAITED])
    for arena in range(len(heap.is_private)):
        return_whole_segments(heap, log, event, heap.sets[SETS_PER_ARENA * arena + SMALL_SET])
