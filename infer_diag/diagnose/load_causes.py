"""Findings on weights that come slowly: storage that bounds the load, and workers that hold up the others."""

from __future__ import annotations

import statistics

from infer_diag.attribution.cold_start import newest_running_bar
from infer_diag.attribution.load_progress import Bar, Pace, pace
from infer_diag.attribution.occurrences import UNLABELLED, lineage
from infer_diag.diagnose.finding import Finding
from infer_diag.diagnose.remedies_cold_start import remedy
from infer_diag.diagnose.start_view import Row, StartView
from infer_diag.units import format_bytes, format_s

LOADS = ("weights_load", "weights_read")

SLOW_PART_S = 30.0
"""A checkpoint's file holds about 5 GB by convention; so long for one is under 200 MB/s, slower than any local disk."""

SLOW_BYTES_PER_S = 1e9
"""A local NVMe disk and a 25 Gbit/s network both bring more; a load below it waits for its storage."""

LONG_LOAD_S = 20.0
"""Shorter loads spend a good part of their time on set-up, so that bytes per second say little about the storage."""

STRAGGLER_RATIO = 1.5
STRAGGLER_S = 10.0
"""A worker this much slower than the middle of the others, in both measures, is no noise of a shared file system."""


def storage_bound(view: StartView) -> Finding | None:
    """A load whose pace or rate shows that it waits for its storage."""
    return _slow_bar(view) or _slow_rate(view)


def _slow_bar(view: StartView) -> Finding | None:
    for bar in view.reading.bars:
        loads = set(lineage(bar.phase, view.reading.parent)) & set(LOADS) and bar.phase != "weights_fetch"
        found = pace(bar) if loads else None
        read_s = (bar.elapsed_s or 0.0) - (found.cached_s if found is not None else 0.0)
        if found is None or read_s < LONG_LOAD_S:
            continue
        if found.cached_count == 0 and found.seconds_each < SLOW_PART_S:
            continue
        running = bar in view.reading.running_bars
        return Finding(
            id="cold_start.storage_bound",
            severity=view.severity(max(read_s, found.predicted_total_s if running else 0.0)),
            sentence=view.name + _bar_sentence(bar, found, running),
            status="modelled" if running else "measured",
            evidence=view.evidence([bar.readings[0].line, _last_cached(bar, found), bar.newest.line]),
            remedy=remedy("storage_bound", view.engine),
            saves=None,
        )
    return None


def _bar_sentence(bar: Bar, found: Pace, running: bool) -> str:
    read = bar.newest.done - found.cached_count
    parts = f"{read} of {bar.newest.total} parts of the checkpoint take {format_s(found.seconds_each)} each"
    if found.cached_count:
        first = f"the first {found.cached_count} come out of a cache in {format_s(found.cached_s)}"
        first = first if found.cached_s >= 1 else f"the first {found.cached_count} come out of a cache at once"
        parts += f", while {first}"
    pace_text = f"The load waits for its storage: {parts}"
    if not running:
        return pace_text + "."
    whole = format_s(found.predicted_total_s)
    return f"{pace_text}; at this pace the whole load takes {whole}, so it is slow and not hung."


def _last_cached(bar: Bar, found: Pace) -> int:
    cached = [reading.line for reading in bar.readings if 0 < reading.done <= found.cached_count]
    return cached[-1] if cached else 0


def _slow_rate(view: StartView) -> Finding | None:
    workers = _workers_with_bytes(view)
    read, load = view.wall("weights_read"), view.wall("weights_load")
    wall = read if read is not None and read["duration_s"] is not None else load
    if wall is load and view.wall("weights_fetch") is not None:
        return None  # the load's length holds the download, which is another cause
    if not workers or wall is None or wall["duration_s"] is None or wall["duration_s"] < LONG_LOAD_S:
        return None
    gpus = _gpu_count(view)
    if gpus is None and any(name for name, _ in workers):
        return None
    # Workers read side by side from one storage, and often only the first one prints.
    count = max(len(workers), gpus or 1)
    size = sum(size for _, size in workers) * count / len(workers)
    rate = size / wall["duration_s"]
    if rate >= SLOW_BYTES_PER_S:
        return None
    return Finding(
        id="cold_start.storage_bound",
        severity=view.severity(wall["duration_s"]),
        sentence=(
            f"{view.name}The weights come at {format_bytes(rate)}/s ({format_bytes(size)} in "
            f"{format_s(wall['duration_s'])}), slower than a local NVMe disk."
        ),
        status="modelled",
        evidence=view.evidence([*wall["lines"], *(load["lines"] if load is not None else [])]),
        remedy=remedy("storage_bound", view.engine),
        saves=wall["duration_s"] - size / SLOW_BYTES_PER_S,
    )


