"""Memory of each device as samples show it: what the last one says, and what came on top since the first."""

from __future__ import annotations

import dataframely as dy
import polars as pl

from infer_diag.recording import Recording
from infer_diag.results import GpuMemory

_DEVICE = ("source_id", "gpu", "instance")
_LEVELS = ("used_bytes", "free_bytes", "reserved_bytes")


def gpu_memory(recording: Recording) -> dy.DataFrame[GpuMemory]:
    """One row per source, device and partition.

    Frame in: GpuSamples. Frame out: GpuMemory. Samples are in the order of their time, and of their lines where one of
    the device has no time. growth = used (last sample that tells) − used (first that tells), in bytes; null with fewer
    than two.
    """
    samples = recording.gpu_samples
    if samples.is_empty():
        return GpuMemory.create_empty()
    untimed = pl.col("time").is_null().any().over(_DEVICE)
    ordered = samples.sort(
        "source_id", "gpu", "instance", pl.when(~untimed).then("time"), "line", nulls_last=False, maintain_order=True
    )
    used = pl.col("used_bytes").drop_nulls().cast(pl.Int64)
    told = ordered.group_by(_DEVICE, maintain_order=True).agg(
        pl.len().cast(pl.UInt32).alias("sample_count"),
        *(pl.col(name).last() for name in _LEVELS),
        pl.when(used.len() > 1).then(used.last() - used.first()).alias("growth_bytes"),
        pl.concat_list(pl.col("line").first(), pl.col("line").last()).list.unique(maintain_order=True).alias("lines"),
    )
    return GpuMemory.validate(told.select(GpuMemory.column_names()), cast=True)
