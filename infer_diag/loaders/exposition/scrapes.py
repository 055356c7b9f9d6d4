"""Text of one scrape or of many, cut into values of series: which scrape, when, which series, what value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from infer_diag.errors import SourceError
from infer_diag.loaders.conformed import CLAIMED
from infer_diag.loaders.exposition.families import MEANINGS
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.loader import Options
from infer_diag.loaders.text import stamps
from infer_diag.loaders.text.lines import Chunk

SAMPLES: dict[str, pl.DataType | type[pl.DataType]] = {
    "scrape": pl.Int64,
    "line": pl.UInt32,
    "us": pl.Int64,
    "series": pl.Categorical,
    "value": pl.Float64,
}
"""One value of one series; `us` is its time in microseconds since 1970, null where nothing tells."""

_LABELS = r'\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\}'
_VALUE = r"[+-]?(?:[0-9][0-9.]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+|Inf|NaN|Nan|nan|inf)"
_STAMP = r"-?[0-9.]+(?:[eE][+-]?[0-9]+)?"
_SAMPLE = (
    rf"^\s*(?P<series>[A-Za-z_:][A-Za-z0-9_:]*(?:{_LABELS})?)\s+(?P<value>{_VALUE})(?:\s+(?P<stamp>{_STAMP}))?"
    r"(?:\s+#.*)?\s*$"
)
_ISO = (
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?\s*(?:Z|UTC|[+-][0-9]{2}:?[0-9]{2})?"
)
_MARK = (
    rf"^[\s#=*-]*(?:[A-Za-z]+\s*[:=]?\s+)?(?:(?P<iso>{_ISO})|(?P<epoch>1[0-9]{{9}}(?:[0-9]{{3}}|\.[0-9]+)?))[\s#=*-]*$"
)
_END = "# EOF"
_PIECE = 4 << 20
_SECONDS_LIMIT = 1e11
"""Larger stamps are milliseconds (the text format), smaller ones seconds (OpenMetrics): the year is then 5138."""


@dataclass(frozen=True)
class Scrapes:
    """The samples of a file, the lines that should be samples and are none, and how time is told."""

    samples: pl.DataFrame
    damaged: pl.DataFrame
    lines: int
    example: str | None
    zone: str | None
    has_year: bool

    def taken_at(self, us: int | None, example: str | None, zone: str | None) -> Scrapes:
        """The same samples, all of this time."""
        samples = self.samples.with_columns(pl.lit(us, pl.Int64).alias("us"))
        return Scrapes(samples, self.damaged, self.lines, example, zone, has_year=True)


def wanted_pattern() -> str:
    """What a line begins with that fills a frame."""
    return rf"^\s*(?:{'|'.join(sorted(map(re.escape, MEANINGS), key=len, reverse=True))})(?:[{{\s]|$)"


def read_scrapes(file: LogFile, options: Options) -> Scrapes:
    """The values of the series that fill a frame; all other lines are only counted."""
    return _read(((data, []) for data in file.chunks()), options)


def read_files(files: Sequence[LogFile], options: Options) -> tuple[Scrapes, list[int]]:
    """(the scrapes of several files, the number that the first line of each has there).

    No scrape reaches from one file into the next. A file that cannot be read to its end is read as far as it goes, and
    says so in its notes.
    """
    begins: list[int] = []
    return _read(_pieces(files, begins), options), begins


def _pieces(files: Sequence[LogFile], begins: list[int]) -> Iterator[tuple[bytes, list[int]]]:
    """Small files joined to pieces that are worth the cost of one, each with the numbers of the files' first lines."""
    held: list[bytes] = []
    starts: list[int] = []
    size, line = 0, 1
    for file in files:
        begins.append(line)
        starts.append(line)
        try:
            for data in file.chunks():
                whole = data if data.endswith(b"\n") else data + b"\n"
                held.append(whole)
                size += len(whole)
                line += whole.count(b"\n")
                if size >= _PIECE:
                    yield b"".join(held), starts
                    held, starts, size = [], [], 0
        except SourceError as error:
            file.cut = True
            file.notes.append(error.message)
    yield b"".join(held), starts


