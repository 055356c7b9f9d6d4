"""Traces of PyTorch's profiler (Kineto, chrome trace JSON) to a recording."""

from __future__ import annotations

from typing import Any

import polars as pl

from infer_diag.errors import SourceError
from infer_diag.loaders.conformed import CLAIMED, Frames, recorded
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.gpu_traces.json_events import TraceEvents
from infer_diag.loaders.gpu_traces.kineto_rows import rows
from infer_diag.loaders.loader import Loader, Options
from infer_diag.loaders.sniff import Signature
from infer_diag.recording import Clock, Recording

_YEAR_2000_US, _YEAR_2100_US = 946_684_800_000_000.0, 4_102_444_800_000_000.0
_OWN_KEYS = ("schemaVersion", "deviceProperties", "distributedInfo", "baseTimeNanoseconds", "traceName", "trace_id")
_OWN_CATEGORIES = ("cpu_op", "Operator", "user_annotation")


def load(file: LogFile, *, options: Options) -> Recording:
    """What the devices did, what the allocator did on them, and which device it was.

    Raises:
        SourceError: the file is no trace of PyTorch's profiler.
    """
    trace = TraceEvents(file, options)
    parts: list[tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]] = []
    is_own = False
    for events in trace.batches():
        is_own = is_own or any(event.cat in _OWN_CATEGORIES for event in events)
        parts.append(rows(events))
    activities, calls, memory = (pl.concat(each) for each in zip(*parts, strict=True))
    if not (is_own or len(activities) or any(key in trace.metadata for key in _OWN_KEYS)):
        raise SourceError(
            f"{file.label} is a chrome trace, but none of PyTorch's profiler",
            hint="export one with torch.profiler's export_chrome_trace",
        )
    time, clock = _clock(trace.metadata, pl.concat([activities["ts"], memory["ts"]]))
    frames: Frames = {
        "kernels": _kernels(activities, calls, time),
        "allocator_events": _allocator_events(memory, time),
        "deployments": _deployment(trace.metadata),
    }
    doubts = [f"{trace.damaged:,} events cannot be read and are left out"] if trace.damaged else []
    return recorded(
        file,
        frames,
        options=options,
        format="kineto",
        engine="pytorch",
        lines=0,
        understood=0,
        rejected=pl.DataFrame(schema=CLAIMED),
        times=pl.concat([frames["kernels"]["time"], frames["allocator_events"]["time"]]),
        clocks=clock,
        doubts=tuple(doubts),
    )


def _clock(metadata: dict[str, Any], stamps: pl.Series) -> tuple[pl.Expr, tuple[Clock, ...]]:
    """The time of a stamp: after the base that newer versions name, the epoch itself in older ones, else unknown."""
    base = metadata.get("baseTimeNanoseconds")
    first = stamps.min()
    if isinstance(base, int) and 0 < base < _YEAR_2100_US * 1000:
        us = base // 1000 + pl.col("ts")
    elif isinstance(first, float) and _YEAR_2000_US <= first <= _YEAR_2100_US:
        us = pl.col("ts")
    else:
        return pl.lit(None, pl.Datetime("us", "UTC")), ()
    known = us.is_between(_YEAR_2000_US, _YEAR_2100_US)
    time = pl.when(known).then(us).floor().cast(pl.Int64, strict=False).cast(pl.Datetime("us", "UTC"))
    return time, (Clock("inner", "ts", zone="UTC"),)


def _kernels(activities: pl.DataFrame, calls: pl.DataFrame, time: pl.Expr) -> pl.DataFrame:
    first = calls.unique("correlation_id", keep="first", maintain_order=True)
    joined = activities.join(first, on="correlation_id", how="left", maintain_order="left")
    # A call on a clock that runs ahead of the device's gives no waiting time.
    launch_us = pl.col("ts") - pl.col("call_ts")
    return joined.sort("ts", maintain_order=True).select(
        pl.lit(0, pl.UInt32).alias("line"),
        time.alias("time"),
        ((pl.col("ts") - pl.col("ts").min()) / 1e6).alias("begin_s"),
        "kind",
        "name",
        pl.col("gpu").cast(pl.String),
        (pl.col("dur") / 1e6).alias("duration_s"),
        "stream",
        "correlation_id",
        pl.when(launch_us >= 0).then(launch_us / 1e6).alias("launch_s"),
        "size_bytes",
    )


def _allocator_events(memory: pl.DataFrame, time: pl.Expr) -> pl.DataFrame:
    size = pl.col("size")
    return (
        memory.filter(size != 0)
        .sort("ts", maintain_order=True)
        .select(
            pl.lit(0, pl.UInt32).alias("line"),
            time.alias("time"),
            pl.when(size > 0).then(pl.lit("alloc")).otherwise(pl.lit("free")).alias("action"),
            pl.col("gpu").cast(pl.String),
            "address_id",
            size.abs().cast(pl.UInt64, strict=False).alias("allocated_bytes"),
            "total_allocated_bytes",
            "total_reserved_bytes",
        )
    )


def _deployment(metadata: dict[str, Any]) -> pl.DataFrame:
    """The device, where all are alike, and the number of ranks, where the trace is one of several."""
    devices = metadata.get("deviceProperties")
    names = (
        {str(each.get("name")) for each in devices if isinstance(each, dict)} if isinstance(devices, list) else set()
    )
    spread = metadata.get("distributedInfo")
    ranks = spread.get("world_size") if isinstance(spread, dict) else None
    row = {
        "line": 0,
        "engine": "pytorch",
        "gpu": names.pop()[:200] if len(names) == 1 else None,
        "gpu_count": ranks if type(ranks) is int and 0 < ranks < 1 << 20 else None,
    }
    columns = {"line": pl.UInt32, "engine": pl.String, "gpu": pl.String, "gpu_count": pl.UInt32}
    return pl.DataFrame([row], schema=columns)


LOADER = Loader(
    name="kineto",
    about="Traces of PyTorch's profiler (Kineto JSON): kernels, copies, their launches, allocator events",
    versions="CUDA, and ROCm 6.2",
    frames=("allocator_events", "kernels", "deployments"),
    example=(
        '{"traceEvents":[{"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":7,"ts":100.5,"dur":20.25,'
        '"args":{"device":0,"stream":7,"correlation":11}}]}'
    ),
    signature=Signature(phrases=(r'"traceEvents"\s*:\s*\[', r'^\s*\[\s*\{[^{}]*"ph"\s*:\s*"[A-Za-z]"')),
    load=load,
)
