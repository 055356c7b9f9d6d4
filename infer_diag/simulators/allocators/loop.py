"""The loop that drives a simulated allocator through a trace: one for all allocators, compiled for each by itself."""

from __future__ import annotations

import numpy as np

from infer_diag.simulators.allocators import policies
from infer_diag.simulators.allocators.blocks import await_stream
from infer_diag.simulators.allocators.compiled import entry
from infer_diag.simulators.allocators.heap import (
    LIVE,
    LOGGED,
    MEMBERS,
    OFFERED_ADDRESS,
    OFFERED_SIZE,
    SPARE_COUNT,
    Heap,
    Ints,
    Records,
)
from infer_diag.simulators.allocators.kinds import ALLOC, EMPTY_CACHE, FREE, FREE_REQUESTED

ROOM = 64
"""Nodes and log rows that one event takes at most, beside two for each idle block that it may give back."""


STEP = np.dtype(
    [("action", np.int8), ("arena", np.int32)]
    + [(name, np.int64) for name in ("thing", "size", "offered_address", "offered_size")]
)
"""What the program does; `thing` numbers the object that is allocated or freed. `offered_*`: begin and size of the
segment that a recording shows to be taken for this step, else 0."""


@entry
def run(
    policy: policies.Policy, heap: Heap, log: Records, steps: Records, nodes: Ints, placed: Ints, begin: int
) -> int:
    """Takes the steps from `begin` on; returns the one before which the heap or the log has no room, or their number.

    `nodes` maps an object to its node; `placed` takes the address of each allocation, -1 where it fails.
    """
    counts = heap.counts
    for event in range(begin, len(steps)):
        room = ROOM + 2 * counts[MEMBERS]
        if counts[SPARE_COUNT] < room or (len(log) > 0 and len(log) - counts[LOGGED] < room):
            return event
        step = steps[event]
        action, thing = step.action, step.thing
        if action == ALLOC:
            counts[OFFERED_ADDRESS], counts[OFFERED_SIZE] = step.offered_address, step.offered_size
            node = policies.serve(policy, heap, log, event, step.size, step.arena)
            nodes[thing] = node
            if node >= 0:
                heap.nodes[node].owner = thing
                placed[event] = heap.nodes[node].address
        elif action == EMPTY_CACHE:
            policies.trim(policy, heap, log, event)
        else:
            node = nodes[thing]
            if node >= 0 and heap.nodes[node].owner == thing:
                if action == FREE:
                    policies.give_back(policy, heap, log, event, node)
                    nodes[thing] = -1
                elif action == FREE_REQUESTED and heap.nodes[node].state == LIVE:
                    await_stream(heap, log, event, node)
    return len(steps)