def _workers_with_bytes(view: StartView) -> list[tuple[str, float]]:
    sizes: dict[str, float] = {}
    for mark in view.reading.marks:
        if mark.phase == "weights_load" and mark.size_bytes:
            sizes[mark.worker] = max(sizes.get(mark.worker, 0.0), mark.size_bytes)
    return sorted(sizes.items())


def _gpu_count(view: StartView) -> int | None:
    known = view.recording.deployments.filter(start_id=view.reading.start_id)["gpu_count"].drop_nulls().to_list()
    return int(known[-1]) if known else None


def straggler(view: StartView) -> Finding | None:
    """A worker whose load is far longer than that of the others, or whose bar stands when the others are through."""
    return _late_bar(view) or _late_worker(view)


def _late_bar(view: StartView) -> Finding | None:
    bar = newest_running_bar(view.reading)
    found = pace(bar) if bar is not None else None
    if bar is None or found is None or "weights_load" not in lineage(bar.phase, view.reading.parent):
        return None
    others = [row for row in _ranks(view, "weights_load") if row["rank"] not in (bar.worker or UNLABELLED,)]
    through = [row for row in others if row["duration_s"] is not None]
    if not through:
        return None
    middle = statistics.median(row["duration_s"] for row in through)
    if found.predicted_total_s < STRAGGLER_RATIO * middle or found.predicted_total_s - middle < STRAGGLER_S:
        return None
    who = f"worker {bar.worker}" if bar.worker else "the worker that shows the bar"
    return Finding(
        id="cold_start.straggler",
        severity=view.severity(found.predicted_total_s - middle),
        sentence=(
            f"{view.name}{len(through)} worker(s) have loaded after {format_s(middle)} (median), while {who} stands at "
            f"{bar.newest.done} of {bar.newest.total} parts after {format_s(bar.elapsed_s)}; at its pace it needs "
            f"{format_s(found.predicted_total_s)}, and all wait for it."
        ),
        status="modelled",
        evidence=view.evidence([bar.newest.line, *(line for row in through for line in row["lines"])]),
        remedy=remedy("straggler", view.engine),
        saves=found.predicted_total_s - middle,
    )


def _late_worker(view: StartView) -> Finding | None:
    told = [[row for row in _ranks(view, phase) if row["duration_s"] is not None] for phase in LOADS]
    rows = next((each for each in told if len(each) > 1), None)
    if rows is None:
        return None
    slowest = max(rows, key=lambda row: (row["duration_s"], row["rank"]))
    middle = statistics.median(row["duration_s"] for row in rows if row is not slowest)
    excess = slowest["duration_s"] - middle
    if slowest["duration_s"] < STRAGGLER_RATIO * middle or excess < STRAGGLER_S:
        return None
    return Finding(
        id="cold_start.straggler",
        severity=view.severity(excess),
        sentence=(
            f"{view.name}Worker {slowest['rank']} loads its weights in {format_s(slowest['duration_s'])}, "
            f"the others in {format_s(middle)} (median), and all wait for it."
        ),
        status="measured",
        evidence=view.evidence([*slowest["lines"], *(line for row in rows for line in row["lines"])]),
        remedy=remedy("straggler", view.engine),
        saves=excess,
    )


def _ranks(view: StartView, phase: str) -> list[Row]:
    return [row for row in view.phases if row["phase"] == phase and row["rank"] is not None and row["chosen"]]
