"""One length per worker and phase out of all that the lines say, and the values that cannot be true beside it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from infer_diag.attribution.intervals import Span, measure
from infer_diag.attribution.occurrences import CONTAINERS, ORDER, Occurrence, lineage

PRINTED = 10_000
"""Microseconds by which two printings of one value may differ where a line does not tell its resolution."""

TIMER_SLACK = 2_000_000
"""Microseconds that a timer may start after the line that announces the phase, or before it."""

TIMER_SLACK_RATIO = 0.1
"""The same as a share of the stamp difference, because setting up before the timer grows with the model."""


@dataclass(frozen=True)
class Value:
    """What one worker spent in one phase; `length` null where the phase is visible and its length is not.

    `parts` are the occurrences that the value counts, `spans` where they lie.
    """

    phase: str
    worker: str
    replica: str | None
    length: int | None
    parts: tuple[Occurrence, ...]
    is_total: bool = False

    @property
    def spans(self) -> list[Span]:
        """Where the value lies in time, as far as its lines have stamps."""
        return [part.span for part in self.parts if part.span is not None]

    @property
    def lines(self) -> list[int]:
        """The lines behind the value."""
        return sorted({line for part in self.parts for line in part.lines})


@dataclass(frozen=True)
class Reconciled:
    """The values that hold, one per worker and phase, and the ones that conflict with them."""

    values: tuple[Value, ...]
    rejected: tuple[Value, ...]

    def of(self, phase: str) -> list[Value]:
        """The values of this phase, worker by worker."""
        return [value for value in self.values if value.phase == phase]


def reconciled(ended: Sequence[Occurrence], parent: Mapping[str, str], tick: int) -> Reconciled:
    """Every worker's value for every phase it ended.

    Occurrences of one worker that follow each other add up; overlaps of less than one tick of the clock are noise.
    Values that overlap by more and differ by more than they are printed to are about one thing: the one that fits into
    what the enclosing phase leaves, and lies nearest to the worker's own begin and end stamps, is chosen. A printed
    total stands for the sum of its parts unless it is shorter than they are.
    """
    lanes: dict[tuple[str, str, str], list[Occurrence]] = defaultdict(list)
    for one in sorted(ended, key=_printing_order):
        lanes[one.replica or "", one.phase, one.worker].append(one)
    chosen: list[Value] = []
    rejected: list[Value] = []
    for (_, phase, _), lane in sorted(lanes.items(), key=lambda item: (ORDER[item[0][1]], item[0])):
        limits = _Limits(_room(phase, lane[0].replica, ended, parent), _last_end(lane, ended, parent), tick)
        kept, dropped = _settled([one for one in lane if not one.is_total], limits)
        totals, no_totals = _settled([one for one in lane if one.is_total], limits)
        rejected += [_value([one]) for one in (*dropped, *no_totals)]
        value, other = _total_or_sum(totals, kept, limits.room)
        chosen.append(value)
        rejected += other
    return _with_parts(Reconciled(tuple(chosen), tuple(rejected)), ended, parent)


@dataclass(frozen=True)
class _Limits:
    """What bounds the values of one phase: room in the enclosing phase, the end of what came before, the clock."""

    room: int | None
    floor: int | None
    tick: int

    def misfit(self, one: Occurrence) -> int:
        """Microseconds by which a value contradicts its enclosing phase, what came before it and its own stamps."""
        length = one.length or 0
        misfit = 0 if self.room is None else max(0, length - self.room - one.resolution)
        if one.span is not None and self.floor is not None:
            misfit += max(0, self.floor - self.tick - one.span.begin)
        return misfit + (abs(length - one.stamped) if one.stamped is not None else 0)


def _last_end(lane: Sequence[Occurrence], ended: Sequence[Occurrence], parent: Mapping[str, str]) -> int | None:
    """When the last phase that comes before this one is seen to end, if that is before the first end of this one."""
    phase, replica = lane[0].phase, lane[0].replica
    first = min((one.end for one in lane if one.end is not None), default=None)
    if first is None:
        return None
    ends = [
        one.end
        for one in ended
        if one.end is not None
        and one.end <= first
        and one.replica == replica
        and ORDER[one.phase] < ORDER[phase]
        and one.phase not in lineage(phase, parent)
    ]
    return max(ends, default=None)


def _printing_order(one: Occurrence) -> tuple[int, int, int]:
    return (-1 if one.end is None else one.end, one.source_id, min(one.lines))


def _value(parts: Sequence[Occurrence]) -> Value:
    lengths = [part.length for part in parts]
    known = [length for length in lengths if length is not None]
    total: int | None = None
    if len(known) == len(lengths):
        printed = sum(part.length for part in parts if part.printed and part.length is not None)
        timed = [part.span for part in parts if part.printed and part.span is not None]
        # What stamps show beside the printed lengths; the same stretch of time is never counted twice.
        seen = measure(part.span for part in parts if part.span is not None) - measure(timed)
        total = printed + seen
    first = parts[0]
    return Value(first.phase, first.worker, first.replica, total, tuple(parts), first.is_total)


def _settled(lane: list[Occurrence], limits: _Limits) -> tuple[list[Occurrence], list[Occurrence]]:
    """Occurrences that hold and those that conflict with them."""
    kept: list[Occurrence] = []
    dropped: list[Occurrence] = []
    for group in _same_thing(lane, limits.room, limits.tick):
        printed = [one for one in group if one.printed]
        if len(group) > 1 and len(printed) == len(group):
            best = _best(printed, limits)
            others = [one for one in printed if one is not best]
            dropped += [one for one in others if _differ(one.length or 0, best.length or 0, _fineness(one, best))]
            group = [best]
        for one in group:
            holds, conflict = _against_stamps(one, limits.tick)
            kept.append(holds)
            dropped += conflict
    return kept, dropped


def _same_thing(lane: list[Occurrence], room: int | None, tick: int) -> list[list[Occurrence]]:
    """Groups of occurrences that tell of one stretch of time, because one worker cannot be in it twice at once."""
    groups: list[list[Occurrence]] = []
    total = sum(one.length or 0 for one in lane)
    loose = [one for one in lane if one.span is None and one.length is not None]
    placed = [one for one in lane if one.span is not None]
    if len(loose) > 1 and room is not None and total > room + PRINTED:
        groups.append(loose)
    else:
        groups += [[one] for one in loose]
    for one in placed:
        overlap = _overlap(groups[-1][-1], one) if groups else 0
        if one.printed and groups and groups[-1][-1].printed and overlap >= max(tick, 1):
            groups[-1].append(one)
        else:
            groups.append([one])
    return groups + [[one] for one in lane if one.span is None and one.length is None]


def _overlap(first: Occurrence, second: Occurrence) -> int:
    if first.span is None or second.span is None:
        return 0
    return min(first.span.end, second.span.end) - max(first.span.begin, second.span.begin)


def _against_stamps(one: Occurrence, tick: int) -> tuple[Occurrence, list[Occurrence]]:
    if one.stamped is None or one.length is None or one.span is None:
        return one, []
    slack = tick + one.resolution + max(TIMER_SLACK, round(TIMER_SLACK_RATIO * one.stamped))
    if abs(one.length - one.stamped) <= slack:
        return one, []
    seen = replace(
        one, length=one.stamped, span=Span(one.span.end - one.stamped, one.span.end), printed=False, resolution=tick
    )
    return seen, [one]


def _room(phase: str, replica: str | None, ended: Sequence[Occurrence], parent: Mapping[str, str]) -> int | None:
    """What the nearest enclosing phase of known length leaves beside the phase's own siblings of known length."""
    for above in lineage(phase, parent)[1:]:
        whole = [one for one in ended if one.phase == above and one.replica == replica and one.length is not None]
        if whole and (above in CONTAINERS or not any(one.is_total for one in whole)):
            beside = 0
            for other in {one.phase for one in ended} - {phase}:
                if parent.get(other) == above and other not in lineage(phase, parent):
                    beside += max(
                        (one.length or 0 for one in ended if one.phase == other and one.replica == replica), default=0
                    )
            return max(one.length or 0 for one in whole) - beside
    return None


