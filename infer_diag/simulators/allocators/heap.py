"""The state of a simulated heap as arrays: blocks, their order by address, and the free sets that hold idle ones.

A block is a row of the arrays, called node. `before` and `after` link the blocks of one segment by address; a free set
is a node of its own whose left branch is the root of a treap over its members (`free_sets`). Rows that no block uses
are linked by `after`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from infer_diag.simulators.allocators.compiled import compiled

Ints = NDArray[np.int64]
Records = Any
"""Arrays of `NODE`, `ROW` or `loop.STEP`; compiled code reads their fields as attributes."""

NOTHING = -1
UNLIMITED = 1 << 62

IDLE, LIVE, AWAITING, UNMAPPED, FREE_SET, SPARE = range(6)
"""States of a node. `AWAITING` is freed by the program while a stream may still use it; `UNMAPPED` is address space."""

(
    RESERVED,
    ALLOCATED,
    ACTIVE,
    REQUESTED,
    RESERVED_PEAK,
    ALLOCATED_AT_PEAK,
    ALLOCATED_PEAK,
    REQUESTED_AT_PEAK,
    FAILURES,
    RETRIES,
    DEVICE_MALLOCS,
    DEVICE_FREES,
    NEXT_ADDRESS,
    SPARE_NODE,
    SPARE_COUNT,
    MEMBERS,
    LOGGED,
    OFFERED_ADDRESS,
    OFFERED_SIZE,
    AWAITED,
) = range(20)
"""Places in `Heap.counts`; `OFFERED_*`: the segment that a recording shows the driver to hand out at this event."""

SETS_PER_ARENA = 4
SMALL_SET, LARGE_SET, SMALL_UNMAPPED_SET, LARGE_UNMAPPED_SET = range(SETS_PER_ARENA)

FIRST_ADDRESS = 0x7000_0000_0000
"""Where the simulated driver begins; recorded addresses of a device lie above it or are offered with the event."""

_GRAIN = 2 << 20


NODE = np.dtype(
    [
        (name, np.int64)
        for name in (
            "address",
            "size",
            "requested",
            "state",
            "owner",
            "before",
            "after",
            "arena",
            "free_set",
            "origin",
            "chunk",
            "rank",
            "widest",
            "priority",
            "age",
        )
    ]
)
"""A node. `size` and `requested` in bytes; `owner` is the number of the object that lives there; `origin` the begin of
the segment, or of the reserved addresses of an expandable one; `chunk` its physical pages' size, 0 for others; `age`
counts look-ups of a free set, and in a member those before it came in."""

ROW = np.dtype(
    [("kind", np.int8), ("arena", np.int32), ("event", np.int64)]
    + [(name, np.int64) for name in ("address", "size", "requested", "origin", "reserved", "allocated")],
)
"""A row of the log; `event` is the row of the trace that made it happen, `reserved` and `allocated` hold after it."""


class Heap(NamedTuple):
    """Nodes, the branches of their treaps, four free sets for each arena, which arenas are private pools, counters.

    An arena is a stream, or a private pool and a stream. `path` is where a walk down a treap notes its steps; random
    priorities keep it far shorter than its room.
    """

    nodes: Records
    branch: Ints
    sets: Ints
    is_private: Ints
    counts: Ints
    path: Ints


def new_heap(is_private: Ints, capacity: int = 1024) -> Heap:
    """An empty heap with one arena for each entry of `is_private`."""
    counts = np.zeros(32, np.int64)
    counts[NEXT_ADDRESS], counts[SPARE_NODE], counts[AWAITED] = FIRST_ADDRESS, NOTHING, NOTHING
    none = np.zeros(0, np.int64)
    heap = Heap(np.zeros(0, NODE), none, none, none, counts, np.zeros(512, np.int64))
    return with_arenas(with_capacity(heap, capacity), is_private)


def with_capacity(heap: Heap, capacity: int) -> Heap:
    """The heap with room for this many nodes; those that it had keep their numbers."""
    old = len(heap.nodes)
    nodes = np.concatenate([heap.nodes, np.zeros(capacity - old, NODE)])
    branch = np.concatenate([heap.branch, np.full(2 * (capacity - old), NOTHING, np.int64)])
    nodes["state"][old:], nodes["owner"][old:] = SPARE, NOTHING
    nodes["priority"][old:] = _priorities(old, capacity)
    nodes["after"][old : capacity - 1] = np.arange(old + 1, capacity)
    nodes["after"][capacity - 1] = heap.counts[SPARE_NODE]
    heap.counts[SPARE_NODE] = old
    heap.counts[SPARE_COUNT] += capacity - old
    return heap._replace(nodes=nodes, branch=branch)


def with_arenas(heap: Heap, is_private: Ints) -> Heap:
    """The heap with these arenas, of which it has the first ones already."""
    needed = (len(is_private) - len(heap.is_private)) * SETS_PER_ARENA
    if heap.counts[SPARE_COUNT] < needed:
        heap = with_capacity(heap, len(heap.nodes) + needed)
    added = np.array([_new_set(heap) for _ in range(needed)], np.int64)
    return heap._replace(sets=np.concatenate([heap.sets, added]), is_private=np.asarray(is_private, np.int64))


def _new_set(heap: Heap) -> int:
    node = int(heap.counts[SPARE_NODE])
    heap.counts[SPARE_NODE] = heap.nodes["after"][node]
    heap.counts[SPARE_COUNT] -= 1
    heap.nodes["state"][node], heap.nodes["age"][node] = FREE_SET, 0
    heap.branch[2 * node] = NOTHING
    return node


def _priorities(begin: int, end: int) -> Ints:
    """Numbers without order, the same ones in every run: what keeps the treaps flat."""
    with np.errstate(over="ignore"):
        mixed = (np.arange(begin, end, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed >> np.uint64(2)).astype(np.int64)


@compiled
def take_node(heap: Heap) -> int:
    """A node that no block uses."""
    node = heap.counts[SPARE_NODE]
    heap.counts[SPARE_NODE] = heap.nodes[node].after
    heap.counts[SPARE_COUNT] -= 1
    heap.nodes[node].owner, heap.nodes[node].requested, heap.nodes[node].chunk, heap.nodes[node].age = NOTHING, 0, 0, 0
    return int(node)


@compiled
def drop_node(heap: Heap, node: int) -> None:
    """Gives a node back."""
    heap.nodes[node].state = SPARE
    heap.nodes[node].owner = NOTHING
    heap.nodes[node].after = heap.counts[SPARE_NODE]
    heap.counts[SPARE_NODE] = node
    heap.counts[SPARE_COUNT] += 1


@compiled
def write(heap: Heap, log: Records, kind: int, event: int, node: int, size: int) -> None:
    """Adds a row to the log, with what is reserved and allocated after it; a log without room at all takes none."""
    if len(log) == 0:
        return
    counts, block = heap.counts, heap.nodes[node]
    row = log[counts[LOGGED]]
    row.kind, row.event, row.size = kind, event, size
    row.address, row.requested, row.arena, row.origin = block.address, block.requested, block.arena, block.origin
    row.reserved, row.allocated = counts[RESERVED], counts[ALLOCATED]
    counts[LOGGED] += 1


@compiled
def driver_address(heap: Heap, size: int, spacing: int) -> int:
    """Where the driver puts a new segment: at the recorded place where one of this size is offered, else above all."""
    counts = heap.counts
    if counts[OFFERED_SIZE] == size:
        return int(counts[OFFERED_ADDRESS])
    address = counts[NEXT_ADDRESS]
    counts[NEXT_ADDRESS] += (spacing + _GRAIN - 1) // _GRAIN * _GRAIN
    return int(address)


@compiled
def reserve(heap: Heap, change: int) -> None:
    """Books bytes taken from the driver or, negative, given back."""
    counts = heap.counts
    counts[RESERVED] += change
    if counts[RESERVED] > counts[RESERVED_PEAK]:
        counts[RESERVED_PEAK] = counts[RESERVED]
        counts[ALLOCATED_AT_PEAK] = counts[ALLOCATED]


@compiled
def book(heap: Heap, size: int, requested: int) -> None:
    """Books a block that is handed out."""
    counts = heap.counts
    counts[ALLOCATED] += size
    counts[ACTIVE] += size
    counts[REQUESTED] += requested
    if counts[ALLOCATED] > counts[ALLOCATED_PEAK]:
        counts[ALLOCATED_PEAK] = counts[ALLOCATED]
        counts[REQUESTED_AT_PEAK] = counts[REQUESTED]
    if counts[RESERVED] == counts[RESERVED_PEAK] and counts[ALLOCATED] > counts[ALLOCATED_AT_PEAK]:
        counts[ALLOCATED_AT_PEAK] = counts[ALLOCATED]
