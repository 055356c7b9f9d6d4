"""Starts written by hand, line by line, in the frames that the loaders fill."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from infer_diag import schema
from infer_diag.recording import Recording, Source

T0 = datetime(2026, 3, 11, 8, 5, 0, tzinfo=UTC)


def at(seconds: float | None) -> datetime | None:
    return None if seconds is None else T0 + timedelta(microseconds=round(seconds * 1e6))


@dataclass
class HandmadeStart:
    """Each call is one line; times are seconds after `T0`, null in a log without stamps."""

    start_id: str = "start-1"
    line: int = 0
    times: list[float] = field(default_factory=list)
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    start: dict[str, Any] = field(default_factory=dict)

    def _line(self, frame: str | None, stamp: float | None, **values: Any) -> HandmadeStart:
        self.line += 1
        if stamp is not None:
            self.times.append(stamp)
        if frame is not None:
            row = {
                "start_id": self.start_id,
                "replica": None,
                "rank": None,
                "source_id": 0,
                "line": self.line,
                **values,
            }
            self.rows.setdefault(frame, []).append(row)
        return self

    def _phase(self, phase: str, time: float | None, **values: Any) -> HandmadeStart:
        blank = {
            "begin": None,
            "end": None,
            "duration_s": None,
            "lower_s": None,
            "resolution_s": None,
            "size_bytes": None,
        }
        fixed = {"phase": phase, "inside": None, "is_total": False, "status": "measured"}
        return self._line("phases", time, **{**blank, **fixed, **values})

    def printed(
        self, phase: str, end: float | None, seconds: float, rank: str | None = None, **values: Any
    ) -> HandmadeStart:
        values = {"resolution_s": 0.005, **values}
        return self._phase(phase, end, end=at(end), duration_s=seconds, rank=rank, **values)

    def total(self, phase: str, end: float | None, seconds: float, rank: str | None = None) -> HandmadeStart:
        return self.printed(phase, end, seconds, rank, is_total=True)

    def begins(self, phase: str, time: float | None, rank: str | None = None, **values: Any) -> HandmadeStart:
        return self._phase(phase, time, begin=at(time), rank=rank, **values)

    def ends(self, phase: str, time: float | None, rank: str | None = None, **values: Any) -> HandmadeStart:
        return self._phase(phase, time, end=at(time), rank=rank, **values)

    def bar(
        self,
        done: int,
        total: int,
        elapsed: float | None,
        time: float | None = None,
        phase: str = "weights_read",
        **values: Any,
    ) -> HandmadeStart:
        fixed = {"phase": phase, "time": at(time), "done_count": done, "total_count": total, "elapsed_s": elapsed}
        return self._line("progress", time, **{**fixed, **values})

    def event(self, kind: str, time: float | None = None, fields: str | None = None) -> HandmadeStart:
        return self._line("incidents", time, time=at(time), kind=kind, fields=fields)

    def other(self, time: float | None = None) -> HandmadeStart:
        """A line that tells of no phase."""
        return self._line(None, time)

    def ready(self, time: float | None = None) -> HandmadeStart:
        self.event("ready", time)
        self.start |= {"ready_line": self.line, "ready_time": at(time)}
        return self

    def failed(self, time: float | None = None, fields: str | None = None) -> HandmadeStart:
        self.event("failed", time, fields)
        self.start |= {"failed_line": self.line}
        return self

    def recording(self, **start: Any) -> Recording:
        row = {
            "start_id": self.start_id,
            "replica": None,
            "source_id": 0,
            "line": 1,
            "last_line": self.line,
            "first_time": at(min(self.times, default=None)),
            "last_time": at(max(self.times, default=None)),
            "served": False,
            **self.start,
            **start,
        }
        frames = {name: _frame(name, rows) for name, rows in {**self.rows, "starts": [row]}.items()}
        return Recording(sources=(Source("server.log", "vllm", "vllm", lines=self.line),), **frames)  # type: ignore[arg-type]


def _frame(name: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    wanted = schema.FRAMES[name]
    columns = wanted.create_empty().schema
    full = [{column: row.get(column) for column in columns.names()} for row in rows]
    return wanted.validate(pl.DataFrame(full, schema=columns, orient="row"))
