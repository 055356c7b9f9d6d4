"""What a user may choose about a probe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """Choices that the probes share; one that has no use for a choice ignores it.

    `repeats` null means as many as the probe needs for its statistics. `python` is the interpreter that traces a
    pipeline, where torch and transformers are not in this one.
    """

    model: Path | None = None
    repeats: int | None = None
    size_bytes: int | None = None
    python: str | None = None
    cold: bool = False
