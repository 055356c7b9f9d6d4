"""What kubelet's histogram says of allocations by device plugins: how many, how long, how many beyond a limit."""

from __future__ import annotations

import dataframely as dy
import polars as pl

from infer_diag.attribution.tenancy.frames import AllocationTotals
from infer_diag.recording import Recording

METRIC = "kubelet_device_plugin_alloc_duration_seconds"


def allocation_totals(recording: Recording, limit_s: float) -> dy.DataFrame[AllocationTotals]:
    """Allocations per resource, their mean, and between which bounds the number beyond `limit_s` lies.

    Frame in: StartTotals. Frame out: AllocationTotals. Buckets wholly above the limit surely count, the one that the
    limit cuts may. A histogram has no arrivals, so it can tell neither a lock nor a burst.
    """
    told = recording.start_totals.filter(pl.col("step") == "device_allocation").sort("source_id", "resource")
    rows = [
        {
            **{name: row[name] for name in ("resource", "event_count", "mean_s", "source_id", "line")},
            "limit_s": limit_s,
            **_beyond(row["bucket_max_s"], row["bucket_counts"], limit_s),
        }
        for row in told.iter_rows(named=True)
    ]
    return AllocationTotals.validate(pl.DataFrame(rows, schema=AllocationTotals.create_empty().schema), cast=True)


def _beyond(limits: list[float | None] | None, counts: list[int] | None, limit_s: float) -> dict[str, int | None]:
    if limits is None or counts is None:
        return {"above_low_count": None, "above_high_count": None}
    lower = [0.0, *(limit for limit in limits[:-1] if limit is not None)]
    surely = sum(count for below, count in zip(lower, counts, strict=True) if below >= limit_s)
    maybe = sum(count for limit, count in zip(limits, counts, strict=True) if limit is None or limit > limit_s)
    return {"above_low_count": surely, "above_high_count": maybe}
