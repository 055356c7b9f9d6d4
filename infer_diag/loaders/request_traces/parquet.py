"""Columns of Parquet files, read lazily and only where they hold numbers, text or dates."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from infer_diag.errors import SourceError
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.loader import Options

MAGIC = b"PAR1"
_MOST_ROWS = 100_000_000
_LARGEST_BYTES = 2 << 30


def columns_of(file: LogFile, options: Options, names: Sequence[str]) -> pl.DataFrame:
    """The columns, with `line` 0 in every row since the file has no lines.

    Raises:
        SourceError: the file is damaged or too large, lacks a column, or has another kind of value in it.
    """
    try:
        rows = pl.scan_parquet(_opened(file))
        kinds = rows.collect_schema()
        missing = [name for name in names if name not in kinds]
        if missing:
            raise SourceError(
                f"{file.label} has no column {missing[0]!r}", hint=f"it has {', '.join(kinds.names()[:12])[:120]}"
            )
        odd = [name for name in names if not _is_plain(kinds[name])]
        if odd:
            raise SourceError(
                f"column {odd[0]!r} of {file.label} holds {kinds[odd[0]]}, not numbers, text or dates",
                hint="map a column of plain values",
            )
        height = rows.select(pl.len()).collect().item()
        if height > _MOST_ROWS:
            raise SourceError(f"{file.label} has {height:,} rows", hint=f"give at most {_MOST_ROWS:,} at a time")
        told = rows.select(pl.lit(0, pl.UInt32).alias("line"), *(pl.col(name) for name in names)).collect()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError) as error:
        told_of = (str(error).splitlines() or [""])[0][:80]
        raise SourceError(f"{file.label} is no Parquet file that can be read: {told_of}") from error
    options.on_bytes(file.size_bytes)
    return told.with_columns(pl.lit(0, pl.UInt32).alias("line"))


def _is_plain(kind: pl.DataType) -> bool:
    return kind.is_numeric() or kind.is_temporal() or kind in (pl.String, pl.Categorical, pl.Enum, pl.Null)


def _opened(file: LogFile) -> Path | io.BytesIO:
    """The file itself where it lies here as it is, its bytes where it is remote or compressed."""
    if "://" not in file.path:
        with Path(file.path).open("rb") as raw:
            if raw.read(len(MAGIC)) == MAGIC:
                return Path(file.path)
    held = io.BytesIO()
    for block in file.blocks():
        held.write(block)
        if held.tell() > _LARGEST_BYTES:
            raise SourceError(
                f"{file.label} is larger than {_LARGEST_BYTES >> 30} GiB", hint="decompress it here first"
            )
    held.seek(0)
    return held
