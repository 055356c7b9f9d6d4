"""The storage probe: real calls on a real file of this machine, with the page cache read after each of them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from infer_diag.errors import ProbeUnavailable, SourceError
from infer_diag.probes import machine
from infer_diag.probes.budget import Budget
from infer_diag.probes.result import ProbeResult, framed
from infer_diag.probes.settings import Settings
from infer_diag.probes.spread import spread
from infer_diag.probes.weights import advice, page_cache, reads
from infer_diag.probes.weights.block_device import DEFAULT_READ_AHEAD_BYTES, BlockDevice, device_of
from infer_diag.probes.weights.cache_steps import cache_steps
from infer_diag.probes.weights.model_files import resolve

SCRATCH_BYTES = 256 << 20
REPEATS = 5
_COLD_RATIO = 0.01
_SPARE = 4


def probe_weights(
    out: Path,
    *,
    model: Path | None = None,
    size_bytes: int = SCRATCH_BYTES,
    repeats: int = REPEATS,
    budget: Budget | None = None,
) -> ProbeResult:
    """Cache steps, reading rates, device settings and the least loading time, measured on this machine.

    Without `model` a scratch file of `size_bytes` is written into `out`, probed, and removed. With it the model's
    largest file is probed: it leaves the page cache and comes back several times, so not on a server that is starting.

    Raises:
        ProbeUnavailable: no Linux, or too little room for the scratch file.
        SourceError: the model has no weights, or its largest file is empty.
    """
    page_cache.require()
    limit = budget or Budget(120.0)
    with _target(out, model, size_bytes) as (path, name, whole_bytes):
        device = device_of(path)
        step = device.read_ahead_limit_bytes or DEFAULT_READ_AHEAD_BYTES
        steps, runs = _measured(path, step, repeats, limit)
    rates = rates_of(runs)
    floors = framed("load_floors", advice.floor_rows(whole_bytes, rates, name))
    return ProbeResult(
        probe="weights",
        basis="measured",
        machine={**machine.facts(), **_device_facts(device)},
        frames={
            "cache_steps": steps,
            "read_runs": runs,
            "read_rates": rates,
            "block_settings": framed("block_settings", advice.settings_rows(device)),
            "load_floors": floors,
        },
        sentences=advice.sentences(steps, rates, floors, device),
    )


def rates_of(runs: pl.DataFrame) -> pl.DataFrame:
    """`frames.ReadRates`: median and quartiles by method and state of the cache.

    A run that was meant to be cold and found more than one percent of the file cached is left out, and so is one that
    was meant to be warm and found less than 99 percent, as with a file that does not fit into memory. Where the kernel
    does not tell what is cached, there is no rate.
    """
    held = pl.col("resident_before_ratio")
    as_meant = pl.when(pl.col("cache") == "warm").then(held >= 1 - _COLD_RATIO).otherwise(held <= _COLD_RATIO)
    found = runs.filter(pl.col("bytes_per_s").is_not_null() & as_meant)
    rows = []
    for (method, cache), part in found.group_by("method", "cache", maintain_order=True):
        told = spread(part["bytes_per_s"].to_list())
        assert told is not None
        rows.append(
            {
                "method": method,
                "cache": cache,
                "run_count": told.count,
                "p50_bytes_per_s": told.p50,
                "q1_bytes_per_s": told.q1,
                "q3_bytes_per_s": told.q3,
                "is_wide": told.is_wide,
            }
        )
    return framed("read_rates", rows)


def _measured(path: Path, step: int, repeats: int, budget: Budget) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Both frames; the methods take turns in being first, and the last repetition ends with the file cached."""
    steps: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    methods = list(reads.METHODS)
    for repeat in range(1, repeats + 1):
        if repeat > 1 and budget.spent:
            break
        shift = repeat % len(methods)
        runs += _runs(path, step, repeat, [*methods[shift:], *methods[:shift]])
        steps += cache_steps(path, step, repeat)
    page_cache.advise_in_steps(path, step)
    return framed("cache_steps", steps), framed("read_runs", runs)


def _runs(path: Path, step: int, repeat: int, methods: Sequence[str]) -> Iterator[dict[str, Any]]:
    size = path.stat().st_size
    for method in methods:
        for cache in ("cold", "warm"):
            page_cache.drop(path) if cache == "cold" else reads.plain(path, step)
            before = page_cache.residency(path).ratio
            duration, refusal = None, None
            try:
                duration = reads.timed(method, path, step)
            except OSError as error:
                refusal = error.strerror or "refused"
            yield {
                "repeat_id": repeat,
                "method": method,
                "cache": cache,
                "size_bytes": size,
                "resident_before_ratio": before,
                "duration_s": duration,
                "bytes_per_s": size / duration if duration else None,
                "refusal": refusal,
            }


@contextmanager
def _target(out: Path, model: Path | None, size_bytes: int) -> Iterator[tuple[Path, str, int]]:
    """(the file to probe, what the model is called, bytes of the whole model)."""
    if model is not None:
        found = resolve(model)
        largest = max(found.files, key=lambda file: file.stat().st_size)
        if not largest.stat().st_size:
            raise SourceError(f"{largest} is empty", hint="fetch the model again")
        page_cache.write_out(largest)
        count = len(found.missing)
        absent = f" without {count} absent shard{'s' if count > 1 else ''}" if count else ""
        yield largest, f"this model{absent}", found.size_bytes
        return
    if shutil.disk_usage(out).free < _SPARE * size_bytes:
        raise ProbeUnavailable(
            f"{out} has too little room for a scratch file of {size_bytes >> 20} MiB", hint="give another --out"
        )
    # A name of its own: whatever lies in the folder already is the user's.
    descriptor, name = tempfile.mkstemp(prefix="infer_diag_scratch_", dir=out)
    path = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            for _ in range(0, size_bytes, reads.BLOCK_BYTES):
                file.write(os.urandom(reads.BLOCK_BYTES))
            file.truncate(size_bytes)
        page_cache.write_out(path)
        yield path, "the scratch file", size_bytes
    finally:
        path.unlink(missing_ok=True)


def _device_facts(device: BlockDevice) -> dict[str, str | int]:
    told: dict[str, str | int] = {}
    if device.name is not None:
        told["block_device"] = device.name.rstrip("0123456789")
    if device.scheduler is not None:
        told["scheduler"] = device.scheduler
    if device.read_ahead_bytes is not None:
        told["read_ahead_bytes"] = device.read_ahead_bytes
    return told


def run(out: Path, settings: Settings, budget: Budget) -> ProbeResult:
    """`probe_weights` with the settings of the command line."""
    return probe_weights(
        out,
        model=settings.model,
        size_bytes=settings.size_bytes or SCRATCH_BYTES,
        repeats=settings.repeats or REPEATS,
        budget=budget,
    )
