"""How busy devices are in a trace of their activities."""

from __future__ import annotations

from typing import Any

import dataframely as dy
import polars as pl

from infer_diag.attribution.quantiles import median
from infer_diag.recording import Recording
from infer_diag.results import GpuActivity


def gpu_activity(recording: Recording) -> dy.DataFrame[GpuActivity]:
    """One row per source and device that was traced; none without a trace.

    Frame in: Kernels. Frame out: GpuActivity. Busy is the length of the union of the activities' intervals, so that
    streams which run at once count once.
    """
    kernels = recording.kernels
    if kernels.is_empty():
        return GpuActivity.create_empty()
    rows = [_activity(key, part) for key, part in kernels.group_by("source_id", "gpu", maintain_order=True)]
    return GpuActivity.validate(pl.DataFrame(rows, schema=GpuActivity.create_empty().schema, orient="row"))


def _activity(key: tuple[Any, ...], events: pl.DataFrame) -> dict[str, Any]:
    kernels = events.filter(pl.col("kind").cast(pl.String) == "kernel")
    end = (pl.col("begin_s") + pl.col("duration_s")).max()
    return {
        "source_id": key[0],
        "gpu": None if key[1] is None else str(key[1]),
        "kernel_count": len(kernels),
        "copy_count": len(events) - len(kernels),
        "span_s": events.select(end - pl.col("begin_s").min()).item(),
        "busy_s": _union_s(events),
        "kernel_busy_s": _union_s(kernels),
        "launch_p50_s": kernels.select(median(pl.col("launch_s"))).item(),
    }


def _union_s(events: pl.DataFrame) -> float:
    """The length of the union; what an activity adds is its part after the latest end of those that began before."""
    end = pl.col("begin_s") + pl.col("duration_s")
    before = end.cum_max().shift(1).fill_null(float("-inf"))
    added = (end - pl.max_horizontal(pl.col("begin_s"), before)).clip(lower_bound=0)
    return float(events.sort("begin_s").select(added.sum()).item())
