"""Tables of the user's own (CSV, one JSON object per line, Parquet) with a mapping of their columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from infer_diag.errors import DiagError, SourceError, UnknownNameError
from infer_diag.loaders.conformed import CLAIMED, recorded
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.loader import Loader, Options
from infer_diag.loaders.request_traces import delimited, parquet
from infer_diag.loaders.request_traces.jsonl import json_lines
from infer_diag.loaders.request_traces.moments import MICROSECONDS, counted, times_of
from infer_diag.loaders.request_traces.numbers import length, number, whole
from infer_diag.loaders.sniff import Signature
from infer_diag.loaders.text import stamps
from infer_diag.recording import Clock, Recording

_EVENTS = ("arrival_s", "queued_s", "scheduled_s", "first_token_s", "last_token_s")
_DURATIONS = ("queue_s", "prefill_s", "decode_s", "compute_s", "ttft_s", "tpot_s", "e2e_s")
_COUNTS = ("prompt_tokens", "cached_tokens", "output_tokens", "preemption_count")
_WORDS = ("request_id", "tenant", "finish_reason")
_KNOWN = (*_EVENTS, *_DURATIONS, *_COUNTS, *_WORDS)
_SCALE_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_EPOCH_FROM = 1e9
"""Plain numbers from here on count from 1970 (it is a day in 2001); smaller ones count from a begin of their own."""


@dataclass(frozen=True)
class Mapped:
    """What the user says of a column: where it stands, and in which unit its numbers are."""

    source: str
    unit: str | None


def load(file: LogFile, *, options: Options) -> Recording:
    """Requests of a table: events on one clock, or durations, which are taken as they are.

    Raises:
        DiagError: the mapping names no column of a frame, an unknown unit, or mixes events with durations.
        SourceError: the table lacks a column, or holds something else than numbers and text in it.
    """
    if options.columns is None:
        raise SourceError(
            f"{file.label} is a table, and nothing says what its columns are",
            hint="diag.load(path, format='table', columns={'arrival_s': 'start', 'output_tokens': 'n_out'})",
        )
    mapping = _mapping(options.columns)
    sources = tuple(dict.fromkeys(mapped.source for mapped in mapping.values()))
    rows, lines, damaged = _cells(file, options, sources)
    cells = rows.select("line", *(pl.col(mapped.source).alias(name) for name, mapped in mapping.items()))
    read, clocks = _read(cells, mapping, options)
    told = [name.removesuffix("_s") if name in _EVENTS else name for name in mapping if name not in _WORDS]
    empty = read.select(pl.all_horizontal(pl.col(name).is_null() for name in told)).to_series()
    nothing = cells.filter(empty).select(
        "line",
        pl.lit("a row of a table").alias("rule"),
        pl.concat_str(pl.col(list(mapping)).cast(pl.String).fill_null(""), separator=",").alias("text"),
    )
    good = read.filter(~empty)
    return recorded(
        file,
        _frames(good, mapping),
        options=options,
        format="table",
        engine="table",
        lines=lines,
        understood=lines - len(damaged) - len(nothing),
        rejected=pl.concat([damaged, nothing]),
        times=times_of(good if any(clock.year_known for clock in clocks) else good.head(0), MICROSECONDS),
        clocks=clocks,
        notes=_unreadable(cells, read, mapping),
    )


def _unreadable(cells: pl.DataFrame, read: pl.DataFrame, mapping: dict[str, Mapped]) -> tuple[str, ...]:
    """How many cells hold something that is not what their column should hold."""
    notes = []
    for name in (name for name in mapping if name not in _WORDS):
        given = cells[name].cast(pl.String).str.strip_chars().replace("", None)
        value = read[name.removesuffix("_s") if name in _EVENTS else name]
        lost = int((given.is_not_null() & value.is_null()).sum())
        if lost:
            notes.append(f"{lost:,} of {len(cells):,} cells of {mapping[name].source!r} cannot be read as {name}")
    return tuple(notes)


def _mapping(columns: Mapping[str, str | tuple[str, str]]) -> dict[str, Mapped]:
    out = {}
    for name, told in columns.items():
        if name not in _KNOWN:
            raise UnknownNameError("column of requests", str(name), _KNOWN)
        source, unit = (told, None) if isinstance(told, str) else tuple(told)
        if unit is not None and (unit not in _SCALE_S or not name.endswith("_s")):
            raise DiagError(f"{name} cannot be in {unit!r}", hint=f"units of times are {', '.join(_SCALE_S)}")
        out[name] = Mapped(source, unit)
    if not set(out) - set(_WORDS):
        raise DiagError(
            "columns= names nothing that is measured", hint="map arrival_s, output_tokens, ttft_s or the like"
        )
    if set(out) & set(_DURATIONS) and set(out) & set(_EVENTS[1:]):
        raise DiagError(
            "columns= maps events and durations of one request, which may contradict each other",
            hint="map the events (queued_s, scheduled_s, first_token_s, last_token_s), or the durations",
        )
    return out


def _cells(file: LogFile, options: Options, sources: tuple[str, ...]) -> tuple[pl.DataFrame, int, pl.DataFrame]:
    """(the columns and `line`, lines, damaged lines), whatever kind of table it is."""
    head = file.head(4096)
    damaged = pl.DataFrame(schema=CLAIMED)
    if file.begin(len(parquet.MAGIC)) == parquet.MAGIC:
        return parquet.columns_of(file, options, sources), 0, damaged
    if head.lstrip()[:1] == b"{":
        paths = {name: f"$['{name}']" if "'" not in name else f'$["{name}"]' for name in sources}
        found = json_lines(file, options, {**paths, "object": "$"}, needed="object", what="a row of a table")
        missing = [name for name in sources if found.rows[name].is_null().all()]
        rows, lines, damaged = found.rows, found.lines, found.damaged
    else:
        separator = max((",", ";", "\t"), key=lambda mark: head.split(b"\n", 1)[0].count(mark.encode()))
        table = delimited.table(file, options, sources, separator)
        missing = [name for name in sources if name not in table.header]
        rows, lines = table.rows, table.lines
        if separator == ";":
            # Spreadsheets that separate cells by semicolons write numbers with a decimal comma.
            rows = rows.with_columns(pl.exclude("line").str.replace(r"^(-?[0-9]+),([0-9]+)$", "${1}.${2}"))
    if missing:
        raise SourceError(
            f"{file.label} has no column {missing[0]!r}",
            hint="columns= maps ours to the file's: {'arrival_s': 'start'}",
        )
    return rows, lines, damaged


def _read(cells: pl.DataFrame, mapping: dict[str, Mapped], options: Options) -> tuple[pl.DataFrame, tuple[Clock, ...]]:
    """The cells as numbers, events in microseconds, and the clock of the events."""
    columns = [pl.col("line")]
    for name in mapping:
        if name in _COUNTS:
            columns.append(whole(pl.col(name)))
        elif name in _DURATIONS:
            columns.append((length(pl.col(name)) * _SCALE_S[mapping[name].unit or "s"]).alias(name))
        elif name in _WORDS:
            columns.append(pl.col(name).cast(pl.String))
    read = cells.select(columns)
    clocks = []
    for name in (name for name in _EVENTS if name in mapping):
        moments, clock = _moments(cells[name], mapping[name], options)
        read = read.with_columns(moments.alias(name.removesuffix("_s")))
        clocks += [clock] if clock is not None else []
    if len({(clock.zone is None, clock.year_known) for clock in clocks}) > 1:
        raise DiagError(
            f"the events that columns= maps are on different clocks ({', '.join(clock.example for clock in clocks)})",
            hint="map columns of one clock, or durations instead of events",
        )
    return read, tuple(clocks[:1])


def _moments(column: pl.Series, mapped: Mapped, options: Options) -> tuple[pl.Series, Clock | None]:
    """Microseconds of a column of dates or numbers, and the clock that they are on."""
    if column.dtype.is_temporal():
        zone = getattr(column.dtype, "time_zone", None)
        at = column.cast(pl.Datetime("us", "UTC") if zone else pl.Datetime("us"))
        return at.dt.epoch("us"), Clock("inner", str(at.drop_nulls().first()), "UTC" if zone else None)
    if column.cast(pl.Float64, strict=False).count():
        return _numbered(column, mapped.unit)
    raw = column.cast(pl.String)
    known = stamps.parsed(raw, options.year, options.tz)
    joined = pl.DataFrame({"raw": raw}).join(known, on="raw", how="left", maintain_order="left")
    dated = joined.with_columns(pl.when("has_date").then("us").alias("us"))
    for each in dated.drop_nulls("us").head(1).iter_rows(named=True):
        return dated["us"], Clock("inner", each["raw"], each["zone"], year_known=each["has_year"])
    return dated["us"], None


def _numbered(column: pl.Series, unit: str | None) -> tuple[pl.Series, Clock]:
    """Numbers of a stated unit; without one, seconds, or what their size says where they count from 1970."""
    value = column.to_frame("value").select(number(pl.col("value"))).to_series()
    largest = value.abs().max()
    top = float(largest) if isinstance(largest, (int, float)) else 0.0
    scale = _told_by_size(top) if unit is None else _SCALE_S[unit]
    epoch = top * scale >= _EPOCH_FROM
    us = (value * (scale * MICROSECONDS)).round().cast(pl.Int64, strict=False)
    example = str(column.drop_nulls().first())[:40]
    return us, Clock("inner", example, "UTC" if epoch else None, year_known=epoch, date_known=epoch)


def _told_by_size(top: float) -> float:
    return 1.0 if top < 1e11 else 1e-3 if top < 1e14 else 1e-6 if top < 1e17 else 1e-9


def _frames(read: pl.DataFrame, mapping: dict[str, Mapped]) -> dict[str, pl.DataFrame]:
    events, _ = counted(read, MICROSECONDS)
    durations = [name for name in _DURATIONS if name in mapping]
    if not durations:
        return {"requests": events}
    counts = [name for name in _COUNTS if name in mapping and name != "preemption_count"]
    timings = events.select("line", "request_id", *durations, *counts)
    if "arrival_s" not in mapping:
        return {"request_timings": timings}
    named = [name for name in ("tenant", "finish_reason") if name in mapping]
    return {"request_timings": timings, "requests": events.select("line", "request_id", "arrival_s", *named)}


LOADER = Loader(
    name="table",
    about="A table of your own (CSV, JSON lines, Parquet): format='table' with columns={'arrival_s': 'start', …}",
    versions="CSV, JSON lines, Parquet",
    frames=("requests", "request_timings"),
    example=None,
    signature=Signature(magic=(parquet.MAGIC,)),
    load=load,
)
