"""One row of the parts, before they are a frame."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """A part's seconds with their ends, how they were obtained, and from what."""

    part: str
    engine_s: float | None
    low_s: float | None
    high_s: float | None
    status: str
    adds_up: bool
    basis: str


def told(
    part: str, engine_s: float, status: str, basis: str, low_s: float | None = None, high_s: float | None = None
) -> Row:
    """A part that the log tells, with its interval where there is one."""
    return Row(part, engine_s, low_s, high_s, status, True, basis)


def refused(part: str, basis: str) -> Row:
    """A part that the log cannot tell; `basis` names what would."""
    return Row(part, None, None, None, "not_identifiable", True, basis)
