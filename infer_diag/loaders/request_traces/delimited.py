"""Tables of comma-separated text, chunk after chunk: each cell as text, each row with its physical line."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from infer_diag.errors import SourceError
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.loader import Options

_CELL_LIMIT = 64 << 20
"""A quoted cell that does not end within this many bytes is an unclosed quotation mark."""


@dataclass(frozen=True)
class Table:
    """`rows` hold `line` and a column of text per wanted column of the table, as far as it has them."""

    rows: pl.DataFrame
    lines: int
    header: tuple[str, ...]


def table(file: LogFile, options: Options, wanted: Sequence[str], separator: str = ",") -> Table:
    """The wanted columns of a whole table.

    Raises:
        SourceError: the table cannot be cut into rows.
    """
    found = list(parts(file, options, wanted, separator))
    if not found:
        return Table(pl.DataFrame(schema={"line": pl.UInt32}), 0, ())
    return Table(pl.concat([part.rows for part in found]), found[-1].lines, found[-1].header)


def parts(file: LogFile, options: Options, wanted: Sequence[str], separator: str = ",") -> Iterator[Table]:
    """The wanted columns chunk by chunk, each with the lines so far; a header that stands in it again is dropped.

    The first line names the columns.

    Raises:
        SourceError: the table cannot be cut into rows.
    """
    header: tuple[str, ...] = ()
    lines = 0
    for data in _whole_rows(file, options):
        if not header:
            header = _header(data, separator)
        height = data.count(b"\n") + (not data.endswith(b"\n"))
        rows = _cells(file, data, header, lines + 1, height, separator)
        repeated = pl.all_horizontal(pl.col(name) == name for name in header)
        empty = pl.all_horizontal(pl.col(name).is_null() for name in header)
        kept = [name for name in wanted if name in header]
        lines += height
        yield Table(rows.filter(~repeated.fill_null(False) & ~empty).select("line", *kept).collect(), lines, header)


def _whole_rows(file: LogFile, options: Options) -> Iterator[bytes]:
    """Chunks that end outside a quoted cell, unless a quotation mark is never closed."""
    held = b""
    for data in file.chunks():
        options.on_bytes(len(data))
        held = held + data if held else data
        if held.count(b'"') % 2 == 0 or len(held) > _CELL_LIMIT:
            yield held
            held = b""
    if held:
        yield held


def _is_pattern(name: str) -> bool:
    return name == "*" or (name.startswith("^") and name.endswith("$"))


def _header(data: bytes, separator: str) -> tuple[str, ...]:
    first = data.split(b"\n", 1)[0].decode("utf-8", "replace").rstrip("\r")
    try:
        names = next(csv.reader([first], delimiter=separator), [])
    except csv.Error:
        names = first.split(separator)
    stripped = [name.strip() for name in names]
    # polars takes such names for patterns of names.
    plain = [f"#{place}" if _is_pattern(name) else name for place, name in enumerate(stripped)]
    # Two columns of one name: the first one is meant, and the others must not take its place.
    return tuple(name if plain.index(name) == place else f"{name}#{place}" for place, name in enumerate(plain))


def _cells(
    file: LogFile, data: bytes, header: tuple[str, ...], first_line: int, height: int, separator: str
) -> pl.LazyFrame:
    try:
        rows = _read(data, header, first_line, separator, '"')
    except pl.exceptions.PolarsError:
        # A quotation mark that is part of a cell and no bracket around it.
        try:
            rows = _read(data, header, first_line, separator, None)
        except pl.exceptions.PolarsError as error:
            told = str(error).splitlines()[0][:80]
            raise SourceError(f"{file.label} cannot be cut into rows: {told}", hint="save it as plain CSV") from error
    # A cell that holds line breaks makes rows and lines differ; then no line can be named.
    line = pl.col("line") if len(rows) == height else pl.lit(0)
    return rows.lazy().with_columns(line.cast(pl.UInt32).alias("line"), pl.col(header).str.strip_chars(" \r\t"))


def _read(data: bytes, header: tuple[str, ...], first_line: int, separator: str, quote: str | None) -> pl.DataFrame:
    return pl.read_csv(
        io.BytesIO(data),
        has_header=False,
        schema=dict.fromkeys(header, pl.String),
        separator=separator,
        quote_char=quote,
        truncate_ragged_lines=True,
        missing_columns="insert",
        encoding="utf8-lossy",
        row_index_name="line",
        row_index_offset=first_line,
    )
