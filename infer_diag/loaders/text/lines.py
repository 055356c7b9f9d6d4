"""A chunk of bytes to its lines, and to those of them that matter: everything else is done on these alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
import polars as pl

LINE_LIMIT = 1 << 16
"""Characters of a line that are read; longer ones are prompts, dumps or binary, and their rest says nothing."""

_BAR = r"\d+%\||% Completed \|"
_WRAP_RANGE = (40, 400)
"""Widths at which terminals, pagers and web consoles break lines."""
_NEARLY_ALL = 0.8
"""Of the lines that begin no record, so many have to fit the wrapping: the rest may be output of others."""
_AT_WORDS = 0.4
"""So many of the broken lines are shorter than the width where words are kept whole; elsewhere only a lost blank is."""


@dataclass(frozen=True)
class Wrap:
    """How the lines of a text were wrapped: at `width` characters, inside words or only between them.

    `record_begin` is a pattern of lines that begin a record and are never what is left of another one.
    """

    width: int
    at_words: bool
    record_begin: str


class Chunk:
    """Lines of one piece of a file, numbered from `first_line` (1-based)."""

    def __init__(self, data: bytes, first_line: int, wrap: Wrap | None = None) -> None:
        self.first_line = first_line
        lines = _read(data, first_line)
        self.line_count = lines.height
        self._lines = _bounded(lines if wrap is None else _unwrapped(lines, wrap))

    @property
    def size_bytes(self) -> int:
        """What the lines take of memory, which exceeds their text by far where most are empty."""
        return int(self._lines.estimated_size())

    def matching(self, pattern: str) -> pl.DataFrame:
        """The lines that hold a match: `line`, `text`."""
        return self._lines.filter(pl.col("text").str.contains(pattern))

    def between(self, ranges: Sequence[tuple[int, int]]) -> pl.DataFrame:
        """The lines whose number lies in one of the ascending ranges (both ends included): `line`, `text`."""
        numbers = self._lines["line"]
        edges = [(numbers.search_sorted(low), numbers.search_sorted(high, side="right")) for low, high in ranges]
        return pl.concat([self._lines.clear(), *[self._lines.slice(begin, end - begin) for begin, end in edges]])


def _read(data: bytes, first_line: int) -> pl.DataFrame:
    numbered = partial(pl.read_lines, name="text", row_index_name="line", row_index_offset=first_line)
    try:
        return numbered(data)
    except pl.exceptions.ComputeError:
        # polars checks the encoding while it reads; only a chunk that fails there pays for the repair.
        return numbered(data.decode("utf-8", "replace").encode())


def _bounded(lines: pl.DataFrame) -> pl.DataFrame:
    if lines.is_empty() or (lines["text"].str.len_bytes().max() or 0) <= LINE_LIMIT:  # type: ignore[operator]
        return lines
    return lines.with_columns(pl.col("text").str.slice(0, LINE_LIMIT))


def wrapping(sample: pl.DataFrame, record_begin: str) -> Wrap | None:
    """How the text was wrapped inside its lines, or None.

    A width counts as one when at least two records fill it, being the longest lines, and nearly each is followed by a
    line that is neither a record of its own nor a progress bar, while most other lines are records. Wrapped between
    words, a record fills it when the next line's first word would not have fitted.
    """
    lengths = sample["text"].str.len_chars()
    width = cast(int, lengths.max()) if len(lengths) else 0
    if not _WRAP_RANGE[0] <= width <= _WRAP_RANGE[1]:
        return None
    begins = sample["text"].str.contains(record_begin).to_numpy()
    alone = begins | sample["text"].str.contains(_BAR).to_numpy() | (lengths == 0).to_numpy()
    filled = np.flatnonzero((lengths == width).to_numpy()[:-1])
    continued = int((begins[filled] & ~alone[filled + 1]).sum())
    broken = int(alone[filled + 1].sum())
    orphans = int((~alone).sum())
    carried = sample.select(_carried(width, record_begin)).to_series().to_numpy()
    short = carried[1:] & (lengths < width).to_numpy()[:-1]
    if short.sum() >= max(2, _AT_WORDS * carried.sum()) and carried.sum() >= _NEARLY_ALL * orphans:
        return Wrap(width, True, record_begin)
    fits = continued >= 2 and broken <= 0.25 * continued and continued >= 0.4 * orphans
    return Wrap(width, False, record_begin) if fits else None


def _carried(width: int, record_begin: str) -> pl.Expr:
    """Whether a line is what did not fit into the one before it, where lines are broken between words."""
    text, before = pl.col("text"), pl.col("text").shift(1).str.len_chars()
    word = text.str.extract(r"^(\S+)")
    # Lines that all begin with one word are records of one writer, whatever their length.
    unfit = (before > 0) & (before + 1 + word.str.len_chars() > width) & (word != word.shift(1))
    return unfit.fill_null(False) & ~text.str.contains(record_begin) & ~text.str.contains(_BAR)


def _unwrapped(lines: pl.DataFrame, wrap: Wrap) -> pl.DataFrame:
    """Lines joined to the one before them where that one fills the whole width; each keeps its first line's number."""
    full = pl.col("text").str.len_chars() >= wrap.width
    begins = ~_carried(wrap.width, wrap.record_begin) if wrap.at_words else ~full.shift(1, fill_value=False)
    grouped = lines.with_columns(begins.cum_sum().alias("_group"))
    between = " " if wrap.at_words else ""
    joined = grouped.group_by("_group", maintain_order=True).agg(
        pl.col("line").first(), pl.col("text").str.join(between)
    )
    return joined.drop("_group")
