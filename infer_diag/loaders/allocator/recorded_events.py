"""Allocator events that infer_diag recorded itself: one Parquet file in the columns of `schema.AllocatorEvents`."""

from __future__ import annotations

import polars as pl

from infer_diag.errors import SourceError
from infer_diag.loaders.conformed import CLAIMED, recorded
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.loader import Loader, Options
from infer_diag.loaders.request_traces import parquet
from infer_diag.loaders.sniff import Signature
from infer_diag.recording import Clock, Recording
from infer_diag.schema import AllocatorEvents

COLUMNS = tuple(name for name in AllocatorEvents.column_names() if name not in ("source_id", "line"))
"""Every column of the frame but its evidence; those that the allocator does not tell are null throughout."""


def load(file: LogFile, *, options: Options) -> Recording:
    """The events as they were recorded, in order.

    Raises:
        SourceError: the file is damaged, too large, or holds other columns.
    """
    if file.begin(len(parquet.MAGIC)) != parquet.MAGIC:
        raise SourceError(f"{file.label} is no Parquet file", hint="infer-diag formats lists what is read by itself")
    try:
        events = parquet.columns_of(file, options, COLUMNS)
    except SourceError as error:
        if "has no column" not in error.message:
            raise
        raise SourceError(
            f"{file.label} is a Parquet file, but no recording of allocator events ({error.message})",
            hint="for a table of your own requests, say format='table' and columns={…}",
        ) from error
    time = events["time"].cast(pl.Datetime("us", "UTC"), strict=False)
    dated = not time.drop_nulls().is_empty()
    return recorded(
        file,
        {"allocator_events": events},
        options=options,
        format="allocator-events",
        engine="cupy",
        lines=0,
        understood=0,
        rejected=pl.DataFrame(schema=CLAIMED),
        times=time,
        clocks=(Clock("inner", "time", zone="UTC"),) if dated else (),
    )


LOADER = Loader(
    name="allocator-events",
    about="Allocator events recorded by infer_diag through CuPy's hooks (Parquet)",
    versions="version 1",
    frames=("allocator_events",),
    example=None,
    signature=Signature(magic=(parquet.MAGIC,)),
    load=load,
)
