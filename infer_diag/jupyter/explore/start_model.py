"""Starts as the explorer shows them: the exclusive parts in one row, each phase in a row of its own, their lines."""

from __future__ import annotations

from typing import Any

import polars as pl

from infer_diag.charts.template import COLOURS, DARK
from infer_diag.diagnose import Diagnosis
from infer_diag.jupyter.explore.facts import Fact, fact
from infer_diag.jupyter.explore.scene import Panel, Scene, panels_scene
from infer_diag.units import format_s

_ROW = 24
_MOST_ROWS = 16


class StartModel:
    """The starts of a diagnosis."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        self._diagnosis = diagnosis
        self.starts: list[str] = diagnosis.cold_start.summary["start_id"].to_list()

    def scene(self, start: str) -> Scene | None:
        """The start over time; null where its log has no stamps to place its parts by."""
        slices, phases = self._slices(start), self._phases(start)
        placed = [row for row in slices if row["begin_s"] is not None]
        if not placed:
            return None
        end = max(row["begin_s"] + row["duration_s"] for row in placed)
        rows = phases[:_MOST_ROWS]
        boxes: dict[str, list[Any]] = {name: [] for name in ("x0", "x1", "row", "c", "ink", "text", "hover", "id")}
        for number, row in enumerate(slices):
            if row["begin_s"] is not None:
                self._box(boxes, 0, row["begin_s"], row["duration_s"], row["phase"] or "gap", f"part {number}")
        for number, row in enumerate(rows):
            self._box(boxes, number + 1, row["begin_s"], row["end_s"] - row["begin_s"], row["phase"], f"phase {number}")
        panel = Panel(
            "", 1.0, _ROW * (len(rows) + 1), marks=[{"t": "boxes", **boxes}], ticked=False, rows=len(rows) + 1
        )
        label = f"{start} over time: first its parts, which add up to its span, then each phase whole. Arrows choose."
        return panels_scene(label, [panel], (0.0, end), xlabel=f"{start}: the first row adds up to its span")

    def chosen(self, start: str, name: str) -> Fact | None:
        """What stands behind a box of the scene."""
        kind, _, number = str(name).partition(" ")
        rows = {"part": self._slices, "phase": self._phases}.get(kind, lambda _: [])(start)
        if not number.isdecimal() or int(number) >= len(rows):
            return None
        return self._part(rows[int(number)]) if kind == "part" else self._phase(rows[int(number)])

    def facts(self, start: str) -> list[Fact]:
        """Outcome and span, then the parts of the start, the longest first."""
        row = self._diagnosis.cold_start.summary.row(by_predicate=pl.col("start_id") == start, named=True)
        words = [f"{row['outcome']}, span {format_s(row['span_s'])}"]
        words += [f"no line explains {format_s(row['unlogged_s'])} of it"] if row["unlogged_s"] else []
        longest = sorted(self._slices(start), key=lambda part: -part["duration_s"])
        return [Fact(", ".join(words)), *(self._part(part) for part in longest if part["duration_s"] > 0)]

    def _part(self, row: dict[str, Any]) -> Fact:
        what = _phase(row["phase"] or "gap")
        if row["phase"] is None:
            sides = f"after {_phase(row['after'] or 'the begin')}, before {_phase(row['before'] or 'the end')}"
            what = f"{'text is missing' if row['reason'] == 'cut' else 'no line says what'} ({sides})"
        places = [(row["source_id"], line) for line in row["lines"]]
        places += [(row["next_source_id"], line) for line in row.get("next_lines") or []]
        return fact(self._diagnosis.recording, f"{format_s(row['duration_s'])}  {what}", places)

    def _phase(self, row: dict[str, Any]) -> Fact:
        text = f"{_phase(row['phase'])}: {format_s(row['duration_s'])}, {row['status'].replace('_', ' ')}"
        return fact(self._diagnosis.recording, text, [(row["source_id"], line) for line in row["lines"]])

    def _box(self, boxes: dict[str, list[Any]], row: int, begin: float, length: float, phase: str, name: str) -> None:
        shown = _phase(phase)
        values = (begin, begin + length, row, COLOURS.get(phase, COLOURS["gap"]))
        ink = "#ffffff" if phase in DARK else "#111111"
        hover = f"{shown}: {format_s(length)} from {format_s(begin) if begin else '0 s'}"
        for key, value in zip(boxes, (*values, ink, shown, hover, name), strict=True):
            boxes[key].append(value)

    def _slices(self, start: str) -> list[dict[str, Any]]:
        return self._diagnosis.cold_start.slices.filter(start_id=start).to_dicts()

    def _phases(self, start: str) -> list[dict[str, Any]]:
        phases = self._diagnosis.cold_start.phases.filter(start_id=start)
        wall = phases.filter(pl.col("rank").is_null() & pl.col("chosen") & (pl.col("end_s") > pl.col("begin_s")))
        return wall.drop_nulls(("begin_s", "end_s")).sort("begin_s", "end_s", maintain_order=True).to_dicts()


def _phase(name: str) -> str:
    return name.replace("_", " ")
