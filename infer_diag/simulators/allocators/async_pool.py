"""An approximation of the driver's own pool (`cudaMallocAsync`): its policy is not public, so this is no replica.

Addresses are apart from memory, memory comes in steps of 32 MiB, the best fitting idle range serves a request, and
all streams reuse what any of them freed, as with the three reuse attributes on by default. Above the release threshold
idle steps go back when the program synchronises, which here is when it empties its cache or a request would fail.
"""

from __future__ import annotations

from typing import NamedTuple

from infer_diag.simulators.allocators.blocks import best_fit, hand_out_cut, refuse, rounded, take_back_joined
from infer_diag.simulators.allocators.compiled import compiled
from infer_diag.simulators.allocators.heap import AWAITED, LARGE_SET, RETRIES, Heap, Records
from infer_diag.simulators.allocators.torch_expandable import expanded, unmap_set

GRAIN = 512
STEP_BYTES = 32 << 20


class AsyncPolicy(NamedTuple):
    """`limit`, `step` and `keep` (the release threshold) in bytes."""

    limit: int
    step: int
    keep: int


@compiled
def serve(policy: AsyncPolicy, heap: Heap, log: Records, event: int, requested: int, arena: int) -> int:
    """The node that serves a request, or `NOTHING` where it fails."""
    size = rounded(requested, GRAIN)
    node = best_fit(heap, heap.sets[LARGE_SET], size)
    if node < 0:
        node = expanded(policy.limit, heap, log, event, 0, size, policy.step)
    if node < 0:
        _release(policy, heap, log, event, 0)
        heap.counts[RETRIES] += 1
        node = expanded(policy.limit, heap, log, event, 0, size, policy.step)
    if node < 0:
        return refuse(heap, log, event, arena, size, requested)
    return hand_out_cut(heap, log, event, node, size, requested)


@compiled
def give_back(policy: AsyncPolicy, heap: Heap, log: Records, event: int, node: int) -> None:
    """Takes a block back into the pool."""
    take_back_joined(heap, log, event, node)


@compiled
def trim(policy: AsyncPolicy, heap: Heap, log: Records, event: int) -> None:
    """What a synchronisation does: idle steps above the release threshold go back."""
    _release(policy, heap, log, event, policy.keep)


@compiled
def _release(policy: AsyncPolicy, heap: Heap, log: Records, event: int, keep: int) -> None:
    while heap.counts[AWAITED] >= 0:
        give_back(policy, heap, log, event, heap.counts[AWAITED])
    unmap_set(heap, log, event, heap.sets[LARGE_SET], keep)
