"""Findings on the memory of devices as samples of their totals show it, and what such totals cannot tell."""

from __future__ import annotations

from typing import Any

import polars as pl

from infer_diag.diagnose.evidence import cited
from infer_diag.diagnose.finding import Finding
from infer_diag.diagnose.memory_growth import GROWTH_SHARE, growing
from infer_diag.recording import Recording
from infer_diag.units import format_bytes


def findings(recording: Recording, devices: pl.DataFrame, trends: pl.DataFrame) -> list[Finding]:
    """Findings `memory.growth`, `memory.growth_undetermined` and `data.not_identifiable`; none without samples.

    Frames in: `GpuMemory`, `MemoryGrowth`. A device grows where the interval of its slope excludes 0 and the slope
    makes up a share of it; where the samples tell no slope, what came on top is told without one. Totals grow by
    caches, pools and leaks alike, so growth alone names no cause; and they never tell fragmentation, because free
    memory in pieces and in one block is the same total.
    """
    if devices.is_empty():
        return []
    grown = []
    for row in devices.iter_rows(named=True):
        same = pl.all_horizontal(pl.col(name).eq_missing(row[name]) for name in ("source_id", "gpu", "instance"))
        told = trends.filter(same & (pl.col("measure") == "used_bytes"))
        evidence, name = _lines(recording, row), f"GPU {row['gpu']}{_part(row)}"
        sure = growing(told.row(0, named=True), name, _whole(row), evidence) if len(told) else None
        found = sure if sure is not None else _growth(recording, row)
        grown += [found] if found is not None else []
    return [*grown, *_untold(recording, devices)]


def _whole(row: dict[str, Any]) -> float:
    return float(row["used_bytes"] or 0) + float(row["free_bytes"] or 0)


def _part(row: dict[str, Any]) -> str:
    return f", instance {row['instance']}" if row["instance"] is not None else ""


def _growth(recording: Recording, row: dict[str, Any]) -> Finding | None:
    growth, used, free = (row[name] for name in ("growth_bytes", "used_bytes", "free_bytes"))
    if not isinstance(growth, int) or not isinstance(used, int) or used <= 0:
        return None
    if growth < GROWTH_SHARE * _whole(row):
        return None
    part = _part(row)
    left = f"; {format_bytes(free)} are free" if isinstance(free, int) else ""
    return Finding(
        id="memory.growth_undetermined",
        severity="low",
        sentence=(
            f"GPU {row['gpu']}{part} holds {format_bytes(growth)} more in its last sample than in its first "
            f"({format_bytes(used)} in all{left}); totals do not tell a cache that fills from a leak."
        ),
        status="measured",
        evidence=_lines(recording, row),
        remedy=(
            "sample over several times as long: a cache levels off and a leak does not; for its cause take snapshots "
            "of the framework's allocator (`torch.cuda.memory._dump_snapshot`)"
        ),
    )


def _untold(recording: Recording, devices: pl.DataFrame) -> list[Finding]:
    """What the samples leave open: fragmentation always, memory where it is not exported."""
    allocator = (recording.blocks, recording.allocator_events, recording.memory_stats, recording.ooms)
    found = []
    if all(frame.is_empty() for frame in allocator):
        found.append(
            Finding(
                id="data.not_identifiable",
                severity="info",
                sentence=(
                    "Fragmentation cannot be told from a device's totals: they hold no size of any free block, and "
                    "the framework's pool counts as used whether it is full or empty."
                ),
                status="not_identifiable",
                remedy="A snapshot of the framework's allocator (`torch.cuda.memory._dump_snapshot`) tells it.",
            )
        )
    silent = devices.filter(pl.all_horizontal(pl.col("used_bytes", "free_bytes").is_null()))
    if len(silent) == len(devices):
        found.append(
            Finding(
                id="data.not_identifiable",
                severity="info",
                sentence="The samples of the devices hold no memory.",
                status="not_identifiable",
                remedy="Record it: DCGM_FI_DEV_FB_USED, memory.used of `nvidia-smi --query-gpu`, or `dmon -s um`.",
            )
        )
    return found


def _lines(recording: Recording, row: dict[str, Any]) -> tuple[str, ...]:
    lines = row["lines"] if isinstance(row["lines"], list) else []
    places = pl.DataFrame({"source_id": [row["source_id"]] * len(lines), "line": lines})
    return cited(recording, places.cast(pl.UInt32))
