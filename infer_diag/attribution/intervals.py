"""Interval algebra in whole microseconds, so that parts and gaps add up exactly and never by a tolerance."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

MICROSECONDS = 1_000_000
FINE_TICK = 1_000


class Span(NamedTuple):
    """A stretch of time [begin, end) in microseconds."""

    begin: int
    end: int


class Layer(NamedTuple):
    """All stretches in which one thing is active.

    A layer that explains nothing is a container: where nothing else is active it encloses a gap.
    """

    name: str
    depth: int
    spans: Sequence[Span]
    explains: bool = True


class Piece(NamedTuple):
    """One exclusive stretch: `name` is the layer that owns it, null in a gap; `enclosing` the container of a gap."""

    begin: int
    end: int
    name: str | None
    enclosing: str | None


def microseconds(seconds: float) -> int:
    """Seconds as whole microseconds, rounded half to even."""
    return round(seconds * MICROSECONDS)


def seconds(span_us: int) -> float:
    """Whole microseconds as seconds."""
    return span_us / MICROSECONDS


def union(spans: Iterable[Span]) -> list[Span]:
    """The same time as disjoint spans in order, none of them empty."""
    merged: list[Span] = []
    for span in sorted(span for span in spans if span.end > span.begin):
        if merged and span.begin <= merged[-1].end:
            merged[-1] = Span(merged[-1].begin, max(merged[-1].end, span.end))
        else:
            merged.append(span)
    return merged


def measure(spans: Iterable[Span]) -> int:
    """Microseconds that at least one span covers (the measure of the union, not the sum)."""
    return sum(span.end - span.begin for span in union(spans))


def uncovered(whole: Span, spans: Iterable[Span]) -> list[Span]:
    """The parts of `whole` that no span covers, in order."""
    free: list[Span] = []
    at = whole.begin
    for span in union(spans):
        if span.begin > at:
            free.append(Span(at, min(span.begin, whole.end)))
        at = max(at, span.end)
        if at >= whole.end:
            break
    if at < whole.end:
        free.append(Span(at, whole.end))
    return [span for span in free if span.end > span.begin]


def sweep(whole: Span, layers: Sequence[Layer], cuts: Iterable[int] = ()) -> list[Piece]:
    """`whole` cut into exclusive pieces: each belongs to the deepest active layer that explains it, else to a gap.

    Among layers of one depth the one whose span began last owns the piece, then the later one in `layers`. Neighbours
    with one owner are merged, except that a gap ends at every point of `cuts`. The pieces add up to `whole` exactly.
    """
    merged = [layer._replace(spans=union(layer.spans)) for layer in layers]
    walls = set(cuts)
    edges = {edge for layer in merged for span in layer.spans for edge in span} | walls
    inner = sorted(edge for edge in edges if whole.begin < edge < whole.end)
    points = [whole.begin, *inner, whole.end]
    cursors = [0] * len(merged)
    pieces: list[Piece] = []
    for begin, end in itertools.pairwise(points):
        if end <= begin:
            continue
        piece = _owned(begin, end, merged, cursors)
        last = pieces[-1] if pieces else None
        same = last is not None and last[2:] == piece[2:]
        if last is not None and same and not (piece.name is None and begin in walls):
            pieces[-1] = last._replace(end=end)
        else:
            pieces.append(piece)
    return pieces


def _owned(begin: int, end: int, layers: Sequence[Layer], cursors: list[int]) -> Piece:
    owner: tuple[int, int, int] | None = None
    container: tuple[int, int, int] | None = None
    for place, layer in enumerate(layers):
        while cursors[place] < len(layer.spans) and layer.spans[cursors[place]].end <= begin:
            cursors[place] += 1
        if cursors[place] == len(layer.spans) or layer.spans[cursors[place]].begin > begin:
            continue
        claim = (layer.depth, layer.spans[cursors[place]].begin, place)
        if layer.explains:
            owner = max(owner or claim, claim)
        else:
            container = max(container or claim, claim)
    if owner is not None:
        return Piece(begin, end, layers[owner[2]].name, None)
    return Piece(begin, end, None, layers[container[2]].name if container is not None else None)


def clock_tick(times: Sequence[int]) -> int:
    """Microseconds between two ticks of the clock that made most of these stamps: one second, or a millisecond.

    Stamps cut to whole seconds all have the same fraction; it need not be zero, so a shifted clock changes nothing.
    """
    distinct = set(times)
    if len(distinct) < 2:
        return MICROSECONDS
    common = Counter(time % MICROSECONDS for time in distinct).most_common(1)[0][1]
    return MICROSECONDS if 2 * common > len(distinct) else FINE_TICK
