"""The length of each phase of a start: by worker, and on the wall clock of the whole start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from infer_diag.attribution.intervals import Span, measure, microseconds
from infer_diag.attribution.load_progress import Bar
from infer_diag.attribution.occurrences import ORDER, UNLABELLED, Begun, is_bound, lineage
from infer_diag.attribution.reconcile import Reconciled, Value
from infer_diag.attribution.start_reading import StartReading

EVIDENCE_LINES = 8
"""Lines shown for one value: enough to check it by hand, few enough for a table cell."""

REPEATED_BY_NATURE = frozenset({"compile_graph", "compile_dynamo"})
"""Phases that one worker goes through once per shape or sub-model, so that several lines without stamps add up."""


@dataclass(frozen=True)
class PhaseRow:
    """One row of `StartPhases`, in microseconds; `span` in the time of the stamps."""

    phase: str
    rank: str | None
    inside: str | None
    length: int | None
    span: Span | None
    lower: int | None
    upper: int | None
    status: str
    chosen: bool
    lines: tuple[int, ...]


def phase_rows(reading: StartReading, values: Reconciled) -> list[PhaseRow]:
    """Every row about the phases of this start: wall clock first, then the workers, then values that do not hold."""
    rows: list[PhaseRow] = []
    for phase in _visible(reading, values):
        workers = [_worker_row(reading, values, phase, worker) for worker in _workers(reading, values, phase)]
        rows.append(_wall_row(reading, values, phase, workers))
        if len(workers) > 1 or any(row.rank != UNLABELLED for row in workers):
            rows += workers
        for value in values.rejected:
            if value.phase == phase:
                rank = value.worker or (UNLABELLED if len(workers) > 1 else None)
                rows.append(_row(reading, phase, rank, value, status="measured", chosen=False))
    return rows


def _visible(reading: StartReading, values: Reconciled) -> list[str]:
    found = {mark.phase for mark in reading.marks} | {bar.phase for bar in reading.bars}
    found |= {value.phase for value in values.values}
    found |= {reading.parent[phase] for phase in found if reading.parent.get(phase) == "weights_load"}
    return sorted(found, key=ORDER.__getitem__)


def _workers(reading: StartReading, values: Reconciled, phase: str) -> list[str]:
    found = {mark.worker for mark in reading.marks if mark.phase == phase}
    found |= {value.worker for value in values.of(phase)}
    found |= {bar.worker for bar in _bars_of(reading, phase) if bar in reading.running_bars}
    return sorted(found) or [""]


def _worker_row(reading: StartReading, values: Reconciled, phase: str, worker: str) -> PhaseRow:
    rank = worker or UNLABELLED
    value = next((value for value in values.of(phase) if value.worker == worker), None)
    if _running(reading, phase, worker) or value is None or value.length is None:
        lower = _lower(reading, phase, worker)
        upper = None if _running(reading, phase, worker) else _upper(reading, phase, worker)
        bounded = lower is not None or upper is not None
        lines = _open_lines(reading, phase, worker) + (value.lines if value is not None else [])
        status = "bounded" if bounded else "not_identifiable"
        inside = reading.parent.get(phase)
        return PhaseRow(phase, rank, inside, None, None, lower, upper, status, True, _shown(lines))
    return _row(reading, phase, rank, value, status="measured", chosen=True)


def _row(reading: StartReading, phase: str, rank: str | None, value: Value, *, status: str, chosen: bool) -> PhaseRow:
    span = _hull(value.spans)
    inside = reading.parent.get(phase)
    lower, upper = _loose_bounds(value)
    if chosen and lower is None and _is_partial(value):
        lower = value.length
    length = value.length
    if length == 0 and not any(part.printed for part in value.parts):
        length, upper = None, reading.tick
    status = "bounded" if lower is not None or upper is not None else status
    return PhaseRow(phase, rank, inside, length, span, lower, upper, status, chosen, _shown(value.lines))


def _loose_bounds(value: Value) -> tuple[int | None, int | None]:
    """Bounds of several durations without stamps: they may have run one after the other or side by side."""
    loose = [part.length for part in value.parts if part.span is None and part.length is not None and not part.is_total]
    if len(loose) < 2 or value.is_total or value.phase in REPEATED_BY_NATURE:
        return None, None
    return max(loose), sum(loose)


def _is_partial(value: Value) -> bool:
    """Whether the length is the sum of one kind of part only, so that the rest of the phase may be missing."""
    return value.is_total and len({part.phase for part in value.parts}) == 1 and value.parts[0].phase != value.phase


def _wall_row(reading: StartReading, values: Reconciled, phase: str, workers: Sequence[PhaseRow]) -> PhaseRow:
    inside = reading.parent.get(phase)
    known = [row for row in workers if row.length is not None]
    running = [row for row in workers if _running(reading, phase, "" if row.rank == UNLABELLED else row.rank or "")]
    spans = [span for value in values.of(phase) for span in value.spans]
    length, slowest = _wall(reading, values, phase)
    if not known:
        length = None
    if running or length is None or slowest is None:
        lowers = [row.lower for row in workers if row.lower is not None] + ([length] if length is not None else [])
        lowers += _longest_parts(reading, values, phase)
        lower = max(lowers, default=None)
        uppers = [row.upper for row in workers]
        upper = max((upper for upper in uppers if upper is not None), default=None) if None not in uppers else None
        status = "bounded" if lower is not None or upper is not None else "not_identifiable"
        lines = _shown(line for row in (running or workers) for line in row.lines)
        return PhaseRow(phase, None, inside, None, _hull(spans), lower, upper, status, True, lines)
    bounds = [(row.lower, row.upper) for row in known if row.status == "bounded"]
    later = _ends_later(reading, values, phase)
    lower = length if later else max((low for low, _ in bounds if low is not None), default=None)
    upper = None if later else max((high for _, high in bounds if high is not None), default=None)
    status = "bounded" if lower is not None else "measured"
    return PhaseRow(phase, None, inside, length, _hull(spans), lower, upper, status, True, _shown(slowest.lines))


def _wall(reading: StartReading, values: Reconciled, phase: str) -> tuple[int | None, Value | None]:
    """Wall-clock length and the slowest worker's value.

    A barrier phase is as long as its slowest worker. Where all have stamps, it is the union of their intervals; what
    the union has beyond the slowest worker by less than one tick of the clock is the rounding of the stamps.
    """
    known = [value for value in values.of(phase) if value.length is not None]
    if not known:
        return None, None
    slowest = max(known, key=lambda value: (value.length or 0, value.worker))
    longest = slowest.length or 0
    if any(value.is_total or len(value.spans) < len(value.parts) for value in known):
        return longest, slowest
    whole = measure(span for value in known for span in value.spans)
    return (longest if whole - longest < reading.tick else whole), slowest


def _longest_parts(reading: StartReading, values: Reconciled, phase: str) -> list[int]:
    """Wall-clock lengths of the phases that lie inside this one, each of which it lasts at least as long as."""
    inside = [other for other, above in reading.parent.items() if above == phase]
    return [length for other in inside if (length := _wall(reading, values, other)[0])]


def _ends_later(reading: StartReading, values: Reconciled, phase: str) -> bool:
    """Whether a worker whose length is unknown is seen to end after all those whose length is known."""
    known = [span.end for value in values.of(phase) if value.length is not None for span in value.spans]
    unknown = [part.end for value in values.of(phase) if value.length is None for part in value.parts]
    ends = [end for end in unknown if end is not None]
    return bool(known and ends) and max(ends) - max(known) > reading.tick


def _bars_of(reading: StartReading, phase: str) -> list[Bar]:
    return [bar for bar in reading.bars if phase in lineage(bar.phase, reading.parent)[:2]]


def _running(reading: StartReading, phase: str, worker: str) -> bool:
    begun = [begun for begun in reading.running if begun.worker == worker]
    if any(phase == one.phase for one in begun):
        return True
    return any(bar in reading.running_bars and bar.worker == worker for bar in _bars_of(reading, phase))


def _lower(reading: StartReading, phase: str, worker: str) -> int | None:
    found = [mark.lower for mark in reading.marks if mark.worker == worker and mark.phase == phase]
    bounds = [lower for lower in found if lower is not None]
    for bar in _bars_of(reading, phase):
        if bar.worker == worker and bar.elapsed_s is not None:
            bounds.append(microseconds(bar.elapsed_s))
    if reading.outcome != "failed" and reading.last is not None:
        begins = [one.begin for one in reading.running if one.phase == phase and one.worker == worker]
        bounds += [reading.last - begin for begin in begins if begin is not None]
    return max((bound for bound in bounds if bound > 0), default=None)


def _upper(reading: StartReading, phase: str, worker: str) -> int | None:
    """From the begin that is never ended to the first sight of what comes after it; without one, what a line tells."""
    begins = [
        one.begin for one in reading.lost if one.phase == phase and one.worker == worker and one.begin is not None
    ]
    if not begins:
        told = [mark.upper for mark in reading.marks if mark.worker == worker and mark.phase == phase]
        return min((upper for upper in told if upper is not None), default=None)
    after = [reading.ready] if reading.ready is not None else []
    for mark in reading.marks:
        if ORDER[mark.phase] > ORDER[phase] and phase not in lineage(mark.phase, reading.parent) and not is_bound(mark):
            after.append(mark.moment if mark.moment is not None else reading.last or begins[0])
    later = [moment for moment in after if moment >= begins[0]]
    return min(later) - begins[0] + reading.tick if later else None


def _open_lines(reading: StartReading, phase: str, worker: str) -> list[int]:
    begun: list[Begun] = [
        one for one in (*reading.running, *reading.lost) if one.phase == phase and one.worker == worker
    ]
    bars = [bar.newest.line for bar in _bars_of(reading, phase) if bar.worker == worker]
    bounds = [mark.line for mark in reading.marks if mark.phase == phase and mark.worker == worker and is_bound(mark)]
    return [one.line for one in begun] + bars + bounds[-1:]


def _hull(spans: Sequence[Span]) -> Span | None:
    if not spans:
        return None
    return Span(min(span.begin for span in spans), max(span.end for span in spans))


def _shown(lines: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(lines))[:EVIDENCE_LINES])
