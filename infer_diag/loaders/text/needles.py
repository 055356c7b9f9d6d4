"""The literals by which lines are found: a short set that every line is held against, the exact one for what is left.

A search for a hundred literals costs several times what a search for thirty does. Nearly all lines of a log hold none,
so fewer and shorter ones, each a part of several, are looked for first.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

import polars as pl

_PART_CHARS = 4
"""Length of the shared parts: shorter ones stand in too many lines, longer ones are shared by too few literals."""

_VAIN_LINES = 5_000
_SHAPES = 100
_SHAPE_CHARS = 300
"""From so many lines that were found in vain so many texts are avoided, as far as their first characters go."""

_NEVER = "$."
"""What no line matches."""


class Needles:
    """Literals of start-up lines and of serving lines, one of which a line must hold to be read at all.

    `common` are texts of frequent lines: a part that stands in one of them would tell nothing.
    """

    def __init__(self, start: tuple[str, ...], serving: tuple[str, ...], common: tuple[str, ...] = ()) -> None:
        self._start, self._serving, self._common = start, serving, (*serving, *common)
        self.likely = self._shared()
        """A pattern that all lines match that hold a literal, and few others."""

    def held(self, lines: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """(the lines that do hold a literal, with `start`: whether it is one of start-up; the others)."""
        start = lines["text"].str.contains(any_of(self._start)).alias("start")
        told = start | lines["text"].str.contains(any_of(self._serving))
        return lines.with_columns(start).filter(told), lines.filter(~told)

    def avoid(self, lines: pl.DataFrame) -> None:
        """Looks from here on for no part that these lines hold, which hold no literal: a log repeats itself."""
        if len(lines) < _VAIN_LINES:
            return
        texts = lines["text"].head(_VAIN_LINES).str.slice(0, _SHAPE_CHARS)
        self._common += tuple(texts.str.replace_all("[0-9]+", "0").unique(maintain_order=True).head(_SHAPES))
        self.likely = self._shared()

    def _shared(self) -> str:
        return any_of([*shared_parts(self._start, self._common), *self._serving])


def shared_parts(literals: tuple[str, ...], common: tuple[str, ...]) -> list[str]:
    """Few texts such that every literal holds at least one and, where that can be, no `common` text does.

    Greedy cover: each time the part that the most literals share which have none yet.
    """
    held_by: dict[str, set[str]] = defaultdict(set)
    for literal in literals:
        for begin in range(len(literal) - _PART_CHARS + 1):
            part = literal[begin : begin + _PART_CHARS]
            if not any(part in text for text in common):
                held_by[part].add(literal)
    left = set(literals)
    chosen = []
    while held_by:
        best = max(held_by, key=lambda part: (len(held_by[part] & left), part))
        if not held_by[best] & left:
            break
        chosen.append(best)
        left -= held_by.pop(best)
    return [*chosen, *sorted(left)]


def any_of(literals: Iterable[str]) -> str:
    """A pattern of the literals, the first in a text counts."""
    return "|".join(map(re.escape, literals)) or _NEVER
