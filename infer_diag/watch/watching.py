"""The watch itself: looks at each thing in its turn, diagnoses what was seen so far, ends when it is told to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from infer_diag.diagnose import Diagnosis, diagnose
from infer_diag.errors import DiagError
from infer_diag.loaders.joining import joined
from infer_diag.loaders.one_clock import aligned
from infer_diag.recording import Recording, combine
from infer_diag.units import format_bytes, format_s
from infer_diag.watch.clock import Clock, SystemClock
from infer_diag.watch.engine import EngineWatch
from infer_diag.watch.fetching import Fetcher
from infer_diag.watch.gpu import GpuWatch
from infer_diag.watch.log import LogWatch
from infer_diag.watch.start import Verdict
from infer_diag.watch.targets import Target
from infer_diag.watch.watched import KEPT_BYTES, Watched

LEAST_EVERY_S = 0.2
"""More often than this the asking itself would weigh on an engine, whose metrics are made anew for each scrape."""

FRESH_SHARE = 0.1
"""All that was kept is diagnosed again once it has grown by this share: the cost of a long watch stays linear."""


@dataclass(frozen=True)
class View:
    """What there is to show: a line per watched thing, the live samples, how starts stand, and the diagnosis so far."""

    elapsed_s: float
    states: tuple[tuple[str, str], ...]
    samples: tuple[tuple[str, pl.DataFrame], ...] = ()
    gpus: pl.DataFrame | None = None
    verdicts: tuple[tuple[str, Verdict], ...] = ()
    diagnosis: Diagnosis | None = None
    over: str | None = None

    @property
    def lines(self) -> list[str]:
        """The view in a few lines of text: states, what the samples say last, the findings that weigh most."""
        head = f"watched for {format_s(round(self.elapsed_s))}" + (f"; ended: {self.over}" if self.over else "")
        lines = [head, *(f"{label}: {state}" for label, state in self.states)]
        found = self.diagnosis.findings if self.diagnosis is not None else ()
        return [*lines, *(f"{each.severity:<6} {each.id}: {each.sentence}" for each in found)]


class Live:
    """Things that are watched together; `recording` is what was seen, `view` what there is to show of it."""

    def __init__(self, watched: Sequence[Watched], clock: Clock | None = None, for_s: float | None = None) -> None:
        self._watched = watched
        self._clock = clock or SystemClock()
        self._for_s = for_s
        self._begin_s = self._clock.steady_s()
        self._diagnosed_bytes = -1.0
        self._diagnosis: Diagnosis | None = None
        self._over: str | None = None
        self._closed = False

    @property
    def over(self) -> str | None:
        """Why the watch has ended, null while it goes on."""
        return self._over

    def tick(self) -> View:
        """Looks at everything whose time has come, diagnoses anew where that is due, and says what there is."""
        for each in self._watched:
            if each.next_s <= self._clock.steady_s():
                each.look(self._clock)
        if sum(each.kept_bytes for each in self._watched) >= KEPT_BYTES:
            self._over = f"{format_bytes(KEPT_BYTES)} were kept"
        elif self._for_s is not None and self._elapsed_s() >= self._for_s:
            self._over = f"{format_s(self._for_s)} are over"
        held = self._seen_bytes()
        if held >= self._diagnosed_bytes * (1 + FRESH_SHARE) or self._over is not None:
            self._diagnose(held)
        return self.view()

    def view(self) -> View:
        """What there is to show now."""
        drawn = [
            (each.label, each.samples["engine_samples"]) for each in self._watched if "engine_samples" in each.samples
        ]
        gpus = [each.samples["gpu_samples"] for each in self._watched if "gpu_samples" in each.samples]
        judged = [(each.label, each.verdict) for each in self._watched if isinstance(each, LogWatch) and each.verdict]
        return View(
            elapsed_s=self._elapsed_s(),
            states=tuple((each.label, each.state) for each in self._watched),
            samples=tuple(drawn),
            gpus=gpus[0] if gpus else None,
            verdicts=tuple(judged),
            diagnosis=self._diagnosis,
            over=self._over,
        )

    def run(self, stop: threading.Event, show: Callable[[View], None]) -> View:
        """The last view; ticks and shows each one until `stop` is set, the time is over or the user interrupts."""
        try:
            while not stop.is_set() and self._over is None:
                show(self.tick())
                self._clock.wait(self._pause_s(), stop)
        except KeyboardInterrupt:
            self._over = "interrupted"
        self._over = self._over or "stopped"
        self._diagnose(self._seen_bytes())
        self.close()
        last = self.view()
        show(last)
        return last

    def recording(self) -> Recording | None:
        """All that was seen so far, null where that is nothing."""
        parts = [part for each in self._watched if (part := _read(each)) is not None]
        return joined(combine(aligned(parts))) if parts else None

    def close(self) -> None:
        """Lets go of everything that is watched."""
        if not self._closed:
            self._closed = True
            for each in self._watched:
                each.close()

    def _diagnose(self, held: float) -> None:
        if held == self._diagnosed_bytes:
            return
        self._diagnosed_bytes = held
        recording = self.recording()
        self._diagnosis = diagnose(recording) if recording is not None else None

    def _seen_bytes(self) -> float:
        return float(sum(each.seen_bytes for each in self._watched))

    def _elapsed_s(self) -> float:
        return self._clock.steady_s() - self._begin_s

    def _pause_s(self) -> float:
        now_s = self._clock.steady_s()
        ends_s = [self._begin_s + self._for_s] if self._for_s is not None else []
        return max(min([each.next_s for each in self._watched] + ends_s) - now_s, 0.0)


def live(
    targets: Sequence[Target],
    folder: Path,
    *,
    every_s: float = 2.0,
    for_s: float | None = None,
    tz: str | None = None,
    clock: Clock | None = None,
    nvml: Any = None,
) -> Live:
    """A watch of these targets every `every_s` seconds, that keeps what it sees in `folder` and ends after `for_s`.

    An engine that does not answer and a log that does not exist are waited for; `tz` is the zone of a log's stamps.

    Raises:
        ProbeUnavailable: GPUs are to be watched and there is none.
        DiagError: the time between two looks is too short, or the folder cannot be made.
    """
    if every_s < LEAST_EVERY_S:
        raise DiagError(f"a look every {format_s(every_s)} is too often", hint=f"from {format_s(LEAST_EVERY_S)} on")
    clock = clock or SystemClock()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DiagError(f"{folder} cannot be made: {error.strerror}", hint="name another folder") from error
    watched: list[Watched] = []
    for number, each in enumerate(dict.fromkeys(targets), 1):
        own = folder / str(number) if len(targets) > 1 else folder
        own.mkdir(exist_ok=True)
        if each.kind == "gpu":
            watched.append(GpuWatch(own, every_s, clock, nvml))
        elif each.kind == "engine":
            limit_s = min(max(every_s, 2.0), 10.0)
            watched.append(EngineWatch(each, own, every_s, Fetcher(each.place, each.authorization, limit_s)))
        else:
            watched.append(LogWatch(each.place, each.label, every_s, tz))
    return Live(watched, clock, for_s)


def _read(watched: Watched) -> Recording | None:
    try:
        return watched.recording()
    except DiagError:
        return None
