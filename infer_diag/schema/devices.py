"""The frames of devices: samples, what an allocator did and holds, failed allocations, and kernels."""

from __future__ import annotations

import dataframely as dy

from infer_diag.schema.evidence import Evidence, time_column


class GpuSamples(Evidence):
    """One row per GPU and sample."""

    time = time_column()
    gpu = dy.String()
    instance = dy.String(nullable=True, description="MIG instance")
    used_bytes = dy.UInt64(nullable=True)
    free_bytes = dy.UInt64(nullable=True)
    reserved_bytes = dy.UInt64(nullable=True)
    sm_active_ratio = dy.Float64(nullable=True, min=0)
    dram_active_ratio = dy.Float64(nullable=True, min=0)
    power_w = dy.Float64(nullable=True, min=0)


LARGEST_BYTES = 1 << 46
"""No device holds 64 TiB: a larger size is a damaged one."""


class AllocatorEvents(Evidence):
    """One row per allocator event, in the order in which it was recorded.

    `free` is done, `free_requested` may still wait for a stream; `segment_*` is what passes between allocator and
    driver. An `oom` holds what was asked for (rounded as the allocator rounds) and what the device had free then.
    """

    time = time_column()
    action = dy.Enum(
        (
            "alloc",
            "free",
            "free_requested",
            "segment_alloc",
            "segment_free",
            "segment_map",
            "segment_unmap",
            "oom",
            "snapshot",
        )
    )
    gpu = dy.Categorical(nullable=True, description="index of the device")
    address_id = dy.UInt64(nullable=True)
    requested_bytes = dy.UInt64(nullable=True, max=LARGEST_BYTES, description="asked for, before rounding")
    allocated_bytes = dy.UInt64(
        nullable=True, max=LARGEST_BYTES, description="handed out, after rounding; of a segment its whole size"
    )
    device_free_bytes = dy.UInt64(nullable=True, description="free on the device at a failed allocation")
    total_allocated_bytes = dy.UInt64(nullable=True, description="in use after the event, where the recorder says so")
    total_reserved_bytes = dy.UInt64(nullable=True, description="reserved after the event, where the recorder says so")
    stream = dy.Categorical(nullable=True)
    segment_id = dy.UInt64(nullable=True)


class Blocks(Evidence):
    """One row per block of an allocator snapshot.

    `inactive` blocks are idle in a cache that PyTorch may give back to the driver, `free` ones idle in a pool that
    other allocators keep. Blocks may leave bytes of their segment unnamed, so `segment_bytes` stands beside them.
    """

    snapshot = dy.String()
    gpu = dy.String(nullable=True, description="index of the device")
    segment_id = dy.UInt64()
    segment_bytes = dy.UInt64(nullable=True, max=LARGEST_BYTES, description="size of the whole segment")
    segment_kind = dy.Enum(("small", "large"), nullable=True, description="which requests the segment serves")
    is_expandable = dy.Bool(nullable=True, description="whether the segment can give back any of its pages")
    pool = dy.String(nullable=True, description="private pool (of a captured graph) that alone may use the segment")
    stream = dy.String(nullable=True)
    address_id = dy.UInt64()
    size_bytes = dy.UInt64(max=LARGEST_BYTES)
    requested_bytes = dy.UInt64(nullable=True, description="asked for, before rounding; null where the block is idle")
    state = dy.Enum(("active", "awaiting", "inactive", "free"))
    requester = dy.String(nullable=True, description="Python frame that asked for a live block: file:line function")


class MemoryStats(Evidence):
    """One row per printed table of an allocator's counters (PyTorch's `memory_summary`).

    The table rounds down to its unit, so each value is exact to `resolution_bytes` above it.
    """

    time = time_column()
    gpu = dy.String(nullable=True)
    reserved_bytes = dy.Float64(nullable=True, min=0, description="taken from the driver")
    allocated_bytes = dy.Float64(nullable=True, min=0, description="in live tensors")
    active_bytes = dy.Float64(nullable=True, min=0, description="live, or freed and still waited for by a stream")
    requested_bytes = dy.Float64(nullable=True, min=0, description="asked for, before rounding")
    inactive_split_bytes = dy.Float64(nullable=True, min=0, description="idle beside live blocks, cannot be returned")
    peak_reserved_bytes = dy.Float64(nullable=True, min=0)
    peak_allocated_bytes = dy.Float64(nullable=True, min=0)
    resolution_bytes = dy.Float64(nullable=True, min=0)
    segment_count = dy.UInt64(nullable=True)
    oom_count = dy.UInt64(nullable=True)
    retry_count = dy.UInt64(nullable=True)


