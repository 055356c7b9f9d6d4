"""Findings on failed allocations: one per verdict, in the numbers of the failure that it was reached from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl

from infer_diag.diagnose.evidence import cited
from infer_diag.diagnose.finding import Finding, Severity, Status
from infer_diag.recording import Recording
from infer_diag.results import OOM_VERDICTS
from infer_diag.units import format_bytes

Row = dict[str, Any]

_OPEN = {"borderline": "bounded", "undetermined": "not_identifiable"}
_RESERVE_LESS = (
    "Let the engine reserve less (a smaller share of the device for the KV pool, a smaller batch or context), store "
    "weights or cache in a smaller format, or spread the model over more devices."
)
_REMEDIES = {
    "fragmentation": (
        "Set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` (`PYTORCH_ALLOC_CONF` in new versions), so that idle "
        "parts of segments go back to the driver; allocate large buffers first and keep sizes few."
    ),
    "capacity": _RESERVE_LESS,
    "request_exceeds_device": (
        "Find what asks for so much (a batch times a context, an attention matrix, a size computed wrongly): no "
        "setting of the allocator makes it fit."
    ),
    "other_process": "End or move the other process, or give each process a share that adds up to the device.",
    "process_limit": "Raise the limit (`torch.cuda.set_per_process_memory_fraction`, or what sets it), or need less.",
    "host_or_driver_limit": (
        "Look at the host: commit limit or page file (Windows), cgroup and locked-memory limits, the driver's log "
        "(`dmesg`, Xid), virtualised or partitioned devices. More device memory would not help."
    ),
    "host_memory": "Give the process more host memory (container limit, swap, page file), or load in smaller pieces.",
    "non_framework_memory": (
        "Find what allocates outside the framework in this process (communication buffers, captured graphs, other "
        "libraries) and lower it, or leave room for it when the KV pool is sized."
    ),
    "borderline": "Take an allocator snapshot at the failure (`torch.cuda.memory._dump_snapshot`): it has all digits.",
    "undetermined": (
        "Keep the whole message of the allocator, or take a snapshot at the failure "
        "(`torch.cuda.memory._dump_snapshot`)."
    ),
}


def findings(recording: Recording, ooms: pl.DataFrame) -> list[Finding]:
    """One finding per verdict that occurs, told by its first failure; none without failed allocations.

    Frame in: `OomReadings`.
    """
    found = []
    for verdict in OOM_VERDICTS:
        rows = ooms.filter(pl.col("verdict").cast(pl.String) == verdict)
        if not rows.is_empty():
            found.append(_finding(recording, verdict, rows))
    return found


def _finding(recording: Recording, verdict: str, rows: pl.DataFrame) -> Finding:
    went_on = rows["recovered"].fill_null(False).all()
    severity: Severity = "medium" if went_on or verdict in _OPEN else "high"
    # Without a block map the total of all pools and streams stands for the part that may serve.
    unmapped = verdict == "fragmentation" and rows["usable_segments"][0] is None
    status: Status = "bounded" if unmapped else _OPEN.get(verdict, "measured")  # type: ignore[assignment]
    more = f" The same holds for {len(rows) - 1:,} more failed allocations." if len(rows) > 1 else ""
    after = " The process went on afterwards." if went_on else ""
    return Finding(
        id=f"memory.{verdict}",
        severity=severity,
        sentence=f"{_SENTENCES[verdict](rows.row(0, named=True))}{more}{after}",
        status=status,
        evidence=cited(recording, rows),
        remedy=_REMEDIES[verdict],
    )


def _size(row: Row, name: str) -> str:
    return format_bytes(row[f"{name}_bytes"])


def _asked(row: Row) -> str:
    device = f" on GPU {row['gpu']}" if row["gpu"] is not None else ""
    return f"{_size(row, 'requested')} could not be had{device}"


def _fragmentation(row: Row) -> str:
    free = f"{_size(row, 'free')} were free and " if row["free_bytes"] is not None else ""
    if row["usable_segments"] is not None:
        return f"{_asked(row)}: {free}{_usable(row)}; returned or joined, these would have served."
    pools = (
        ", some of it perhaps in pools of captured graphs, which cannot be joined" if row["private_pools_bytes"] else ""
    )
    return (
        f"{_asked(row)}: {free}{_size(row, 'reserved_unallocated')} lay idle in the process's own cache{pools}; "
        "returned or joined, the idle bytes would have served, as far as they lie in the pool and stream of the "
        "request, which the message does not tell."
    )


def _usable(row: Row) -> str:
    """Which part of the idle bytes may serve the request."""
    low, high = format_bytes(row["usable_idle_lower_bytes"]), format_bytes(row["usable_idle_upper_bytes"])
    size = low if low == high else f"{low} to {high}"
    idle = row["reserved_unallocated_bytes"]
    whole = f" of {format_bytes(idle)} in all" if idle is not None and low != format_bytes(idle) else ""
    return f"{size}{whole} lay idle in {row['usable_segments']}"


def _capacity(row: Row) -> str:
    return (
        f"{_asked(row)}: of {_size(row, 'total')} {_size(row, 'allocated')} hold live tensors of this process, "
        f"{_size(row, 'free')} were free and {_idle(row)}: too little."
    )


def _idle(row: Row) -> str:
    return _usable(row) if row["usable_segments"] else f"{_size(row, 'reserved_unallocated')} idle in its cache"


def _exceeds(row: Row) -> str:
    return f"{_size(row, 'requested')} were asked for at once, more than the whole device has ({_size(row, 'total')})."


def _other_process(row: Row) -> str:
    if row["other_bytes"] is None:
        return (
            f"{_asked(row)}: what other processes hold of its {_size(row, 'total')} would have served; "
            f"{_size(row, 'free')} were free."
        )
    return (
        f"{_asked(row)}: other processes hold {_size(row, 'other')} of its {_size(row, 'total')} while "
        f"{_size(row, 'free')} are free; without them the request would have fitted."
    )


def _process_limit(row: Row) -> str:
    room = f" although {_size(row, 'free')} of {_size(row, 'total')} are free" if row["free_bytes"] is not None else ""
    held = "reserved" if row["reserved_bytes"] is not None else "allocated"
    holds = f" and holds {_size(row, held)}" if row[f"{held}_bytes"] is not None else ""
    return f"{_asked(row)}{room}: the process may use {_size(row, 'allowed')}{holds}."


def _host_or_driver(row: Row) -> str:
    idle = row["reserved_unallocated_bytes"]
    cached = f", and {format_bytes(idle)} lie idle in the cache" if idle is not None else ""
    neither = "not capacity" if row["compaction_would_help"] else "neither capacity nor fragmentation"
    return (
        f"{_asked(row)} although {_size(row, 'free')} of {_size(row, 'total')} are free{cached}: {neither}, but a "
        "limit of the host or of the driver."
    )


def _host_memory(row: Row) -> str:
    return f"{_size(row, 'requested')} of host memory could not be had; the device is not concerned."


def _non_framework(row: Row) -> str:
    outside = row["process_bytes"] - row["reserved_bytes"]
    return (
        f"{_asked(row)}: this process uses {_size(row, 'process')}, of which {format_bytes(outside)} lie outside the "
        "framework's allocator; without them the request would have fitted."
    )


def _borderline(row: Row) -> str:
    return (
        f"{_asked(row)}: {_size(row, 'free')} free and {_idle(row)} come so close to it "
        "that the printed digits, or what the driver keeps for itself, decide about the cause."
    )


def _undetermined(row: Row) -> str:
    if row["requested_bytes"] is None:
        what = f"{row['component']} could not be created" if row["component"] else "An allocation failed"
        room = f" with {_size(row, 'free')} of {_size(row, 'total')} free" if row["free_bytes"] is not None else ""
        return f"{what}{room}; the message does not say how much was asked for, so the cause is open."
    if row["reserved_bytes"] is None or row["free_bytes"] is None:
        return f"{_asked(row)}; the message lacks the numbers that would tell why."
    share = f" of {_size(row, 'total')}" if row["total_bytes"] is not None else ""
    if row["usable_segments"] is not None:
        return (
            f"{_asked(row)}: the framework holds {_size(row, 'reserved')}{share}, {_size(row, 'free')} were free and "
            f"{_usable(row)}. Idle bytes elsewhere serve it only once whole segments of theirs go back."
        )
    return (
        f"{_asked(row)}: the framework holds {_size(row, 'reserved')}{share} and "
        f"{_size(row, 'free')} are free; whether other processes or this one hold the rest, the message does not say."
    )


_SENTENCES: dict[str, Callable[[Row], str]] = {
    "fragmentation": _fragmentation,
    "capacity": _capacity,
    "request_exceeds_device": _exceeds,
    "other_process": _other_process,
    "process_limit": _process_limit,
    "host_or_driver_limit": _host_or_driver,
    "host_memory": _host_memory,
    "non_framework_memory": _non_framework,
    "borderline": _borderline,
    "undetermined": _undetermined,
}
