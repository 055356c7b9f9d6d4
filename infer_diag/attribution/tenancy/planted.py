"""Starts and allocations with a known truth: what the tests of this package would see if it were so."""

from __future__ import annotations

import dataframely as dy
import numpy as np
import polars as pl

from infer_diag.attribution.tenancy.frames import Allocations, StartObservations
from infer_diag.attribution.tenancy.serial_lock import serial_waits

BURST_EVERY_S = 60.0
_SPREAD_S = 0.01
_SCATTER = 0.3


def planted_starts(
    tenants: int, starts_each: int, *, tenant_scatter: float, kind_factor: float = 1.6, seed: int = 0
) -> dy.DataFrame[StartObservations]:
    """Starts of about 20 s on six nodes, ln-normal with a scatter of 0.3, cold ones `kind_factor` times as long.

    Frame out: StartObservations. `tenant_scatter` is the standard deviation of the tenants' means in ln(duration).
    """
    draw = np.random.default_rng(seed)
    tenant = np.repeat(np.arange(tenants), starts_each)
    cold = draw.integers(0, 2, len(tenant)).astype(bool)
    y = np.log(20.0) + draw.normal(0, tenant_scatter, tenants)[tenant] + np.log(kind_factor) * cold
    told = {
        "duration_s": np.exp(y + draw.normal(0, _SCATTER, len(tenant))),
        "tenant": [f"team-{number}" for number in tenant],
        "node": [f"node-{number}" for number in draw.integers(0, 6, len(tenant))],
        "kind": np.where(cold, "cold", "warm"),
    }
    return StartObservations.validate(pl.DataFrame(told))


def planted_allocations(
    lock: str, service_s: float, *, bursts: int = 20, size: int = 8, rate_per_s: float | None = None, seed: int = 0
) -> dy.DataFrame[Allocations]:
    """Calls of Allocate by three tenants on one node, within 10 ms once a minute, or at a rate.

    Frame out: Allocations. `lock` is `one for all`, `one per tenant` or `none`; services last up to a tenth longer.
    """
    draw = np.random.default_rng(seed)
    count = bursts * size
    if rate_per_s is None:
        arrival = np.sort(BURST_EVERY_S * np.repeat(np.arange(bursts), size) + _SPREAD_S * draw.random(count))
    else:
        arrival = np.cumsum(draw.exponential(1 / rate_per_s, count))
    tenant = draw.integers(0, 3, count)
    service = service_s * (1 + 0.1 * draw.random(count))
    wait = np.zeros(count)
    queues = {"one for all": [tenant >= 0], "one per tenant": [tenant == each for each in range(3)]}.get(lock, [])
    for own in queues:
        wait[own] = serial_waits(arrival[own], service[own])
    told = {
        "node": ["node-a"] * count,
        "tenant": [f"team-{number}" for number in tenant],
        "arrival_s": arrival,
        "begin_s": arrival + wait,
        "end_s": arrival + wait + service,
    }
    return Allocations.validate(pl.DataFrame(told))