def _read(pieces: Iterable[tuple[bytes, list[int]]], options: Options) -> Scrapes:
    wanted = wanted_pattern()
    kept = [pl.DataFrame(schema={"line": pl.UInt32, "text": pl.String})]
    count = 0
    parts, damaged = [], [pl.DataFrame(schema=CLAIMED)]
    for data, begins in pieces:
        # The begin of a file parts scrapes as the end of one does; a time on the same line stands behind it and counts.
        kept.append(pl.DataFrame({"line": begins, "text": [_END] * len(begins)}, schema=kept[0].schema))
        chunk = Chunk(data, count + 1)
        options.on_bytes(len(data))
        count += chunk.line_count
        found = chunk.matching(f"{wanted}|{_MARK}|^{_END}")
        kept.append(found.filter(pl.col("text").str.contains(f"{_MARK}|^{_END}")))
        read = found.filter(pl.col("text").str.contains(wanted)).with_columns(
            pl.col("text").str.extract_groups(_SAMPLE).alias("_g")
        )
        fits = pl.col("_g").struct.field("series").is_not_null()
        damaged.append(read.filter(~fits).select("line", pl.lit("a sample of a metric").alias("rule"), "text"))
        parts.append(
            read.filter(fits).select(
                "line",
                pl.col("_g").struct.field("series").cast(pl.Categorical),
                pl.col("_g").struct.field("value").cast(pl.Float64, strict=False),
                pl.col("_g").struct.field("stamp").cast(pl.Float64, strict=False),
            )
        )
    marks = pl.concat(kept).sort("line", maintain_order=True)
    return _placed(pl.concat(parts), marks, pl.concat(damaged), count, options)


def _placed(samples: pl.DataFrame, marks: pl.DataFrame, damaged: pl.DataFrame, lines: int, options: Options) -> Scrapes:
    """The samples with their scrape: what lies between two marks, or where a series comes again."""
    groups = marks.with_columns(pl.col("text").str.extract_groups(_MARK).alias("_g")).select(
        "line",
        pl.col("_g").struct.field("iso").str.strip_chars().alias("iso"),
        pl.col("_g").struct.field("epoch").alias("epoch"),
    )
    table = stamps.parsed(groups["iso"], options.year, options.tz)
    groups = groups.join(table.select(iso="raw", iso_us="us"), on="iso", how="left", maintain_order="left")
    groups = groups.select(
        "line",
        pl.coalesce("iso_us", _epoch_us(pl.col("epoch").cast(pl.Float64))).alias("mark_us"),
        pl.int_range(1, pl.len() + 1, dtype=pl.Int64).alias("mark"),
    )
    placed = samples.sort("line").join_asof(groups, on="line", strategy="backward")
    again = pl.int_range(pl.len(), dtype=pl.Int64).over("mark", "series")
    placed = placed.with_columns(pl.coalesce(_epoch_us(pl.col("stamp")), "mark_us").alias("us"), again.alias("again"))
    order = placed.select("mark", "again").unique().sort("mark", "again", nulls_last=False).with_row_index("scrape")
    placed = placed.join(order, on=["mark", "again"], how="left", nulls_equal=True, maintain_order="left")
    named = table.filter(pl.col("us").is_not_null())
    example = _example(marks, placed)
    zone = named["zone"].drop_nulls().first() if not named.is_empty() else None
    has_year = bool(named["has_year"].all()) if not named.is_empty() else not placed["us"].is_null().all()
    frame = placed.select(pl.col(name).cast(kind) for name, kind in SAMPLES.items())
    return Scrapes(frame, damaged, lines, example, str(zone) if zone else _epoch_zone(named), has_year)


def _epoch_us(epoch: pl.Expr) -> pl.Expr:
    seconds = pl.when(epoch.abs() < _SECONDS_LIMIT).then(epoch).otherwise(epoch / 1e3)
    return (seconds * 1e6).round().cast(pl.Int64, strict=False)


def _epoch_zone(named: pl.DataFrame) -> str | None:
    """Epoch stamps are in UTC; a written stamp without a zone is not known to be."""
    return "UTC" if named.is_empty() else None


def _example(marks: pl.DataFrame, placed: pl.DataFrame) -> str | None:
    """A stamp as the text has it, null where it has none."""
    if placed["us"].is_null().all():
        return None
    written = marks.filter(~pl.col("text").str.starts_with(_END))["text"]
    return str(written.first()).strip()[:40] if not written.is_empty() else "epoch"
