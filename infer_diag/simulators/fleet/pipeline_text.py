"""What an application around a Hugging Face pipeline leaves: a log, traces of its starts, a snapshot of its memory."""

from __future__ import annotations

import json
import pickle
from datetime import UTC
from typing import Any

import polars as pl

from infer_diag.simulators.fleet.models import repository
from infer_diag.simulators.fleet.plan import GRAPH_BYTES
from infer_diag.simulators.fleet.pod_log import PodLog, moment
from infer_diag.simulators.fleet.run import Part, Run
from infer_diag.simulators.fleet.sessions import Wear

_UNITS = (("GiB", float(1 << 30)), ("MiB", float(1 << 20)), ("KiB", 1024.0))
_STATES = {"active": "active_allocated", "inactive": "inactive", "awaiting": "active_pending_free"}
_ACTIONS = {"free": "free_completed"}


def application_log(run: Run) -> str:
    """The application's own lines, with PyTorch's message where an allocation failed."""
    log = PodLog(run.plan, "app")
    for part in run.parts:
        log.enter(part.life.pod)
        _start(log, part)
        if part.wear is not None and part.wear.failed_s is not None:
            _failed(log, part.wear)
    return log.text()


def _say(log: PodLog, seconds: float, message: str, level: str = "INFO") -> None:
    stamp = f"{log.clock(seconds):%Y-%m-%d %H:%M:%S},{log.clock(seconds).microsecond // 1000:03d}"
    log.say(seconds, f"{stamp} {level} chat.app: {message}")


def _start(log: PodLog, part: Part) -> None:
    plan, life = log.plan, part.life
    begin = life.begun_s + life.import_s
    _say(log, begin - 0.5, f"loading {repository(plan.model)} with torch_dtype=bfloat16, device_map=cuda")
    shards = max(round(plan.weight_bytes / 5e9), 1)
    for done in range(1, shards + 1):
        spent = life.read_s * done / shards
        bar = "█" * (10 * done // shards)
        told = f"{100 * done // shards:3d}%|{bar:<10}| {done}/{shards} [00:{int(spent):02d}<00:00,  1.00s/it]"
        log.say(begin + spent, f"Loading checkpoint shards: {told}")
    _say(log, life.ready_s, f"pipeline ready, batches of up to {plan.batch_size}, sessions kept on the GPU")


def _failed(log: PodLog, worn: Wear) -> None:
    assert worn.failed_s is not None
    counts, whole = worn.counters, worn.limit_bytes + GRAPH_BYTES
    inside = counts.reserved_bytes + GRAPH_BYTES
    message = (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {_size(worn.wanted_bytes)}. GPU 0 has a total "
        f"capacity of {_size(whole)} of which {_size(worn.limit_bytes - counts.reserved_bytes)} is free. Including "
        f"non-PyTorch memory, this process has {_size(inside)} memory in use. Of the allocated memory "
        f"{_size(counts.allocated_bytes)} is allocated by PyTorch, and {_size(counts.cached_bytes)} is reserved by "
        "PyTorch but unallocated. If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory "
        "Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    )
    _say(log, worn.failed_s, "generation failed, leaving", "ERROR")
    log.say(
        worn.failed_s,
        "Traceback (most recent call last):",
        '  File "/srv/chat/app.py", line 118, in turn',
        "    keys = torch.cat([keys, fresh], dim=-2)",
        message,
    )


def _size(value: float) -> str:
    """As PyTorch prints bytes."""
    unit, size = next(((unit, size) for unit, size in _UNITS if value >= size), ("bytes", 1.0))
    return f"{value:.0f} bytes" if unit == "bytes" else f"{value / size:.2f} {unit}"


def start_traces(run: Run) -> dict[str, str]:
    """One trace per start, by the name of its file: JSON lines as `infer_diag`'s recorder writes them."""
    return {f"start-{number}.jsonl": _trace(run, part) for number, part in enumerate(run.parts)}


def _trace(run: Run, part: Part) -> str:
    life = part.life
    imports, reads = life.import_s, life.read_s
    first = part.requests["first_s"].drop_nulls().min()
    edges = [
        ("imports", 0.05, imports - 0.8),
        ("tokenizer", imports - 0.8, imports - 0.1),
        ("weights", imports - 0.1, imports + reads),
        ("pipeline", imports + reads, life.ready_s - life.begun_s),
    ]
    events: list[tuple[float, dict[str, Any]]] = []
    for phase, begin, end in edges:
        events += [(begin, {"event": "phase_begin", "phase": phase}), (end, {"event": "phase_end", "phase": phase})]
    if isinstance(first, float):
        ready, came = life.ready_s - life.begun_s, first - life.begun_s
        events += [(max(ready, came - 1.0), {"event": "phase_begin", "phase": "first_token"})]
        events += [(came, {"event": "phase_end", "phase": "first_token"})]
    return "".join(_event(life.begun_s, at, told) for at, told in events)


def _event(begun_s: float, at_s: float, told: dict[str, Any]) -> str:
    wall = moment(begun_s + at_s).astimezone(UTC).isoformat(timespec="microseconds")
    line = {"infer_diag": "pipeline_start", "version": 1, **told, "time_s": round(at_s, 6), "wall": wall}
    return json.dumps(line | {"transformers": "4.46.3", "torch": "2.5.1"}) + "\n"


def snapshot(worn: Wear) -> bytes:
    """PyTorch's memory snapshot of the moment, pickled as `torch.cuda.memory._dump_snapshot` does."""
    document = {
        "segments": _segments(worn.blocks),
        "device_traces": [_events(worn)],
        "allocator_settings": {"expandable_segments": False, "max_split_size": -1, "roundup_power2_divisions": {}},
        "external_annotations": [],
    }
    return pickle.dumps(document, protocol=4)


def _segments(blocks: pl.DataFrame) -> list[dict[str, Any]]:
    found = []
    for (address,), part in blocks.partition_by("segment_id", as_dict=True, maintain_order=True).items():
        live = part.filter(pl.col("state") != "inactive")
        found.append(
            {
                "device": 0,
                "address": address,
                "total_size": part["segment_bytes"][0],
                "allocated_size": int(part.filter(pl.col("state") == "active")["size_bytes"].sum()),
                "active_size": int(live["size_bytes"].sum()),
                "requested_size": int(live["requested_bytes"].sum() or 0),
                "stream": 0,
                "segment_type": part["segment_kind"][0],
                "segment_pool_id": (0, 0),
                "is_expandable": bool(part["is_expandable"][0]),
                "frames": [],
                "blocks": [
                    {
                        "address": row["address_id"],
                        "size": row["size_bytes"],
                        "requested_size": row["requested_bytes"] or 0,
                        "state": _STATES[row["state"]],
                        "frames": [],
                    }
                    for row in part.iter_rows(named=True)
                ],
            }
        )
    return found


def _events(worn: Wear) -> list[dict[str, Any]]:
    found = []
    for row in worn.events.iter_rows(named=True):
        failed = row["action"] == "oom"
        size = row["requested_bytes"] if row["action"] in ("alloc", "free", "free_requested", "oom") else None
        event: dict[str, Any] = {"action": _ACTIONS.get(row["action"], row["action"])}
        if failed:
            event["device_free"] = worn.limit_bytes - worn.counters.reserved_bytes
        else:
            event["addr"] = row["address_id"]
        event |= {"size": size if size is not None else row["allocated_bytes"], "stream": 0, "frames": []}
        found.append(event)
    return found
