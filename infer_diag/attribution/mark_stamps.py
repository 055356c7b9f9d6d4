"""Where the lines of a start lie in time: lines without a stamp, and totals that stand in lines of other phases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from infer_diag.attribution.occurrences import Mark


def known_stamps(stamps: Sequence[tuple[int, int, int]], marks: Sequence[Mark]) -> list[tuple[int, int, int]]:
    """Source, line and time of every stamped line of a start that tells something, in order."""
    return sorted([*stamps, *((one.source_id, one.line, one.moment) for one in marks if one.moment is not None)])


def anchored(marks: list[Mark], stamps: list[tuple[int, int, int]]) -> list[Mark]:
    """Durations whose line has no stamp end at the last stamped line above them, where the start has stamps at all."""
    known = known_stamps(stamps, marks)
    return [_at_last_stamp(mark, known) if known and _floats(mark) else mark for mark in marks]


def annotated(marks: list[Mark]) -> list[Mark]:
    """Totals that stand in the line of another phase were not printed at their own end and lose that line's stamp.

    Such a total of no worker's own only repeats what workers tell of the phase, where they do.
    """
    lines = {(mark.source_id, mark.line) for mark in marks if not mark.is_total}
    beside = [mark.is_total and (mark.source_id, mark.line) in lines for mark in marks]
    workers = {(mark.replica, mark.phase) for mark in marks if mark.worker}
    return [
        replace(mark, end=None) if other else mark
        for mark, other in zip(marks, beside, strict=True)
        if not (other and not mark.worker and (mark.replica, mark.phase) in workers)
    ]


def _floats(mark: Mark) -> bool:
    return mark.length is not None and mark.moment is None and not mark.is_total


def _at_last_stamp(mark: Mark, known: Sequence[tuple[int, int, int]]) -> Mark:
    beside = [(line, time) for source, line, time in known if source == mark.source_id]
    above = [time for line, time in beside if line <= mark.line]
    below = [time for line, time in beside if line > mark.line]
    end = above[-1] if above else below[0] if below else known[0][2]
    # Where it fits between the stamps around its line, it lies there.
    room = above and below and end + (mark.length or 0) <= below[0]
    return replace(mark, end=end + (mark.length or 0) if room else end)