def _best(printed: Sequence[Occurrence], limits: _Limits) -> Occurrence:
    """The value that contradicts least, the longest of several (workers without a name may run side by side)."""
    found = min(printed, key=lambda one: (limits.misfit(one), -(one.length or 0), min(one.lines)))
    equal = [one for one in printed if not _differ(one.length or 0, found.length or 0, _fineness(one, found))]
    return min(equal, key=lambda one: (one.resolution or PRINTED, min(one.lines)))


def _fineness(one: Occurrence, other: Occurrence) -> int:
    return (one.resolution or PRINTED) + (other.resolution or PRINTED)


def _differ(first: int, second: int, fineness: int) -> bool:
    return abs(first - second) > fineness


def _total_or_sum(totals: list[Occurrence], kept: list[Occurrence], room: int | None) -> tuple[Value, list[Value]]:
    """The total where one is printed, and what it conflicts with."""
    if not totals:
        return _value(kept), []
    own = [_value(kept)] if kept else []
    stamped = _told_once([one for one in totals if one.span is not None])
    told = [_value(stamped)] if stamped else []
    told += [_value([one]) for one in totals if one.span is None]
    best = min(told, key=lambda value: (_beyond(value, room), -(value.length or 0)))
    conflicts = [value for value in told if _values_differ(value, best)]
    equal = next(value for value in told if not _values_differ(value, best))
    for value in own:
        if value.length is None or not _values_differ(value, equal):
            equal = replace(equal, parts=(*equal.parts, *value.parts))
        elif value.length > (equal.length or 0) and (room is None or value.length <= room + PRINTED):
            equal, conflicts = value, [*conflicts, equal]
        else:
            conflicts.append(value)
    return equal, conflicts


