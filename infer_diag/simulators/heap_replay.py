"""The state of a recorded heap after any of its events: its blocks and segments in address order.

No policy is simulated: every block stands where the recording puts it. What a recording leaves out, the size that a
request was rounded to, follows from the hole that its block was cut from.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from infer_diag.simulators.allocators.compiled import compiled, entry
from infer_diag.simulators.heap_scan import LEVELS, MAP_COLUMNS, dump_heap, scan_heap
from infer_diag.simulators.heap_state import (
    ALLOCATED,
    ASKED,
    AWAITING,
    END,
    EVENT,
    FAULTS,
    GROUP,
    HOLDERS,
    MAPPED,
    MOST,
    OUTSIDE,
    OVERLAPPING,
    PAGES,
    REQUESTED,
    SIZE,
    UNCOVERED,
    UNKNOWN_FREE,
    Heap,
    add_segment,
    drop_segment,
    forget,
    remember,
    segment_at,
)
from infer_diag.simulators.rank_sets import above, below, holds, put, rank_set, take

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

ALLOC, FREE, FREE_REQUESTED, SEGMENT_TAKEN, SEGMENT_RETURNED, PAGES_MAPPED, PAGES_UNMAPPED, NOTHING = range(8)


class HeapEvents(NamedTuple):
    """Events in order; addresses stand by their rank among `addresses` (sorted, distinct, ends of segments among them).

    `ends` are the ranks of the ends of segments, `sizes` what was asked for, `fixed` the size of the block where it is
    known and 0 elsewhere, `groups` the group that a segment belongs to.
    """

    kinds: NDArray[np.uint8]
    places: Ints
    ends: Ints
    sizes: Ints
    fixed: Ints
    groups: Ints
    addresses: Ints


class Rules(NamedTuple):
    """How the allocator cuts its blocks.

    Sizes are rounded up to `unit`; a rest below a group's `slack` stays with the block; `takes_low` says that blocks
    come from the low end of a hole, so that bytes below a block belong to the one before. The sorted requests `wants`
    of a group (from `bounds` to the next) and the cumulated share of bytes that they ask for tell what a hole serves.
    """

    unit: int
    takes_low: bool
    slack: Ints
    wants: Ints
    shares: NDArray[np.float64]
    bounds: Ints


class Replayed(NamedTuple):
    """What a replay found.

    `blocks`: size of the block of each event; `corrected`: it proved larger than its rounding; `levels`: a row per
    instant and group, then one of blocks in no segment and one of the whole device, in the order of `LEVELS`; `faults`
    counts what `FAULTS` names; `maps`: a row per block and hole of each dumped instant in the order of `MAP_COLUMNS`.
    """

    blocks: Ints
    corrected: Flags
    levels: NDArray[np.float64]
    faults: Ints
    maps: Ints


def replay(events: HeapEvents, rules: Rules, instants: Ints, dumped: Flags) -> Replayed:
    """Levels after the events at the sorted indexes `instants`, and block maps after those that are also `dumped`.

    Arrays in and out, sizes in bytes. A block takes its request rounded up to the rules' unit, and the rest of its hole
    where that is below the slack of its group.
    """
    groups, ranks = len(rules.slack), len(events.addresses)
    heap = Heap(
        events.addresses,
        rank_set(ranks),
        rank_set(ranks),
        np.zeros((ranks, AWAITING + 1), np.int64),
        np.zeros((ranks, PAGES + 1), np.int64),
        np.zeros((groups + 2, MOST + 1), np.int64),
        np.zeros(len(FAULTS), np.int64),
    )
    blocks, corrected = np.zeros(len(events.kinds), np.int64), np.zeros(len(events.kinds), np.bool_)
    levels = np.zeros((len(instants), groups + 2, len(LEVELS)))
    maps = _replay(events, rules, heap, instants, dumped, blocks, corrected, levels)
    return Replayed(blocks, corrected, levels, heap.faults, maps)


@entry
def _replay(
    events: HeapEvents,
    rules: Rules,
    heap: Heap,
    instants: Ints,
    dumped: Flags,
    blocks: Ints,
    corrected: Flags,
    levels: NDArray[np.float64],
) -> Ints:
    maps = np.zeros((256, MAP_COLUMNS), np.int64)
    filled, place = 0, 0
    for event in range(len(events.kinds)):
        kind = events.kinds[event]
        if kind == ALLOC:
            _allocate(event, events, rules, heap, blocks, corrected)
        elif kind == FREE:
            _release(event, events, heap, blocks)
        elif kind == FREE_REQUESTED:
            _await(event, events, heap, blocks)
        elif kind != NOTHING:
            _change_segments(kind, event, events, heap)
        while place < len(instants) and instants[place] == event:
            scan_heap(heap, rules.wants, rules.shares, rules.bounds, levels[place])
            if dumped[place]:
                maps, filled = dump_heap(place, heap, maps, filled)
            place += 1
    return maps[:filled].copy()


@compiled
def _allocate(event: int, events: HeapEvents, rules: Rules, heap: Heap, blocks: Ints, corrected: Flags) -> None:
    rank = events.places[event]
    if holds(heap.live, rank):
        heap.faults[OVERLAPPING] += 1
        forget(heap, rank)
    begin, asked, size = heap.addresses[rank], events.sizes[event], events.fixed[event]
    known = size > 0
    if not known:
        size = max((asked + rules.unit - 1) // rules.unit, 1) * rules.unit
    segment = segment_at(heap, rank)
    if segment < 0:
        heap.faults[OUTSIDE] += 1
        group = len(rules.slack)
    else:
        group = heap.segment[segment, GROUP]
        _clear_low_side(rank, segment, rules, events, heap, blocks, corrected)
        high = _clear_high_side(rank, asked, heap.segment[segment, END], heap)
        rest = high - begin - size
        if rest < 0 or (not known and rest < rules.slack[group]):
            size += rest
    remember(heap, rank, size, asked, event, group)
    blocks[event] = size


@compiled
def _clear_low_side(
    rank: int, segment: int, rules: Rules, events: HeapEvents, heap: Heap, blocks: Ints, corrected: Flags
) -> None:
    """Makes the block below end where this one begins, where the allocator leaves no such hole."""
    before = below(heap.live, rank - 1)
    if before < segment:
        return
    gap = heap.addresses[rank] - heap.addresses[before] - heap.block[before, SIZE]
    cause = heap.block[before, EVENT]
    if gap < 0:
        # The recording lost a free.
        heap.faults[OVERLAPPING] += 1
        forget(heap, before)
    elif rules.takes_low and 0 < gap < rules.slack[heap.segment[segment, GROUP]] and events.fixed[cause] == 0:
        asked, group, waits = heap.block[before, REQUESTED], heap.block[before, HOLDERS], heap.block[before, AWAITING]
        size = heap.block[before, SIZE] + gap
        forget(heap, before)
        remember(heap, before, size, asked, cause, group)
        heap.block[before, AWAITING] = waits
        blocks[cause] = size
        corrected[cause] = True


@compiled
def _clear_high_side(rank: int, asked: int, high: int, heap: Heap) -> int:
    """Where the room of a block ends; blocks that its own bytes overlap are gone, their frees were lost."""
    after = above(heap.live, rank + 1)
    while after >= 0 and heap.addresses[after] < min(heap.addresses[rank] + asked, high):
        heap.faults[OVERLAPPING] += 1
        forget(heap, after)
        after = above(heap.live, after + 1)
    return high if after < 0 else min(high, heap.addresses[after])


@compiled
def _release(event: int, events: HeapEvents, heap: Heap, blocks: Ints) -> None:
    rank = events.places[event]
    if holds(heap.live, rank):
        blocks[event] = heap.block[rank, SIZE]
        forget(heap, rank)
    else:
        heap.faults[UNKNOWN_FREE] += 1


@compiled
def _await(event: int, events: HeapEvents, heap: Heap, blocks: Ints) -> None:
    rank = events.places[event]
    if holds(heap.live, rank) and not heap.block[rank, AWAITING]:
        size, asked, group = heap.block[rank, SIZE], heap.block[rank, REQUESTED], heap.block[rank, HOLDERS]
        heap.block[rank, AWAITING] = 1
        heap.totals[group, ALLOCATED] -= size
        heap.totals[group, ASKED] -= asked
        blocks[event] = size


@compiled
def _change_segments(kind: int, event: int, events: HeapEvents, heap: Heap) -> None:
    rank, end, group = events.places[event], events.ends[event], events.groups[event]
    inside = segment_at(heap, rank)
    if kind == SEGMENT_TAKEN:
        add_segment(heap, rank, heap.addresses[end], group, 0)
    elif kind == PAGES_MAPPED:
        _map(rank, end, group, inside, heap)
    elif inside < 0:
        heap.faults[UNCOVERED] += 1
    elif kind == SEGMENT_RETURNED:
        drop_segment(heap, inside)
    else:
        _unmap(rank, end, inside, heap)


@compiled
def _map(rank: int, end: int, group: int, inside: int, heap: Heap) -> None:
    """Adds pages; runs of pages of one group that touch are one segment."""
    if inside >= 0:
        heap.faults[UNCOVERED] += 1
        return
    add_segment(heap, rank, heap.addresses[end], group, 1)
    before = below(heap.starts, rank - 1)
    begin = rank
    if before >= 0 and heap.segment[before, END] == heap.addresses[rank] and _alike(before, rank, heap):
        heap.segment[before, END] = heap.segment[rank, END]
        take(heap.starts, rank)
        begin = before
    if holds(heap.starts, end) and _alike(begin, end, heap):
        heap.segment[begin, END] = heap.segment[end, END]
        take(heap.starts, end)


@compiled
def _alike(one: int, other: int, heap: Heap) -> bool:
    pages = heap.segment[one, PAGES] == 1 and heap.segment[other, PAGES] == 1
    return bool(pages and heap.segment[one, GROUP] == heap.segment[other, GROUP])


@compiled
def _unmap(rank: int, end: int, inside: int, heap: Heap) -> None:
    group, last = heap.segment[inside, GROUP], heap.segment[inside, END]
    low, high = heap.addresses[rank], min(heap.addresses[end], last)
    heap.totals[group, MAPPED] -= high - low
    if rank == inside:
        take(heap.starts, inside)
    else:
        heap.segment[inside, END] = low
    if high < last:
        put(heap.starts, end)
        heap.segment[end, END] = last
        heap.segment[end, GROUP] = group
        heap.segment[end, PAGES] = 1
