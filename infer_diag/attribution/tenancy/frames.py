"""The frames about tenants and allocations."""

from __future__ import annotations

import dataframely as dy

from infer_diag.schema import STATUSES


class StartObservations(dy.Schema):
    """One row per start: how long it took and what it belongs to; a factor that is not known is null throughout."""

    duration_s = dy.Float64(min_exclusive=0)
    tenant = dy.String(nullable=True)
    node = dy.String(nullable=True)
    kind = dy.String(nullable=True, description="such as cold or warm")


class JitterShares(dy.Schema):
    """One row per factor, and `residual`: which share of the variance of ln(duration) it explains."""

    factor = dy.String(primary_key=True)
    level_count = dy.UInt32(nullable=True)
    start_count = dy.UInt32()
    share_ratio = dy.Float64(nullable=True, min=0, max=1, description="debiased; null where the data cannot tell")
    low_ratio = dy.Float64(nullable=True, min=0, max=1, description="95 % interval")
    high_ratio = dy.Float64(nullable=True, min=0, max=1)
    naive_ratio = dy.Float64(
        nullable=True, min=0, max=1, description="sum of squares over the total: above 0 by chance"
    )
    p_ratio = dy.Float64(nullable=True, min=0, max=1, description="chance of so much when labels mean nothing")
    status = dy.Enum(STATUSES)
    reason = dy.String(nullable=True)


class JitterLevels(dy.Schema):
    """One row per factor and level: what its starts took."""

    factor = dy.String(primary_key=True)
    level = dy.String(primary_key=True)
    start_count = dy.UInt32()
    p50_s = dy.Float64(min=0)
    times_ratio = dy.Float64(min=0, description="geometric mean over that of all starts")


class Allocations(dy.Schema):
    """One row per call of Allocate, on the clock of its node."""

    node = dy.String(nullable=True)
    tenant = dy.String(nullable=True)
    arrival_s = dy.Float64(description="the call came")
    begin_s = dy.Float64(nullable=True, description="it was served from here on; null: no stamp inside the plugin")
    end_s = dy.Float64(description="it was answered")


class AllocationTotals(dy.Schema):
    """One row per source and resource of which kubelet counted allocations."""

    resource = dy.String(nullable=True)
    event_count = dy.UInt64()
    mean_s = dy.Float64(nullable=True, min=0)
    limit_s = dy.Float64(min=0)
    above_low_count = dy.UInt64(nullable=True, description="at least so many took longer than the limit")
    above_high_count = dy.UInt64(nullable=True, description="at most so many did: a bucket tells no more")
    source_id = dy.UInt32()
    line = dy.UInt32()
