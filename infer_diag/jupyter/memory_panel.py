"""Memory as a panel: the block map with its slider, the curves, and in words what they mean."""

from __future__ import annotations

import polars as pl

from infer_diag import charts
from infer_diag.attribution.heap.bands import band_of
from infer_diag.attribution.heap.view import HeapView, heap_view
from infer_diag.diagnose import Diagnosis
from infer_diag.diagnose.fragmentation import holes_sentence, waste_sentence
from infer_diag.jupyter.panel import Panel
from infer_diag.units import format_bytes, format_ratio, format_s

_MOST_POOLS = 4


def memory_panel(diagnosis: Diagnosis, at_s: float | None = None) -> Panel:
    """The heap that holds the most: its block map at a time (the last state), its curves, and what its holes serve.

    Logs without an allocator's events or blocks give a panel with the findings on memory and no figure.

    Raises:
        DiagError: a time is asked for, and the events carry none, it lies outside of them, or numba is not installed.
    """
    told, view = diagnosis.memory, heap_view(diagnosis.recording, at_s=at_s)
    gravest = next((each.sentence for each in diagnosis.findings if each.id.startswith("memory.")), "")
    if told is None and view is None:
        return Panel("Memory", "these logs tell nothing of memory; a snapshot of the framework's allocator does")
    devices = [] if told is None else told.waste.filter(scope="device").to_dicts()
    pools = [] if told is None else told.waste.filter(scope="pool").head(_MOST_POOLS).to_dicts()
    lines = [*map(waste_sentence, devices), *map(holes_sentence, pools)]
    if view is None:
        return Panel("Memory", gravest or "no finding", tuple(lines), None if told is None else told.blocks)
    lines = [*_moment(view), *lines] if at_s is not None else [*lines, *_moment(view)]
    if view.doubt:
        lines.insert(0, f"states before the last are approximate: {view.doubt}")
    frame = view.curves if len(view.curves) else None if told is None else told.waste
    return Panel("Memory", gravest or "no finding", tuple(lines), frame, charts.memory_figure(view))


def _moment(view: HeapView) -> list[str]:
    """The device at the moment that is shown, and over the whole recording."""
    if view.missing:
        return [f"no curves: {view.missing}"]
    device = view.curves.filter(pl.col("scope") == "device")
    row = device.filter(pl.col("event_id") <= (view.event if view.event is not None else -1)).tail(1).to_dicts()
    if not row or row[0]["active_bytes"] is None:
        return []
    now, band = row[0], band_of(row[0]["external_frag_ratio"])
    when = format_s(now["time_s"]) if now["time_s"] is not None else f"event {now['event_id']}"
    words = [f"at {when}: {format_bytes(now['active_bytes'])} of {format_bytes(now['reserved_bytes'])} in use"]
    if now["hole_count"]:
        words.append(f"{now['hole_count']:,} holes, the largest {format_bytes(now['largest_free_bytes'])}")
    if now["beyond_largest_ratio"] is not None:
        words.append(f"{format_ratio(now['beyond_largest_ratio'])} of all recorded requests are larger")
    lines = [", ".join(words)]
    if band is not None and band.action != "none":
        lines.append(f"band {band.name}: the article would {band.action}. {band.effect}")
    most = device["peak_active_bytes"].max()
    failed = f"; {view.failure_count:,} failed allocations" if view.failure_count else ""
    lines.append(f"most in use {format_bytes(most)}{failed}")  # type: ignore[arg-type]
    return lines
