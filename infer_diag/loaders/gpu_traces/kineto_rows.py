"""Events of a Kineto trace to rows: what GPUs did, the calls that launched it, and what the allocator did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from infer_diag.loaders.gpu_traces.json_events import Args, Event

_GPU = {
    "kernel": "kernel",
    "Kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "Memcpy": "memcpy",
    "gpu_memset": "memset",
    "Memset": "memset",
}
"""Categories by what they are, the names of before 2022 among them."""
_CALLS = ("Runtime", "cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime", "mtia_runtime")
_MEMORY = "[memory]"
_WANTED = frozenset((*_GPU, *_CALLS, "cpu_instant_event", None))
_HOST = 0

Columns = Mapping[str, type[pl.DataType]]

ACTIVITY: Columns = {
    "kind": pl.String,
    "name": pl.Categorical,
    "ts": pl.Float64,
    "dur": pl.Float64,
    "gpu": pl.Int64,
    "stream": pl.String,
    "correlation_id": pl.UInt64,
    "size_bytes": pl.UInt64,
}
CALL: Columns = {"correlation_id": pl.UInt64, "call_ts": pl.Float64}
MEMORY: Columns = {
    "ts": pl.Float64,
    "gpu": pl.Int64,
    "address_id": pl.UInt64,
    "size": pl.Int64,
    "total_allocated_bytes": pl.UInt64,
    "total_reserved_bytes": pl.UInt64,
}
_NO_ARGS = Args()


def rows(events: list[Event]) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """(activities of GPUs, calls with a correlation, allocator events on devices) among the events."""
    acts, calls, noted = [], [], []
    for event in events:
        cat, args = event.cat, event.args
        if cat not in _WANTED or event.ts is None:
            continue
        if cat in _GPU:
            acts.append(event)
        elif args is None:
            continue
        elif event.name == _MEMORY:
            noted.append(event)
        elif cat in _CALLS and args.correlation:
            calls.append(event)
    return _activities([event for event in acts if event.dur is not None]), _calls(calls), _memory(noted)


def _activities(events: list[Event]) -> pl.DataFrame:
    args = [event.args or _NO_ARGS for event in events]
    values: list[list[Any]] = [
        [_GPU[event.cat or ""] for event in events],
        [event.name or "" for event in events],
        [event.ts for event in events],
        [event.dur for event in events],
        [
            each.device if each.device is not None else event.pid if isinstance(event.pid, int) else None
            for event, each in zip(events, args, strict=True)
        ],
        [None if each.stream is None else str(each.stream) for each in args],
        [each.correlation or None for each in args],
        [each.bytes for each in args],
    ]
    return _table(values, ACTIVITY)


def _calls(events: list[Event]) -> pl.DataFrame:
    args = [event.args or _NO_ARGS for event in events]
    return _table([[each.correlation for each in args], [event.ts for event in events]], CALL)


def _memory(events: list[Event]) -> pl.DataFrame:
    kept = [(event.ts, event.args) for event in events if event.args is not None and event.args.device_type != _HOST]
    values: list[list[Any]] = [
        [ts for ts, _ in kept],
        [args.device_id for _, args in kept],
        [args.address for _, args in kept],
        [args.size for _, args in kept],
        [args.total_allocated for _, args in kept],
        [args.total_reserved for _, args in kept],
    ]
    return _table(values, MEMORY)


def _table(values: list[list[Any]], columns: Columns) -> pl.DataFrame:
    named = zip(columns.items(), values, strict=True)
    return pl.DataFrame([pl.Series(name, held, kind, strict=False) for (name, kind), held in named])