def _beyond(value: Value, room: int | None) -> int:
    return 0 if room is None else max(0, (value.length or 0) - room)


def _told_once(totals: list[Occurrence]) -> list[Occurrence]:
    """Totals without one that only repeats another one or the sum of the others."""
    if len(totals) < 2:
        return totals
    whole = max(totals, key=lambda one: (one.length or 0, -min(one.lines)))
    together = sum(one.length or 0 for one in totals if one is not whole)
    same = abs((whole.length or 0) - together) <= len(totals) * (whole.resolution or PRINTED)
    return [whole] if same else totals


def _values_differ(first: Value, second: Value) -> bool:
    fineness = sum(part.resolution or PRINTED for part in (*first.parts, *second.parts))
    return _differ(first.length or 0, second.length or 0, fineness)


def _with_parts(found: Reconciled, ended: Sequence[Occurrence], parent: Mapping[str, str]) -> Reconciled:
    """Adds to `found` what follows from the parts of phases whose own line is absent or too short."""
    chosen = list(found.values)
    rejected = list(found.rejected)
    for above in sorted(set(parent.values()) - CONTAINERS, key=ORDER.__getitem__):
        phases = sorted({value.phase for value in chosen if parent.get(value.phase) == above}, key=ORDER.__getitem__)
        if len(phases) == 0 or above == "weights_load":
            continue
        printed = [value for value in chosen if value.phase == above]
        for (replica, worker), parts in _complete(chosen, phases).items():
            summed = Value(above, worker, replica, sum(part.length or 0 for part in parts), _occurrences(parts), True)
            mine = [value for value in printed if value.worker == worker and value.replica == replica]
            if not mine and not any(value.replica == replica for value in printed):
                chosen.append(summed)
            elif (
                mine
                and mine[0].length is not None
                and (summed.length or 0) > mine[0].length
                and _values_differ(mine[0], summed)
            ):
                room = _room(above, replica, ended, parent)
                if room is None or (summed.length or 0) <= room + PRINTED:
                    chosen[chosen.index(mine[0])] = summed
                    rejected.append(mine[0])
                else:
                    rejected.append(summed)
    return Reconciled(tuple(chosen), tuple(rejected))


def _complete(values: Sequence[Value], phases: Sequence[str]) -> dict[tuple[str | None, str], list[Value]]:
    """Per worker its values of these phases, for the workers that have every one of them."""
    lanes: dict[tuple[str | None, str], list[Value]] = defaultdict(list)
    for value in values:
        if value.phase in phases and value.length is not None:
            lanes[value.replica, value.worker].append(value)
    return {lane: parts for lane, parts in sorted(lanes.items(), key=str) if len(parts) == len(phases)}


def _occurrences(values: Sequence[Value]) -> tuple[Occurrence, ...]:
    return tuple(part for value in values for part in value.parts)
