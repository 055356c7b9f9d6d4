"""Traces of a text-generation pipeline's start (Hugging Face transformers), in a format of our own: JSON lines.

One object per line, each written as it happens, so that a start which is killed leaves what it reached:

    {"infer_diag": "pipeline_start", "version": 1, "event": "phase_begin", "phase": "imports", "time_s": 0.031,
     "wall": "2026-03-14T09:26:53.031000+00:00"}

`event` is `phase_begin`, `phase_end`, `token` or `memory`. `time_s` counts on a monotonic clock from the launch of the
process. `wall` (ISO 8601 with a zone) is the same moment on the wall clock and may be missing; one is enough to place
all. `phase` is one of `PHASES` below; phases may nest and repeat, others are counted and left alone. A `token` names
its `request` and its number (`token`, from 1), a `memory` the largest resident memory so far (`peak_bytes`), which of
all is kept as a note. A line may name versions (`transformers`, `torch`). The start ends with the first token; what the
second token and a second request take shows how much of the first was the start's.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import polars as pl

from infer_diag.errors import SourceError
from infer_diag.loaders.conformed import Frames, recorded
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.loader import Loader, Options
from infer_diag.loaders.request_traces.jsonl import json_lines
from infer_diag.loaders.sniff import Signature
from infer_diag.loaders.text.stamps import ASSUMED_YEAR
from infer_diag.recording import Clock, Recording, start_id
from infer_diag.units import format_bytes

PHASES = {
    "process": "process",
    "import": "process",
    "imports": "process",
    "config": "process",
    "tokenizer": "process",
    "device_init": "device_init",
    "weights_fetch": "weights_fetch",
    "build": "model_build",
    "model_build": "model_build",
    "weights": "weights_load",
    "weights_load": "weights_load",
    "warmup": "warmup",
    "pipeline": "server_ready",
    "first_token": "first_request",
    "first_request": "first_request",
}
"""Phases of a trace by the name that `schema.PHASES` has for them."""

_FIRST = ("first_token", "first_request")
_PATHS = {
    "format": "$.infer_diag",
    "event": "$.event",
    "phase": "$.phase",
    "time_s": "$.time_s",
    "wall": "$.wall",
    "request": "$.request",
    "token": "$.token",
    "peak_bytes": "$.peak_bytes",
    "version": "$.version",
    "transformers": "$.transformers",
}
_VERSION = "1"
_MICROSECONDS = 1_000_000


def load(file: LogFile, *, options: Options) -> Recording:
    """One start with its phases, ready at its first token, and the requests whose tokens the trace tells.

    Raises:
        SourceError: no line tells of a phase.
    """
    read = json_lines(file, options, _PATHS, needed="time_s", what="an event of a pipeline's start")
    other = read.rows.filter(pl.col("version") != _VERSION)["version"]
    if len(other):
        raise SourceError(f"{file.label} is a trace of version {other[0]:.20}", hint="read it with a newer infer_diag")
    rows, clock = _timed(read.rows)
    phases = _phases(rows)
    if phases.is_empty():
        raise SourceError(f"{file.label} tells of no phase of a start", hint="trace it from the process's launch")
    frames: Frames = {"phases": phases, **_start(rows, phases), **_requests(rows)}
    peaks = rows["peak_bytes"].cast(pl.Float64, strict=False).drop_nulls()
    notes = (f"peak memory of the process: {format_bytes(float(str(peaks.max())))}",) if len(peaks) else ()
    version = rows["transformers"].drop_nulls().first()
    told = {"line": 1, "start_id": start_id(0), "engine": "transformers", "engine_version": version}
    return recorded(
        file,
        frames | {"deployments": pl.DataFrame([told], schema_overrides={"engine_version": pl.String})},
        options=options,
        format="pipeline-start",
        engine="transformers",
        engine_version=str(version) if version is not None else None,
        lines=read.lines,
        understood=len(rows),
        rejected=read.damaged,
        times=rows["time"],
        clocks=(clock,),
        notes=notes,
    )


def _timed(rows: pl.DataFrame) -> tuple[pl.DataFrame, Clock]:
    """The events in the order of their monotonic clock, with `time` by the first wall clock that the trace prints."""
    rows = rows.with_columns(pl.col("time_s").cast(pl.Float64, strict=False)).drop_nulls("time_s")
    rows = rows.filter(pl.col("time_s").is_finite() & (pl.col("time_s").abs() < 1e9)).sort(
        "time_s", maintain_order=True
    )
    wall = pl.col("wall").str.to_datetime("%+", time_unit="us", time_zone="UTC", strict=False).dt.epoch("us")
    elapsed = (pl.col("time_s") * _MICROSECONDS).round().cast(pl.Int64)
    anchors = rows.select((wall - elapsed).alias("us")).drop_nulls()["us"]
    example = str(rows["wall"].drop_nulls().first())[:40]
    if anchors.is_empty():
        origin = int(datetime(ASSUMED_YEAR, 1, 1, tzinfo=UTC).timestamp()) * _MICROSECONDS
        clock = Clock("inner", "time_s", year_known=False, date_known=False)
    else:
        origin, clock = int(anchors[0]), Clock("inner", example, zone="UTC")
    return rows.with_columns((origin + elapsed).cast(pl.Datetime("us", "UTC")).alias("time")), clock


def _phases(rows: pl.DataFrame) -> pl.DataFrame:
    """The k-th begin of a phase with its k-th end; where one of them is missing, the other one alone."""
    known = rows.filter(pl.col("phase").is_in(list(PHASES)))
    place = pl.int_range(pl.len(), dtype=pl.Int64).over("phase").alias("place")
    begins = known.filter(pl.col("event") == "phase_begin").with_columns(place)
    ends = known.filter(pl.col("event") == "phase_end").with_columns(place)
    keys = ["phase", "place"]
    begun = begins.select(*keys, pl.col("line").alias("begin_line"), pl.col("time").alias("begin"))
    ended = ends.select(*keys, pl.col("line").alias("end_line"), pl.col("time").alias("end"))
    both = begun.join(ended, on=keys, how="full", coalesce=True)
    measured = pl.col("begin").is_not_null() & pl.col("end").is_not_null()
    return both.select(
        pl.coalesce("end_line", "begin_line").alias("line"),
        pl.lit(start_id(0)).alias("start_id"),
        pl.col("phase").replace_strict(PHASES),
        "begin",
        "end",
        pl.lit(0.5 / _MICROSECONDS).alias("resolution_s"),
        pl.lit(False).alias("is_total"),
        pl.when(measured).then(pl.lit("measured")).otherwise(pl.lit("not_identifiable")).alias("status"),
    ).sort("line")


def _start(rows: pl.DataFrame, phases: pl.DataFrame) -> Frames:
    """The start, up to its first token, and that it was ready then; without a token it ends with its last event."""
    first = rows.filter((pl.col("event") == "phase_end") & pl.col("phase").is_in(_FIRST)).head(1)
    ready: dict[str, Any] = first.row(0, named=True) if len(first) else {}
    own = rows if not ready else rows.filter(pl.col("time_s") <= ready["time_s"])
    start = {
        "line": phases["line"].min(),
        "start_id": start_id(0),
        "last_line": own["line"].max(),
        "first_time": own["time"].min(),
        "last_time": own["time"].max(),
        "ready_time": ready.get("time"),
        "ready_line": ready.get("line"),
        "served": len(own) < len(rows),
    }
    frames = {"starts": pl.DataFrame([start])}
    if ready:
        incident = {"line": ready["line"], "start_id": start_id(0), "time": ready["time"], "kind": "ready"}
        frames["incidents"] = pl.DataFrame([incident | {"fields": "first token"}])
    return frames


def _requests(rows: pl.DataFrame) -> Frames:
    """One row per request whose tokens are told; it arrives where its own phase begins."""
    tokens = rows.filter((pl.col("event") == "token") & pl.col("request").is_not_null())
    asked = rows.filter((pl.col("event") == "phase_begin") & pl.col("phase").is_in([*_FIRST, "second_request"]))
    order = pl.when(pl.col("phase").is_in(_FIRST)).then(pl.lit("1")).otherwise(pl.lit("2")).alias("request")
    arrivals = asked.select(order, pl.col("time").alias("arrival")).unique("request", keep="first")
    origin = rows["time"].min()
    told = tokens.group_by("request", maintain_order=True).agg(
        pl.col("line").first(),
        pl.col("time").min().alias("first_token"),
        pl.col("time").max().alias("last_token"),
        pl.len().alias("output_tokens"),
    )
    told = told.join(arrivals, on="request", how="left", maintain_order="left")
    if told.is_empty():
        return {}
    moments = [
        ((pl.col(name) - origin).dt.total_microseconds() / _MICROSECONDS).alias(f"{name}_s")
        for name in ("arrival", "first_token", "last_token")
    ]
    return {"requests": told.select("line", pl.col("request").alias("request_id"), *moments, "output_tokens")}


LOADER = Loader(
    name="pipeline-start",
    about="A Hugging Face pipeline's start as infer_diag traces it (JSON lines): imports, build, weights, first tokens",
    versions="version 1",
    frames=("starts", "phases", "incidents", "requests", "deployments"),
    example=(
        '{"infer_diag":"pipeline_start","version":1,"event":"phase_end","phase":"weights","time_s":31.0,'
        '"wall":"2026-01-23T12:34:56+00:00"}'
    ),
    signature=Signature(phrases=(r'"infer_diag"\s*:\s*"pipeline_start"',)),
    load=load,
)
