"""What a replayed heap looks like at one moment: its levels by group, and its map of blocks and holes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from infer_diag.simulators.allocators.compiled import compiled
from infer_diag.simulators.heap_state import (
    ACTIVE,
    AWAITING,
    END,
    EVENT,
    GROUP,
    HOLDERS,
    MOST,
    PAGES,
    REQUESTED,
    SIZE,
    Heap,
)
from infer_diag.simulators.rank_sets import above

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

LEVELS = (
    "allocated",
    "active",
    "requested",
    "reserved",
    "most_active",
    "idle",
    "largest",
    "holes",
    "split",
    "usable",
    "blocks",
)
"""Known of each group at an instant, in bytes but for `holes` and `blocks`; `usable` weighs each hole by the share of
the requested bytes that it could serve."""
_IDLE, _LARGEST, _HOLES, _SPLIT, _USABLE, _BLOCKS = range(5, 11)

MAP_COLUMNS = 9
"""Instant, address, size, requested, group, state (0 idle, 1 live, 2 awaited), event of its allocation or -1, the
segment's begin and end (both -1 for a block in no segment)."""


@compiled
def scan_heap(heap: Heap, wants: Ints, shares: Floats, bounds: Ints, levels: Floats) -> None:
    """Fills the levels of every group, and begins anew to look for the most that is active."""
    for group in range(len(levels)):
        for column in range(MOST + 1):
            levels[group, column] = heap.totals[group, column]
        heap.totals[group, MOST] = heap.totals[group, ACTIVE]
    segment = above(heap.starts, 0)
    while segment >= 0:
        _scan_segment(segment, heap, wants, shares, bounds, levels)
        segment = above(heap.starts, segment + 1)


@compiled
def _scan_segment(segment: int, heap: Heap, wants: Ints, shares: Floats, bounds: Ints, levels: Floats) -> None:
    group, end = heap.segment[segment, GROUP], heap.segment[segment, END]
    cursor, idle, blocks = heap.addresses[segment], 0, 0
    inside = above(heap.live, segment)
    while cursor < end:
        begin = heap.addresses[inside] if inside >= 0 else end
        hole = min(begin, end) - cursor
        if hole > 0:
            idle += hole
            served = np.searchsorted(wants[bounds[group] : bounds[group + 1]], hole, side="right")
            levels[group, _LARGEST] = max(levels[group, _LARGEST], hole)
            levels[group, _HOLES] += 1
            if served > 0:
                levels[group, _USABLE] += hole * shares[bounds[group] + served - 1]
        if begin >= end:
            break
        blocks += 1
        cursor = begin + heap.block[inside, SIZE]
        inside = above(heap.live, inside + 1)
    levels[group, _IDLE] += idle
    levels[group, _BLOCKS] += blocks
    if blocks and not heap.segment[segment, PAGES]:
        levels[group, _SPLIT] += idle


@compiled
def dump_heap(place: int, heap: Heap, maps: Ints, filled: int) -> tuple[Ints, int]:
    """Appends the blocks and holes in address order; (the rows, which may have moved, and how many are filled)."""
    segment, inside = above(heap.starts, 0), above(heap.live, 0)
    while segment >= 0 or inside >= 0:
        if segment < 0 or (inside >= 0 and inside < segment):
            maps = _with_room(maps, filled)
            filled = _put_block(place, inside, -1, -1, heap, maps, filled)
            inside = above(heap.live, inside + 1)
            continue
        begin, end, group = heap.addresses[segment], heap.segment[segment, END], heap.segment[segment, GROUP]
        cursor = begin
        while cursor < end:
            upto = min(heap.addresses[inside], end) if inside >= 0 else end
            maps = _with_room(maps, filled)
            if upto > cursor:
                maps[filled] = np.array([place, cursor, upto - cursor, 0, group, 0, -1, begin, end])
                filled += 1
            if upto >= end:
                break
            filled = _put_block(place, inside, begin, end, heap, maps, filled)
            cursor = heap.addresses[inside] + heap.block[inside, SIZE]
            inside = above(heap.live, inside + 1)
        segment = above(heap.starts, segment + 1)
    return maps, filled


@compiled
def _with_room(maps: Ints, filled: int) -> Ints:
    if filled + 2 <= len(maps):
        return maps
    larger = np.zeros((2 * len(maps), MAP_COLUMNS), np.int64)
    larger[:filled] = maps[:filled]
    return larger


@compiled
def _put_block(place: int, rank: int, begin: int, end: int, heap: Heap, maps: Ints, filled: int) -> int:
    block = heap.block[rank]
    state = 2 if block[AWAITING] else 1
    row = (place, heap.addresses[rank], block[SIZE], block[REQUESTED], block[HOLDERS], state, block[EVENT], begin, end)
    for column in range(MAP_COLUMNS):
        maps[filled, column] = row[column]
    return filled + 1
