"""Why a replayed allocation did not land where the recording shows it: the heap is looked at when it happens."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from infer_diag.simulators.allocators.allocator import Allocator
from infer_diag.simulators.allocators.compiled import entry
from infer_diag.simulators.allocators.heap import AWAITING, IDLE, LIVE, Heap, Ints
from infer_diag.simulators.allocators.kinds import ALLOC
from infer_diag.simulators.allocators.trace import Trace

FAILED = "the simulated allocator has no room"
NEW_SEGMENT = "the simulated allocator takes a new segment, the recorded one found room"
NO_SEGMENT = "the recorded place lies in no segment that the simulated allocator holds"
TAKEN = "an object that landed elsewhere before takes the recorded place"
TOO_SMALL = "the idle block at the recorded place is smaller than the recorded allocator found it"
INSIDE = "the recorded place lies inside an idle block, so the recorded allocator found it cut there"
BETTER = "another idle block fits better than the one at the recorded place"
NOT_EXAMINED = "not examined: too many deviations"

_VISITS = 2_000_000_000
"""Nodes that are looked at in all, about two seconds."""


def reasons(twin: Callable[[], Allocator], done: Trace, placed: Ints) -> list[str | None]:
    """The reason of each step whose allocation landed elsewhere, null for all others.

    `twin` makes an allocator in the state at the beginning; it runs again and stops at each deviation.
    """
    recorded = done.recorded_address
    why: list[str | None] = [None] * len(placed)
    deviating = np.flatnonzero((done.steps["action"] == ALLOC) & (recorded >= 0) & (placed != recorded))
    if not len(deviating):
        return why
    allocator, at, visits = twin(), 0, 0
    for place in deviating.tolist():
        if visits > _VISITS:
            why[place] = NOT_EXAMINED
            continue
        allocator.replay(done.steps[at:place])
        held = allocator.counters.reserved_bytes
        found = _at(allocator.heap, int(recorded[place]))
        visits += len(allocator.heap.nodes)
        address = int(allocator.replay(done.steps[place : place + 1])[0])
        at = place + 1
        why[place] = _reason(*found, int(recorded[place]), address, allocator.counters.reserved_bytes > held)
    return why


def _reason(state: int, begin: int, recorded: int, address: int, grew: bool) -> str:
    """What the block around the recorded address was, against what the simulated allocator did."""
    if address < 0:
        return FAILED
    if state in (LIVE, AWAITING):
        return TAKEN
    if state != IDLE:
        return NO_SEGMENT
    if grew:
        return TOO_SMALL if begin == recorded else NEW_SEGMENT
    return BETTER if begin == recorded else INSIDE


@entry
def _at(heap: Heap, address: int) -> tuple[int, int]:
    """(state, begin) of the block around an address that memory backs; (-1, 0) without one."""
    for node in range(len(heap.nodes)):
        block = heap.nodes[node]
        backed = block.state == LIVE or block.state == AWAITING or block.state == IDLE
        if backed and block.address <= address < block.address + block.size:
            return block.state, block.address
    return -1, 0
