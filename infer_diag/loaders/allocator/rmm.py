"""RMM's memory event log (CSV) to a recording."""

from __future__ import annotations

import re

import polars as pl

from infer_diag.loaders.conformed import CLAIMED, recorded
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.loader import Loader, Options
from infer_diag.loaders.sniff import Signature
from infer_diag.loaders.text.lines import Chunk
from infer_diag.recording import Clock, Recording

_HEADER = r"^(?:Thread,)?Time,Action,Pointer,Size,Stream[ \t\r]*$"
_ROW = (
    r"^(?:[0-9a-fx]+,)?(?:(?P<h>[0-9]{1,2}):(?P<m>[0-9]{2}):(?P<s>[0-9]{2})(?:[.:](?P<f>[0-9]{1,9}))?"
    r"|(?P<epoch>[0-9]{9,11}(?:\.[0-9]+)?))"
    r",(?P<action>allocate|allocate failure|free|deallocate),(?P<pointer>[^,]*),(?P<size>[0-9]+)"
    r",(?P<stream>[^,\r]*)\s*$"
)
_ACTIONS = {"allocate": "alloc", "allocate failure": "oom", "free": "free", "deallocate": "free"}
_DAY_US = 86_400_000_000
_YEAR_2000_US = 946_684_800_000_000
_DEVICE = re.compile(r"\.dev([0-9]+)(?:\.|$)")


def load(file: LogFile, *, options: Options) -> Recording:
    """Allocations, frees and failed allocations, in requested bytes; the times have no date unless they are epochs."""
    parts, damaged, count = [], [pl.DataFrame(schema=CLAIMED)], 0
    for data in file.chunks():
        options.on_bytes(len(data))
        chunk = Chunk(data, count + 1)
        count += chunk.line_count
        lines = chunk.matching(r"\S").filter(~pl.col("text").str.contains(_HEADER))
        read = lines.with_columns(pl.col("text").str.extract_groups(_ROW).alias("_g")).unnest("_g")
        parts.append(_typed(read.filter(pl.col("action").is_not_null())))
        broken = read.filter(pl.col("action").is_null())
        damaged.append(broken.select("line", pl.lit("a row of RMM's log").alias("rule"), "text"))
    rows = pl.concat(parts) if parts else _typed(pl.DataFrame(schema={"line": pl.UInt32}))
    dated = bool(rows["is_epoch"].any())
    events = _events(rows, file)
    clock = Clock("inner", "epoch" if dated else "time of day", zone="UTC" if dated else None, date_known=dated)
    return recorded(
        file,
        {"allocator_events": events, "ooms": _failed(events)},
        options=options,
        format="rmm",
        engine="rmm",
        lines=count,
        understood=len(events) + 1,
        rejected=pl.concat(damaged),
        times=events["time"],
        clocks=(clock,) if len(events) else (),
    )


def _typed(read: pl.DataFrame) -> pl.DataFrame:
    hours, minutes, seconds = (pl.col(name).cast(pl.Int64) for name in ("h", "m", "s"))
    fraction = pl.col("f").fill_null("").str.slice(0, 6).str.pad_end(6, "0").cast(pl.Int64)
    of_day = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + fraction
    epoch = (pl.col("epoch").cast(pl.Float64) * 1e6).round().cast(pl.Int64)
    number = pl.col("pointer").str.strip_chars().str.strip_prefix("0x")
    return read.select(
        "line",
        pl.coalesce(epoch, of_day).alias("us"),
        pl.col("epoch").is_not_null().alias("is_epoch"),
        pl.col("action").replace_strict(_ACTIONS).alias("action"),
        number.str.to_integer(base=16, dtype=pl.UInt64, strict=False).alias("address_id"),
        pl.col("size").cast(pl.UInt64, strict=False).alias("requested_bytes"),
        pl.col("stream").str.strip_chars().alias("stream"),
    )


def _events(rows: pl.DataFrame, file: LogFile) -> pl.DataFrame:
    """The rows with days counted: the clock falls back by hours at midnight, and by less between threads."""
    step = pl.col("us").diff().fill_null(0)
    turn = pl.when(step < -_DAY_US // 2).then(1).when(step > _DAY_US // 2).then(-1).otherwise(0)
    us = pl.when("is_epoch").then("us").otherwise(pl.col("us") + turn.cum_sum() * _DAY_US + _YEAR_2000_US)
    device = _DEVICE.search(file.label)
    return rows.with_columns(
        us.cast(pl.Datetime("us", "UTC")).alias("time"),
        pl.lit(device[1] if device else None, pl.String).alias("gpu"),
        pl.when(pl.col("action") != "oom").then("address_id").alias("address_id"),
    ).drop("us", "is_epoch")


def _failed(events: pl.DataFrame) -> pl.DataFrame:
    return events.filter(pl.col("action") == "oom").select(
        "line",
        "time",
        pl.lit("device").alias("memory"),
        "gpu",
        pl.col("requested_bytes").cast(pl.Float64),
        pl.lit(0.0).alias("requested_resolution_bytes"),
    )


LOADER = Loader(
    name="rmm",
    about="RMM's memory event log (CSV): allocations, frees and failures of RAPIDS and whatever else allocates by it",
    versions="stamps with a dot and with a colon, with and without Thread",
    frames=("allocator_events", "ooms"),
    example=("Thread,Time,Action,Pointer,Size,Stream\n1234,12:34:56.789012,allocate,0x7f0000000000,1048576,0"),
    signature=Signature(
        phrases=(
            _HEADER,
            r"^[0-9]+,[0-9]{2}:[0-9]{2}:[0-9]{2}[.:][0-9]{6},(?:allocate|allocate failure|free),[^,\n]*,[0-9]+,",
        )
    ),
    load=load,
)
