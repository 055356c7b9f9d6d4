"""How far a progress bar has come, at what pace, and how long the whole will take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

CACHED_SPEEDUP = 10.0
"""Leading parts so many times faster than the rest came out of a cache and say nothing about the storage. Between a
page cache (GiB/s) and a network file system (tens to hundreds of MiB/s) lies a factor of ten and more, while the parts
of one checkpoint differ in size by far less."""


class Reading(NamedTuple):
    """One reading of a bar; `elapsed_s` is the bar's own clock, `time` the stamp in microseconds since the epoch."""

    done: int
    total: int
    elapsed_s: float | None
    time: int | None
    source_id: int
    line: int


@dataclass(frozen=True)
class Bar:
    """The readings of the last bar that one worker showed for one phase, in order."""

    phase: str
    worker: str
    replica: str | None
    readings: tuple[Reading, ...]

    @property
    def newest(self) -> Reading:
        """The last reading."""
        return self.readings[-1]

    @property
    def complete(self) -> bool:
        """Whether the last reading is at its end."""
        return self.newest.done >= self.newest.total

    @property
    def elapsed_s(self) -> float | None:
        """Seconds that the bar is known to have run: its own clock, else the stamps of its first and last reading."""
        if self.newest.elapsed_s is not None:
            return self.newest.elapsed_s
        stamped = [reading.time for reading in self.readings if reading.time is not None]
        return (stamped[-1] - stamped[0]) / 1e6 if len(stamped) > 1 else None


@dataclass(frozen=True)
class Pace:
    """Seconds for each part that still has to be read, the whole load at that pace, and what was left out.

    `cached_count` leading parts took `cached_s` together and are not in `seconds_each`.
    """

    seconds_each: float
    predicted_total_s: float
    cached_count: int
    cached_s: float


def bar(phase: str, worker: str, replica: str | None, rows: Sequence[Mapping[str, object]]) -> Bar:
    """The last bar in these rows of `Progress` (times in microseconds).

    A bar starts anew where its clock, or without one its count, turns back, and where its total changes.
    """
    readings: list[Reading] = []
    for reading in (_reading(row) for row in rows):
        if readings and _starts_anew(readings[-1], reading):
            readings = []
        readings.append(reading)
    return Bar(phase, worker, replica, tuple(readings))


def placed(found: Bar, above: int | None, last: int | None) -> Bar:
    """The bar, its newest reading placed in time where its lines have no stamps and the start has room for it.

    A bar begins after the last stamped line above it (`above`, microseconds), and its own clock says how long it has
    run since; a bar that would then run beyond the start's last stamp stays without a place.
    """
    newest = found.newest
    if newest.time is not None or newest.elapsed_s is None or above is None or last is None:
        return found
    end = above + round(newest.elapsed_s * 1e6)
    return found if end > last else replace(found, readings=(*found.readings[:-1], newest._replace(time=end)))


def pace(found: Bar) -> Pace | None:
    """Pace of the parts that must still be read: (elapsed − cached) / (done − cached parts); null without any.

    Leading parts that are `CACHED_SPEEDUP` times faster than the mean of those after them are cached. Without the bar's
    own clock the stamps of its readings count, and the prediction is that pace times all parts.
    """
    newest = found.newest
    if newest.done == 0:
        return None
    if newest.elapsed_s is None:
        return _stamped_pace(found)
    points = _monotone(found)
    count, spent = 0, 0.0
    for done, elapsed in points:
        if done >= newest.done:
            break
        rest = (newest.elapsed_s - elapsed) / (newest.done - done)
        # A bar prints whole seconds, so a part may have taken up to one second more than the difference says.
        if (elapsed - spent + 1.0) / (done - count) * CACHED_SPEEDUP > rest:
            break
        count, spent = done, elapsed
    each = (newest.elapsed_s - spent) / (newest.done - count)
    return Pace(each, newest.elapsed_s + (newest.total - newest.done) * each, count, spent)


def _monotone(found: Bar) -> list[tuple[int, float]]:
    points: list[tuple[int, float]] = []
    for reading in found.readings:
        if reading.elapsed_s is None or reading.done <= (points[-1][0] if points else 0):
            continue
        points.append((reading.done, max(reading.elapsed_s, points[-1][1] if points else 0.0)))
    return points


def _stamped_pace(found: Bar) -> Pace | None:
    stamped = [reading for reading in found.readings if reading.time is not None]
    if len(stamped) < 2 or stamped[-1].done <= stamped[0].done:
        return None
    first, last = stamped[0], stamped[-1]
    assert first.time is not None and last.time is not None
    each = (last.time - first.time) / 1e6 / (last.done - first.done)
    return Pace(each, each * last.total, 0, 0.0) if each > 0 else None


def _starts_anew(last: Reading, reading: Reading) -> bool:
    if reading.total != last.total:
        return True
    if reading.elapsed_s is not None and last.elapsed_s is not None:
        return reading.elapsed_s < last.elapsed_s
    return reading.done < last.done


def _reading(row: Mapping[str, object]) -> Reading:
    elapsed, time = row["elapsed_s"], row["time"]
    return Reading(
        done=_whole(row["done_count"]),
        total=_whole(row["total_count"]),
        elapsed_s=elapsed if isinstance(elapsed, float) else None,
        time=time if isinstance(time, int) else None,
        source_id=_whole(row["source_id"]),
        line=_whole(row["line"]),
    )


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
