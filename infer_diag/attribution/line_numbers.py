"""Lines of several sources as single numbers, so that what a start is made of can be told apart and put in order."""

from __future__ import annotations

from collections.abc import Mapping

ELSEWHERE = 1 << 32
"""Lines of a start's own source keep their numbers; those of source `n` are numbered from `(n + 1) * ELSEWHERE` on."""


def numbered(row: Mapping[str, object], own: object) -> int:
    """The number of a row's line (columns `source_id`, `line`) in a start whose own source is `own`."""
    source, line = (value if isinstance(value, int) else 0 for value in (row["source_id"], row["line"]))
    return line if source == own else (source + 1) * ELSEWHERE + line


def located(number: int, own: int) -> tuple[int, int]:
    """(source, physical line) of such a number."""
    source, line = divmod(number, ELSEWHERE)
    return (source - 1 if source else own), line
