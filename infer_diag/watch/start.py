"""Slow or hung? What the log of a start that is still going on can say, and where it cannot."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

from infer_diag.attribution.line_numbers import located
from infer_diag.attribution.load_progress import Bar, pace
from infer_diag.attribution.start_reading import StartReading, start_readings
from infer_diag.diagnose.finding import Status
from infer_diag.recording import Recording
from infer_diag.units import format_s

Word = Literal["ready", "failed", "moving", "slow", "stalled", "open", "unknown"]

FRESH_S = 10.0
"""A log whose last line is no older than this is being written: buffers and one-second stamps explain the rest."""

PATIENCE = 3.0
"""Parts of one checkpoint differ in size by a factor of two or so; one that takes three times the slowest before it
is no longer explained by its size."""

_LOOK = "look at the process itself: py-spy dump --pid PID, and nvidia-smi for the GPU"


@dataclass(frozen=True)
class Verdict:
    """How a start stands: one word, one sentence, how sure, the lines that say so, and what to do."""

    word: Word
    sentence: str
    status: Status = "measured"
    evidence: tuple[str, ...] = ()
    remedy: str | None = None


def verdict(recording: Recording, quiet_s: float, still_s: float) -> Verdict:
    """The state of the last start in a log.

    Args:
        recording: the log so far.
        quiet_s: since the log's last growth.
        still_s: since a progress bar of the start last moved, or began to be watched.
    """
    readings = start_readings(recording)
    if not readings:
        return Verdict("unknown", f"no line tells of a start yet; the last line is {format_s(quiet_s)} old")
    reading = readings[-1]
    if reading.up:
        return Verdict("ready", "the engine is up", evidence=_places(recording, reading, reading.ready_line))
    if reading.failed_line is not None:
        return Verdict("failed", "the start failed", evidence=_places(recording, reading, reading.failed_line))
    bars = [each for each in reading.running_bars if not each.complete]
    if bars:
        return _of_bar(recording, reading, min(bars, key=_share), still_s)
    return _of_phase(recording, reading, quiet_s)


def moved(recording: Recording) -> tuple[tuple[str, str, int], ...]:
    """How far the bars of the last start have come: another value means that one of them moved."""
    readings = start_readings(recording)
    bars = readings[-1].running_bars if readings else ()
    return tuple((each.phase, each.worker, each.newest.done) for each in bars)


def _of_bar(recording: Recording, reading: StartReading, bar: Bar, still_s: float) -> Verdict:
    what, newest, told = bar.phase.replace("_", " "), bar.newest, pace(bar)
    places = tuple({recording.evidence(newest.source_id, newest.line)})
    far = f"{what}: {newest.done} of {newest.total} parts"
    if told is None:
        sentence = f"{far} after {format_s(still_s)}: without one part done the log cannot tell slow from hung"
        return Verdict("open", sentence, "not_identifiable", places, _LOOK)
    slowest_s = max(told.seconds_each, _slowest_s(bar))
    if still_s > PATIENCE * slowest_s + FRESH_S:
        sentence = (
            f"{far}, none more for {format_s(still_s)} where the slowest before took {format_s(slowest_s)}: "
            "it has stalled, by the pace of its own parts"
        )
        return Verdict("stalled", sentence, "measured", places, f"{_LOOK}; see whether the storage still reads")
    left_s = max(told.predicted_total_s - (bar.elapsed_s or 0.0), 0.0)
    sentence = f"{far} done at {format_s(told.seconds_each)} each: slow or not, it moves; {format_s(left_s)} to go"
    return Verdict("moving", f"{sentence} at this pace", "modelled", places)


def _of_phase(recording: Recording, reading: StartReading, quiet_s: float) -> Verdict:
    begun = reading.running[-1] if reading.running else None
    what = begun.phase.replace("_", " ") if begun is not None else None
    line = begun.line if begun is not None else reading.last_line
    places = _places(recording, reading, line)
    doing = f"{what} is going on" if what else "nothing that the log names is going on"
    if quiet_s <= FRESH_S:
        return Verdict("moving", f"{doing}; the last line is {format_s(quiet_s)} old", "measured", places)
    sentence = (
        f"{doing} and the log is silent for {format_s(quiet_s)}: this phase prints no progress, so the log cannot tell "
        "slow from hung"
    )
    return Verdict("open", sentence, "not_identifiable", places, _LOOK)


def _slowest_s(bar: Bar) -> float:
    """Seconds of the slowest part so far, by the bar's own clock or else by the stamps of its readings."""
    points: list[tuple[int, float]] = []
    for each in bar.readings:
        at = each.elapsed_s if each.elapsed_s is not None else each.time / 1e6 if each.time is not None else None
        if at is not None:
            points.append((each.done, at))
    steps = [
        (later - earlier) / (done - before)
        for (before, earlier), (done, later) in itertools.pairwise(points)
        if done > before
    ]
    return max(steps, default=0.0)


def _share(bar: Bar) -> float:
    return bar.newest.done / bar.newest.total if bar.newest.total else 1.0


def _places(recording: Recording, reading: StartReading, line: int | None) -> tuple[str, ...]:
    if not line:
        return ()
    source_id, number = located(line, reading.source_id)
    return (recording.evidence(source_id, number),)
