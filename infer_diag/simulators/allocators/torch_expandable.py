"""PyTorch's expandable segments: reserved addresses that take physical pages at their end and give any idle ones back.

An idle page range counts as large as it can grow, pages are mapped at the lowest address with room, and what is mapped
comes in whole chunks (2 MiB for small requests, 20 MiB for others). Source: as in `torch_pool`.
"""

from __future__ import annotations

from infer_diag.simulators.allocators.blocks import cut, joined
from infer_diag.simulators.allocators.compiled import compiled
from infer_diag.simulators.allocators.free_sets import first_from, following, insert, remove
from infer_diag.simulators.allocators.heap import (
    DEVICE_FREES,
    DEVICE_MALLOCS,
    IDLE,
    LARGE_SET,
    LARGE_UNMAPPED_SET,
    NOTHING,
    OFFERED_ADDRESS,
    OFFERED_SIZE,
    RESERVED,
    SETS_PER_ARENA,
    SMALL_SET,
    SMALL_UNMAPPED_SET,
    UNMAPPED,
    Heap,
    Records,
    driver_address,
    drop_node,
    reserve,
    take_node,
    write,
)
from infer_diag.simulators.allocators.kinds import SEGMENT_MAP, SEGMENT_UNMAP

SMALL_CHUNK = 2 << 20
LARGE_CHUNK = 20 << 20
LARGEST_SPACE = 1 << 42
"""Addresses of one segment where no limit of the device is known: more than any device has memory."""


@compiled
def expandable_size(heap: Heap, node: int) -> int:
    """What an idle block holds together with the addresses after it that no memory backs yet."""
    after = heap.nodes[node].after
    return int(
        heap.nodes[node].size + (heap.nodes[after].size if after >= 0 and heap.nodes[after].state == UNMAPPED else 0)
    )


@compiled
def expanded(limit: int, heap: Heap, log: Records, event: int, arena: int, size: int, chunk: int) -> int:
    """An idle block of at least this size with memory behind all of it, or `NOTHING` where the device has none left."""
    first = SETS_PER_ARENA * arena
    free_set = heap.sets[first + (SMALL_SET if chunk == SMALL_CHUNK else LARGE_SET)]
    spaces = heap.sets[first + (SMALL_UNMAPPED_SET if chunk == SMALL_CHUNK else LARGE_UNMAPPED_SET)]
    node = _room(heap, spaces, size)
    if node < 0:
        node = _new_space(limit, heap, arena, spaces, chunk)
    if heap.nodes[node].state == UNMAPPED:
        node = _mapped(limit, heap, log, event, node, min(size, heap.nodes[node].size), free_set, spaces)
    while node >= 0 and heap.nodes[node].size < size:
        after = heap.nodes[node].after
        wanted = min(size - heap.nodes[node].size, heap.nodes[after].size)
        node = _mapped(limit, heap, log, event, after, wanted, free_set, spaces)
    if node >= 0:
        remove(heap, node)
    return node


@compiled
def _room(heap: Heap, spaces: int, size: int) -> int:
    """The lowest block from which idle and unbacked ones reach over `size` bytes, or `NOTHING`."""
    space = first_from(heap, spaces, 0, 0)
    while space >= 0:
        first = space
        before = heap.nodes[space].before
        if before >= 0 and heap.nodes[before].state == IDLE:
            first = before
        found, node = 0, first
        while found < size and node >= 0 and (heap.nodes[node].state == IDLE or heap.nodes[node].state == UNMAPPED):
            found += heap.nodes[node].size
            node = heap.nodes[node].after
        if found >= size:
            return int(first)
        space = following(heap, space)
    return NOTHING


@compiled
def _new_space(limit: int, heap: Heap, arena: int, spaces: int, chunk: int) -> int:
    """Reserves addresses for 1 1/8 of the device and backs none of them."""
    size = min(limit + limit // 8, LARGEST_SPACE)
    size = (size + chunk - 1) // chunk * chunk
    node = take_node(heap)
    if heap.counts[OFFERED_SIZE] > 0:
        address = heap.counts[OFFERED_ADDRESS]
    else:
        address = driver_address(heap, size, size)
    heap.counts[OFFERED_SIZE] = 0
    heap.nodes[node].address = heap.nodes[node].origin = address
    heap.nodes[node].size, heap.nodes[node].state, heap.nodes[node].chunk = size, UNMAPPED, chunk
    heap.nodes[node].before = heap.nodes[node].after = NOTHING
    heap.nodes[node].arena = arena
    insert(heap, spaces, node, 0)
    return int(node)


@compiled
def _mapped(limit: int, heap: Heap, log: Records, event: int, node: int, size: int, free_set: int, spaces: int) -> int:
    """Backs the first `size` bytes, in whole chunks, of an unbacked block; the idle block that they end up in."""
    chunk = heap.nodes[node].chunk
    backed = min((size + chunk - 1) // chunk * chunk, heap.nodes[node].size)
    if heap.counts[RESERVED] + backed > limit:
        return NOTHING
    remove(heap, node)
    if backed < heap.nodes[node].size:
        insert(heap, spaces, cut(heap, node, backed), 0)
    heap.nodes[node].state, heap.nodes[node].free_set = IDLE, free_set
    heap.counts[DEVICE_MALLOCS] += 1
    reserve(heap, backed)
    write(heap, log, SEGMENT_MAP, event, node, backed)
    node = joined(heap, node)
    insert(heap, free_set, node, heap.nodes[node].size)
    return node


@compiled
def unmap_set(heap: Heap, log: Records, event: int, free_set: int, keep: int) -> None:
    """Takes the memory away from whole idle chunks of a free set's expandable segments until `keep` bytes are left."""
    node = first_from(heap, free_set, 0, 0)
    while node >= 0 and heap.counts[RESERVED] > keep:
        after = following(heap, node)
        if heap.nodes[node].chunk > 0:
            _unmap(heap, log, event, node, free_set)
        node = after


@compiled
def _unmap(heap: Heap, log: Records, event: int, node: int, free_set: int) -> None:
    chunk, begin = heap.nodes[node].chunk, heap.nodes[node].address - heap.nodes[node].origin
    low = (begin + chunk - 1) // chunk * chunk
    high = (begin + heap.nodes[node].size) // chunk * chunk
    if high <= low:
        return
    remove(heap, node)
    if low > begin:
        rest = cut(heap, node, low - begin)
        insert(heap, free_set, node, heap.nodes[node].size)
        node = rest
    if heap.nodes[node].size > high - low:
        rest = cut(heap, node, high - low)
        insert(heap, free_set, rest, heap.nodes[rest].size)
    heap.counts[DEVICE_FREES] += 1
    reserve(heap, low - high)
    write(heap, log, SEGMENT_UNMAP, event, node, high - low)
    heap.nodes[node].state = UNMAPPED
    place = SMALL_UNMAPPED_SET if chunk == SMALL_CHUNK else LARGE_UNMAPPED_SET
    node = joined(heap, node)
    if heap.nodes[node].before < 0 and heap.nodes[node].after < 0:
        drop_node(heap, node)
    else:
        insert(heap, heap.sets[SETS_PER_ARENA * heap.nodes[node].arena + place], node, 0)
