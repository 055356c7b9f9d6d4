"""What `%diag memory NAME --what-if …` shows: the recording beside its own replay, then each other setting."""

from __future__ import annotations

from typing import Any

from infer_diag.attribution.what_if import RECORDING, what_if
from infer_diag.charts.what_if import what_if_bars
from infer_diag.jupyter.panel import Panel
from infer_diag.recording import Recording
from infer_diag.units import format_bytes, format_count, format_ratio

Row = dict[str, Any]


def memory_what_if_panel(recording: Recording, settings: str) -> Panel:
    """The replay of a recorded heap under `expandable_segments,max_split_size_mb=128` as a panel.

    Raises:
        UnknownNameError: a setting or allocator of no such name.
        DiagError: the recording has no allocator events, or a value cannot be read.
    """
    runs = what_if(recording, settings)
    rows = runs.to_dicts()
    return Panel(
        f"What if {settings} (simulated)", _trust(rows), tuple(map(_told, rows)), runs, figure=what_if_bars(runs)
    )


def _trust(rows: list[Row]) -> str:
    """How far the model can be believed, from the replay of the recording itself."""
    own = [row["placed_ratio"] for row in rows if row["status"] == "simulated" and row["placed_ratio"] is not None]
    if not own:
        return "no recorded address can be held against the replay, so the model's error is unknown"
    return f"the replay of the recording itself meets {format_ratio(min(own))} of its addresses"


def _told(row: Row) -> str:
    name = row["settings"] if row["begin"] != "packed" else f"{row['settings']}, heap allocated anew"
    if row["refusal"] is not None:
        return f"{name}: not simulated: {row['refusal']}"
    words = [f"{format_bytes(row['reserved_peak_bytes'])} reserved at most"]
    words.append(f"{format_count(row['failure_count'])} of {format_count(row['request_count'])} requests fail")
    if row["settings"] != RECORDING and row["avoided_count"] is not None:
        words.append(f"{format_count(row['avoided_count'])} failures avoided")
    if row["new_failure_count"]:
        words.append(f"{format_count(row['new_failure_count'])} new ones")
    return f"{name}: {', '.join(words)}"