class Ooms(Evidence):
    """One row per failed allocation that a message tells of.

    Each `X_bytes` is as printed and `X_resolution_bytes` half of its last printed digit. The bytes of processes that
    the message lists by their id are `listed_bytes`: in a container the failing process itself may be one of them.
    """

    time = time_column()
    replica = dy.String(nullable=True)
    rank = dy.String(nullable=True)
    memory = dy.Enum(("device", "host"), description="which memory was asked for")
    gpu = dy.String(nullable=True)
    component = dy.String(nullable=True, description="what could not be created, where an engine names it")
    requested_bytes = dy.Float64(nullable=True, min=0)
    requested_resolution_bytes = dy.Float64(nullable=True, min=0)
    total_bytes = dy.Float64(nullable=True, min=0, description="the device's capacity")
    total_resolution_bytes = dy.Float64(nullable=True, min=0)
    free_bytes = dy.Float64(nullable=True, min=0, description="free on the device")
    free_resolution_bytes = dy.Float64(nullable=True, min=0)
    process_bytes = dy.Float64(nullable=True, min=0, description="in use by the failing process, other memory included")
    process_resolution_bytes = dy.Float64(nullable=True, min=0)
    allocated_bytes = dy.Float64(nullable=True, min=0, description="in live tensors of the framework")
    allocated_resolution_bytes = dy.Float64(nullable=True, min=0)
    reserved_bytes = dy.Float64(nullable=True, min=0, description="held by the framework, live and idle")
    reserved_resolution_bytes = dy.Float64(nullable=True, min=0)
    idle_bytes = dy.Float64(nullable=True, min=0, description="reserved by the framework and not allocated")
    idle_resolution_bytes = dy.Float64(nullable=True, min=0)
    private_pools_bytes = dy.Float64(nullable=True, min=0, description="allocated in pools of captured graphs")
    private_pools_resolution_bytes = dy.Float64(nullable=True, min=0)
    allowed_bytes = dy.Float64(nullable=True, min=0, description="limit set for the process")
    allowed_resolution_bytes = dy.Float64(nullable=True, min=0)
    listed_bytes = dy.List(dy.Float64(), nullable=True)
    listed_resolution_bytes = dy.List(dy.Float64(), nullable=True)


class Components(Evidence):
    """One row per entry of a memory ledger that an engine prints while it starts.

    Entries may overlap (an engine's deserialisation and the library that it initialises), so they are never summed.
    """

    time = time_column()
    rank = dy.String(nullable=True)
    name = dy.String()
    size_bytes = dy.Float64(description="device memory taken; negative where memory was given back")
    resolution_bytes = dy.Float64(nullable=True, min=0)
    free_before_bytes = dy.Float64(nullable=True, min=0)
    free_after_bytes = dy.Float64(nullable=True, min=0)


class Kernels(Evidence):
    """One row per GPU activity of a trace: kernels, copies and fills of memory."""

    time = time_column()
    begin_s = dy.Float64(description="since the earliest GPU activity of the source, to the nanosecond")
    kind = dy.Enum(("kernel", "memcpy", "memset"))
    name = dy.Categorical()
    gpu = dy.Categorical(nullable=True, description="index of the device")
    duration_s = dy.Float64(min=0)
    stream = dy.Categorical(nullable=True)
    correlation_id = dy.UInt64(nullable=True)
    launch_s = dy.Float64(nullable=True, min=0, description="from the begin of the call that launched it to its begin")
    size_bytes = dy.UInt64(nullable=True, description="bytes copied or filled")
