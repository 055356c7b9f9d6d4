"""The article's "slab" with 2 and 16 MiB units, of which only the rounding is specified; the rest is declared here.

Requests up to 4 MiB take multiples of 2 MiB, others multiples of 16 MiB. Reading A is one arena of the whole device
with best fit, cutting and joining. Reading B keeps slabs of equal slots for each size: as many slots as fit into
64 MiB, or one; the slot freed last is used first, and a slab without live slots goes back to the driver.
"""

from __future__ import annotations

from typing import NamedTuple

from infer_diag.simulators.allocators.blocks import (
    best_fit,
    cut,
    hand_out,
    hand_out_cut,
    idle,
    new_segment,
    refuse,
    return_segment,
    rounded,
    swallow_next,
    take_back,
    take_back_joined,
)
from infer_diag.simulators.allocators.compiled import compiled
from infer_diag.simulators.allocators.free_sets import first_from, insert, remove
from infer_diag.simulators.allocators.heap import (
    AWAITED,
    DEVICE_MALLOCS,
    IDLE,
    RESERVED,
    SMALL_SET,
    Heap,
    Records,
)

UNIT = 2 << 20
LARGE_UNIT = 16 << 20
_UNIT_UP_TO = 4 << 20
SLAB = 64 << 20
_CLOCK_BITS = 36


class SlabPolicy(NamedTuple):
    """`limit` of the device in bytes; `is_classed` chooses reading B."""

    limit: int
    is_classed: int


@compiled
def slot_size(size: int) -> int:
    """What a request takes in either reading."""
    return rounded(size, UNIT if size <= _UNIT_UP_TO else LARGE_UNIT)


@compiled
def serve(policy: SlabPolicy, heap: Heap, log: Records, event: int, requested: int, arena: int) -> int:
    """The node that serves a request, or `NOTHING` where it fails."""
    size, free_set = slot_size(requested), heap.sets[SMALL_SET]
    if policy.is_classed:
        node = _slot(policy, heap, log, event, free_set, size)
        return (
            hand_out(heap, log, event, node, requested) if node >= 0 else _refused(heap, log, event, arena, requested)
        )
    if heap.counts[DEVICE_MALLOCS] == 0:
        idle(heap, new_segment(heap, log, event, 0, free_set, policy.limit // UNIT * UNIT))
    node = best_fit(heap, free_set, size)
    if node < 0:
        return _refused(heap, log, event, arena, requested)
    return hand_out_cut(heap, log, event, node, size, requested)


@compiled
def give_back(policy: SlabPolicy, heap: Heap, log: Records, event: int, node: int) -> None:
    """Takes a block back; in reading B a slab that is empty then goes back to the driver."""
    if not policy.is_classed:
        take_back_joined(heap, log, event, node)
        return
    take_back(heap, log, event, node)
    newest = (1 << _CLOCK_BITS) - 1 - event
    insert(heap, heap.sets[SMALL_SET], node, _class(heap.nodes[node].size) + newest)
    first = node
    while heap.nodes[first].before >= 0:
        first = heap.nodes[first].before
    at = first
    while at >= 0 and heap.nodes[at].state == IDLE:
        at = heap.nodes[at].after
    if at >= 0:
        return
    remove(heap, first)
    while heap.nodes[first].after >= 0:
        remove(heap, heap.nodes[first].after)
        swallow_next(heap, first)
    return_segment(heap, log, event, first)


@compiled
def trim(policy: SlabPolicy, heap: Heap, log: Records, event: int) -> None:
    """Waits for the streams; nothing else is idle that could go back."""
    while heap.counts[AWAITED] >= 0:
        give_back(policy, heap, log, event, heap.counts[AWAITED])


@compiled
def _class(size: int) -> int:
    """Where the slots of a size begin among the ranks of the free set."""
    return size // UNIT << _CLOCK_BITS


@compiled
def _slot(policy: SlabPolicy, heap: Heap, log: Records, event: int, free_set: int, size: int) -> int:
    """A slot of this size, of a new slab where all are taken; in no set any more. -1 without room for a slab."""
    node = first_from(heap, free_set, _class(size), 0)
    if node >= 0 and heap.nodes[node].size == size:
        remove(heap, node)
        return node
    wanted = max(SLAB // size * size, size)
    if heap.counts[RESERVED] + wanted > policy.limit:
        return -1
    node = new_segment(heap, log, event, 0, free_set, wanted)
    at, oldest = node, (1 << _CLOCK_BITS) - 1
    while heap.nodes[at].size > size:
        at = cut(heap, at, size)
        insert(heap, free_set, at, _class(size) + oldest)
    return node


@compiled
def _refused(heap: Heap, log: Records, event: int, arena: int, requested: int) -> int:
    return refuse(heap, log, event, arena, slot_size(requested), requested)
