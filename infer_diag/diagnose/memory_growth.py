"""Findings on memory that grows over a process's life, with what is known of when a device would be full."""

from __future__ import annotations

from typing import Any

import polars as pl

from infer_diag.diagnose.evidence import cited
from infer_diag.diagnose.finding import Finding, Severity
from infer_diag.recording import Recording
from infer_diag.units import format_bytes, format_s

GROWTH_SHARE = 0.05
"""Growth of less than this share of what is held in all is caches filling up and no finding."""

Row = dict[str, Any]

_SNAPSHOTS = (
    "Take snapshots of the framework's allocator early and late in a life "
    "(`torch.cuda.memory._dump_snapshot`): they name what was allocated in between and was not freed."
)


def allocator_findings(recording: Recording, trends: pl.DataFrame) -> list[Finding]:
    """`memory.growth` of allocators whose counters were printed again and again; none where their slope is not told.

    Frame in: `MemoryGrowth`. Live bytes that grow are kept by the program; where reserved bytes grow and live ones do
    not, the cache or its holes do.
    """
    found = []
    told = trends.filter(pl.col("status") != "not_identifiable")
    for row in told.filter(pl.col("measure") == "reserved_bytes").iter_rows(named=True):
        same = pl.col("gpu").eq_missing(pl.lit(row["gpu"], pl.String)) & (pl.col("source_id") == row["source_id"])
        own = recording.memory_stats.filter(same).sort("line")
        device = f" on GPU {row['gpu']}" if row["gpu"] is not None else ""
        last = float(own["reserved_bytes"].drop_nulls()[-1])
        lines = cited(recording, pl.concat([own.head(1), own.tail(1)]).select("source_id", "line").unique())
        finding = growing(row, f"The framework's reserved memory{device}", last, lines)
        parts = {part: _rises(told.filter(same & (pl.col("measure") == part))) for part in _PARTS}
        found += [] if finding is None else [_with_parts(finding, parts)]
    return found


_PARTS = ("allocated_bytes", "inactive_split_bytes")


def _rises(trend: pl.DataFrame) -> float | None:
    """The slope of a part whose interval lies above 0; null where none is told."""
    told = trend.filter(pl.col("lower_bytes_per_s") > 0)["slope_bytes_per_s"]
    return float(told[0]) if len(told) else None


def _with_parts(finding: Finding, parts: dict[str, float | None]) -> Finding:
    live, holes = (parts[name] for name in _PARTS)
    words = []
    if live is not None:
        words.append(f"live tensors grow by {format_bytes(live * 3600)} per hour")
    if holes is not None:
        words.append(f"idle pieces beside live blocks by {format_bytes(holes * 3600)} per hour")
    more = f" Of it {' and '.join(words)}." if words else " Neither live tensors nor idle pieces are seen to grow."
    return Finding(
        finding.id, finding.severity, finding.sentence + more, finding.status, finding.evidence, finding.remedy
    )


def growing(row: Row, what: str, whole_bytes: float, evidence: tuple[str, ...]) -> Finding | None:
    """`memory.growth` of one row of `MemoryGrowth`; null where its slope is not above 0 or makes up too little.

    `whole_bytes`: what the slope over the longest life is held against.
    """
    low, slope, high = (row[f"{name}_bytes_per_s"] for name in ("lower", "slope", "upper"))
    if low is None or low <= 0 or slope * row["longest_s"] < GROWTH_SHARE * whole_bytes:
        return None
    lives = "one process life" if row["spell_count"] == 1 else f"{row['spell_count']:,} process lives"
    severity: Severity = "low" if row["is_never"] or row["curve"] == "saturating" else "medium"
    return Finding(
        id="memory.growth",
        severity=severity,
        sentence=(
            f"{what} grows by {format_bytes(slope * 3600)} per hour (95 % interval {format_bytes(low * 3600)} to "
            f"{format_bytes(high * 3600)}) over {lives} of up to {format_s(row['longest_s'])}; {_full(row)}. Totals do "
            "not tell a cache that fills from a leak."
        ),
        status="bounded" if row["status"] == "bounded" else "modelled",
        evidence=evidence,
        remedy=_SNAPSHOTS,
    )


def _full(row: Row) -> str:
    """When the device would be full, and no further than the lives that were seen reach."""
    curve = "a straight line" if row["curve"] == "line" else "a curve that levels off"
    if row["threshold_bytes"] is None:
        return f"{curve} fits best, and when the device is full is not told, since its size is not"
    size = format_bytes(row["threshold_bytes"])
    if row["is_never"]:
        return f"{curve} fits best and never reaches the device's {size}"
    if row["upper_s"] is None:
        often = row["never_ratio"]
        never = f", and {often:.0%} of the resampled fits never reach it" if often else ""
        return (
            f"{curve} fits best; the device's {size} are not full before {format_s(row['lower_s'])} after a start, and "
            f"how much later is not told beyond the longest life{never}"
        )
    return (
        f"{curve} fits best and reaches the device's {size} {format_s(row['reached_s'])} after a start (95 % interval "
        f"{format_s(row['lower_s'])} to {format_s(row['upper_s'])})"
    )
