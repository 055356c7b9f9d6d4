"""The article's allocator benchmark, repeated with seeds: 2, 16 and 2 MiB over and over, lifetimes drawn at random.

What it shows: failed requests rank the allocators otherwise than 1 − largest hole / all holes does, because that ratio
says nothing of the bytes that rounding takes out of the heap before any hole is left.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import dataframely as dy
import numpy as np
import polars as pl

from infer_diag.simulators.allocators.allocator import Allocator
from infer_diag.simulators.allocators.heap import Ints, Records
from infer_diag.simulators.allocators.kinds import ALLOC, FREE
from infer_diag.simulators.allocators.loop import STEP
from infer_diag.simulators.allocators.settings import ALLOCATORS, RmmArenaSettings, RmmPoolSettings, Settings

_MIB = 1 << 20
CYCLE_BYTES = (2 * _MIB, 16 * _MIB, 2 * _MIB)
"""What one cycle of the article's benchmark asks for."""

_SAMPLED_EVERY = 10
_PAGE = 2 * _MIB
IDEAL = "pages_2mib"
"""Beside the allocators: pages of 2 MiB, any of which serves any request, so only capacity and rounding let it fail."""


class AllocatorComparison(dy.Schema):
    """One row per allocator and seed; every figure is simulated."""

    allocator = dy.String()
    seed_id = dy.Int64()
    request_count = dy.UInt32()
    failure_count = dy.UInt32()
    external_frag_ratio = dy.Float64(nullable=True, description="1 − largest hole / all holes, mean over the samples")
    rounding_ratio = dy.Float64(min=0, max=1, description="1 − requested / allocated, mean over the samples")
    reserved_peak_bytes = dy.UInt64()


def cycles(seed: int, *, cycle_count: int = 500, mean_life: float = 45.0, jitter: float = 0.0) -> Records:
    """Steps of the benchmark; lifetimes are exponential with `mean_life` cycles, sizes vary by ± `jitter`.

    Frees of a cycle come before its requests, in the order in which the objects were allocated.
    """
    draw = np.random.default_rng(seed)
    count = cycle_count * len(CYCLE_BYTES)
    sizes = np.tile(np.array(CYCLE_BYTES, np.float64), cycle_count)
    sizes = np.rint(sizes * draw.uniform(1 - jitter, 1 + jitter, count)).astype(np.int64)
    born = np.repeat(np.arange(cycle_count), len(CYCLE_BYTES))
    ends = born + np.ceil(draw.exponential(mean_life, count)).astype(np.int64)
    steps = np.zeros(2 * count, STEP)
    steps["action"] = np.repeat([ALLOC, FREE], count)
    steps["thing"] = np.tile(np.arange(count), 2)
    steps["size"][:count] = sizes
    order = np.lexsort((steps["thing"], steps["action"] == ALLOC, np.concatenate([born, ends])))
    kept = np.concatenate([born, ends])[order] < cycle_count
    return steps[order][kept]


def allocator_comparison(
    seeds: Iterable[int],
    *,
    allocators: dict[str, Settings] | None = None,
    mean_life: float = 45.0,
    jitter: float = 0.0,
    limit_bytes: int = 1 << 30,
    cycle_count: int = 500,
) -> dy.DataFrame[AllocatorComparison]:
    """One row per allocator and seed: failed requests, and the ratios over time, on a device of `limit_bytes`.

    Frame out: AllocatorComparison. RMM's pool and arena get the whole device, as the others do.
    """
    chosen = _on_whole_device(limit_bytes) if allocators is None else allocators
    rows = []
    for seed in seeds:
        steps = cycles(seed, cycle_count=cycle_count, mean_life=mean_life, jitter=jitter)
        rows += [_row(name, seed, steps, settings, limit_bytes) for name, settings in chosen.items()]
        rows.append(_paged_row(seed, steps, limit_bytes))
    return AllocatorComparison.validate(pl.DataFrame(rows), cast=True)


def _on_whole_device(limit_bytes: int) -> dict[str, Settings]:
    return ALLOCATORS | {
        "rmm_pool": RmmPoolSettings(initial_pool_bytes=limit_bytes),
        "rmm_arena": RmmArenaSettings(arena_bytes=limit_bytes),
    }


def _row(name: str, seed: int, steps: Records, settings: Settings, limit_bytes: int) -> dict[str, object]:
    allocator = Allocator(settings, limit_bytes=limit_bytes, keeps_log=False)
    asked = np.flatnonzero(steps["action"] == ALLOC)
    stops = np.append(asked[:: _SAMPLED_EVERY * len(CYCLE_BYTES)], len(steps))
    ratios, rounding = [], []
    for begin, end in pairwise(stops.tolist()):
        allocator.replay(steps[begin:end])
        holes, counters = allocator.holes(), allocator.counters
        if len(holes):
            ratios.append(1 - holes.max() / holes.sum())
        rounding.append(1 - counters.requested_bytes / max(counters.allocated_bytes, 1))
    return {
        "allocator": name,
        "seed_id": seed,
        "request_count": len(asked),
        "failure_count": allocator.counters.failure_count,
        "external_frag_ratio": float(np.mean(ratios)) if ratios else None,
        "rounding_ratio": float(np.mean(rounding)),
        "reserved_peak_bytes": allocator.counters.reserved_peak_bytes,
    }


def _paged_row(seed: int, steps: Records, limit_bytes: int) -> dict[str, object]:
    """The ideal beside the allocators: nothing but the number of free pages decides."""
    free = limit_bytes // _PAGE
    held: Ints = np.zeros(int(steps["thing"].max()) + 1, np.int64)
    asked = failures = used = requested = most = 0
    for action, thing, size in zip(*(steps[name].tolist() for name in ("action", "thing", "size")), strict=True):
        if action == FREE:
            free += int(held[thing])
            continue
        pages = -(-size // _PAGE)
        asked += 1
        if pages > free:
            failures += 1
            continue
        free, held[thing] = free - pages, pages
        used, requested = used + pages * _PAGE, requested + size
        most = max(most, limit_bytes // _PAGE - free)
    return {
        "allocator": IDEAL,
        "seed_id": seed,
        "request_count": asked,
        "failure_count": failures,
        "external_frag_ratio": None,
        "rounding_ratio": 1 - requested / max(used, 1),
        "reserved_peak_bytes": most * _PAGE,
    }
