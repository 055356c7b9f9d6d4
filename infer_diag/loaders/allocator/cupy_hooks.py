"""Lines of CuPy's `DebugPrintHook` to a recording."""

from __future__ import annotations

import polars as pl

from infer_diag.loaders.conformed import CLAIMED, recorded
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.loader import Loader, Options
from infer_diag.loaders.sniff import Signature
from infer_diag.loaders.text.lines import Chunk
from infer_diag.recording import Recording

_LINE = r'\{"hook": ?"(?:alloc|malloc|free)", ?"device_id": ?[0-9]+,'
_HOOK = r'"hook": ?"([a-z]+)"'
_WHOLE = r'\{"hook": ?"[a-z]+", ?"device_id": ?[0-9]+(?:, ?"[a-z_]+": ?(?:[0-9]+|"[^"]*"|null))*\}'


def load(file: LogFile, *, options: Options) -> Recording:
    """What the pool handed out and took back (`malloc`, `free`), and what it took from the driver (`alloc`).

    The hook prints no time. It prints a null pointer where the call failed; memory that goes back to the driver when a
    pool is emptied passes no hook, so it is not in the recording.
    """
    parts, damaged, count, understood = [], [pl.DataFrame(schema=CLAIMED)], 0, 0
    for data in file.chunks():
        options.on_bytes(len(data))
        chunk = Chunk(data, count + 1)
        count += chunk.line_count
        lines = chunk.matching(r'\{"hook":')
        whole = pl.col("text").str.contains(_WHOLE)
        parts.append(_events(lines.filter(whole)))
        understood += int(lines.select(whole.sum()).item())
        damaged.append(lines.filter(~whole).select("line", pl.lit("a line of DebugPrintHook").alias("rule"), "text"))
    events = pl.concat(parts) if parts else _events(pl.DataFrame(schema={"line": pl.UInt32, "text": pl.String}))
    return recorded(
        file,
        {"allocator_events": events, "ooms": _failed(events)},
        options=options,
        format="cupy-hooks",
        engine="cupy",
        lines=count,
        understood=understood,
        rejected=pl.concat(damaged),
        times=pl.Series([], dtype=pl.Datetime("us", "UTC")),
    )


def _events(lines: pl.DataFrame) -> pl.DataFrame:
    hook = pl.col("text").str.extract(_HOOK)
    pointer = _number("mem_ptr")
    failed = pointer.fill_null(0) == 0
    action = (
        pl.when((hook == "malloc") & failed)
        .then(pl.lit("oom"))
        .when(hook == "malloc")
        .then(pl.lit("alloc"))
        .when((hook == "alloc") & ~failed)
        .then(pl.lit("segment_alloc"))
        .when((hook == "free") & ~failed)
        .then(pl.lit("free"))
    )
    return lines.select(
        "line",
        action.alias("action"),
        pl.col("text").str.extract(r'"device_id": ?([0-9]+)').alias("gpu"),
        pl.when(~failed).then(pointer).alias("address_id"),
        _number("size").alias("requested_bytes"),
        _number("mem_size").alias("allocated_bytes"),
    ).drop_nulls("action")


def _number(key: str) -> pl.Expr:
    return pl.col("text").str.extract(f'"{key}": ?([0-9]+)').cast(pl.UInt64, strict=False)


def _failed(events: pl.DataFrame) -> pl.DataFrame:
    return events.filter(pl.col("action") == "oom").select(
        "line",
        pl.lit("device").alias("memory"),
        "gpu",
        pl.col("requested_bytes").cast(pl.Float64),
        pl.when(pl.col("requested_bytes").is_not_null()).then(0.0).alias("requested_resolution_bytes"),
    )


LOADER = Loader(
    name="cupy-hooks",
    about="CuPy's DebugPrintHook: what its memory pool hands out and takes from the driver, in order (no stamps)",
    versions="as of CuPy 13",
    frames=("allocator_events", "ooms"),
    example=(
        '{"hook":"malloc","device_id":0,"size":24,"mem_size":512,"mem_ptr":150496608256,"pmem_id":"0x7f39200c5278"}'
    ),
    signature=Signature(phrases=(_LINE,)),
    load=load,
)
