"""Every frame of infer_diag, declared once; these classes are the data dictionary.

Units stand in the names (`infer_diag.units.SUFFIXES`). `source_id` is the index in `Recording.sources` and `line` the
1-based physical line, so that each figure leads back to the text that it came from. `time` is null where the log has
no clock. A log that prints no year gets the year 2000 and its `Clock` says so: differences are right, the date is not.
"""

from __future__ import annotations

import dataframely as dy

from infer_diag.schema.devices import AllocatorEvents, Blocks, Components, GpuSamples, Kernels, MemoryStats, Ooms
from infer_diag.schema.evidence import INCIDENTS, INSIDE, PHASES, STATUSES, Evidence, Rejected
from infer_diag.schema.serving import (
    Deployments,
    EngineSamples,
    EngineSteps,
    KvBlocks,
    Requests,
    RequestTimings,
    RequestTotals,
)
from infer_diag.schema.starts import Incidents, Phases, Progress, Starts, StartTotals

__all__ = [
    "FRAMES",
    "INCIDENTS",
    "INSIDE",
    "PHASES",
    "STATUSES",
    "AllocatorEvents",
    "Blocks",
    "Components",
    "Deployments",
    "EngineSamples",
    "EngineSteps",
    "Evidence",
    "GpuSamples",
    "Incidents",
    "Kernels",
    "KvBlocks",
    "MemoryStats",
    "Ooms",
    "Phases",
    "Progress",
    "Rejected",
    "RequestTimings",
    "RequestTotals",
    "Requests",
    "StartTotals",
    "Starts",
]

FRAMES: dict[str, type[dy.Schema]] = {
    "starts": Starts,
    "phases": Phases,
    "progress": Progress,
    "incidents": Incidents,
    "start_totals": StartTotals,
    "requests": Requests,
    "request_timings": RequestTimings,
    "request_totals": RequestTotals,
    "engine_samples": EngineSamples,
    "engine_steps": EngineSteps,
    "gpu_samples": GpuSamples,
    "allocator_events": AllocatorEvents,
    "blocks": Blocks,
    "memory_stats": MemoryStats,
    "ooms": Ooms,
    "components": Components,
    "kv_blocks": KvBlocks,
    "kernels": Kernels,
    "deployments": Deployments,
    "rejected": Rejected,
}
"""The frames of a `Recording` by the name of its field."""
