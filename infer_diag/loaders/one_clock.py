"""Several sources of one deployment on one clock: a year lent by those that print it, and skew by its name."""

from __future__ import annotations

import dataclasses
import itertools
from datetime import datetime, timedelta

import polars as pl

from infer_diag import schema
from infer_diag.loaders.log_files import LogFileName, log_file_name
from infer_diag.loaders.text.stamps import ASSUMED_YEAR
from infer_diag.recording import Recording, Source

_HALF_A_YEAR = timedelta(days=182)
_NEAR = timedelta(days=2)
"""Sources of one deployment lie closer than this, whatever their zones; a year that brings them no closer is not it."""


def aligned(recordings: list[Recording]) -> list[Recording]:
    """The recordings with undated ones moved into the year of the dated ones, where that puts them beside each other.

    Zones are never guessed: stamps that name none stay where they are, and a source that then lies apart says so in
    its notes.
    """
    recordings = _in_turn(recordings)
    dated = [source for recording in recordings for source in recording.sources if source.dated and source.first_time]
    if not dated or len(recordings) == 1:
        return recordings
    return [_beside(_in_year(recording, dated), dated) for recording in recordings]


def _in_year(recording: Recording, dated: list[Source]) -> Recording:
    (source, *more) = recording.sources
    if more or source.dated or source.first_time is None or not all(clock.date_known for clock in source.clocks):
        return recording
    for other in dated:
        assert other.first_time is not None
        for year in sorted({other.first_time.year, (other.last_time or other.first_time).year}):
            years = year - ASSUMED_YEAR
            moved = _moved(source.first_time, years)
            if _apart(moved, _moved(source.last_time or source.first_time, years), other) <= _NEAR:
                return _shifted(recording, years, other)
    return recording


def _in_turn(recordings: list[Recording]) -> list[Recording]:
    """Rotated files whose stamps print no year, and which a new year parts: the earlier ones are of the year before."""
    names = {number: log_file_name(recording.sources[0].path) for number, recording in enumerate(recordings)}
    numbered = [number for number in names if _is_numbered(recordings[number], names[number])]
    placed = list(recordings)
    for series in {names[number].series for number in numbered}:
        mine = sorted((n for n in numbered if names[n].series == series), key=lambda n: names[n].before or 0)
        for later, earlier in itertools.pairwise(mine):
            first, limit = placed[earlier].sources[0].first_time, placed[later].sources[0].first_time
            if first is not None and limit is not None and first > limit + _HALF_A_YEAR:
                placed[earlier] = _year_before(placed[earlier])
    return placed


def _is_numbered(recording: Recording, name: LogFileName) -> bool:
    (source, *more) = recording.sources
    undated = not source.dated and bool(source.clocks) and all(clock.date_known for clock in source.clocks)
    return not more and undated and name.before is not None


def _year_before(recording: Recording) -> Recording:
    (source,) = recording.sources
    frames = {name: _frame_shifted(getattr(recording, name), -1) for name in schema.FRAMES}
    source = dataclasses.replace(
        source,
        first_time=source.first_time and _moved(source.first_time, -1),
        last_time=source.last_time and _moved(source.last_time, -1),
        notes=(*source.notes, "its stamps print no year; by the number in its name it is of the year before"),
    )
    return recording.replace(sources=(source,), **frames)


def _shifted(recording: Recording, years: int, lender: Source) -> Recording:
    frames = {name: _frame_shifted(getattr(recording, name), years) for name in schema.FRAMES}
    (source,) = recording.sources
    clocks = tuple(dataclasses.replace(clock, year_known=True) for clock in source.clocks)
    source = dataclasses.replace(
        source,
        first_time=source.first_time and _moved(source.first_time, years),
        last_time=source.last_time and _moved(source.last_time, years),
        clocks=clocks,
        notes=(*source.notes, f"its stamps print no year; {lender.path} lends it"),
    )
    return recording.replace(sources=(source,), **frames)


def _frame_shifted(frame: pl.DataFrame, years: int) -> pl.DataFrame:
    times = [name for name, kind in frame.schema.items() if isinstance(kind, pl.Datetime)]
    return frame.with_columns(pl.col(name).dt.offset_by(f"{years}y") for name in times)


def _beside(recording: Recording, dated: list[Source]) -> Recording:
    """Notes on a source that lies apart from every other one."""
    (source, *more) = recording.sources
    others = [other for other in dated if other.path != source.path]
    if more or not source.dated or source.first_time is None or source.last_time is None or not others:
        return recording
    nearest = min(others, key=lambda other: _apart(source.first_time, source.last_time, other))
    apart = _apart(source.first_time, source.last_time, nearest)
    if apart <= timedelta(0):
        return recording
    note = f"its time lies {apart.total_seconds():.0f} s from that of {nearest.path}: other hours, or another zone"
    return recording.replace(sources=(dataclasses.replace(source, notes=(*source.notes, note)),))


def _moved(time: datetime, years: int) -> datetime:
    try:
        return time.replace(year=time.year + years)
    except ValueError:  # 29 February in a year that has none
        return time.replace(year=time.year + years, day=28)


def _apart(first: datetime | None, last: datetime | None, other: Source) -> timedelta:
    """Time between two spans; nothing where they overlap."""
    assert first is not None and last is not None and other.first_time is not None
    return max(first - (other.last_time or other.first_time), other.first_time - last, timedelta(0))
