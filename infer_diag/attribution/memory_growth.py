"""Whether the memory of devices and of allocators grows over a process's life, as samples of their totals show it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dataframely as dy
import numpy as np
import polars as pl
from numpy.typing import NDArray

from infer_diag.attribution.heap.growth import Growth, Spell, growth
from infer_diag.recording import Recording
from infer_diag.schema import STATUSES

MEASURES = ("used_bytes", "reserved_bytes", "allocated_bytes", "inactive_split_bytes")
LEAST_S = 24 * 3600.0
"""In less than a day the rise of a load looks like growth, and so does a start that fills its caches."""
MOST_GAPS_RATIO = 0.2
"""With a fifth of the samples missing no interval is told."""
_MOST_POINTS = 1000
_RESTART_RATIO = 0.5
"""A level that falls by half between two samples is another process."""

Floats = NDArray[np.float64]


class MemoryGrowth(dy.Schema):
    """One row per source, device and measure that was sampled.

    `status` `not_identifiable`: the trend is not told, for `reason`. Slopes are in bytes per second of uptime with
    their 95 % interval, which holds for the observed process lives. `reached_s`: uptime at which the fitted curve meets
    `threshold_bytes`, null where that lies beyond the longest life or is never; `lower_s`: not before that.
    """

    source_id = dy.UInt32()
    gpu = dy.String(nullable=True)
    instance = dy.String(nullable=True)
    measure = dy.Enum(MEASURES)
    status = dy.Enum(STATUSES)
    reason = dy.String(nullable=True)
    spell_count = dy.UInt32()
    longest_s = dy.Float64(min=0)
    slope_bytes_per_s = dy.Float64(nullable=True)
    lower_bytes_per_s = dy.Float64(nullable=True)
    upper_bytes_per_s = dy.Float64(nullable=True)
    curve = dy.Enum(("line", "saturating"), nullable=True)
    threshold_bytes = dy.Float64(nullable=True, description="the device's size, where samples tell it")
    is_never = dy.Bool(nullable=True, description="the fitted curve levels off below the threshold")
    reached_s = dy.Float64(nullable=True, min=0)
    lower_s = dy.Float64(nullable=True, min=0)
    upper_s = dy.Float64(nullable=True, min=0)
    never_ratio = dy.Float64(nullable=True, min=0, max=1, description="share of resampled fits that never meet it")


def memory_growth(recording: Recording) -> dy.DataFrame[MemoryGrowth]:
    """The trend of each device's used memory and of each allocator's reserved, allocated and inactive split bytes.

    Frames in: GpuSamples, MemoryStats. Frame out: MemoryGrowth. A series is cut where its level falls by half, which is
    another process; the trend is that of `heap.growth.growth`: Theil–Sen's slope with the interval of six block means.
    It is told of lives of a day or more whose samples have no gaps beyond a fifth; else the status is
    `not_identifiable` and says why. One life is enough to tell of that life.
    """
    rows = [
        _row(key, measure, samples)
        for frame, keys, measures in (
            (recording.gpu_samples, ["source_id", "gpu", "instance"], MEASURES[:1]),
            (recording.memory_stats, ["source_id", "gpu"], MEASURES[1:]),
        )
        for key, measure, samples in _series(frame, keys, measures)
    ]
    return MemoryGrowth.validate(pl.DataFrame(rows, schema=MemoryGrowth.create_empty().schema, orient="row"), cast=True)


def _series(
    frame: pl.DataFrame, keys: list[str], measures: tuple[str, ...]
) -> Iterator[tuple[dict[str, Any], str, pl.DataFrame]]:
    """Each device's samples of each measure, by time; none without times."""
    timed = frame.drop_nulls("time").sort(*keys, "time", maintain_order=True)
    for key, own in timed.group_by(keys, maintain_order=True):
        for measure in measures:
            samples = own.drop_nulls(measure).unique("time", keep="last", maintain_order=True)
            if len(samples) > 1:
                yield dict(zip(keys, key, strict=True)), measure, samples


def _row(key: dict[str, Any], measure: str, samples: pl.DataFrame) -> dict[str, Any]:
    seconds = (samples["time"].dt.timestamp("us").to_numpy() - samples["time"].dt.timestamp("us")[0]) / 1e6
    values = samples[measure].cast(pl.Float64).to_numpy()
    size = _size(samples) if measure == "used_bytes" else None
    told = _grown(seconds, values, size)
    is_never = None if told.reached_s is None else bool(np.isinf(told.reached_s))
    return {
        "instance": None,
        **key,
        "measure": measure,
        "status": told.status,
        "reason": told.reason or None,
        "spell_count": told.spell_count,
        "longest_s": told.longest_s,
        "slope_bytes_per_s": _per_s(told.slope_per_h),
        "lower_bytes_per_s": _per_s(told.lower_per_h),
        "upper_bytes_per_s": _per_s(told.upper_per_h),
        "curve": told.curve,
        "threshold_bytes": size,
        "is_never": is_never,
        "reached_s": None if is_never else told.reached_s,
        "lower_s": told.lower_s,
        "upper_s": told.upper_s,
        "never_ratio": told.never_ratio,
    }


def _per_s(per_h: float | None) -> float | None:
    return None if per_h is None else per_h / 3600


def _size(samples: pl.DataFrame) -> float | None:
    """The device's size: used + free, in the sample where that is most."""
    whole = (pl.col("used_bytes").cast(pl.Float64) + pl.col("free_bytes").cast(pl.Float64)).max()
    found = samples.select(whole).item()
    return None if found is None else float(found)


def _grown(seconds: Floats, values: Floats, size: float | None) -> Growth:
    cuts = np.flatnonzero(values[1:] < (1 - _RESTART_RATIO) * values[:-1]) + 1
    spells, gaps = [], False
    for part in np.split(np.arange(len(values)), cuts):
        steps = np.diff(seconds[part])
        if len(part) < 2 or seconds[part[-1]] - seconds[part[0]] + np.median(steps) < 0.99 * LEAST_S:
            continue
        expected = (seconds[part[-1]] - seconds[part[0]]) / np.median(steps) + 1
        if len(part) < (1 - MOST_GAPS_RATIO) * expected:
            gaps = True
            continue
        uptime, level = (_thinned(column[part]) for column in (seconds, values))
        spells.append(Spell(uptime - seconds[part[0]], level))
    if not spells:
        why = "more than a fifth of the samples are missing" if gaps else "no process life of a day or more is observed"
        return Growth("not_identifiable", 0, why, "samples over several days")
    return growth(spells, threshold=size, least_spells=1)


def _thinned(values: Floats) -> Floats:
    """At most so many means of neighbours, which tell a trend as well as all values."""
    count = len(values)
    if count <= _MOST_POINTS:
        return values
    edges = np.arange(_MOST_POINTS) * count // _MOST_POINTS
    means: Floats = np.add.reduceat(values, edges) / np.diff(np.append(edges, count))
    return means
