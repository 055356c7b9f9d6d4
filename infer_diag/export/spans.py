"""A diagnosis as spans: one around the recording with the findings on it, one per start, one per interval of a phase.

What is exported of a phase are the intervals that attribution settled on, so that whoever reads the spans back finds
the same lengths.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from infer_diag.attribution.intervals import seconds
from infer_diag.attribution.line_numbers import located
from infer_diag.attribution.occurrences import Begun, Mark, Occurrence, is_bound, lineage
from infer_diag.attribution.reconcile import reconciled
from infer_diag.attribution.start_reading import StartReading, start_readings
from infer_diag.diagnose import Diagnosis
from infer_diag.export.placing import Placing
from infer_diag.export.texts import MOST_CHARACTERS, Value, cleaned, texts_of, with_clean
from infer_diag.recording import Recording

WHOLE = "infer_diag recording"
START = "infer_diag start"
FINDING = "infer_diag.finding"
_JSON = ("infer_diag.unplaced", "infer_diag.readings")
_MOST_READINGS = 200
"""Readings that are kept of one progress bar; the last one always is."""


@dataclass(frozen=True)
class Note:
    """Something at one moment of a span."""

    name: str
    us: int
    attributes: Mapping[str, Value]


@dataclass(frozen=True)
class Interval:
    """One span to export; `key` is its name within the trace, `parent` the key of the one around it."""

    key: str
    parent: str | None
    name: str
    begin_us: int
    end_us: int
    attributes: Mapping[str, Value]
    notes: tuple[Note, ...] = ()
    failed: bool = False


@dataclass(frozen=True)
class Spans:
    """The spans, the outermost first, and what could not become one."""

    intervals: tuple[Interval, ...]
    left_out: tuple[str, ...]


def spans_of(diagnosis: Diagnosis, placing: Placing) -> Spans:
    """Every span of a diagnosis. Attributes are named as `infer_diag.*`; those that are unknown are not there."""
    recording = diagnosis.recording
    found: list[Interval] = []
    left_out: list[str] = []
    rows = {str(row["start_id"]): row for row in diagnosis.cold_start.summary.iter_rows(named=True)}
    for reading in start_readings(recording):
        if reading.first is None or reading.last is None:
            left_out.append(f"{reading.start_id}: no line of it has a stamp, so it makes no span")
            continue
        if reading.set_back is not None:
            left_out.append(f"{reading.start_id}: its clock was set back meanwhile, so it makes no span")
            continue
        found += _Start(recording, reading, rows[reading.start_id], placing.shift_us).intervals()
    first = min([placing.first_us, *(one.begin_us for one in found)])
    last = max([placing.last_us, *(one.end_us for one in found)])
    whole = Interval("recording", None, WHOLE, first, last, {}, tuple(_findings(diagnosis, last)))
    return Spans(_cleaned([whole, *found]), tuple(left_out))


def _cleaned(intervals: list[Interval]) -> tuple[Interval, ...]:
    """The same with log text as it may be shown; what is JSON was made here and is left as it is."""
    told = [one.attributes for one in intervals] + [note.attributes for one in intervals for note in one.notes]
    own = {str(one.attributes.get(name)) for one in intervals for name in _JSON}
    clean = cleaned((text for each in told for text in texts_of(each) if text not in own), MOST_CHARACTERS)
    return tuple(
        replace(
            one,
            attributes=with_clean(one.attributes, clean),
            notes=tuple(replace(note, attributes=with_clean(note.attributes, clean)) for note in one.notes),
        )
        for one in intervals
    )


def _findings(diagnosis: Diagnosis, us: int) -> Iterator[Note]:
    for finding in diagnosis.findings:
        told = {"id": finding.id, "severity": finding.severity, "status": finding.status, "sentence": finding.sentence}
        more = {"remedy": finding.remedy, "saves_s": finding.saves, "evidence": list(finding.evidence) or None}
        yield Note(FINDING, us, _known({f"{FINDING}.{name}": value for name, value in {**told, **more}.items()}))


@dataclass
class _Start:
    """One start on its way to spans; keys are counted so that equal intervals stay apart."""

    recording: Recording
    reading: StartReading
    summary: Mapping[str, Any]
    shift_us: int
    found: list[Interval] = field(default_factory=list)
    unplaced: list[dict[str, Value]] = field(default_factory=list)

    def intervals(self) -> list[Interval]:
        """The start's own span and those of its phases."""
        reading = self.reading
        values = reconciled(reading.ended, reading.parent, reading.tick)
        ended = [part for value in values.values for part in value.parts]
        longest_first = sorted(ended, key=lambda one: -(one.length or 0))
        for one in longest_first:
            self._add_ended(one)
        for begun in (*reading.running, *reading.lost):
            self._add_open(begun)
        for mark in reading.marks:
            if is_bound(mark):
                self._add_bound(mark)
        return [self._whole(), *self.found, *self._bars()]

    def _whole(self) -> Interval:
        reading = self.reading
        ends = [edge for edge in (reading.last, reading.ready) if edge is not None]
        begins = [edge for edge in (reading.first, reading.acquired) if edge is not None]
        begin = min([self._at(min(begins)), *(one.begin_us for one in self.found)])
        end = max([self._at(max(ends)), *(one.end_us for one in self.found)])
        told = {
            "start_id": reading.start_id,
            "replica": reading.replica,
            "outcome": str(self.summary["outcome"]),
            "served": reading.served,
            "first_unix_nano": self._nano(reading.first),
            "last_unix_nano": self._nano(reading.last),
            "ready_unix_nano": self._nano(reading.ready),
            "acquired_unix_nano": self._nano(reading.acquired),
            "hold_s": self.summary["hold_s"],
            "unlogged_s": self.summary["unlogged_s"],
            "unplaced": json.dumps(self.unplaced) if self.unplaced else None,
            "evidence": self._lines((reading.first_line, reading.ready_line or reading.last_line), reading.source_id),
        }
        failed = self.summary["outcome"] == "failed"
        return Interval(reading.start_id, "recording", START, begin, end, _own(told), failed=failed)

    def _add_ended(self, one: Occurrence) -> None:
        printed_s = seconds(one.length) if one.printed and one.length is not None else None
        if one.span is None:
            if one.length is not None or one.end is not None:
                replica, rank = self._worker(one)
                told = {"phase": one.phase, "replica": replica, "rank": rank, "duration_s": printed_s}
                more = {"end_unix_nano": self._nano(one.end), "is_total": one.is_total or None}
                self.unplaced.append(_known({**told, **more}))
            return
        detail = {
            "duration_s": printed_s,
            "resolution_s": seconds(one.resolution) if one.resolution else None,
            "is_total": one.is_total or None,
            "size_bytes": one.size_bytes,
        }
        self._add(one, one.span.begin, one.span.end, detail, one.lines)

    def _add_open(self, one: Begun) -> None:
        last = self.reading.last
        if one.begin is not None and last is not None:
            self._add(one, one.begin, max(one.begin, last), {"open": True}, (one.line,))

    def _add_bound(self, one: Mark) -> None:
        replica, rank = self._worker(one)
        bounds = {
            name: None if us is None else seconds(us) for name, us in (("lower_s", one.lower), ("upper_s", one.upper))
        }
        told = {"phase": one.phase, "replica": replica, "rank": rank, "end_unix_nano": self._nano(one.end)}
        self.unplaced.append(_known({**told, **bounds}))

    def _bars(self) -> Iterator[Interval]:
        """One span per progress bar, from its first reading to its last: a load that still ran has no other."""
        start = self.reading.start_id
        rows = self.recording.progress.filter(pl.col("start_id") == start).sort("source_id", "line")
        for (phase, replica, rank), bar in rows.group_by("phase", "replica", "rank", maintain_order=True):
            kept = bar.gather_every(-(-len(bar) // _MOST_READINGS)) if len(bar) > _MOST_READINGS else bar
            kept = pl.concat([kept, bar.tail(1)]).unique(["source_id", "line"], maintain_order=True)
            told = kept.select(
                (pl.col("time").dt.epoch("us") + self.shift_us) * 1000, "done_count", "total_count", "elapsed_s"
            )
            stamps = [stamp // 1000 for stamp in told["time"].drop_nulls()] or [self._at(self.reading.last or 0)]
            detail = {
                "start_id": start,
                "bar": str(phase),
                "replica": None if replica is None else str(replica),
                "rank": None if rank is None else str(rank),
                "readings": json.dumps(told.rows()),
            }
            key = f"{start}/bar/{phase}/{replica or ''}/{rank or ''}"
            yield Interval(key, start, f"{phase} bar", min(stamps), max(stamps), _own(detail))

    def _add(
        self,
        one: Occurrence | Begun,
        begin: int,
        end: int,
        more: Mapping[str, Value | None],
        lines: tuple[int, ...],
    ) -> None:
        start, (replica, rank) = self.reading.start_id, self._worker(one)
        told = {
            "start_id": start,
            "phase": one.phase,
            "inside": self.reading.parent.get(one.phase),
            "replica": replica,
            "rank": rank,
            "status": "bounded" if "open" in more else "measured",
            "evidence": self._lines(lines, one.source_id),
        }
        at, to = self._at(begin), self._at(end)
        key = f"{start}/{one.phase}/{replica or ''}/{rank or ''}/{at}/{to}"
        count = sum(other.key.rpartition("#")[0] == key for other in self.found)
        around = self._around(one.phase, replica, rank, at, to)
        self.found.append(Interval(f"{key}#{count}", around, one.phase, at, to, _own({**told, **more})))

    def _around(self, phase: str, replica: str | None, rank: str | None, begin: int, end: int) -> str:
        """The key of the innermost span that encloses this one by its phase, its worker and its time."""
        for above in lineage(phase, self.reading.parent)[1:]:
            for other in self.found:
                mine = other.attributes.get("infer_diag.rank") in (None, rank)
                mine = mine and other.attributes.get("infer_diag.replica") in (None, replica)
                if mine and other.name == above and other.begin_us <= begin and end <= other.end_us:
                    return other.key
        return self.reading.start_id

    def _worker(self, one: Occurrence | Begun | Mark) -> tuple[str | None, str | None]:
        """Replica and rank; a worker's name holds both where there are several replicas."""
        rank = one.worker.removeprefix(one.replica).strip() if one.replica else one.worker
        return one.replica, rank or None

    def _lines(self, numbers: tuple[int, ...], source_id: int) -> list[str]:
        places = dict.fromkeys(located(number, source_id) for number in numbers if number)
        return [self.recording.evidence(*place) for place in places]

    def _at(self, us: int) -> int:
        return us + self.shift_us

    def _nano(self, us: int | None) -> str | None:
        return None if us is None else str(self._at(us) * 1000)


def _own(told: Mapping[str, Value | None]) -> dict[str, Value]:
    return _known({f"infer_diag.{name}": value for name, value in told.items()})


def _known(told: Mapping[str, Value | None]) -> dict[str, Value]:
    return {name: value for name, value in told.items() if value is not None}
