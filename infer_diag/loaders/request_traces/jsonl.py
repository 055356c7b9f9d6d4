"""Files of one JSON object per line: the wanted values of each line as text, without a Python object per line."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import polars as pl

from infer_diag.loaders.conformed import CLAIMED
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.loader import Options

_KEPT_TEXT = 200


@dataclass(frozen=True)
class JsonLines:
    """`rows` hold `line` and a column of text per wanted value; `damaged` is shaped like `rejected`."""

    rows: pl.DataFrame
    damaged: pl.DataFrame
    lines: int


def json_lines(file: LogFile, options: Options, paths: Mapping[str, str], *, needed: str, what: str) -> JsonLines:
    """The values at these JSON paths; a line without the `needed` one is damaged, or no line of this format.

    Nesting beyond 128 levels makes a line damaged: the reader gives up on it.
    """
    rows: list[pl.DataFrame] = []
    damaged: list[pl.DataFrame] = []
    count = 0
    for lines, read in text_lines(file, options):
        count = read
        found = lines.select("line", *(pl.col("text").str.json_path_match(path).alias(n) for n, path in paths.items()))
        broken = found[needed].is_null()
        rows.append(found.filter(~broken))
        damaged.append(claimed(lines.filter(broken), what))
    empty = pl.DataFrame(schema={"line": pl.UInt32, **dict.fromkeys(paths, pl.String)})
    return JsonLines(pl.concat([empty, *rows]), pl.concat([pl.DataFrame(schema=CLAIMED), *damaged]), count)


def text_lines(file: LogFile, options: Options) -> Iterator[tuple[pl.DataFrame, int]]:
    """(`line` and `text` of the lines that hold anything, lines so far), chunk after chunk; lines of any length."""
    count = 0
    for data in file.chunks():
        options.on_bytes(len(data))
        lines = _scanned(data, count + 1)
        count += data.count(b"\n") + (not data.endswith(b"\n"))
        yield lines, count


def claimed(lines: pl.DataFrame, what: str) -> pl.DataFrame:
    """Lines that cannot be read, shaped like `rejected`."""
    return lines.select("line", pl.lit(what).alias("rule"), pl.col("text").str.slice(0, _KEPT_TEXT))


def _scanned(data: bytes, first_line: int) -> pl.DataFrame:
    try:
        return _plain(data, first_line)
    except pl.exceptions.ComputeError:
        return _plain(data.decode("utf-8", "replace").encode(), first_line)


def _plain(data: bytes, first_line: int) -> pl.DataFrame:
    lines = pl.scan_lines(io.BytesIO(data), name="text", row_index_name="line", row_index_offset=first_line)
    return lines.filter(pl.col("text").str.contains(r"\S")).collect().with_columns(pl.col("line").cast(pl.UInt32))
