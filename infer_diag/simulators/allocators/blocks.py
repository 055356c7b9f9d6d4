"""What simulated pools do with blocks: take segments, cut a block, join idle neighbours, give memory back."""

from __future__ import annotations

from infer_diag.simulators.allocators.compiled import compiled
from infer_diag.simulators.allocators.free_sets import first_from, following, insert, remove
from infer_diag.simulators.allocators.heap import (
    ACTIVE,
    ALLOCATED,
    AWAITED,
    AWAITING,
    DEVICE_FREES,
    DEVICE_MALLOCS,
    FAILURES,
    IDLE,
    LIVE,
    NOTHING,
    REQUESTED,
    Heap,
    Records,
    book,
    driver_address,
    drop_node,
    reserve,
    take_node,
    write,
)
from infer_diag.simulators.allocators.kinds import ALLOC, FREE, FREE_REQUESTED, OOM, SEGMENT_ALLOC, SEGMENT_FREE


@compiled
def rounded(size: int, grain: int) -> int:
    """The smallest multiple of `grain` that is not below `size`, and at least one grain."""
    return max(1, (size + grain - 1) // grain) * grain


@compiled
def new_segment(heap: Heap, log: Records, event: int, arena: int, free_set: int, size: int) -> int:
    """A block as large as the segment that the driver is asked for; it is in no free set yet."""
    node = take_node(heap)
    heap.nodes[node].address = heap.nodes[node].origin = driver_address(heap, size, size)
    heap.nodes[node].size, heap.nodes[node].state = size, IDLE
    heap.nodes[node].before = heap.nodes[node].after = NOTHING
    heap.nodes[node].arena, heap.nodes[node].free_set = arena, free_set
    heap.counts[DEVICE_MALLOCS] += 1
    reserve(heap, size)
    write(heap, log, SEGMENT_ALLOC, event, node, size)
    return int(node)


@compiled
def cut(heap: Heap, node: int, size: int) -> int:
    """Shortens a block to `size` bytes; what is left over becomes the block after it, in no free set yet."""
    rest = take_node(heap)
    heap.nodes[rest].address = heap.nodes[node].address + size
    heap.nodes[rest].size, heap.nodes[rest].state = heap.nodes[node].size - size, heap.nodes[node].state
    heap.nodes[rest].before, heap.nodes[rest].after = node, heap.nodes[node].after
    heap.nodes[rest].arena, heap.nodes[rest].free_set = heap.nodes[node].arena, heap.nodes[node].free_set
    heap.nodes[rest].origin, heap.nodes[rest].chunk = heap.nodes[node].origin, heap.nodes[node].chunk
    if heap.nodes[node].after >= 0:
        heap.nodes[heap.nodes[node].after].before = rest
    heap.nodes[node].after, heap.nodes[node].size = rest, size
    return int(rest)


@compiled
def swallow_next(heap: Heap, node: int) -> None:
    """Joins a block with the one after it, which is in no free set any more."""
    gone = heap.nodes[node].after
    heap.nodes[node].size += heap.nodes[gone].size
    heap.nodes[node].after = heap.nodes[gone].after
    if heap.nodes[node].after >= 0:
        heap.nodes[heap.nodes[node].after].before = node
    drop_node(heap, gone)


@compiled
def joined(heap: Heap, node: int) -> int:
    """The block after it was joined with neighbours of its segment in its own state, which leave their free sets."""
    follower, previous = heap.nodes[node].after, heap.nodes[node].before
    if follower >= 0 and _alike(heap, node, follower):
        remove(heap, follower)
        swallow_next(heap, node)
    if previous >= 0 and _alike(heap, node, previous):
        remove(heap, previous)
        swallow_next(heap, previous)
        return int(previous)
    return int(node)


@compiled
def _alike(heap: Heap, node: int, other: int) -> bool:
    one, two = heap.nodes[node], heap.nodes[other]
    return bool(one.state == two.state and one.origin == two.origin)


@compiled
def is_whole(heap: Heap, node: int) -> bool:
    """Whether a block is all of its segment."""
    return bool(heap.nodes[node].before < 0 and heap.nodes[node].after < 0)


@compiled
def hand_out(heap: Heap, log: Records, event: int, node: int, requested: int) -> int:
    """Marks a block, in no free set any more, as live and writes it down."""
    heap.nodes[node].state, heap.nodes[node].requested = LIVE, requested
    book(heap, heap.nodes[node].size, requested)
    write(heap, log, ALLOC, event, node, heap.nodes[node].size)
    return node


@compiled
def refuse(heap: Heap, log: Records, event: int, arena: int, size: int, requested: int) -> int:
    """Writes a failed allocation down and returns `NOTHING`."""
    heap.counts[FAILURES] += 1
    node = take_node(heap)
    heap.nodes[node].address, heap.nodes[node].requested, heap.nodes[node].arena, heap.nodes[node].origin = (
        0,
        requested,
        arena,
        0,
    )
    write(heap, log, OOM, event, node, size)
    drop_node(heap, node)
    return NOTHING


@compiled
def take_back(heap: Heap, log: Records, event: int, node: int) -> None:
    """Marks a block as idle and writes that down; it is in no free set yet."""
    counts = heap.counts
    if heap.nodes[node].state == LIVE:
        counts[ALLOCATED] -= heap.nodes[node].size
    else:
        _forget_awaiting(heap, node)
    counts[ACTIVE] -= heap.nodes[node].size
    counts[REQUESTED] -= heap.nodes[node].requested
    write(heap, log, FREE, event, node, heap.nodes[node].size)
    heap.nodes[node].state, heap.nodes[node].requested, heap.nodes[node].owner = IDLE, 0, NOTHING


@compiled
def await_stream(heap: Heap, log: Records, event: int, node: int) -> None:
    """Marks a live block as freed by the program while a stream may still use it.

    `rank` and `age`, which only members of free sets use, link the awaiting blocks.
    """
    counts = heap.counts
    heap.nodes[node].state = AWAITING
    counts[ALLOCATED] -= heap.nodes[node].size
    heap.nodes[node].rank, heap.nodes[node].age = NOTHING, counts[AWAITED]
    if counts[AWAITED] >= 0:
        heap.nodes[counts[AWAITED]].rank = node
    counts[AWAITED] = node
    write(heap, log, FREE_REQUESTED, event, node, heap.nodes[node].size)


@compiled
def _forget_awaiting(heap: Heap, node: int) -> None:
    newer, older = heap.nodes[node].rank, heap.nodes[node].age
    if newer >= 0:
        heap.nodes[newer].age = older
    else:
        heap.counts[AWAITED] = older
    if older >= 0:
        heap.nodes[older].rank = newer


@compiled
def idle(heap: Heap, node: int) -> None:
    """Puts an idle block into its free set by size."""
    insert(heap, heap.nodes[node].free_set, node, heap.nodes[node].size)


@compiled
def take_back_joined(heap: Heap, log: Records, event: int, node: int) -> None:
    """Takes a block back, joins it with idle neighbours and puts what comes of it into its free set by size."""
    take_back(heap, log, event, node)
    idle(heap, joined(heap, node))


@compiled
def best_fit(heap: Heap, free_set: int, size: int) -> int:
    """The smallest idle block of a set that fits, the lowest among equals, taken out of it; `NOTHING` without one."""
    node = first_from(heap, free_set, size, 0)
    if node >= 0:
        remove(heap, node)
    return node


@compiled
def hand_out_cut(heap: Heap, log: Records, event: int, node: int, size: int, requested: int) -> int:
    """Hands out the low part of a block and puts what is left over, if anything, into its free set."""
    if heap.nodes[node].size > size:
        idle(heap, cut(heap, node, size))
    return hand_out(heap, log, event, node, requested)


@compiled
def return_segment(heap: Heap, log: Records, event: int, node: int) -> None:
    """Gives a segment that one idle block covers, in no free set any more, back to the driver."""
    heap.counts[DEVICE_FREES] += 1
    reserve(heap, -heap.nodes[node].size)
    write(heap, log, SEGMENT_FREE, event, node, heap.nodes[node].size)
    drop_node(heap, node)


@compiled
def return_whole_segments(heap: Heap, log: Records, event: int, free_set: int) -> int:
    """Gives every segment of a free set that nobody uses back to the driver; returns the bytes."""
    given = 0
    node = first_from(heap, free_set, 0, 0)
    while node >= 0:
        after = following(heap, node)
        if is_whole(heap, node) and heap.nodes[node].chunk == 0:
            given += heap.nodes[node].size
            remove(heap, node)
            return_segment(heap, log, event, node)
        node = after
    return given
