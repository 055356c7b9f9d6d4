"""Stamps of one start that cannot all be of one clock, and lengths that no clock allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from infer_diag.attribution.occurrences import Mark

SET_BACK_US = 30_000_000
"""Lines of several processes reach a log up to seconds late (Ray holds repeated ones back for five); the last one
before ready lies further back by no buffer but by a clock that was set, as by an hour at the end of summer time."""

SLACK_US = 60_000_000
SLACK_RATIO = 2
"""The first stamped line may come long after the process began: its imports are silent."""


def set_back_us(
    told: Sequence[tuple[int, int, int]], source_id: int, begin: tuple[int, int] | None, last_line: int
) -> int | None:
    """Microseconds by which the last stamped line up to `last_line` lies before the latest stamp above it.

    `told` are (source, line, time) in order, `begin` the (line, time) of the engine's first line: what has none is no
    log that was written line by line. Null where so much is what buffers do, or where nothing has a stamp.
    """
    first_line = last_line if begin is None else begin[0]
    times = [time for source, line, time in told if source == source_id and first_line <= line <= last_line]
    back = max(times) - times[-1] if times else 0
    return back if back > SET_BACK_US else None


def within_clock(marks: Sequence[Mark], begin: tuple[int, int] | None) -> tuple[list[Mark], tuple[Mark, ...]]:
    """The marks, with a printed length that began far before the engine did as what its stamp allows at most; and those
    lines as they are.

    `begin` is (line, time) of the engine's first line. A length is absurd beyond twice the time since that line and a
    minute: it is damaged or made up, and would be the longest part of the start.
    """
    found, absurd = list(marks), []
    for place, mark in enumerate(marks):
        since = None if begin is None or mark.end is None or mark.line <= begin[0] else mark.end - begin[1]
        if since is not None and since >= 0 and (mark.length or 0) > SLACK_RATIO * since + SLACK_US:
            found[place] = replace(mark, length=None, upper=since)
            absurd.append(mark)
    return found, tuple(absurd)
