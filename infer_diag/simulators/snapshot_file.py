"""A simulated heap as a snapshot in PyTorch's format, which says of itself that it is simulated."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from infer_diag.recording import Recording

Stack = list[dict[str, Any]]

_ACTIONS = {"free": "free_completed"}
_STATES = {"active": "active_allocated", "awaiting": "active_pending_free", "inactive": "inactive"}


def write_snapshot(recording: Recording, path: Path, *, stacks: Mapping[int, Stack] | None = None) -> Path:
    """Writes the events and final blocks of one simulated PyTorch allocator; returns the path.

    Frames in: AllocatorEvents, Blocks, Ooms. PyTorch's own viewers open the file too, and the loader reads from its key
    `simulated_by` that nothing of it was recorded. `stacks` are Python frames (`filename`, `line`, `name`) of live
    blocks by their address. Times are those of the events, 0 where they have none.
    """
    document = {
        "segments": _segments(recording.blocks, stacks or {}),
        "device_traces": [_trace(recording)],
        "simulated_by": recording.sources[0].notes[0].removeprefix("simulated: "),
    }
    path.write_bytes(pickle.dumps(document, protocol=4))
    return path


def _trace(recording: Recording) -> list[dict[str, Any]]:
    free = iter(recording.ooms["free_bytes"].to_list())
    rows = recording.allocator_events.with_columns(
        pl.col("action", "stream").cast(pl.String), pl.col("time").dt.timestamp("us").fill_null(0).alias("time_us")
    )
    found = []
    for row in rows.iter_rows(named=True):
        is_segment = row["action"].startswith("segment")
        event = {
            "action": _ACTIONS.get(row["action"], row["action"]),
            "addr": row["address_id"],
            "size": row["allocated_bytes"] if is_segment else row["requested_bytes"],
            "stream": int(row["stream"] or 0),
            "time_us": row["time_us"],
            "frames": [],
        }
        if event["action"] == "free_completed":
            found.append(event | {"action": "free_requested", "frames": []})
        if event["action"] == "oom":
            event["addr"] = event["device_free"] = int(next(free) or 0)
        found.append(event)
    return found


def _segments(blocks: pl.DataFrame, stacks: Mapping[int, Stack]) -> list[dict[str, Any]]:
    text = blocks.with_columns(pl.col("state", "segment_kind").cast(pl.String))
    return [_segment(rows.to_dicts(), stacks) for _, rows in text.group_by("segment_id", maintain_order=True)]


def _segment(rows: list[dict[str, Any]], stacks: Mapping[int, Stack]) -> dict[str, Any]:
    first = rows[0]
    pool = tuple(map(int, first["pool"].split(","))) if first["pool"] else (0, 0)
    return {
        "device": 0,
        "address": first["segment_id"],
        "total_size": first["segment_bytes"],
        "allocated_size": sum(row["size_bytes"] for row in rows if row["state"] == "active"),
        "stream": int(first["stream"] or 0),
        "segment_type": first["segment_kind"],
        "segment_pool_id": pool,
        "is_expandable": bool(first["is_expandable"]),
        "blocks": [
            {
                "address": row["address_id"],
                "size": row["size_bytes"],
                "requested_size": row["requested_bytes"] or 0,
                "state": _STATES[row["state"]],
                "frames": stacks.get(row["address_id"], []) if row["state"] == "active" else [],
            }
            for row in rows
        ],
    }
