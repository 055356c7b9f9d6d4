"""A running engine's metrics page, scraped now and then into one file of scrapes with their times."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import polars as pl

from infer_diag.errors import SourceError
from infer_diag.loaders import load
from infer_diag.loaders.exposition.scrapes import wanted_pattern
from infer_diag.recording import Recording
from infer_diag.redact import redact
from infer_diag.units import format_s
from infer_diag.watch.clock import Clock
from infer_diag.watch.targets import Target
from infer_diag.watch.watched import append, fresh, grown

LONGEST_PAUSE_S = 60.0
"""An engine that does not answer is asked after twice the time, up to this: it may be coming up for minutes."""
_QUOTED = 60


class EngineWatch:
    """Scrapes of one engine. Only the series that fill a frame are kept: a page has thousands of others."""

    def __init__(self, target: Target, folder: Path, every_s: float, fetch: Callable[[], bytes]) -> None:
        self.label = target.label
        self.state = "not asked yet"
        self.kept_bytes = self.seen_bytes = 0
        self.next_s = 0.0
        self.samples: dict[str, pl.DataFrame] = {}
        self._every_s = every_s
        self._fetch = fetch
        name = re.sub(r"[^A-Za-z0-9]+", "_", target.label).strip("_")
        self._path = fresh(folder / f"{name}.prom.txt")
        self._tail_path = folder / ".tail.prom.txt"
        self._last = b""
        self._scrapes = 0
        self._failures = 0

    def look(self, clock: Clock) -> None:
        """One scrape; after a failure the next one waits longer."""
        try:
            page = _wanted(self._fetch())
        except SourceError as error:
            self._failed(clock, error.message)
            return
        self._failures = 0
        self.next_s = clock.steady_s() + self._every_s
        stamp = clock.now().strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
        scrape = f"# scrape {stamp}Z\n".encode() + page
        self.kept_bytes += append(self._path, scrape)
        self.seen_bytes = self.kept_bytes
        self._scrapes += 1
        self._show(self._last + scrape)
        self._last = scrape
        self.state = f"{self._scrapes:,} scrape{'s' * (self._scrapes != 1)}"

    def recording(self) -> Recording | None:
        """Every scrape kept so far."""
        return load(self._path, tz="UTC") if self._scrapes else None

    def close(self) -> None:
        """Takes the file of the newest scrapes away; the whole one stays."""
        self._tail_path.unlink(missing_ok=True)

    def _failed(self, clock: Clock, told: str) -> None:
        self._failures += 1
        pause_s = min(self._every_s * 2**self._failures, max(LONGEST_PAUSE_S, self._every_s))
        self.next_s = clock.steady_s() + pause_s
        times = f" ({self._failures} times in a row)" if self._failures > 1 else ""
        seen = f"{self._scrapes:,} scrapes before; " if self._scrapes else ""
        self.state = f"{seen}{told}{times}; next try in {format_s(pause_s)}"

    def _show(self, text: bytes) -> None:
        """The newest sample: rates need the scrape before it, so both are read together."""
        self._tail_path.write_bytes(text)
        try:
            rows = load(self._tail_path, tz="UTC").engine_samples
        except SourceError:
            return
        newest = rows.filter(pl.col("time") == pl.col("time").max())
        if not self._last:
            # A first scrape counts what happened before anyone watched.
            newest = newest.with_columns(pl.lit(None, pl.UInt32).alias("preemption_count"))
        grown(self.samples, "engine_samples", newest)


def _wanted(page: bytes) -> bytes:
    """The lines of a page that fill a frame.

    Raises:
        SourceError: there are none.
    """
    # A page whose last line has no end was cut, and half a number is another number.
    whole = page[: page.rfind(b"\n") + 1].decode("utf-8", "replace")
    lines = pl.Series(whole.split("\n"), dtype=pl.String)
    kept = lines.filter(lines.str.contains(wanted_pattern()))
    if kept.is_empty():
        first = next(filter(str.strip, page[:4096].decode("utf-8", "replace").split("\n")), "")
        shown = "".join(c if c.isprintable() else " " for c in redact(first))[:_QUOTED]
        raise SourceError(
            f"it answers, and with no metric that infer_diag reads (it begins {shown!r})"
            if shown
            else "an empty answer"
        )
    return "".join(f"{line}\n" for line in kept).encode()
