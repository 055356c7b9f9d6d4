"""When each block of a recorded heap lived and where, so that any moment is found without replaying the events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infer_diag.attribution.heap.trace import HeapTrace

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_ALLOC, _FREE, _FREE_REQUESTED, _TAKEN, _RETURNED, _MAPPED, _UNMAPPED = range(7)
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False)
class Lifetimes:
    """One entry per allocation in the order of `places` (bytes on the map's axis), and the changes of segments.

    A block lives after the events from `begins` to before `ends`; from `awaits` on it is freed and still waited for.
    """

    places: Ints
    sizes: Ints
    begins: Ints
    awaits: Ints
    ends: Ints
    addresses: Ints
    requests: Ints
    changes: tuple[Ints, Ints, Ints, Ints]
    axis_bytes: int

    def bytes_between(self, now: int, edges: Floats) -> tuple[Floats, Floats, Floats]:
        """(live, awaiting, reserved) bytes between each two of the sorted edges after event `now`."""
        there = (self.begins <= now) & (now < self.ends)
        awaited = there & (self.awaits <= now)
        live = there & ~awaited
        reserved = _below(*self._reserved(now), edges)
        found = [np.diff(_below(self.places[kept], self.sizes[kept], edges)) for kept in (live, awaited)]
        return found[0], found[1], np.diff(reserved)

    def blocks_between(self, now: int, low: float, high: float) -> list[dict[str, Any]]:
        """The blocks that lie at least partly between two places after event `now`."""
        last = int(np.searchsorted(self.places, high))
        kept = np.flatnonzero((self.begins[:last] <= now) & (now < self.ends[:last]))
        kept = kept[self.places[kept] + self.sizes[kept] > low]
        return [
            {
                "address_id": int(self.addresses[index]),
                "size_bytes": int(self.sizes[index]),
                "requested_bytes": int(self.requests[index]),
                "event": int(self.begins[index]),
                "awaiting": bool(self.awaits[index] <= now),
            }
            for index in kept
        ]

    def _reserved(self, now: int) -> tuple[Ints, Ints]:
        """(begin, size) of what the segments cover after event `now`."""
        events, signs, begins, ends = self.changes
        until = int(np.searchsorted(events, now, side="right"))
        cuts, where = np.unique(np.concatenate([begins[:until], ends[:until]]), return_inverse=True)
        steps = np.zeros(len(cuts), np.int64)
        np.add.at(steps, where, np.concatenate([signs[:until], -signs[:until]]))
        covered = np.flatnonzero(np.cumsum(steps)[:-1] > 0) if len(cuts) > 1 else np.zeros(0, np.int64)
        return cuts[covered], cuts[covered + 1] - cuts[covered]


def lifetimes(trace: HeapTrace) -> Lifetimes:
    """The lifetimes of every allocation of a trace, those before its first event among them.

    Raises:
        DiagError: numba is not installed.
    """
    events = trace.settled
    moves = np.flatnonzero(events.kinds <= _FREE_REQUESTED)
    order = moves[np.lexsort((moves, events.places[moves]))]
    kinds, places = events.kinds[order], events.places[order]
    first, first_at = _after(order, kinds, places, 1)
    second, second_at = _after(order, kinds, places, 2)
    waits = first == _FREE_REQUESTED
    ends = np.where(waits, np.where(second == _FREE_REQUESTED, _NEVER, second_at), first_at)
    awaits = np.where(waits, first_at, _NEVER)
    chosen = kinds == _ALLOC
    blocks = trace.replayed(np.array([len(trace.times) - 1])).blocks
    runs, bases, axis_bytes, changes = _axis(trace)
    addresses = events.addresses[places[chosen]]
    run = np.searchsorted(runs, addresses, side="right") - 1
    placed = bases[np.maximum(run, 0)] + addresses - runs[np.maximum(run, 0)]
    inside = (run >= 0) & (placed < np.append(bases[1:], axis_bytes)[np.maximum(run, 0)])
    made = order[chosen]
    kept = np.flatnonzero(inside)
    kept = kept[np.argsort(placed[kept], kind="stable")]
    return Lifetimes(
        places=placed[kept],
        sizes=blocks[made][kept],
        begins=made[kept],
        awaits=awaits[chosen][kept],
        ends=ends[chosen][kept],
        addresses=addresses[kept],
        requests=events.sizes[made][kept],
        changes=changes,
        axis_bytes=axis_bytes,
    )


def _after(order: Ints, kinds: NDArray[np.uint8], places: Ints, steps: int) -> tuple[Ints, Ints]:
    """(kind, event) of the event that comes so many steps later at the same place; 9 and never where there is none."""
    kind, event = np.full(len(order), 9, np.int64), np.full(len(order), _NEVER, np.int64)
    if len(order) > steps:
        same = places[steps:] == places[:-steps]
        kind[:-steps] = np.where(same, kinds[steps:], 9)
        event[:-steps] = np.where(same, order[steps:], _NEVER)
    return kind, event


def _axis(trace: HeapTrace) -> tuple[Ints, Ints, int, tuple[Ints, Ints, Ints, Ints]]:
    """(begin of each run of addresses that was ever reserved, its place, bytes of all, changes on that axis)."""
    events = trace.settled
    kinds = events.kinds
    changed = np.flatnonzero((kinds >= _TAKEN) & (kinds <= _UNMAPPED))
    begins, ends = events.addresses[events.places[changed]], events.addresses[events.ends[changed]]
    if not len(changed):
        none = np.zeros(0, np.int64)
        return np.zeros(1, np.int64), np.zeros(1, np.int64), 0, (none, none, none, none)
    signs = np.where((kinds[changed] == _TAKEN) | (kinds[changed] == _MAPPED), 1, -1).astype(np.int64)
    order = np.argsort(begins, kind="stable")
    reach = np.maximum.accumulate(ends[order])
    opens = np.append(True, begins[order][1:] > reach[:-1])
    runs = begins[order][opens]
    closes = reach[np.append(np.flatnonzero(opens)[1:] - 1, len(reach) - 1)]
    sizes = closes - runs
    bases = np.append(0, np.cumsum(sizes)[:-1])
    place = np.searchsorted(runs, begins, side="right") - 1
    shift = bases[place] - runs[place]
    return runs, bases, int(sizes.sum()), (changed, signs, begins + shift, ends + shift)


def _below(begins: Ints, sizes: Ints, edges: Floats) -> Floats:
    """Bytes of sorted intervals that lie below each edge."""
    if not len(begins):
        return np.zeros(len(edges))
    before = np.append(0, np.cumsum(sizes)).astype(float)
    index = np.searchsorted(begins, edges, side="right") - 1
    held = np.maximum(index, 0)
    part = np.clip(edges - begins[held], 0, sizes[held])
    found: Floats = np.where(index >= 0, before[held] + part, 0.0)
    return found
