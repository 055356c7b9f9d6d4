"""What every watched thing is: something that is asked now and then, and keeps what it saw where a loader reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import polars as pl

from infer_diag.recording import Recording
from infer_diag.watch.clock import Clock


class Watched(Protocol):
    """One watched thing.

    `state` is one line for the view, `kept_bytes` what it has written, `seen_bytes` grows with what there is to read,
    `next_s` is the steady second of the next look, and `samples` holds what of `EngineSamples` and `GpuSamples` the
    view draws.
    """

    label: str
    state: str
    kept_bytes: int
    seen_bytes: int
    next_s: float
    samples: dict[str, pl.DataFrame]

    def look(self, clock: Clock) -> None:
        """Asks once; never raises for what the thing does or does not do."""

    def recording(self) -> Recording | None:
        """All that was seen so far, null where that is nothing yet."""

    def close(self) -> None:
        """Lets go of what it holds."""


KEPT_BYTES = 256 << 20
"""A watch ends when it has kept so much: whoever needs more has a server that keeps it better."""

DRAWN_ROWS = 4000
"""Rows of live samples that the view keeps; the recording has them all."""


def grown(samples: dict[str, pl.DataFrame], name: str, rows: pl.DataFrame) -> None:
    """Puts rows at the end of a live frame, which forgets its oldest ones."""
    before = samples.get(name)
    samples[name] = rows if before is None else pl.concat([before, rows]).tail(DRAWN_ROWS)


def fresh(path: Path) -> Path:
    """The path, or the first numbered one beside it where a file is there already: an earlier watch is not mixed up."""
    stem, dot, rest = path.name.partition(".")
    names = (f"{stem}{f'_{number}' if number > 1 else ''}{dot}{rest}" for number in range(1, 1_000_000))
    return next(free for name in names if not (free := path.with_name(name)).exists())


def append(path: Path, text: bytes) -> int:
    """Writes at the end of a file and returns how much was written."""
    with path.open("ab") as file:
        file.write(text)
    return len(text)
