"""Ordered sets of idle blocks: treaps by (rank, address), where the rank is the size, or 0 for order by address.

Insertion, removal and the search for the first member at or above a key take about log2(members) steps whatever the
sizes are, so a heap of a hundred thousand holes is served as fast as a small one. In sets by address each node also
knows the largest size below it (`widest`), so that the first fit takes as few.
"""

from __future__ import annotations

from infer_diag.simulators.allocators.compiled import compiled
from infer_diag.simulators.allocators.heap import MEMBERS, NOTHING, Heap


@compiled
def _precedes(heap: Heap, one: int, other: int) -> bool:
    if heap.nodes[one].rank != heap.nodes[other].rank:
        return bool(heap.nodes[one].rank < heap.nodes[other].rank)
    return bool(heap.nodes[one].address < heap.nodes[other].address)


@compiled
def insert(heap: Heap, free_set: int, node: int, rank: int) -> None:
    """Puts a node into a set under this rank."""
    heap.nodes[node].rank = rank
    heap.nodes[node].free_set = free_set
    heap.nodes[node].age = heap.nodes[free_set].age
    heap.counts[MEMBERS] += 1
    branch, priority = heap.branch, heap.nodes[node].priority
    slot = 2 * free_set
    at = branch[slot]
    depth = 0
    while at >= 0 and heap.nodes[at].priority >= priority:
        heap.path[depth] = at
        depth += 1
        slot = 2 * at if _precedes(heap, node, at) else 2 * at + 1
        at = branch[slot]
    branch[slot] = node
    heap.path[depth] = node
    depth += 1
    left, right = 2 * node, 2 * node + 1
    while at >= 0:
        heap.path[depth] = at
        depth += 1
        if _precedes(heap, at, node):
            branch[left] = at
            left = 2 * at + 1
            at = branch[left]
        else:
            branch[right] = at
            right = 2 * at
            at = branch[right]
    branch[left] = branch[right] = NOTHING
    if rank == 0:
        _widen(heap, depth)


@compiled
def remove(heap: Heap, node: int) -> None:
    """Takes a node out of the set that holds it."""
    branch = heap.branch
    heap.counts[MEMBERS] -= 1
    slot = 2 * heap.nodes[node].free_set
    depth = 0
    while branch[slot] != node:
        at = branch[slot]
        heap.path[depth] = at
        depth += 1
        slot = 2 * at if _precedes(heap, node, at) else 2 * at + 1
    left, right = branch[2 * node], branch[2 * node + 1]
    while left >= 0 and right >= 0:
        upper = left if heap.nodes[left].priority > heap.nodes[right].priority else right
        heap.path[depth] = branch[slot] = upper
        depth += 1
        if upper == left:
            slot = 2 * left + 1
            left = branch[slot]
        else:
            slot = 2 * right
            right = branch[slot]
    branch[slot] = left if left >= 0 else right
    if heap.nodes[node].rank == 0:
        _widen(heap, depth)


@compiled
def _widen(heap: Heap, depth: int) -> None:
    """Renews `widest` along the path that an insertion or removal took, from its end."""
    for place in range(depth - 1, -1, -1):
        node = heap.path[place]
        widest = heap.nodes[node].size
        for slot in (2 * node, 2 * node + 1):
            child = heap.branch[slot]
            if child >= 0 and heap.nodes[child].widest > widest:
                widest = heap.nodes[child].widest
        heap.nodes[node].widest = widest


@compiled
def first_fit(heap: Heap, free_set: int, size: int) -> int:
    """The member of a set by address that is large enough and lowest, or `NOTHING`."""
    at = heap.branch[2 * free_set]
    if at < 0 or heap.nodes[at].widest < size:
        return NOTHING
    while True:
        left = heap.branch[2 * at]
        if left >= 0 and heap.nodes[left].widest >= size:
            at = left
        elif heap.nodes[at].size >= size:
            return int(at)
        else:
            at = heap.branch[2 * at + 1]


@compiled
def first_from(heap: Heap, free_set: int, rank: int, address: int) -> int:
    """The first member at or above (rank, address), or `NOTHING`."""
    found = NOTHING
    at = heap.branch[2 * free_set]
    while at >= 0:
        if heap.nodes[at].rank < rank or (heap.nodes[at].rank == rank and heap.nodes[at].address < address):
            at = heap.branch[2 * at + 1]
        else:
            found = at
            at = heap.branch[2 * at]
    return int(found)


@compiled
def last_before(heap: Heap, free_set: int, rank: int, address: int) -> int:
    """The last member below (rank, address), or `NOTHING`."""
    found = NOTHING
    at = heap.branch[2 * free_set]
    while at >= 0:
        if heap.nodes[at].rank < rank or (heap.nodes[at].rank == rank and heap.nodes[at].address < address):
            found = at
            at = heap.branch[2 * at + 1]
        else:
            at = heap.branch[2 * at]
    return int(found)


@compiled
def following(heap: Heap, node: int) -> int:
    """The member of the same set after this one, or `NOTHING`."""
    return first_from(heap, heap.nodes[node].free_set, heap.nodes[node].rank, heap.nodes[node].address + 1)
