"""The article's allocator benchmark (section 4.3) with seeds, failures and waste in place of one ratio."""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from infer_diag.probes.device import OutOfDeviceMemory, Pool
from infer_diag.probes.spread import spread

MIB = 1 << 20
PATTERN_BYTES = (2 * MIB, 16 * MIB, 2 * MIB)
CYCLES = 500
LIMIT_BYTES = 1 << 30
MEAN_LIFE_CYCLES = 45.0
JITTER = 0.4
SEEDS = 12


@dataclass(frozen=True)
class Request:
    """One allocation: its bytes, and after how many further requests it is freed."""

    size_bytes: int
    life: int


@dataclass
class Tally:
    """What one run saw."""

    failures: int = 0
    requested: int = 0
    peak_live: int = 0
    peak_reserved: int | None = None
    waste: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def requests(seed: int, sizes: str) -> Iterator[Request]:
    """The requests of a seed: 2, 16 and 2 MiB in 500 cycles, each alive for an exponential number of cycles.

    `jittered` sizes are these times a uniform number from 0.6 to 1.4: the article's own sizes fit its alignment
    exactly, so they alone cannot tell what the alignment costs.
    """
    random_source = random.Random(f"{seed} {sizes}")
    for _ in range(CYCLES):
        for size in PATTERN_BYTES:
            factor = random_source.uniform(1 - JITTER, 1 + JITTER) if sizes == "jittered" else 1.0
            life = random_source.expovariate(1 / MEAN_LIFE_CYCLES) * len(PATTERN_BYTES)
            yield Request(round(size * factor), max(round(life), 1))


def allocator_run(
    name: str,
    pool: Pool,
    sizes: str,
    seed: int,
    limit_bytes: int = LIMIT_BYTES,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:
    """A row of `frames.AllocatorRuns`: the requests of a seed served by a pool; a failed one is counted and skipped."""
    tally = Tally()
    live: list[tuple[int, int, int]] = []
    count = 0
    for count, request in enumerate(requests(seed, sizes), 1):
        while live and live[0][0] <= count:
            _, address, size = heapq.heappop(live)
            pool.free(address)
            tally.requested -= size
        begin = clock()
        try:
            address = pool.malloc(request.size_bytes)
        except OutOfDeviceMemory:
            tally.failures += 1
        else:
            tally.seconds.append(clock() - begin)
            heapq.heappush(live, (count + request.life, address, request.size_bytes))
            tally.requested += request.size_bytes
        _levels(tally, pool)
    asked = {"allocator": name, "sizes": sizes, "seed_id": seed, "limit_bytes": limit_bytes, "request_count": count}
    return {**asked, **_seen(tally), **_holes(pool.free_blocks())}


def _seen(tally: Tally) -> dict[str, Any]:
    times = spread(tally.seconds)
    return {
        "failure_count": tally.failures,
        "peak_live_bytes": tally.peak_live,
        "peak_reserved_bytes": tally.peak_reserved,
        "internal_waste_ratio": sum(tally.waste) / len(tally.waste) if tally.waste else None,
        "malloc_p50_s": times.p50 if times else None,
        "malloc_max_s": max(tally.seconds, default=None),
    }


def _levels(tally: Tally, pool: Pool) -> None:
    tally.peak_live = max(tally.peak_live, tally.requested)
    reserved, allocated = pool.reserved_bytes(), pool.allocated_bytes()
    if reserved is not None:
        tally.peak_reserved = max(tally.peak_reserved or 0, reserved)
    if allocated:
        tally.waste.append(max(1 - tally.requested / allocated, 0.0))


def _holes(idle: list[tuple[int, int]] | None) -> dict[str, Any]:
    """The article's ratio, 1 − largest/total, null where nothing is idle or the pool does not tell."""
    sizes = [size for _, size in idle or ()]
    if not sizes:
        return {"largest_free_bytes": None if idle is None else 0, "external_frag_ratio": None}
    return {"largest_free_bytes": max(sizes), "external_frag_ratio": 1 - max(sizes) / sum(sizes)}
