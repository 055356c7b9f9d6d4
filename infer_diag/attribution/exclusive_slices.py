"""A start cut into exclusive slices: the deepest active phase of each moment, and gaps that no line explains."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from infer_diag.attribution.intervals import Layer, Piece, Span, sweep, uncovered, union
from infer_diag.attribution.line_numbers import ELSEWHERE
from infer_diag.attribution.occurrences import CONTAINERS, ORDER, Occurrence, lineage
from infer_diag.attribution.phase_rows import PhaseRow
from infer_diag.attribution.reconcile import Reconciled, Value
from infer_diag.attribution.start_reading import StartReading

SLICE_LINES = 8


@dataclass(frozen=True)
class Slice:
    """One row of `StartSlices`, in microseconds; `begin` null where the place is unknown.

    The lines around a gap between two sources stand in the order of the gap's ends.
    """

    begin: int | None
    length: int
    phase: str | None
    after: str | None
    before: str | None
    inside: str | None
    reason: str | None
    lines: tuple[int, ...]


@dataclass(frozen=True)
class _Edge:
    """Something known at a moment; `ends`/`begins` are its names for the gap that follows and the one before it."""

    time: int
    ends: str | None
    begins: str | None
    weight: int
    line: int


def envelope(reading: StartReading, values: Reconciled) -> Span | None:
    """Earliest known begin to last stamp; null where no two moments are known, or where the clock was set meanwhile.

    A duration printed at its end reaches back, so the begin may lie before the first stamped line.
    """
    spans = [span for spans in _phase_spans(reading, values).values() for span in spans]
    moments = [moment for moment in (reading.first, reading.last) if moment is not None]
    moments += [edge for span in spans for edge in span]
    moments += [one.begin for one in (*reading.running, *reading.lost) if one.begin is not None]
    if reading.set_back is not None or not moments or max(moments) == min(moments):
        return None
    return Span(min(moments), max(moments))


def slices(reading: StartReading, values: Reconciled, rows: Sequence[PhaseRow]) -> list[Slice]:
    """The exclusive slices of a start in order; with stamps their lengths add up to the envelope exactly."""
    whole = envelope(reading, values)
    return _unplaced(reading, rows) if whole is None else _placed(reading, values, whole)


def _placed(reading: StartReading, values: Reconciled, whole: Span) -> list[Slice]:
    spans = _trimmed(_phase_spans(reading, values), reading)
    for phase in spans:
        spans[phase] = union(Span(max(s.begin, whole.begin), min(s.end, whole.end)) for s in spans[phase])
    for phase, extra in _beyond_parts(values, spans, reading.parent).items():
        spans[phase] = union([*spans.get(phase, []), *extra])
    layers = [
        Layer(phase, len(lineage(phase, reading.parent)), spans[phase], phase not in CONTAINERS)
        for phase in sorted(spans, key=ORDER.__getitem__)
    ]
    edges = [*_span_edges(spans, values), *_event_edges(reading)]
    walls = {edge.time for edge in _event_edges(reading)}
    found = [_slice(piece, whole, edges, values, reading) for piece in sweep(whole, layers, walls)]
    assert sum(one.length for one in found) == whole.end - whole.begin, "slices must add up to the span"
    return found


def _phase_spans(reading: StartReading, values: Reconciled) -> dict[str, list[Span]]:
    """Where each phase is known to be active. A total is placed only where the log has none of its parts."""
    spans: dict[str, list[Span]] = defaultdict(list)
    placed_parents = {
        reading.parent.get(part.phase)
        for value in values.values
        for part in value.parts
        if part.span is not None and not part.is_total
    }
    for value in values.values:
        for part in value.parts:
            if part.phase != value.phase or part.span is None:
                continue
            if not part.is_total or value.phase not in placed_parents:
                spans[value.phase].append(part.span)
    if reading.last is not None:
        for begun in reading.running:
            if begun.begin is not None:
                spans[begun.phase].append(Span(begun.begin, max(begun.begin, reading.last)))
    for bar in reading.bars:
        newest, elapsed = bar.newest, bar.elapsed_s
        if newest.time is not None and elapsed is not None and not values.of(bar.phase):
            spans[bar.phase].append(Span(newest.time - round(elapsed * 1e6), newest.time))
    return {phase: found for phase, found in spans.items() if any(span.end > span.begin for span in found)}


def _trimmed(spans: Mapping[str, Sequence[Span]], reading: StartReading) -> dict[str, list[Span]]:
    """The spans, with what runs into a container by less than one tick ended where the container begins.

    Begins are computed from end stamps that are cut to the tick, so such an overlap is noise of the clock.
    """
    found = {phase: list(known) for phase, known in spans.items()}
    for container in CONTAINERS & set(found):
        for begin, _ in union(found[container]):
            for phase, known in found.items():
                if container in lineage(phase, reading.parent):
                    continue
                found[phase] = [
                    Span(s.begin, begin) if s.begin < begin < s.end and s.end - begin < reading.tick else s
                    for s in known
                ]
    return found


def _beyond_parts(
    values: Reconciled, spans: Mapping[str, Sequence[Span]], parent: Mapping[str, str]
) -> dict[str, list[Span]]:
    """Where the time lies that a printed total has beyond its printed parts: before its line, where nothing else is."""
    extra: dict[str, list[Span]] = {}
    busy = [span for phase, known in spans.items() if phase not in CONTAINERS for span in known]
    for value in values.values:
        parts = [
            other for other in values.values if parent.get(other.phase) == value.phase and other.worker == value.worker
        ]
        begins = [span.begin for part in parts for span in part.spans]
        ends = [part.span.end for part in value.parts if part.is_total and part.span is not None]
        left = (value.length or 0) - sum(part.length or 0 for part in parts)
        if not value.is_total or not begins or not ends or left <= 0:
            continue
        for free in reversed(uncovered(Span(min(begins), max(ends)), busy)):
            taken = Span(max(free.begin, free.end - left), free.end)
            extra.setdefault(value.phase, []).append(taken)
            left -= taken.end - taken.begin
            if left <= 0:
                break
    return extra


def _span_edges(spans: Mapping[str, Sequence[Span]], values: Reconciled) -> Iterable[_Edge]:
    for phase, known in spans.items():
        lines = sorted(line for value in values.of(phase) for line in value.lines)
        weight = 1 if phase in CONTAINERS else 3
        inner = phase in CONTAINERS
        for span in known:
            near = _lines_of(values, phase, span) or lines
            yield _Edge(span.begin, f"{phase} begin" if inner else None, phase, weight, max(near, default=0))
            yield _Edge(span.end, phase, f"{phase} end" if inner else None, weight, max(near, default=0))


def _event_edges(reading: StartReading) -> list[_Edge]:
    """Moments that end a gap although no phase of known length begins or ends there."""
    edges = [
        _Edge(event.time, "engine_begin", "engine_begin", 2, event.line)
        for event in reading.events
        if event.kind == "engine_begin" and event.time is not None
    ]
    lasts: dict[str, Occurrence] = {}
    for one in reading.ended:
        if (
            one.length is None
            and one.end is not None
            and one.end >= (lasts[one.phase].end or 0 if one.phase in lasts else 0)
        ):
            lasts[one.phase] = one
    edges += [_Edge(one.end or 0, phase, f"{phase} end", 2, max(one.lines)) for phase, one in lasts.items()]
    firsts: dict[str, _Edge] = {}
    for begun in reading.lost:
        edge = firsts.get(begun.phase)
        if begun.begin is not None and (edge is None or begun.begin < edge.time):
            firsts[begun.phase] = _Edge(begun.begin, f"{begun.phase} begin", begun.phase, 2, begun.line)
    return edges + list(firsts.values())


def _slice(piece: Piece, whole: Span, edges: Sequence[_Edge], values: Reconciled, reading: StartReading) -> Slice:
    begin, length = piece.begin - whole.begin, piece.end - piece.begin
    if piece.name is not None:
        lines = _lines_of(values, piece.name, Span(piece.begin, piece.end)) or _running_lines(reading, piece.name)
        return Slice(begin, length, piece.name, None, None, None, None, tuple(lines[:SLICE_LINES]))
    opening = ("first line", reading.first_line)
    known = _name(edges, piece.begin, "ends")
    # The engine's own begin as the very first line says no more than that the log begins.
    plain = known is None or (piece.begin == whole.begin and known[0] == "engine_begin")
    after, first = opening if plain or known is None else known
    closing = "ready" if reading.ready is not None and piece.end >= reading.ready else "last line"
    fallback = (closing, reading.ready_line or reading.last_line)
    before, last = _name(edges, piece.end, "begins") or fallback
    reason = "cut" if _is_cut(reading, first, last) else "silent"
    lines = [line for line in (first, last) if line]
    if len({line // ELSEWHERE for line in lines}) == 1:
        lines = sorted(set(lines))
    return Slice(begin, length, None, after, before, piece.enclosing, reason, tuple(lines))


def _name(edges: Sequence[_Edge], moment: int, side: str) -> tuple[str, int] | None:
    found = [(edge.weight, ORDER.get(str(getattr(edge, side)), -1), edge) for edge in edges if edge.time == moment]
    named = [(weight, order, edge) for weight, order, edge in found if getattr(edge, side) is not None]
    if not named:
        return None
    best = max(named, key=lambda item: (item[0], item[1] if side == "ends" else -item[1], -item[2].line))[2]
    return str(getattr(best, side)), best.line


def _is_cut(reading: StartReading, first: int, last: int) -> bool:
    cuts = [event.line for event in reading.events if event.kind == "cut" and event.source_id == reading.source_id]
    own = [line for line in (first, last) if line < ELSEWHERE]
    if len(own) < 2:
        return False
    return any(min(own) < line < max(own) for line in cuts)


def _lines_of(values: Reconciled, phase: str, span: Span) -> list[int]:
    parts: list[Occurrence] = [part for value in values.of(phase) for part in value.parts]
    near = [
        part for part in parts if part.span is not None and part.span.begin < span.end and span.begin < part.span.end
    ]
    return sorted({line for part in near for line in part.lines})


def _running_lines(reading: StartReading, phase: str) -> list[int]:
    bars = [bar.newest.line for bar in reading.bars if bar.phase == phase]
    return sorted({begun.line for begun in reading.running if begun.phase == phase} | set(bars))


def _unplaced(reading: StartReading, rows: Sequence[PhaseRow]) -> list[Slice]:
    """Slices of a start without stamps: what each phase takes beyond its parts.

    What is left of a container, or of the whole run where something timed it, is a gap.
    """
    wall = {row.phase: row for row in rows if row.rank is None and row.chosen and row.length is not None}
    found: list[Slice] = []
    gaps: list[Slice] = []
    for phase in sorted(wall, key=ORDER.__getitem__):
        parts = sum(row.length or 0 for other, row in wall.items() if reading.parent.get(other) == phase)
        left = (wall[phase].length or 0) - parts
        if left <= 0:
            continue
        lines = wall[phase].lines
        if phase in CONTAINERS:
            gaps.append(Slice(None, left, None, None, None, phase, "silent", lines))
        else:
            found.append(Slice(None, left, phase, None, None, None, None, lines))
    left = (reading.wall or 0) - sum(one.length for one in found + gaps)
    if left > 0:
        ends = tuple(event.line for event in reading.events if event.kind == "shutdown")
        gaps.append(Slice(None, left, None, None, None, None, "silent", ends[-1:]))
    return found + gaps


def silent_us(found: Sequence[Slice], values: Sequence[Value], wall: int | None) -> int | None:
    """Microseconds in silent gaps; null where neither stamps nor an enclosing duration bound the start."""
    if not found:
        return None
    enclosed = wall is not None or any(value.phase in CONTAINERS for value in values)
    if all(one.begin is None for one in found) and not enclosed:
        return None
    return sum(one.length for one in found if one.reason == "silent")
