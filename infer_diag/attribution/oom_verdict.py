"""Why one allocation failed, from the numbers that its message prints and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

DRIVER_RATIO = 0.01
"""Share of a device that its driver may count as free and still not hand out (page tables, contexts, granularity)."""

MATERIAL_RATIO = 0.1
"""Memory of others below this share of the device is a context or a desktop, and no cause."""


@dataclass(frozen=True)
class Span:
    """A printed number of bytes and everything that prints the same."""

    low: float
    high: float

    def __add__(self, other: Span) -> Span:
        return Span(self.low + other.low, self.high + other.high)

    def __sub__(self, other: Span) -> Span:
        return Span(self.low - other.high, self.high - other.low)

    def at_least(self, other: Span) -> bool | None:
        """Whether this is at least the other; null where the printed digits do not decide."""
        if self.low >= other.high:
            return True
        return None if self.high >= other.low else False

    def share(self, ratio: float) -> Span:
        """So large a part of it."""
        return Span(self.low * ratio, self.high * ratio)

    @property
    def middle(self) -> float:
        """The number as printed."""
        return (self.low + self.high) / 2


NOTHING = Span(0.0, 0.0)


@dataclass(frozen=True)
class Numbers:
    """What one message prints, null where it does not; `listed` are the processes that it names by their id.

    `usable` are those idle bytes that lie where the allocator may serve the request from, as only a block map tells.
    """

    requested: Span | None = None
    total: Span | None = None
    free: Span | None = None
    process: Span | None = None
    allocated: Span | None = None
    reserved: Span | None = None
    idle: Span | None = None
    usable: Span | None = None
    private_pools: Span | None = None
    allowed: Span | None = None
    listed: Sequence[Span] = ()

    @property
    def serving(self) -> Span | None:
        """The idle bytes that count for the request: the usable ones, or all where no block map tells them."""
        return self.idle if self.usable is None else self.usable

    @property
    def others(self) -> Span | None:
        """What processes other than the failing one hold: those listed, or what its own use leaves of the device."""
        if self.listed:
            sizes = [span.middle for span in self.listed]
            whole = sum(self.listed, NOTHING)
            if self.process is not None:
                return whole
            # The failing process may be any of them, so the others hold at least all but the largest.
            return Span((whole - self.listed[sizes.index(max(sizes))]).low, whole.high) if len(sizes) > 1 else None
        if self.process is None or self.total is None or self.free is None:
            return None
        return self.total - self.free - self.process


@dataclass(frozen=True)
class Reading:
    """A verdict of `results.OOM_VERDICTS`, and whether idle bytes, joined or returned, would have served."""

    verdict: str
    compaction_would_help: bool | None = None


UNDETERMINED = Reading("undetermined")


def reading(numbers: Numbers) -> Reading:
    """Why the device refused the request.

    In this order: a request beyond the device; room on the device, so a limit of the process or of host and driver;
    idle bytes of the framework that, joined or returned, make up the difference; others that hold it; and else the
    framework's live memory itself. A comparison that the printed digits leave open makes the verdict `borderline`, a
    number that is missing makes it `undetermined`.
    """
    if numbers.requested is None:
        return UNDETERMINED
    if numbers.total is not None:
        within = numbers.total.at_least(numbers.requested)
        if within is not True:
            return Reading("borderline") if within is None else Reading("request_exceeds_device", False)
    if numbers.free is None:
        if numbers.serving is not None and numbers.serving.at_least(numbers.requested):
            return Reading("fragmentation", _idle_serves(numbers, numbers.requested))
        return Reading("process_limit") if _over_the_limit(numbers, numbers.requested) else UNDETERMINED
    room = _room(numbers, numbers.requested)
    if room is True:
        return _refused_with_room(numbers, numbers.requested)
    if room is None:
        return UNDETERMINED if numbers.total is None else Reading("borderline")
    return _without_room(numbers, numbers.requested)


def _room(numbers: Numbers, requested: Span) -> bool | None:
    """Whether the device had room: free beyond the request by more than a driver withholds; a full device has none."""
    if numbers.free is None:
        return None
    if numbers.free.at_least(requested) is False:
        return False
    if numbers.total is None:
        return None
    withheld = numbers.total.share(DRIVER_RATIO)
    if withheld.at_least(numbers.free):
        return False
    return True if (numbers.free - withheld).at_least(requested) else None


def _over_the_limit(numbers: Numbers, requested: Span) -> bool | None:
    """Whether the request would have taken the process past its limit; null where there is none or it is open."""
    if numbers.allowed is None:
        return None
    held = numbers.reserved or numbers.allocated
    if requested.at_least(numbers.allowed):
        return True
    return None if held is None else (held + requested).at_least(numbers.allowed)


def _refused_with_room(numbers: Numbers, requested: Span) -> Reading:
    """The limits that are left when the device had room."""
    helps = _idle_serves(numbers, requested)
    if numbers.allowed is None:
        return Reading("host_or_driver_limit", helps)
    if numbers.reserved is None and requested.at_least(numbers.allowed) is not True:
        return UNDETERMINED
    # The device had room and a limit is set: touching it within the printed digits is enough.
    touched = _over_the_limit(numbers, requested) is not False
    return Reading("process_limit" if touched else "host_or_driver_limit", helps)


def _idle_serves(numbers: Numbers, requested: Span) -> bool | None:
    """Whether the framework's own idle bytes alone would have served; open where graph pools may hold them."""
    if numbers.serving is None:
        return None
    enough = numbers.serving.at_least(requested)
    return None if enough and _in_pools(numbers) else enough


