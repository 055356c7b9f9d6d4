"""What a replayed heap holds: its live blocks and its segments, and the sums of both by group."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from infer_diag.simulators.allocators.compiled import compiled
from infer_diag.simulators.rank_sets import RankSet, above, below, put, take

Ints = NDArray[np.int64]

SIZE, REQUESTED, EVENT, HOLDERS, AWAITING = range(5)
"""Columns of a block: its bytes, what was asked for, the event that allocated it, its group, whether it is freed and
some stream still uses it."""
END, GROUP, PAGES = range(3)
"""Columns of a segment: where it ends, its group, whether it is a run of pages that come and go one by one."""
ALLOCATED, ACTIVE, ASKED, MAPPED, MOST = range(5)
"""Columns of the sums: live, live or awaited, asked for, reserved, and the most that was active since the last look."""

FAULTS = ("outside", "overlapping", "unknown_free", "uncovered")
"""What events say that cannot be so: a block in no segment, two at one place, a free of nothing, a segment unknown."""
OUTSIDE, OVERLAPPING, UNKNOWN_FREE, UNCOVERED = range(len(FAULTS))


class Heap(NamedTuple):
    """Live blocks and segments by the rank of their address, and sums by group.

    Behind the groups stand the sums of blocks in no segment, and of the whole device what is active and its most.
    """

    addresses: Ints
    live: RankSet
    starts: RankSet
    block: Ints
    segment: Ints
    totals: Ints
    faults: Ints


@compiled
def segment_at(heap: Heap, rank: int) -> int:
    """The rank of the segment that holds an address, or -1."""
    found = below(heap.starts, rank)
    return found if found >= 0 and heap.segment[found, END] > heap.addresses[rank] else -1


@compiled
def remember(heap: Heap, rank: int, size: int, asked: int, event: int, group: int) -> None:
    """Adds a live block."""
    put(heap.live, rank)
    heap.block[rank, SIZE] = size
    heap.block[rank, REQUESTED] = asked
    heap.block[rank, EVENT] = event
    heap.block[rank, HOLDERS] = group
    heap.block[rank, AWAITING] = 0
    heap.totals[group, ALLOCATED] += size
    heap.totals[group, ACTIVE] += size
    heap.totals[group, ASKED] += asked
    heap.totals[group, MOST] = max(heap.totals[group, MOST], heap.totals[group, ACTIVE])
    heap.totals[-1, ACTIVE] += size
    heap.totals[-1, MOST] = max(heap.totals[-1, MOST], heap.totals[-1, ACTIVE])


@compiled
def forget(heap: Heap, rank: int) -> None:
    """Takes a live block out."""
    take(heap.live, rank)
    group, size = heap.block[rank, HOLDERS], heap.block[rank, SIZE]
    heap.totals[group, ACTIVE] -= size
    heap.totals[-1, ACTIVE] -= size
    if not heap.block[rank, AWAITING]:
        heap.totals[group, ALLOCATED] -= size
        heap.totals[group, ASKED] -= heap.block[rank, REQUESTED]


@compiled
def add_segment(heap: Heap, rank: int, end: int, group: int, pages: int) -> None:
    """Adds a segment; what it overlaps was given back without a word."""
    before = segment_at(heap, rank)
    if before >= 0:
        drop_segment(heap, before)
    after = above(heap.starts, rank)
    while after >= 0 and heap.addresses[after] < end:
        drop_segment(heap, after)
        after = above(heap.starts, rank)
    put(heap.starts, rank)
    heap.segment[rank, END] = end
    heap.segment[rank, GROUP] = group
    heap.segment[rank, PAGES] = pages
    heap.totals[group, MAPPED] += end - heap.addresses[rank]


@compiled
def drop_segment(heap: Heap, segment: int) -> None:
    """Takes a segment out, with the blocks that are still in it."""
    end = heap.segment[segment, END]
    inside = above(heap.live, segment)
    while inside >= 0 and heap.addresses[inside] < end:
        heap.faults[OVERLAPPING] += 1
        forget(heap, inside)
        inside = above(heap.live, inside + 1)
    heap.totals[heap.segment[segment, GROUP], MAPPED] -= end - heap.addresses[segment]
    take(heap.starts, segment)
