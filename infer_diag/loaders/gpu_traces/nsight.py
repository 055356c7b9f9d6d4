"""SQLite exports of Nsight Systems to a recording."""

from __future__ import annotations

import polars as pl

from infer_diag.errors import SourceError
from infer_diag.loaders.conformed import CLAIMED, Frames, recorded
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.gpu_traces.sqlite_tables import MAGIC, Tables, opened
from infer_diag.loaders.loader import Loader, Options
from infer_diag.loaders.sniff import Signature
from infer_diag.recording import Clock, Recording

_OWN_TABLES = ("META_DATA_EXPORT", "EXPORT_META_DATA", "TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_GPU")
_ACTIVITY = {
    "start": pl.Int64,
    "end": pl.Int64,
    "deviceId": pl.Int64,
    "streamId": pl.Int64,
    "correlationId": pl.UInt64,
    "globalPid": pl.Int64,
}
_KERNELS, _COPIES, _FILLS = (f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "MEMCPY", "MEMSET"))
_CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
_MEMORY = "CUDA_GPU_MEMORY_USAGE_EVENTS"
_PROCESS = 1 << 24
"""A global thread id is the global process id plus the thread's own number, which has 24 bits."""

_ON_HOST = (0, 1)
"""Pageable and pinned memory in the exporter's numbers, which are not CUPTI's."""
_YEAR_2000_NS, _YEAR_2100_NS = 946_684_800 * 10**9, 4_102_444_800 * 10**9


def load(file: LogFile, *, options: Options) -> Recording:
    """What the devices did, device memory that the process took and gave back, and which device it was.

    Raises:
        SourceError: the file is damaged, or no export of Nsight Systems.
    """
    with opened(file, options) as tables:
        if not tables.names.intersection((*_OWN_TABLES, _KERNELS, _CALLS)):
            raise SourceError(
                f"{file.label} is an SQLite file, but no export of Nsight Systems",
                hint="export the report with nsys export --type sqlite",
            )
        time, clocks = _clock(tables)
        frames: Frames = {
            "kernels": _kernels(tables, time),
            "allocator_events": _allocator_events(tables, time),
            "deployments": _deployment(tables),
        }
        version = _version(tables)
    return recorded(
        file,
        frames,
        options=options,
        format="nsight-systems",
        engine="nsight-systems",
        engine_version=version,
        lines=0,
        understood=0,
        rejected=pl.DataFrame(schema=CLAIMED),
        times=pl.concat([frames["kernels"]["time"], frames["allocator_events"]["time"]]),
        clocks=clocks,
    )