def _in_pools(numbers: Numbers) -> bool:
    return numbers.usable is None and numbers.private_pools is not None and numbers.private_pools.high > 0


def _without_room(numbers: Numbers, requested: Span) -> Reading:
    """Who holds the memory that the request would have needed."""
    idle = numbers.serving
    if idle is None or numbers.free is None:
        return UNDETERMINED
    if numbers.total is None:
        # Idle bytes that suffice alone do so on a device of any size.
        if idle.at_least(requested):
            return Reading("fragmentation", _idle_serves(numbers, requested))
        return UNDETERMINED
    # What a full device still counts as free is not to be had.
    free = numbers.free if numbers.free.at_least(requested) is False else NOTHING
    returned = (free + idle).at_least(requested)
    if returned is False and numbers.idle is not None and (free + numbers.idle).at_least(requested) is not False:
        # Idle bytes of other pools or streams serve only once whole segments of theirs go back.
        return UNDETERMINED
    if returned is False:
        return Reading(_holder(numbers, requested, free, numbers.total), False)
    withheld = numbers.total.share(DRIVER_RATIO)
    if idle.at_least(requested) or (free + idle - withheld).at_least(requested):
        return Reading("fragmentation", None if _in_pools(numbers) else True)
    return Reading("borderline")


def _holder(numbers: Numbers, requested: Span, free: Span, total: Span) -> str:
    """The verdict where idle bytes do not suffice: the largest share outside the framework that would, or capacity."""
    if numbers.reserved is None:
        return "undetermined"
    suspects = {"other_process": numbers.others}
    if numbers.process is not None:
        suspects["non_framework_memory"] = numbers.process - numbers.reserved
    elif suspects["other_process"] is None or not _serves(suspects["other_process"], requested, free, total):
        # Whatever else is on the device belongs to this process or to others: the message does not tell.
        unknown = total - numbers.free - numbers.reserved if numbers.free is not None else total
        return "capacity" if _serves(unknown, requested, free, total) is False else "undetermined"
    known = {name: span for name, span in suspects.items() if span is not None}
    answers = {name: (span.middle, _serves(span, requested, free, total)) for name, span in known.items()}
    sufficient = {name: size for name, (size, serves) in answers.items() if serves}
    if sufficient:
        return max(sufficient, key=lambda name: sufficient[name])
    return "borderline" if any(serves is None for _, serves in answers.values()) else "capacity"


def _serves(span: Span, requested: Span, free: Span, total: Span) -> bool | None:
    """Whether memory held outside the framework is material and would, given back, have served the request."""
    if span.at_least(total.share(MATERIAL_RATIO)) is False:
        return False
    return (free + span).at_least(requested)
