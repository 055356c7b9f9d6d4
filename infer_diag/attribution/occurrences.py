"""What each worker of a start did: log lines that tell of a begin, an end or a duration, paired into occurrences."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from infer_diag.attribution.intervals import Span
from infer_diag.attribution.row_values import length_us, text, whole
from infer_diag.schema import INSIDE, PHASES

UNLABELLED = "unlabelled"
"""The rank of lines that name no worker, where other lines of the phase do."""

CONTAINERS = frozenset({"init_engine"})
"""Phases that engines print only as the total of several others: such a total names no cause for what is left of it."""

ORDER = {phase: place for place, phase in enumerate(PHASES)}


@dataclass(frozen=True)
class Mark:
    """One line about a phase, in microseconds since the epoch; null where the line does not tell."""

    phase: str
    worker: str
    replica: str | None
    begin: int | None
    end: int | None
    length: int | None
    lower: int | None
    upper: int | None
    resolution: int
    is_total: bool
    source_id: int
    line: int
    size_bytes: float | None

    @property
    def moment(self) -> int | None:
        """When the line was printed, as far as it tells."""
        return self.end if self.end is not None else self.begin

    @property
    def sort_key(self) -> tuple[int, int, int, int]:
        """Order of printing: by stamp where there is one, then by line."""
        moment = self.moment
        return (0 if moment is None else 1, moment or 0, self.source_id, self.line)


@dataclass(frozen=True)
class Occurrence:
    """One time that one worker went through one phase and came to its end.

    `length` is null where the end is seen and the begin is not. `stamped` is the difference of the worker's own begin
    and end lines where the line prints a duration as well, so that the two can be compared.
    """

    phase: str
    worker: str
    replica: str | None
    length: int | None
    span: Span | None
    end: int | None
    printed: bool
    is_total: bool
    resolution: int
    source_id: int
    lines: tuple[int, ...]
    stamped: int | None = None
    size_bytes: float | None = None


@dataclass(frozen=True)
class Begun:
    """A phase that a worker is seen to begin and not to end."""

    phase: str
    worker: str
    replica: str | None
    begin: int | None
    source_id: int
    line: int


def parents(marks: Iterable[Mark], stated: Mapping[str, str]) -> dict[str, str]:
    """The enclosing phase of each phase: what the lines state, else the usual nesting; a cycle loses its last link."""
    found: dict[str, str] = {}
    for phase in sorted({mark.phase for mark in marks} | set(INSIDE), key=ORDER.__getitem__):
        parent = stated.get(phase, INSIDE.get(phase))
        if parent is not None and phase not in lineage(parent, found) and phase != parent:
            found[phase] = parent
    return found


def lineage(phase: str, parent: Mapping[str, str]) -> list[str]:
    """The phase and all that enclose it, innermost first."""
    chain = [phase]
    while (above := parent.get(chain[-1])) is not None:
        chain.append(above)
    return chain


def occurrences(marks: Sequence[Mark]) -> tuple[list[Occurrence], list[Begun]]:
    """The ended occurrences and the begun ones, worker by worker.

    An end takes the earliest open begin of its own worker. An end whose worker printed no begin takes the begin that
    stands for all workers (printed once, or thinned out by the collector): the k-th end takes the earliest k-th begin
    line of the same phase. No begin is ever taken from the end of another phase.
    """
    ended: list[Occurrence] = []
    begun: list[Begun] = []
    for phase in sorted({mark.phase for mark in marks}, key=ORDER.__getitem__):
        lanes: dict[tuple[str, str], list[Mark]] = defaultdict(list)
        for mark in sorted((mark for mark in marks if mark.phase == phase), key=lambda mark: mark.sort_key):
            lanes[mark.replica or "", mark.worker].append(mark)
        for (replica, _), lane in sorted(lanes.items()):
            common = _common_begins([other for (name, _), other in lanes.items() if name == replica])
            closed, still = _pair(lane, common)
            ended += closed
            begun += still
    return ended, begun


def is_begin(mark: Mark) -> bool:
    """Whether the line says only that the phase begins."""
    return mark.begin is not None and mark.end is None and mark.length is None


def is_bound(mark: Mark) -> bool:
    """Whether the line says only that the phase has lasted so long, or at most so long."""
    bounded = mark.lower is not None or mark.upper is not None
    return bounded and mark.begin is None and mark.end is None and mark.length is None


def _common_begins(lanes: Iterable[Sequence[Mark]]) -> list[Mark]:
    common: list[Mark] = []
    for lane in lanes:
        for place, mark in enumerate(mark for mark in lane if is_begin(mark)):
            if place == len(common):
                common.append(mark)
            elif mark.sort_key < common[place].sort_key:
                common[place] = mark
    return common


def _pair(lane: Sequence[Mark], common: Sequence[Mark]) -> tuple[list[Occurrence], list[Begun]]:
    closed: list[Occurrence] = []
    waiting: list[Mark] = []
    own = any(is_begin(mark) for mark in lane)
    for mark in lane:
        if is_bound(mark):
            continue
        if is_begin(mark):
            waiting.append(mark)
            continue
        if mark.begin is None and mark.end is not None and not mark.is_total:
            begin = waiting[0] if waiting else _borrowed(mark, common, len(closed)) if not own else None
            closed.append(_closed(mark, begin, waiting))
            waiting = []
        else:
            closed.append(_closed(mark, None, ()))
    still = [Begun(mark.phase, mark.worker, mark.replica, mark.begin, mark.source_id, mark.line) for mark in waiting]
    return closed, still


def _borrowed(mark: Mark, common: Sequence[Mark], place: int) -> Mark | None:
    if mark.length is not None or place >= len(common):
        return None
    begin = common[place]
    return begin if begin.begin is not None and mark.end is not None and begin.begin <= mark.end else None


def _closed(mark: Mark, begin: Mark | None, own: Sequence[Mark]) -> Occurrence:
    length, span, stamped, lines = mark.length, None, None, [mark.line]
    if mark.begin is not None and mark.end is not None:
        span = Span(mark.begin, max(mark.begin, mark.end))
        length = span.end - span.begin if length is None else length
    elif mark.length is not None and mark.end is not None:
        span = Span(mark.end - mark.length, mark.end)
        stamped = _nearest([mark.end - other.begin for other in own if other.begin is not None], mark.length)
        lines += [other.line for other in own if stamped is not None and other.source_id == mark.source_id]
    elif mark.length is not None and mark.begin is not None:
        span = Span(mark.begin, mark.begin + mark.length)
    elif begin is not None and begin.begin is not None and mark.end is not None:
        span = Span(begin.begin, mark.end)
        length = span.end - span.begin
        lines += [begin.line] if begin.source_id == mark.source_id else []
    return Occurrence(
        phase=mark.phase,
        worker=mark.worker,
        replica=mark.replica,
        length=length,
        span=span,
        end=span.end if span is not None else mark.end,
        printed=mark.length is not None,
        is_total=mark.is_total,
        resolution=mark.resolution,
        source_id=mark.source_id,
        lines=tuple(sorted(lines)),
        stamped=stamped,
        size_bytes=mark.size_bytes,
    )


def _nearest(candidates: Sequence[int], value: int) -> int | None:
    return min(candidates, key=lambda candidate: abs(candidate - value)) if candidates else None


def mark(row: Mapping[str, object], worker: str) -> Mark:
    """A row of `Phases` whose times are microseconds since the epoch, as a mark of this worker."""
    size = row["size_bytes"]
    return Mark(
        phase=str(row["phase"]),
        worker=worker,
        replica=text(row["replica"]),
        begin=whole(row["begin"]),
        end=whole(row["end"]),
        length=length_us(row["duration_s"]),
        lower=length_us(row["lower_s"]),
        upper=length_us(row["upper_s"]),
        resolution=length_us(row["resolution_s"]) or 0,
        is_total=bool(row["is_total"]),
        source_id=whole(row["source_id"]) or 0,
        line=whole(row["line"]) or 0,
        size_bytes=size if isinstance(size, float) else None,
    )
