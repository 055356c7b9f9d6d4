"""The KV layout probe: what each layout's kernel reads per second, beside a copy on the same device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from infer_diag.errors import ProbeUnavailable
from infer_diag.probes import machine
from infer_diag.probes.budget import Budget
from infer_diag.probes.kv_layout import kernels
from infer_diag.probes.kv_layout.launches import CuPyReader, Launched, Reader
from infer_diag.probes.kv_layout.packing import Cache, drawn, summed
from infer_diag.probes.result import ProbeResult, framed
from infer_diag.probes.settings import Settings
from infer_diag.probes.spread import spread
from infer_diag.units import format_bytes, format_ratio

SEQUENCES, TOKENS, HEADS, DIMS = 32, 2048, 8, 128
SPLITS = 16
LAUNCHES = 30
_COPY = "copy"


def run(out: Path, settings: Settings, budget: Budget) -> ProbeResult:
    """`probe_kv_layout` on the current GPU."""
    return probe_kv_layout(CuPyReader(), launches=settings.repeats or LAUNCHES, budget=budget)


def probe_kv_layout(
    reader: Reader,
    *,
    sequences: int = SEQUENCES,
    tokens: int = TOKENS,
    heads: int = HEADS,
    dims: int = DIMS,
    splits: int = SPLITS,
    launches: int = LAUNCHES,
    budget: Budget | None = None,
) -> ProbeResult:
    """Seconds of every launch of every layout's kernel on the same cache, each checked against numpy to the last bit.

    A cache of the default size (256 MiB) is larger than the L2 of any GPU so far, so it comes from device memory.

    Raises:
        ProbeUnavailable: a kernel found another sum than numpy, so its time would mean nothing.
    """
    limit = budget or Budget(30.0)
    cache = drawn(sequences, tokens, heads, dims)
    expected = cache.sums()
    copied = _copy_rows(reader, cache, launches)
    rows: list[dict[str, Any]] = list(copied)
    for kernel in kernels.BODIES:
        if len(rows) > len(copied) and limit.spent:
            break
        done = reader.launches(kernel, cache, splits, launches)
        if not (summed(done.out, cache, splits) == expected).all():
            raise ProbeUnavailable(f"the kernel {kernel} does not agree with numpy", hint="report it")
        rows += _rows(kernel, cache, done)
    runs = framed("kv_layout_runs", rows)
    rates = framed("kv_layout_rates", _rates(runs))
    return ProbeResult(
        probe="kv_layout",
        basis=reader.basis,
        machine=machine.facts(),
        device=reader.facts(),
        frames={"kv_layout_runs": runs, "kv_layout_rates": rates},
        sentences=_sentences(rates),
    )


def _copy_rows(reader: Reader, cache: Cache, launches: int) -> list[dict[str, Any]]:
    """A copy reads each byte and writes it; both cross the memory's bus."""
    size = cache.keys.nbytes
    return [
        {
            "layout": _COPY,
            "launch_id": place,
            "duration_s": each,
            "moved_bytes": 2 * size,
            "bytes_per_s": 2 * size / each,
        }
        for place, each in enumerate(reader.copy_seconds(size, launches), 1)
    ]


def _rows(kernel: str, cache: Cache, done: Launched) -> list[dict[str, Any]]:
    return [
        {
            "layout": kernels.LAYOUT_OF[kernel],
            "launch_id": place,
            "duration_s": each,
            "moved_bytes": cache.read_bytes,
            "bytes_per_s": cache.read_bytes / each,
            "blocks_per_sm_count": done.blocks_per_sm,
            "register_count": done.registers,
        }
        for place, each in enumerate(done.seconds, 1)
    ]


def _rates(runs: pl.DataFrame) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for (layout,), part in runs.group_by("layout", maintain_order=True):
        told = spread(part["bytes_per_s"].to_list())
        if told is None:
            continue
        copied = rows[0]["p50_bytes_per_s"] if rows else told.p50
        rows.append(
            {
                "layout": layout,
                "launch_count": told.count,
                "p50_bytes_per_s": told.p50,
                "q1_bytes_per_s": told.q1,
                "q3_bytes_per_s": told.q3,
                "of_copy_ratio": told.p50 / copied,
                "is_wide": told.is_wide,
                "blocks_per_sm_count": part["blocks_per_sm_count"][0],
                "register_count": part["register_count"][0],
            }
        )
    return rows


def _sentences(rates: pl.DataFrame) -> tuple[str, ...]:
    layouts = rates.filter(pl.col("layout") != _COPY)
    said = [
        f"{row['layout']}: {format_bytes(row['p50_bytes_per_s'])}/s, {format_ratio(row['of_copy_ratio'])} of a copy's."
        for row in layouts.to_dicts()
    ]
    if len(layouts) > 1:
        low, high = layouts["p50_bytes_per_s"].min(), layouts["p50_bytes_per_s"].max()
        said.append(f"The fastest layout reads {float(high) / float(low):.2f} times as fast as the slowest.")  # type: ignore[arg-type]
    said.append("Hit rates of the L2 and activity of the SMs need hardware counters, which CuPy does not read.")
    return tuple(said)
