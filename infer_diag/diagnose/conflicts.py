"""Findings on lines of one start that cannot all be true."""

from __future__ import annotations

from infer_diag.attribution.intervals import seconds
from infer_diag.attribution.reconcile import PRINTED
from infer_diag.diagnose.finding import Finding
from infer_diag.diagnose.start_view import Row, StartView
from infer_diag.units import format_s


def conflicts(view: StartView) -> list[Finding]:
    """Lines that give different lengths for one phase, and parts that are longer than what encloses them."""
    found = []
    for row in view.phases:
        if row["chosen"] or row["duration_s"] is None:
            continue
        taken = next(
            (
                other
                for rank in (row["rank"], None)
                for other in view.phases
                if other["phase"] == row["phase"] and other["chosen"] and other["rank"] == rank
            ),
            None,
        )
        if taken is None or taken["duration_s"] is None:
            continue
        values = f"{format_s(taken['duration_s'])} and {format_s(row['duration_s'])}"
        sentence = (
            f"Two values are given for {row['phase']}: {values}; the first one fits the stamps and the enclosing phase "
            "best and is used."
        )
        found.append(_conflict(view, sentence, [*row["lines"], *taken["lines"]]))
    return found + [_conflict(view, *told) for told in (*_absurd(view), *_too_long(view))]


def _absurd(view: StartView) -> list[tuple[str, list[int]]]:
    """Printed lengths that began long before the engine did."""
    return [
        (
            f"{mark.phase} is given {format_s(seconds(mark.length or 0))}, and began long before the engine did if "
            "that is so; the line is not believed, and how long it took is not told.",
            [mark.line],
        )
        for mark in view.reading.absurd
    ]


def _too_long(view: StartView) -> list[tuple[str, list[int]]]:
    told = []
    for row in view.phases:
        above = _enclosing(view, row)
        if above is None or row["duration_s"] is None or above["duration_s"] is None:
            continue
        if row["duration_s"] > above["duration_s"] + _fineness_s(view, row["phase"], row["inside"]):
            sentence = (
                f"{row['phase']} is given {format_s(row['duration_s'])}, more than the "
                f"{format_s(above['duration_s'])} of {row['inside']} that encloses it; both stand as printed."
            )
            told.append((sentence, [*row["lines"], *above["lines"]]))
    return told


def _enclosing(view: StartView, row: Row) -> Row | None:
    """The row of the enclosing phase that tells of the same workers, null where none does."""
    ranked = {other["phase"] for other in view.phases if other["rank"] is not None}
    if row["rank"] is None and {row["phase"], row["inside"]} <= ranked:
        return None
    same = [other for other in view.phases if other["phase"] == row["inside"] and other["rank"] == row["rank"]]
    return next((other for other in same if other["chosen"] and row["chosen"]), None)


def _fineness_s(view: StartView, *phases: str) -> float:
    """How far two lengths may differ by how they are printed, or by the clock where they are stamp differences."""
    told = [one for one in view.reading.ended if one.phase in phases]
    return sum(((one.resolution or PRINTED) if one.printed else view.reading.tick) for one in told) / 1e6


def _conflict(view: StartView, sentence: str, lines: list[int]) -> Finding:
    return Finding(
        id="cold_start.conflicting_durations",
        severity="low",
        sentence=view.name + sentence,
        status="measured",
        evidence=view.evidence(lines),
    )