def _clock(tables: Tables) -> tuple[pl.Expr, tuple[Clock, ...]]:
    epochs = tables.frame("TARGET_INFO_SESSION_START_TIME", {"utcEpochNs": pl.Int64})["utcEpochNs"].drop_nulls()
    if len(epochs) != 1 or not _YEAR_2000_NS <= epochs[0] <= _YEAR_2100_NS:
        return pl.lit(None, pl.Datetime("us", "UTC")), ()
    time = ((pl.col("start") + epochs[0]) // 1000).cast(pl.Datetime("us", "UTC"))
    return time, (Clock("inner", "utcEpochNs", zone="UTC"),)


def _kernels(tables: Tables, time: pl.Expr) -> pl.DataFrame:
    kernels = tables.frame(_KERNELS, {**_ACTIVITY, "demangledName": pl.Int64, "shortName": pl.Int64})
    parts = [
        kernels.select(
            *_ACTIVITY,
            pl.lit("kernel").alias("kind"),
            pl.coalesce(_named(tables, kernels, name) for name in ("demangledName", "shortName"))
            .fill_null("unknown")
            .alias("name"),
            pl.lit(None, pl.UInt64).alias("size_bytes"),
        )
    ]
    for kind, table in (("memcpy", _COPIES), ("memset", _FILLS)):
        moved = tables.frame(table, {**_ACTIVITY, "bytes": pl.UInt64, "copyKind": pl.Int64})
        named = pl.concat_str(pl.lit(kind), _copy_kind(tables), separator=" ", ignore_nulls=True)
        parts.append(moved.select(*_ACTIVITY, pl.lit(kind).alias("kind"), named.alias("name"), size_bytes="bytes"))
    whole = pl.concat(parts).drop_nulls(["start", "end"]).with_columns(pl.col("globalPid") // _PROCESS)
    calls = tables.frame(_CALLS, {"start": pl.Int64, "correlationId": pl.UInt64, "globalTid": pl.Int64})
    begun = calls.select(
        pl.col("start").alias("call"), "correlationId", (pl.col("globalTid") // _PROCESS).alias("globalPid")
    ).unique(["correlationId", "globalPid"], keep="first", maintain_order=True)
    joined = whole.join(begun, on=["correlationId", "globalPid"], how="left", nulls_equal=True, maintain_order="left")
    waited = pl.col("start") - pl.col("call")
    return joined.sort("start", maintain_order=True).select(
        pl.lit(0, pl.UInt32).alias("line"),
        time.alias("time"),
        ((pl.col("start") - pl.col("start").min()) / 1e9).alias("begin_s"),
        "kind",
        "name",
        pl.col("deviceId").cast(pl.String).alias("gpu"),
        ((pl.col("end") - pl.col("start")) / 1e9).alias("duration_s"),
        pl.col("streamId").cast(pl.String).alias("stream"),
        pl.col("correlationId").alias("correlation_id"),
        pl.when(waited >= 0).then(waited / 1e9).alias("launch_s"),
        "size_bytes",
    )


def _named(tables: Tables, kernels: pl.DataFrame, column: str) -> pl.Series:
    """The names behind the numbers of a column."""
    if kernels[column].is_null().all():
        return pl.Series(column, [None] * len(kernels), pl.String)
    used = f'id IN (SELECT "{column}" FROM "{_KERNELS}")'
    strings = tables.frame("StringIds", {"id": pl.Int64, "value": pl.String}, used)
    strings = strings.unique("id", keep="first", maintain_order=True)
    found = kernels.select(column).join(strings, left_on=column, right_on="id", how="left", maintain_order="left")
    return found["value"].alias(column)


def _copy_kind(tables: Tables) -> pl.Expr:
    labels = tables.frame("ENUM_CUDA_MEMCPY_OPER", {"id": pl.Int64, "label": pl.String}).drop_nulls()
    known = dict(labels.iter_rows())
    return pl.col("copyKind").replace_strict(known, default=None, return_dtype=pl.String)


def _allocator_events(tables: Tables, time: pl.Expr) -> pl.DataFrame:
    columns = {
        "start": pl.Int64,
        "deviceId": pl.Int64,
        "address": pl.UInt64,
        "bytes": pl.UInt64,
        "memKind": pl.Int64,
        "memoryOperationType": pl.Int64,
    }
    events = tables.frame(_MEMORY, columns).drop_nulls("start")
    on_device = ~pl.col("memKind").is_in(_ON_HOST).fill_null(False)
    action = pl.col("memoryOperationType").replace_strict({0: "segment_alloc", 1: "segment_free"}, default=None)
    return (
        events.filter(on_device)
        .sort("start", maintain_order=True)
        .select(
            pl.lit(0, pl.UInt32).alias("line"),
            time.alias("time"),
            action.cast(pl.String).alias("action"),
            pl.col("deviceId").cast(pl.String).alias("gpu"),
            pl.col("address").alias("address_id"),
            pl.col("bytes").alias("allocated_bytes"),
        )
        .drop_nulls("action")
    )


def _deployment(tables: Tables) -> pl.DataFrame:
    names = tables.frame("TARGET_INFO_GPU", {"name": pl.String})["name"].drop_nulls().unique()
    row = {"line": 0, "engine": "nsight-systems", "gpu": names[0][:200] if len(names) == 1 else None}
    return pl.DataFrame([row], schema={"line": pl.UInt32, "engine": pl.String, "gpu": pl.String})


def _version(tables: Tables) -> str | None:
    told = tables.frame("META_DATA_EXPORT", {"name": pl.String, "value": pl.String})
    found = told.filter(pl.col("name") == "EXPORT_PRODUCT_VERSION")["value"].drop_nulls()
    return str(found[0])[:40] if len(found) else None


LOADER = Loader(
    name="nsight-systems",
    about="Nsight Systems reports exported to SQLite: kernels, copies, their launches, device memory of the process",
    versions="schema 3.17",
    frames=("allocator_events", "kernels", "deployments"),
    example=None,
    signature=Signature(magic=(MAGIC,)),
    load=load,
)
