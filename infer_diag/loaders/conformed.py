"""Frames as a loader made them to frames of the schema, and to the recording of one file."""

from __future__ import annotations

from datetime import datetime

import dataframely as dy
import polars as pl

from infer_diag import redact, schema
from infer_diag.errors import LogFormatError
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.loader import Options
from infer_diag.recording import Clock, Recording, Source

Frames = dict[str, pl.DataFrame]

REJECTED_KEPT = 1000
KEPT_TEXT = 200
CLAIMED: dict[str, pl.DataType | type[pl.DataType]] = {"line": pl.UInt32, "rule": pl.String, "text": pl.String}
"""Columns of the frame `rejected` before it conforms."""


def conformed(frames: Frames) -> Frames:
    """Frames of the schema; a row that breaks one of its rules is no reading of its line, so it goes to `rejected`."""
    out: Frames = {}
    rejected = [frames.pop("rejected").with_columns(pl.lit(0, pl.UInt32).alias("source_id"))]
    for name, frame in frames.items():
        if frame.is_empty():
            continue
        wanted = schema.FRAMES[name]
        out[name], failed = wanted.filter(_shaped(frame, wanted), cast=True)
        if len(failed):
            broken = pl.lit(f"{name}: {', '.join(failed.counts())}").alias("rule")
            rejected.append(failed.invalid().select("source_id", "line", broken, pl.lit("").alias("text")))
    kept = pl.concat(rejected, how="diagonal_relaxed").sort("line").head(REJECTED_KEPT)
    return out | {"rejected": schema.Rejected.validate(kept.select("source_id", "line", "rule", "text"), cast=True)}


def _shaped(frame: pl.DataFrame, wanted: type[dy.Schema]) -> pl.DataFrame:
    columns = wanted.create_empty().schema
    given = frame.with_columns(pl.lit(0, pl.UInt32).alias("source_id"))
    if "fields" in columns and "fields" in given.columns:
        # Few distinct texts stand in many rows, and redaction is the dearest thing that is done to them.
        told = given.select(pl.col("fields").unique()).with_columns(redact.redacted(pl.col("fields")).alias("_clean"))
        given = given.join(told, on="fields", how="left", nulls_equal=True, maintain_order="left")
        given = given.drop("fields").rename({"_clean": "fields"})
    missing = [pl.lit(None, kind).alias(name) for name, kind in columns.items() if name not in given.columns]
    return given.with_columns(*missing).select(columns.names())


def recorded(
    file: LogFile,
    frames: Frames,
    *,
    options: Options,
    format: str,
    engine: str,
    lines: int,
    understood: int,
    rejected: pl.DataFrame,
    times: pl.Series,
    clocks: tuple[Clock, ...] = (),
    notes: tuple[str, ...] = (),
    doubts: tuple[str, ...] = (),
    engine_version: str | None = None,
) -> Recording:
    """The recording of one file whose frames lack `source_id` and may lack columns of the schema.

    Raises:
        LogFormatError: `strict` and a line is damaged.
    """
    shown = _shown(file, rejected, options)
    source = Source(
        path=file.label,
        format=format,
        engine=engine,
        engine_version=engine_version,
        lines=lines,
        unknown_lines=max(lines - understood - len(shown), 0),
        rejected_lines=len(shown),
        cut=file.cut,
        size_bytes=file.size_bytes,
        sha256=file.sha256,
        first_time=_moment(times.min()),
        last_time=_moment(times.max()),
        clocks=clocks,
        notes=(*file.notes, *notes),
        doubts=doubts,
    )
    return Recording(sources=(source,)).replace(**conformed({**frames, "rejected": shown}))


def _moment(value: object) -> datetime | None:
    return value if isinstance(value, datetime) else None


def _shown(file: LogFile, rejected: pl.DataFrame, options: Options) -> pl.DataFrame:
    """The damaged lines as they may be shown; under `strict` the first of them is an error."""
    shown = rejected.with_columns(redact.redacted(pl.col("text").str.slice(0, KEPT_TEXT)))
    if options.strict and not shown.is_empty():
        row = shown.sort("line").row(0, named=True)
        raise LogFormatError(
            f"{file.label}:{row['line']} is damaged: {row['text'][:80]!r}, expected {row['rule']}",
            hint="read it without strict=True; the line is then kept in recording.rejected",
        )
    return shown
