"""PyTorch's native CUDA caching allocator: which block serves, when it is cut, what happens when none fits.

Source: c10/cuda/CUDACachingAllocator.cpp of pytorch/pytorch at commit 001074d. Not modelled: the time that a call
takes, memory that other processes take meanwhile, and that allocations during the capture of a graph skip the last
retry.
"""

from __future__ import annotations

from typing import NamedTuple

from infer_diag.simulators.allocators.blocks import (
    cut,
    hand_out,
    idle,
    is_whole,
    new_segment,
    refuse,
    return_segment,
    return_whole_segments,
    rounded,
    take_back_joined,
)
from infer_diag.simulators.allocators.compiled import compiled
from infer_diag.simulators.allocators.free_sets import first_from, following, last_before, remove
from infer_diag.simulators.allocators.heap import (
    AWAITED,
    LARGE_SET,
    NOTHING,
    OFFERED_SIZE,
    RESERVED,
    RETRIES,
    SETS_PER_ARENA,
    SMALL_SET,
    UNLIMITED,
    Heap,
    Ints,
    Records,
)
from infer_diag.simulators.allocators.torch_expandable import (
    LARGE_CHUNK,
    SMALL_CHUNK,
    expandable_size,
    expanded,
    unmap_set,
)

GRAIN = 512
SMALL = 1 << 20
"""Requests up to a MiB come from small segments; a rest up to a MiB stays in a large block."""

SMALL_SEGMENT = 2 << 20
LARGE_SEGMENT = 20 << 20
_OWN_SEGMENT = 10 << 20
_SEGMENT_GRAIN = 2 << 20
_INTERVALS = 16


class TorchPolicy(NamedTuple):
    """`max_split`, `non_split_rounding`, `limit`, `allowed`, `collect_above` in bytes, `UNLIMITED` where there is none.

    `allowed` is the memory fraction's share of the device, `collect_above` where the collection of idle segments
    begins; `divisions` holds `roundup_power2_divisions` for sizes from 1 MiB, 2 MiB, … 32 GiB on.
    """

    max_split: int
    non_split_rounding: int
    collect_above: int
    is_expandable: int
    limit: int
    allowed: int
    divisions: Ints


@compiled
def rounded_request(policy: TorchPolicy, size: int) -> int:
    """What a request takes: a multiple of 512 B, or the next of so many equal steps between two powers of two."""
    if size < GRAIN:
        return GRAIN
    power = 0
    while size >> (power + 1):
        power += 1
    divisions = policy.divisions[min(max(power - 20, 0), _INTERVALS - 1)]
    if divisions <= 1 or size <= GRAIN * divisions:
        return rounded(size, GRAIN)
    floor = 1 << power
    step = floor // divisions
    return size if size == floor else (size + step - 1) // step * step


@compiled
def segment_size(size: int) -> int:
    """What the driver is asked for when no idle block serves a request of this rounded size."""
    if size <= SMALL:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if size < _OWN_SEGMENT else rounded(size, _SEGMENT_GRAIN)


@compiled
def serve(policy: TorchPolicy, heap: Heap, log: Records, event: int, requested: int, arena: int) -> int:
    """The node that serves a request, or `NOTHING` where it fails."""
    size = rounded_request(policy, requested)
    free_set = heap.sets[SETS_PER_ARENA * arena + (SMALL_SET if size <= SMALL else LARGE_SET)]
    node = _best_fit(policy, heap, free_set, size)
    if node < 0:
        _collect(policy, heap, log, event)
        node = _from_driver(policy, heap, log, event, arena, free_set, size)
        if node < 0 and _release_oversize(policy, heap, log, event, free_set, size):
            node = _from_driver(policy, heap, log, event, arena, free_set, size)
        if node < 0:
            trim(policy, heap, log, event)
            heap.counts[RETRIES] += 1
            node = _from_driver(policy, heap, log, event, arena, free_set, size)
        if node < 0:
            return refuse(heap, log, event, arena, size, requested)
    rest = heap.nodes[node].size - size
    if size <= SMALL or policy.is_expandable:
        cuts = rest >= GRAIN
    else:
        cuts = size < policy.max_split and rest > SMALL
    if cuts:
        idle(heap, cut(heap, node, size))
    return hand_out(heap, log, event, node, requested)


@compiled
def give_back(policy: TorchPolicy, heap: Heap, log: Records, event: int, node: int) -> None:
    """Takes a block back into the cache."""
    take_back_joined(heap, log, event, node)


@compiled
def trim(policy: TorchPolicy, heap: Heap, log: Records, event: int) -> None:
    """Waits for the streams and gives back every segment (of an expandable one every page) that nobody uses.

    Segments of private pools stay while the graph that captured them may run again.
    """
    while heap.counts[AWAITED] >= 0:
        give_back(policy, heap, log, event, heap.counts[AWAITED])
    for kind in (LARGE_SET, SMALL_SET):
        for arena in range(len(heap.is_private)):
            if not heap.is_private[arena]:
                free_set = heap.sets[SETS_PER_ARENA * arena + kind]
                return_whole_segments(heap, log, event, free_set)
                unmap_set(heap, log, event, free_set, 0)


