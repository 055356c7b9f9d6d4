"""What a sampled memory curve misses of its peak, by how often it is sampled."""

from __future__ import annotations

from collections.abc import Iterable

import dataframely as dy
import numpy as np
import polars as pl

from infer_diag.attribution.heap.curves import LEVELS
from infer_diag.attribution.heap.trace import heap_traces
from infer_diag.recording import Recording

_ACTIVE = LEVELS.index("active")


class SampledPeaks(dy.Schema):
    """One row per source, device and sampling: the largest level that samples show beside the largest there was."""

    source_id = dy.UInt32()
    gpu = dy.String(nullable=True)
    sample_count = dy.UInt32(description="so many samples at most, evenly spaced over the events")
    events_per_sample_count = dy.Float64(min=0)
    seen_bytes = dy.Int64(min=0, description="largest active bytes at a sample, mean over where the samples begin")
    peak_bytes = dy.Int64(min=0, description="largest active bytes after any event")
    missed_ratio = dy.Float64(min=0, max=1, description="1 − seen / peak, mean over where the samples begin")
    most_missed_ratio = dy.Float64(min=0, max=1, description="the same for the worst place to begin")


def sampled_peaks(recording: Recording, counts: Iterable[int]) -> dy.DataFrame[SampledPeaks]:
    """The peak of active bytes as so many samples show it, wherever they begin, beside the peak of all events.

    Frames in: AllocatorEvents, Blocks. Frame out: SampledPeaks. A heap without events gives no row.

    Raises:
        DiagError: numba is not installed.
    """
    wanted = list(counts)
    rows = []
    for trace in heap_traces(recording):
        if not trace.event_count:
            continue
        levels = trace.replayed(np.arange(trace.event_count)).levels[:, :-1, _ACTIVE].sum(axis=1)
        peak = float(levels.max())
        for count in wanted:
            step = -(-trace.event_count // max(count, 1))
            seen = np.array([levels[begin::step].max() for begin in range(step)])
            rows.append(
                {
                    "source_id": trace.source_id,
                    "gpu": trace.gpu,
                    "sample_count": count,
                    "events_per_sample_count": float(step),
                    "seen_bytes": round(float(seen.mean())),
                    "peak_bytes": round(peak),
                    "missed_ratio": float(1 - seen.mean() / peak) if peak else 0.0,
                    "most_missed_ratio": float(1 - seen.min() / peak) if peak else 0.0,
                }
            )
    shape = SampledPeaks.create_empty().schema
    return SampledPeaks.validate(pl.DataFrame(rows, schema=shape, orient="row"), cast=True)
