"""Who makes starts uneven, and whether allocations wait for each other: tenants, nodes, start kinds, and one lock."""

from __future__ import annotations

from infer_diag.attribution.tenancy.allocation_totals import allocation_totals
from infer_diag.attribution.tenancy.jitter import JitterSplit, jitter_split
from infer_diag.attribution.tenancy.sample_size import share_error, starts_for_quantile
from infer_diag.attribution.tenancy.serial_lock import (
    Waits,
    burst_waits,
    poisson_load_for,
    poisson_mean_wait_s,
    serial_waits,
)
from infer_diag.attribution.tenancy.serial_test import AllocationVerdict, allocation_test

__all__ = [
    "AllocationVerdict",
    "JitterSplit",
    "Waits",
    "allocation_test",
    "allocation_totals",
    "burst_waits",
    "jitter_split",
    "poisson_load_for",
    "poisson_mean_wait_s",
    "serial_waits",
    "share_error",
    "starts_for_quantile",
]