@compiled
def _best_fit(policy: TorchPolicy, heap: Heap, free_set: int, size: int) -> int:
    """The smallest idle block that fits, the lowest among equals, taken out of its set."""
    if policy.collect_above < UNLIMITED:
        _grow_older(heap, SMALL_SET if size <= SMALL else LARGE_SET)
    node = first_from(heap, free_set, size, 0)
    if node < 0:
        return NOTHING
    if heap.nodes[node].chunk > 0:
        node = _least_expandable(heap, node) if policy.is_expandable else _first_fixed(heap, node)
        if node < 0:
            return NOTHING
    found = heap.nodes[node].size
    if size < policy.max_split:
        if found >= policy.max_split:
            return NOTHING
    elif found >= size + policy.non_split_rounding:
        return NOTHING
    remove(heap, node)
    return node


@compiled
def _least_expandable(heap: Heap, node: int) -> int:
    """From an idle page range on, the one that can grow least, as long as each next one can grow less."""
    after = following(heap, node)
    while after >= 0 and expandable_size(heap, after) < expandable_size(heap, node):
        node = after
        if heap.nodes[node].chunk == 0:
            break
        after = following(heap, node)
    return node


@compiled
def _first_fixed(heap: Heap, node: int) -> int:
    """The first block from here on that is no page range: those wait until expandable segments are on again."""
    while node >= 0 and heap.nodes[node].chunk > 0:
        node = following(heap, node)
    return node


@compiled
def _from_driver(
    policy: TorchPolicy, heap: Heap, log: Records, event: int, arena: int, free_set: int, size: int
) -> int:
    wanted = segment_size(size)
    if heap.counts[RESERVED] + wanted > policy.allowed:
        return NOTHING
    if policy.is_expandable:
        chunk = SMALL_CHUNK if size <= SMALL else LARGE_CHUNK
        return expanded(policy.limit, heap, log, event, arena, size, chunk)
    if heap.counts[RESERVED] + wanted > policy.limit:
        return NOTHING
    node = new_segment(heap, log, event, arena, free_set, wanted)
    heap.counts[OFFERED_SIZE] = 0
    return node


@compiled
def _release_oversize(policy: TorchPolicy, heap: Heap, log: Records, event: int, free_set: int, size: int) -> bool:
    """Gives back idle blocks that are never cut: the smallest that suffices, else the largest ones until they do."""
    if policy.max_split == UNLIMITED:
        return False
    wanted = max(size, policy.max_split)
    node = first_from(heap, free_set, wanted, 0)
    if node >= 0:
        if not is_whole(heap, node):
            return False
        remove(heap, node)
        return_segment(heap, log, event, node)
        return True
    released = 0
    node = last_before(heap, free_set, wanted, 0)
    while node >= 0 and released < wanted and heap.nodes[node].size >= policy.max_split and is_whole(heap, node):
        released += heap.nodes[node].size
        before = last_before(heap, free_set, heap.nodes[node].size, heap.nodes[node].address)
        remove(heap, node)
        return_segment(heap, log, event, node)
        node = before
    return released >= wanted


@compiled
def _collect(policy: TorchPolicy, heap: Heap, log: Records, event: int) -> None:
    """Gives back whole large segments, those unused for longest first, until `collect_above` is not exceeded."""
    wanted = heap.counts[RESERVED] - policy.collect_above
    given = 0
    while given < wanted:
        total_age, count = _ages(heap)
        if count == 0:
            return
        for arena in range(len(heap.is_private)):
            if not heap.is_private[arena]:
                free_set = heap.sets[SETS_PER_ARENA * arena + LARGE_SET]
                given += _return_aged(heap, log, event, free_set, total_age / count)


@compiled
def _grow_older(heap: Heap, kind: int) -> None:
    """Counts a look-up, which every stream's set of this kind shares."""
    for arena in range(len(heap.is_private)):
        heap.nodes[heap.sets[SETS_PER_ARENA * arena + kind]].age += 1


@compiled
def _ages(heap: Heap) -> tuple[int, int]:
    """(sum of ages, number) of the large segments that nobody uses; an age counts look-ups since the block idles."""
    total, count = 0, 0
    for arena in range(len(heap.is_private)):
        free_set = heap.sets[SETS_PER_ARENA * arena + LARGE_SET]
        node = NOTHING if heap.is_private[arena] else first_from(heap, free_set, 0, 0)
        while node >= 0:
            if is_whole(heap, node) and heap.nodes[node].chunk == 0:
                total += heap.nodes[free_set].age - heap.nodes[node].age
                count += 1
            node = following(heap, node)
    return total, count


@compiled
def _return_aged(heap: Heap, log: Records, event: int, free_set: int, age: float) -> int:
    given = 0
    node = first_from(heap, free_set, 0, 0)
    while node >= 0:
        after = following(heap, node)
        unused = heap.nodes[free_set].age - heap.nodes[node].age
        if is_whole(heap, node) and heap.nodes[node].chunk == 0 and unused >= age:
            given += heap.nodes[node].size
            remove(heap, node)
            return_segment(heap, log, event, node)
        node = after
    return given
