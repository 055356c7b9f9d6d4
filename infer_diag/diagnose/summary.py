"""A diagnosis as a dozen lines of plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from infer_diag.attribution.serving import Serving
from infer_diag.units import format_count, format_ratio, format_s

if TYPE_CHECKING:
    from infer_diag.diagnose import Diagnosis

MOST_LINES = 12
"""A summary that fills the screen is none."""
_MOST_SOURCES = 3
_MOST_STARTS = 3


def summary(diagnosis: Diagnosis) -> str:
    """Sources, starts, serving and the findings that weigh most, in at most 12 lines."""
    lines = overview(diagnosis)
    room = MOST_LINES - len(lines)
    found = diagnosis.findings
    shown = found if len(found) <= room else found[: room - 1]
    lines += [f"{finding.severity:<6} {finding.id}: {finding.sentence}" for finding in shown]
    if len(shown) < len(found):
        lines.append(f"… and {len(found) - len(shown)} more findings")
    return "\n".join(lines if found else [*lines, "no findings"])


def overview(diagnosis: Diagnosis) -> list[str]:
    """What was read and how it went, a line each: sources, files left out, starts, serving; no findings."""
    lines = [_sources(diagnosis), *_skipped(diagnosis), *_starts(diagnosis)]
    return lines if diagnosis.batching is None else [*lines, _serving(diagnosis.batching)]


def _skipped(diagnosis: Diagnosis) -> list[str]:
    files = diagnosis.recording.skipped
    named = ", ".join(file.path for file in files[:_MOST_SOURCES]) + (", …" if len(files) > _MOST_SOURCES else "")
    return [f"not read: {named}"] if files else []


def _sources(diagnosis: Diagnosis) -> str:
    sources = diagnosis.recording.sources
    if not sources:
        return "no source"
    named = [
        f"{source.path} ({' '.join(filter(None, (source.engine, source.engine_version)))}, {source.lines:,} lines)"
        for source in sources[:_MOST_SOURCES]
    ]
    more = [f"{len(sources) - _MOST_SOURCES} more"] if len(sources) > _MOST_SOURCES else []
    return ", ".join(named + more)


def _starts(diagnosis: Diagnosis) -> list[str]:
    rows = list(diagnosis.cold_start.summary.iter_rows(named=True))
    lines = [
        f"{row['start_id']}: {row['outcome']}, span {format_s(row['span_s'])}, unlogged {format_s(row['unlogged_s'])}"
        for row in rows[:_MOST_STARTS]
    ]
    return lines if len(rows) <= _MOST_STARTS else [*lines[:-1], f"… {len(rows):,} starts in all"]


def _serving(serving: Serving) -> str:
    means = dict(serving.samples.select(pl.col("measure").cast(pl.String), "mean").iter_rows())
    parts = []
    if serving.sample_count:
        parts.append(f"{serving.sample_count:,} samples over {format_s(serving.window_s)}")
    if "output_tokens_per_s" in means:
        parts.append(f"{format_count(means['output_tokens_per_s'])} output tokens/s")
    if "running" in means:
        parts.append(f"{format_count(means['running'])} running")
    if "waiting" in means:
        parts.append(f"{format_count(means['waiting'])} waiting")
    if "kv_usage_ratio" in means:
        parts.append(f"KV {format_ratio(means['kv_usage_ratio'])}")
    if serving.stall.step_s:
        parts.append(f"{serving.steps['step_count'].sum():,} steps of {format_s(serving.stall.step_s)}")
    if serving.request_count is not None:
        parts.append(f"{serving.request_count:,} requests finished")
    return f"serving: {', '.join(parts) or 'requests that had not finished'}"
