"""The log lines behind a finding, read again from their file: redacted, cut, with two neighbours on each side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from infer_diag.errors import DiagError
from infer_diag.loaders.files import find
from infer_diag.loaders.text.lines import Chunk
from infer_diag.recording import Recording
from infer_diag.redact import MARK, shown

AROUND = 2
MOST_CHARACTERS = 300
_KEY_REST = r"^\s*(?:[A-Za-z0-9+/]{1,64}={0,2}|-----END [A-Z0-9 ]*-----)\s*$"


@dataclass(frozen=True)
class Line:
    """One line to show; `cited` is false for a neighbour."""

    number: int
    text: str
    cited: bool


@dataclass(frozen=True)
class Block:
    """Lines that stand together under one heading; no lines where the file could not be read again."""

    name: str
    lines: tuple[Line, ...] = ()


def blocks(places: Sequence[str], names: Sequence[str], found: dict[str, tuple[Line, ...]]) -> list[Block]:
    """The excerpts of one finding, those that touch joined into one; `names` are the places as they may be shown."""
    joined: list[Block] = []
    path = ""
    for place, name in zip(places, names, strict=True):
        lines = found.get(place, ())
        before = joined[-1].lines if joined and path == place.rpartition(":")[0] else ()
        if lines and before and before[0].number <= lines[0].number <= before[-1].number + 1:
            cited = {line.number: line for line in (*before, *lines) if line.cited}
            merged = {line.number: line for line in (*before, *lines)} | cited
            joined[-1] = Block(
                f"{joined[-1].name}, {name.rpartition(':')[2]}", tuple(merged[key] for key in sorted(merged))
            )
        else:
            joined.append(Block(name, lines))
        path = place.rpartition(":")[0]
    return joined


def excerpts(recording: Recording, evidence: Iterable[str]) -> dict[str, tuple[Line, ...]]:
    """For each `path:line` the lines to show; a place whose file cannot be read as it was is left out.

    A file counts as the same when its size is; one behind a URL is not fetched, because a report makes no request.
    """
    wanted: dict[str, set[int]] = {}
    for place in evidence:
        path, _, number = place.rpartition(":")
        if number.isdecimal() and int(number) > 0:
            wanted.setdefault(path, set()).add(int(number))
    sizes = {source.path: source.size_bytes for source in recording.sources}
    sizes |= {path: size for source in recording.sources for path, _, size in source.parts}
    found: dict[str, tuple[Line, ...]] = {}
    for path, numbers in wanted.items():
        if path in sizes:
            texts = _lines(path, sizes[path], numbers)
            found |= {f"{path}:{number}": _around(texts, number) for number in numbers if number in texts}
    return found


def _around(texts: dict[int, str], number: int) -> tuple[Line, ...]:
    near = range(max(number - AROUND, 1), number + AROUND + 1)
    return tuple(Line(each, texts[each], each == number) for each in near if each in texts)


def _lines(path: str, size_bytes: int, numbers: set[int]) -> dict[int, str]:
    """Clean text by line number, or nothing where the file is gone or another one."""
    ranges = [(max(number - AROUND, 1), number + AROUND) for number in sorted(numbers)]
    if "://" in path:
        return {}
    try:
        files = find((path,))
        if len(files) != 1 or Path(files[0].path).stat().st_size != size_bytes:
            return {}
        parts, first = [], 1
        for data in files[0].chunks():
            chunk = Chunk(data, first)
            last = first + chunk.line_count - 1
            near = [(low, high) for low, high in ranges if low <= last and high >= first]
            parts.append(chunk.between(near))
            first = last + 1
            if first > ranges[-1][1]:
                break
    except (DiagError, OSError):
        return {}
    return dict(_clean(pl.concat(parts)).iter_rows()) if parts else {}


def _clean(lines: pl.DataFrame) -> pl.DataFrame:
    text = pl.col("text")
    key = (text == MARK) | text.str.ends_with(f" {MARK}")
    return (
        lines.with_columns(shown(text.str.strip_chars_end(), MOST_CHARACTERS))
        # The last line of a private key is too short to be told by its form.
        .with_columns(
            pl.when(key.shift(1) & text.str.contains(_KEY_REST)).then(pl.lit(MARK)).otherwise(text).alias("text")
        )
        .select("line", "text")
    )
