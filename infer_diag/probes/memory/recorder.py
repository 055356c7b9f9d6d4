"""An allocator's events as they happen, as rows of `schema.AllocatorEvents`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import polars as pl

from infer_diag.schema import AllocatorEvents

_COLUMNS = ("time_us", "action", "gpu", "address_id", "requested_bytes", "allocated_bytes", "stream")


class EventRecorder:
    """Holds events in columns; one append per column and event, since the program that is watched waits for it.

    Times are those of a monotonic clock laid on the wall clock once, so that they never run backwards.
    """

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns, wall: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock
        self._offset_ns = wall() - clock()
        self._columns: tuple[list[object], ...] = tuple([] for _ in _COLUMNS)

    def event(
        self,
        action: str,
        *,
        gpu: int,
        address: int | None = None,
        requested_bytes: int | None = None,
        allocated_bytes: int | None = None,
        stream: int | None = None,
    ) -> None:
        """Takes one event."""
        time_us = (self._clock() + self._offset_ns) // 1000
        row = (
            time_us,
            action,
            str(gpu),
            address,
            requested_bytes,
            allocated_bytes,
            None if stream is None else str(stream),
        )
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)

    def __len__(self) -> int:
        return len(self._columns[0])

    def frame(self) -> pl.DataFrame:
        """The events as `schema.AllocatorEvents` without its evidence; what no hook tells is null throughout.

        A free is told with the stream of the allocation that it ends, since the hook itself does not tell it.
        """
        kinds = AllocatorEvents.create_empty().schema
        told = pl.DataFrame(
            dict(zip(_COLUMNS, self._columns, strict=True)),
            schema={
                "time_us": pl.Int64,
                "action": pl.String,
                "gpu": pl.String,
                "address_id": pl.UInt64,
                "requested_bytes": pl.UInt64,
                "allocated_bytes": pl.UInt64,
                "stream": pl.String,
            },
        )
        stream = pl.when(pl.col("action").is_in(["alloc", "free"])).then(
            pl.col("stream").forward_fill().over("gpu", "address_id", pl.col("action").is_in(["alloc", "free"]))
        )
        told = told.with_columns(
            pl.col("time_us").cast(pl.Datetime("us", "UTC")).alias("time"),
            pl.coalesce("stream", stream).alias("stream"),
        )
        names = [name for name in kinds if name not in ("source_id", "line")]
        absent = [pl.lit(None).alias(name) for name in names if name not in told.columns]
        return told.with_columns(absent).select(pl.col(name).cast(kinds[name]) for name in names)

    def write(self, path: Path) -> Path:
        """Writes the events as Parquet, which `infer_diag.load` reads as `allocator-events`."""
        self.frame().write_parquet(path)
        return path
