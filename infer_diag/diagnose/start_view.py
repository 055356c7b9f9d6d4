"""One start as the rules on cold start see it: its reading beside the frames that attribution made of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from infer_diag.attribution.line_numbers import located
from infer_diag.attribution.occurrences import lineage
from infer_diag.attribution.start_reading import StartReading, start_readings
from infer_diag.diagnose.finding import Severity
from infer_diag.recording import Recording

Row = dict[str, Any]

HIGH_SHARE, HIGH_S = 0.4, 120.0
MEDIUM_SHARE, MEDIUM_S = 0.25, 30.0
"""A cause weighs by its share of the start and by what a person or a replica waits for it: two minutes are high and
half a minute is medium whatever the share, because scaling out waits that long; shares count from `LEAST_S` on."""

LEAST_S = 2.0
"""Shorter parts are no finding: one-second stamps leave up to a second at each edge, and two matter to nobody."""

MATERIAL_SHARE = 0.15
"""Smaller shares of a start are no finding unless they reach `MEDIUM_S`: removing one would not be noticed."""

MOST_LINES = 8


@dataclass(frozen=True)
class StartView:
    """A start; rows are dicts of the frames `StartPhases`, `StartSlices` and `StartSummary`."""

    recording: Recording
    reading: StartReading
    name: str
    summary: Row
    phases: tuple[Row, ...]
    slices: tuple[Row, ...]

    @property
    def engine(self) -> str:
        """The engine that wrote the log."""
        sources = self.recording.sources
        return sources[self.reading.source_id].engine if self.reading.source_id < len(sources) else ""

    @property
    def whole_s(self) -> float | None:
        """What is known of the start's length: its span, or without stamps the sum of its exclusive slices."""
        if self.summary["span_s"] is not None:
            return float(self.summary["span_s"])
        known = sum(row["duration_s"] for row in self.slices)
        return known or None

    @property
    def enclosing(self) -> str:
        """What `whole_s` is called in a sentence."""
        if self.summary["span_s"] is not None:
            return "the start"
        return "the whole run" if self.reading.wall is not None else "what the log accounts for"

    def wall(self, phase: str) -> Row | None:
        """The wall-clock row of a phase."""
        rows = [row for row in self.phases if row["phase"] == phase and row["rank"] is None and row["chosen"]]
        return rows[0] if rows else None

    def exclusive_s(self, phase: str) -> float | None:
        """Seconds in which this phase, or one inside it, is the deepest thing known; null where it has no slice."""
        inside = {phase} | {row["phase"] for row in self.phases if phase in lineage(row["phase"], self.reading.parent)}
        # A download inside the load is a cause of its own, with a remedy of its own.
        inside -= {"weights_fetch"} - {phase}
        known = [row["duration_s"] for row in self.slices if row["phase"] in inside]
        return round(sum(known), 6) if known else None

    def gaps(self) -> list[Row]:
        """The silent gaps, the longest first."""
        silent = [row for row in self.slices if row["reason"] == "silent"]
        return sorted(silent, key=lambda row: (-row["duration_s"], row["begin_s"] or 0.0))

    def evidence(self, lines: Iterable[int], source_id: int | None = None) -> tuple[str, ...]:
        """`path:line` of lines, in the start's own source unless another one is named."""
        own = self.reading.source_id
        found = {located(line, own if source_id is None else source_id) for line in lines if line}
        return tuple(self.recording.evidence(*place) for place in sorted(found)[:MOST_LINES])

    def evidence_of(self, rows: Sequence[Row]) -> tuple[str, ...]:
        """`path:line` of rows of `StartPhases` or `StartSlices`, whatever sources they come from."""
        found = {(row["source_id"], line) for row in rows for line in row["lines"] if line}
        found |= {(row["next_source_id"], line) for row in rows for line in row.get("next_lines") or []}
        return tuple(self.recording.evidence(*place) for place in sorted(found)[:MOST_LINES])

    def severity(self, seconds: float) -> Severity:
        """How much so many seconds of this start weigh."""
        share = seconds / self.whole_s if self.whole_s else 0.0
        if seconds >= HIGH_S or (share >= HIGH_SHARE and seconds >= MEDIUM_S):
            return "high"
        return "medium" if seconds >= MEDIUM_S or share >= MEDIUM_SHARE else "low"

    def is_material(self, seconds: float) -> bool:
        """Whether so many seconds are worth a finding."""
        share = seconds / self.whole_s if self.whole_s else 0.0
        return seconds >= MEDIUM_S or (seconds >= LEAST_S and share >= MATERIAL_SHARE)

    def share(self, seconds: float) -> float | None:
        """Share of the start, null where its length is unknown or shorter (the clocks disagree)."""
        return seconds / self.whole_s if self.whole_s and seconds <= self.whole_s else None


def start_views(
    recording: Recording,
    phases: pl.DataFrame,
    slices: pl.DataFrame,
    summary: pl.DataFrame,
    readings: Sequence[StartReading] = (),
) -> list[StartView]:
    """Every start of the recording, in order; `name` opens a sentence and is empty where there is one start only."""
    rows = {str(row["start_id"]): row for row in summary.to_dicts()}
    told, cut = _by_start(phases), _by_start(slices)
    readings = [reading for reading in readings or start_readings(recording) if reading.start_id in rows]
    return [
        StartView(
            recording=recording,
            reading=reading,
            name=f"{reading.start_id}: " if len(readings) > 1 else "",
            summary=rows[reading.start_id],
            phases=told.get(reading.start_id, ()),
            slices=cut.get(reading.start_id, ()),
        )
        for reading in readings
    ]


def _by_start(frame: pl.DataFrame) -> dict[str, tuple[Row, ...]]:
    parts = frame.partition_by("start_id", as_dict=True, maintain_order=True)
    return {str(name): tuple(part.to_dicts()) for (name,), part in parts.items()}
