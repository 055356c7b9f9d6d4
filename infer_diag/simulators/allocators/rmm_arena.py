"""RMM's arenas: one block taken at the beginning, superblocks lent to streams, first fit by address on both levels.

Requests above 1 MiB are served by the global arena, others by the stream's own, which borrows superblocks of at least
1 MiB and returns them only when a request would fail. Empty superblocks that touch become one in the global arena.
Source: rapidsai/rmm at commit 5d50a37; without its optional size classes.

A block's `origin` is the begin of its superblock. The global arena's idle blocks are in the set `LARGE_SET` of arena 0,
those of a stream in `SMALL_SET` of its arena, both ordered by address.
"""

from __future__ import annotations

from typing import NamedTuple

from infer_diag.simulators.allocators.blocks import cut, hand_out, joined, new_segment, refuse, rounded, take_back
from infer_diag.simulators.allocators.compiled import compiled
from infer_diag.simulators.allocators.free_sets import first_fit, first_from, insert, remove
from infer_diag.simulators.allocators.heap import (
    AWAITED,
    DEVICE_MALLOCS,
    IDLE,
    LARGE_SET,
    NOTHING,
    RETRIES,
    SETS_PER_ARENA,
    SMALL_SET,
    Heap,
    Records,
)

GRAIN = 256
SUPERBLOCK = 1 << 20


class RmmArenaPolicy(NamedTuple):
    """`size` of the global arena and `limit` of the device in bytes."""

    limit: int
    size: int


@compiled
def serve(policy: RmmArenaPolicy, heap: Heap, log: Records, event: int, requested: int, arena: int) -> int:
    """The node that serves a request, or `NOTHING` where it fails."""
    size = rounded(requested, GRAIN)
    if heap.counts[DEVICE_MALLOCS] == 0:
        whole = new_segment(heap, log, event, 0, heap.sets[LARGE_SET], policy.size)
        insert(heap, heap.sets[LARGE_SET], whole, 0)
    node = _found(heap, arena, size)
    if node < 0:
        trim(policy, heap, log, event)
        heap.counts[RETRIES] += 1
        node = _found(heap, arena, size)
    if node < 0:
        return refuse(heap, log, event, arena, size, requested)
    if heap.nodes[node].size > size:
        insert(heap, heap.nodes[node].free_set, cut(heap, node, size), 0)
    return hand_out(heap, log, event, node, requested)


@compiled
def give_back(policy: RmmArenaPolicy, heap: Heap, log: Records, event: int, node: int) -> None:
    """Takes a block back into its superblock; an empty one of the global arena joins its empty neighbours."""
    take_back(heap, log, event, node)
    node = joined(heap, node)
    free_set = heap.nodes[node].free_set
    if free_set == heap.sets[LARGE_SET]:
        node = _with_empty_neighbours(heap, node)
    insert(heap, free_set, node, 0)


@compiled
def trim(policy: RmmArenaPolicy, heap: Heap, log: Records, event: int) -> None:
    """Waits for the streams and returns every stream's superblocks, empty or not, to the global arena."""
    while heap.counts[AWAITED] >= 0:
        give_back(policy, heap, log, event, heap.counts[AWAITED])
    shared = heap.sets[LARGE_SET]
    for arena in range(len(heap.is_private)):
        own = heap.sets[SETS_PER_ARENA * arena + SMALL_SET]
        node = first_from(heap, own, 0, 0)
        while node >= 0:
            _move(heap, node, shared)
            remove(heap, node)
            insert(heap, shared, _with_empty_neighbours(heap, node), 0)
            node = first_from(heap, own, 0, 0)


@compiled
def _found(heap: Heap, arena: int, size: int) -> int:
    """An idle block of at least this size in the set of the arena that serves it, taken out of it."""
    shared, own = heap.sets[LARGE_SET], heap.sets[SETS_PER_ARENA * arena + SMALL_SET]
    node = NOTHING if size > SUPERBLOCK else first_fit(heap, own, size)
    if node < 0:
        node = first_fit(heap, shared, size)
        if node >= 0:
            least = max(SUPERBLOCK, size)
            if _is_empty(heap, node) and heap.nodes[node].size >= least + SUPERBLOCK:
                remove(heap, node)
                rest = cut(heap, node, least)
                heap.nodes[rest].origin = heap.nodes[rest].address
                insert(heap, shared, rest, 0)
                insert(heap, shared, node, 0)
            if size <= SUPERBLOCK:
                _move(heap, node, own)
    if node >= 0:
        remove(heap, node)
    return node


@compiled
def _is_empty(heap: Heap, node: int) -> bool:
    """Whether an idle block is all of its superblock."""
    before, after, origin = heap.nodes[node].before, heap.nodes[node].after, heap.nodes[node].origin
    begins = before < 0 or heap.nodes[before].origin != origin
    return bool(begins and (after < 0 or heap.nodes[after].origin != origin))


@compiled
def _move(heap: Heap, node: int, free_set: int) -> None:
    """Puts every block of a superblock under another arena."""
    origin, at = heap.nodes[node].origin, node
    while heap.nodes[at].before >= 0 and heap.nodes[heap.nodes[at].before].origin == origin:
        at = heap.nodes[at].before
    while at >= 0 and heap.nodes[at].origin == origin:
        if heap.nodes[at].state == IDLE:
            remove(heap, at)
            insert(heap, free_set, at, 0)
        heap.nodes[at].free_set = free_set
        at = heap.nodes[at].after


@compiled
def _with_empty_neighbours(heap: Heap, node: int) -> int:
    """An idle block, in no set, joined with neighbouring superblocks of the global arena if it and they are empty."""
    if not _is_empty(heap, node):
        return node
    shared = heap.nodes[node].free_set
    before, after = heap.nodes[node].before, heap.nodes[node].after
    if after >= 0 and _is_free_superblock(heap, after, shared):
        heap.nodes[after].origin = heap.nodes[node].origin
    if before >= 0 and _is_free_superblock(heap, before, shared):
        heap.nodes[node].origin = heap.nodes[before].origin
        if after >= 0 and _is_free_superblock(heap, after, shared):
            heap.nodes[after].origin = heap.nodes[before].origin
    return joined(heap, node)


@compiled
def _is_free_superblock(heap: Heap, node: int, shared: int) -> bool:
    return bool(heap.nodes[node].state == IDLE and heap.nodes[node].free_set == shared and _is_empty(heap, node))
