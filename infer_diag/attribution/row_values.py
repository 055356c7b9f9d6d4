"""Values out of rows of frames whose times are microseconds since the epoch; null where a row does not tell."""

from __future__ import annotations

from infer_diag.attribution.intervals import microseconds


def whole(value: object) -> int | None:
    """An integer: a count, a line, or a time in microseconds."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def length_us(value: object) -> int | None:
    """Seconds as whole microseconds."""
    return microseconds(value) if isinstance(value, float) else None


def text(value: object) -> str | None:
    """A string."""
    return value if isinstance(value, str) else None
