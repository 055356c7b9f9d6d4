"""A log that still grows, read again as it does."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from infer_diag.errors import DiagError
from infer_diag.loaders import load
from infer_diag.recording import Recording
from infer_diag.units import format_bytes, format_s
from infer_diag.watch.clock import Clock
from infer_diag.watch.start import Verdict, moved, verdict
from infer_diag.watch.watched import DRAWN_ROWS

GROWN_SHARE = 0.05
"""A long log is read again once it has grown by this share, so that all readings together cost some twenty of it."""
_SMALL_BYTES = 4 << 20
"""A log as small as this is read at every look at which it has grown: a start writes far less."""


class LogWatch:
    """One log; `verdict` is what it says of its last start."""

    def __init__(self, path: str, label: str, every_s: float, tz: str | None = None) -> None:
        self.label = label
        self.state = "not read yet"
        self.kept_bytes = self.seen_bytes = 0
        self.next_s = 0.0
        self.samples: dict[str, pl.DataFrame] = {}
        self.verdict: Verdict | None = None
        self._path = Path(path).expanduser()
        self._every_s = every_s
        self._tz = tz
        self._recording: Recording | None = None
        self._refused: str | None = None
        self._size_bytes = -1
        self._grew_s = 0.0
        self._moved: tuple[tuple[str, str, int], ...] = ()
        self._moved_s = 0.0

    def look(self, clock: Clock) -> None:
        """Reads the log again if it has grown, and judges its start by what it says and how long it says nothing."""
        self.next_s = clock.steady_s() + self._every_s
        try:
            told = self._path.stat()
        except OSError as error:
            self.state = (
                "does not exist yet" if isinstance(error, FileNotFoundError) else (error.strerror or "unreadable")
            )
            return
        steady_s = clock.steady_s()
        if told.st_size != self._size_bytes:
            # The first look finds a log that may have been silent for long; its file's own time tells.
            age_s = max((clock.now() - datetime.fromtimestamp(told.st_mtime, UTC)).total_seconds(), 0.0)
            self._grew_s = steady_s - (age_s if self._size_bytes < 0 else 0.0)
            self._size_bytes = told.st_size
        grown_bytes = told.st_size - self.seen_bytes
        if grown_bytes < 0 or (grown_bytes and (told.st_size <= _SMALL_BYTES or self._is_due(grown_bytes))):
            self._read(told.st_mtime, told.st_size, steady_s)
        self._judge(steady_s)

    def recording(self) -> Recording | None:
        """The log as it was read last."""
        return self._recording

    def close(self) -> None:
        """The log is open only while it is read."""

    def _is_due(self, grown_bytes: int) -> bool:
        return grown_bytes >= self.seen_bytes * GROWN_SHARE

    def _read(self, modified_s: float, size_bytes: int, steady_s: float) -> None:
        self.seen_bytes = size_bytes
        try:
            # A log that is being written now is of this year, which most engines do not print.
            year = datetime.fromtimestamp(modified_s, UTC).year
            self._recording = load(self._path, year=year, tz=self._tz)
        except DiagError as error:
            self._refused = error.message
            return
        self._refused = None
        now = moved(self._recording)
        if now != self._moved or not self._moved_s:
            self._moved, self._moved_s = now, self._grew_s if not self._moved_s else steady_s
        self.samples["engine_samples"] = self._recording.engine_samples.tail(DRAWN_ROWS)

    def _judge(self, steady_s: float) -> None:
        quiet_s = steady_s - self._grew_s
        size = f"{format_bytes(self._size_bytes)}, last grown {format_s(round(quiet_s))} ago"
        if self._recording is None:
            self.state = f"{size}; {self._refused or 'nothing to read yet'}"
            return
        self.verdict = verdict(self._recording, round(quiet_s), round(steady_s - self._moved_s))
        self.state = f"{size}; {self.verdict.sentence}"
