"""Where in time a recording lies: true times where its clocks are known, a stated origin or a refusal where not."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from infer_diag.errors import DiagError
from infer_diag.recording import Recording, Source

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Placing:
    """Microseconds to add to the recording's stamps, its first and last one then, and whether the place is made up."""

    shift_us: int
    first_us: int
    last_us: int
    is_relative: bool


def placed(recording: Recording, origin: datetime | None) -> Placing:
    """The place of the recording in time; `origin` is where its first stamp goes if its own clock is not known.

    Raises:
        DiagError: a source prints no year, date or zone and no origin is given, or one is given to known clocks.
    """
    timed = [source for source in recording.sources if source.first_time is not None]
    unknown = [source for source in timed if not _is_known(source, timed)]
    if origin is None:
        return _true(recording, timed, unknown)
    if timed and not unknown:
        raise DiagError("the clocks of these logs are known, so their times are not moved", hint="leave the origin out")
    if origin.tzinfo is None:
        raise DiagError(f"the origin {origin.isoformat()} names no zone", hint="2026-03-14T09:00:00Z, for instance")
    if len(timed) > 1:
        raise DiagError(
            f"{len(timed)} sources without a known clock do not tell how they lie to each other",
            hint="export one at a time",
        )
    begin = _microseconds(origin)
    if not timed:
        return Placing(0, begin, begin, is_relative=True)
    first, last = _bounds(timed)
    return Placing(begin - first, begin, begin + last - first, is_relative=True)


def _true(recording: Recording, timed: list[Source], unknown: list[Source]) -> Placing:
    named = unknown or ([] if timed else list(recording.sources))
    if not named:
        first, last = _bounds(timed)
        return Placing(0, first, last, is_relative=False)
    source = named[0]
    if source.first_time is None:
        missing, hint = "time", "give an origin: where its begin is to stand; it is then marked as relative"
    elif not source.dated:
        missing, hint = "whole date", "load it with year=, or give an origin: what is exported is then marked relative"
    else:
        missing, hint = "zone", "load it with tz=, such as tz='UTC', or beside metrics of the same hours"
    raise DiagError(f"{source.path} prints no {missing}, so spans and samples would lie at wrong times", hint=hint)


def _is_known(source: Source, timed: list[Source]) -> bool:
    """Whether a source's stamps are moments in UTC: by their zone, or since it overlaps one that names its zone."""
    if not source.dated:
        return False
    if _is_zoned(source):
        return True
    return any(_is_zoned(other) and other.dated and _overlap(source, other) for other in timed)


def _is_zoned(source: Source) -> bool:
    return any(clock.zone for clock in source.clocks)


def _overlap(source: Source, other: Source) -> bool:
    (first, last), (begin, end) = _bounds([source]), _bounds([other])
    return first <= end and begin <= last


def _bounds(timed: list[Source]) -> tuple[int, int]:
    times = [_microseconds(time) for one in timed for time in (one.first_time, one.last_time) if time is not None]
    return min(times), max(times)


def _microseconds(time: datetime) -> int:
    since = time - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
