"""Every frame of infer_diag, declared once; these classes are the data dictionary.

Units stand in the names (`infer_diag.units.SUFFIXES`). `source_id` is the index in `Recording.sources` and `line` the
1-based physical line, so that each figure leads back to the text that it came from. `time` is null where the log has
no clock. A log that prints no year gets the year 2000 and its `Clock` says so: differences are right, the date is not.
"""

from __future__ import annotations

import dataframely as dy
import polars as pl

PHASES = (
    "schedule",
    "image_pull_queue",
    "image_pull",
    "container_start",
    "process",
    "device_init",
    "weights_fetch",
    "weights_load",
    "weights_read",
    "engine_build",
    "engine_load",
    "init_engine",
    "compile",
    "compile_dynamo",
    "compile_graph",
    "kv_profile",
    "kv_alloc",
    "kernel_warmup",
    "graph_capture",
    "warmup",
    "server_ready",
    "first_request",
)
"""Phases of a start in the order in which they happen."""

INSIDE = {
    "weights_read": "weights_load",
    "compile": "init_engine",
    "compile_dynamo": "compile",
    "compile_graph": "compile",
    "kv_profile": "init_engine",
    "kv_alloc": "init_engine",
    "kernel_warmup": "init_engine",
    "graph_capture": "init_engine",
}
"""The phase that encloses another one, where one does."""

STATUSES = ("measured", "modelled", "bounded", "not_identifiable")

INCIDENTS = (
    "engine_begin",
    "ready",
    "failed",
    "shutdown",
    "cut",
    "compile_cache_hit",
    "compile_cache_miss",
    "compile_cache_used",
    "weights_cache_hit",
    "engine_cache_hit",
    "compile_off",
    "graphs_off",
    "preemption",
    "response",
    "oom",
    "restart",
    "xid",
    "eviction",
    "probe_failure",
)


def _time(description: str | None = None) -> dy.Datetime:
    return dy.Datetime(nullable=True, time_unit="us", time_zone="UTC", description=description)


class Evidence(dy.Schema):
    """The two columns that lead from a row to its line."""

    source_id = dy.UInt32(description="index in Recording.sources")
    line = dy.UInt32(description="physical line, 1-based; 0 where a source has no lines")


class Starts(Evidence):
    """One row per engine start found."""

    start_id = dy.String(primary_key=True, description="unique in the recording, in order of appearance")
    replica = dy.String(nullable=True, description="data-parallel replica, where the log tells several apart")
    last_line = dy.UInt32(description="last physical line of this start")
    first_time = _time("first stamp of this start")
    last_time = _time("last stamp of this start, ready included")
    acquire_time = _time("device assigned; only cluster events tell")
    ready_time = _time("stamp of the ready line or of the last one before it")
    ready_line = dy.UInt32(nullable=True, description="line that says that the server is up")
    failed_line = dy.UInt32(nullable=True, description="first line that says that the start failed")
    served = dy.Bool(description="the engine is seen serving after this start")


class Phases(Evidence):
    """One row per line that tells of an interval of a start.

    `duration_s` with `end`: printed at its end, so the interval is [end − duration_s, end]. `begin` alone: seen to
    begin. `end` alone: seen to end. `lower_s`: lasted at least so long (a bar's elapsed time).
    """

    start_id = dy.String()
    replica = dy.String(nullable=True)
    rank = dy.String(nullable=True, description="worker, where workers are told apart")
    phase = dy.Enum(PHASES)
    inside = dy.Enum(PHASES, nullable=True, description="enclosing phase")
    begin = _time()
    end = _time()
    duration_s = dy.Float64(nullable=True, min=0)
    lower_s = dy.Float64(nullable=True, min=0)
    resolution_s = dy.Float64(nullable=True, min=0, description="half of the last printed digit")
    is_total = dy.Bool(description="sums what other lines print one by one, so it is no interval of its own")
    status = dy.Enum(STATUSES)
    size_bytes = dy.Float64(nullable=True, min=0, description="bytes moved or taken, where the line says so")


class Progress(Evidence):
    """One row per reading of a progress bar of a start."""

    start_id = dy.String()
    replica = dy.String(nullable=True)
    rank = dy.String(nullable=True)
    phase = dy.Enum(PHASES)
    time = _time()
    done_count = dy.UInt32()
    total_count = dy.UInt32()
    elapsed_s = dy.Float64(nullable=True, min=0, description="the bar's own clock")

    @dy.rule()
    def done_within_total(cls) -> pl.Expr:
        """A bar never stands beyond its end."""
        return cls.done_count.col <= cls.total_count.col


class Incidents(Evidence):
    """One row per discrete event."""

    start_id = dy.String(nullable=True)
    replica = dy.String(nullable=True)
    rank = dy.String(nullable=True)
    time = _time()
    kind = dy.Enum(INCIDENTS)
    fields = dy.String(nullable=True, description="what else the line says, redacted and cut to 200 characters")


class Requests(Evidence):
    """One row per request; seconds since the recording's first stamp, null where no line tells."""

    request_id = dy.String()
    tenant = dy.String(nullable=True)
    arrival_s = dy.Float64(nullable=True)
    queued_s = dy.Float64(nullable=True)
    scheduled_s = dy.Float64(nullable=True)
    first_token_s = dy.Float64(nullable=True)
    last_token_s = dy.Float64(nullable=True)
    prompt_tokens = dy.UInt32(nullable=True)
    cached_tokens = dy.UInt32(nullable=True)
    output_tokens = dy.UInt32(nullable=True)
    preemption_count = dy.UInt32(nullable=True)
    finish_reason = dy.String(nullable=True)


class EngineSamples(Evidence):
    """One row per statistics line, batch line or scrape."""

    time = _time()
    replica = dy.String(nullable=True)
    kind = dy.Enum(("interval", "prefill", "decode", "scrape"), description="what made the engine print it")
    running_count = dy.UInt32(nullable=True)
    waiting_count = dy.UInt32(nullable=True)
    swapped_count = dy.UInt32(nullable=True)
    kv_usage_ratio = dy.Float64(nullable=True, min=0)
    prompt_tokens_per_s = dy.Float64(nullable=True, min=0)
    output_tokens_per_s = dy.Float64(nullable=True, min=0)
    prefix_hit_ratio = dy.Float64(nullable=True, min=0)
    preemption_count = dy.UInt32(nullable=True, description="preemptions since the sample before")
    new_count = dy.UInt32(nullable=True, description="sequences that the batch admits")
    new_tokens = dy.UInt32(nullable=True, description="prompt tokens that the batch computes")
    cached_tokens = dy.UInt32(nullable=True, description="prompt tokens that the batch finds in the cache")


class EngineSteps(Evidence):
    """One row per engine step."""

    time = _time()
    replica = dy.Categorical(nullable=True)
    kind = dy.Enum(("prefill", "decode", "mixed", "idle"))
    prefill_count = dy.UInt32(description="requests in their prompt")
    decode_count = dy.UInt32(description="requests in their output")
    prefill_tokens = dy.UInt32()
    decode_tokens = dy.UInt32()
    duration_s = dy.Float64(min=0)


class GpuSamples(Evidence):
    """One row per GPU and sample."""

    time = _time()
    gpu = dy.String()
    instance = dy.String(nullable=True, description="MIG instance")
    used_bytes = dy.UInt64(nullable=True)
    free_bytes = dy.UInt64(nullable=True)
    reserved_bytes = dy.UInt64(nullable=True)
    sm_active_ratio = dy.Float64(nullable=True, min=0)
    dram_active_ratio = dy.Float64(nullable=True, min=0)
    power_w = dy.Float64(nullable=True, min=0)


class AllocatorEvents(Evidence):
    """One row per allocator event."""

    time = _time()
    action = dy.Enum(
        ("alloc", "free", "free_requested", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "oom")
    )
    address_id = dy.UInt64(nullable=True)
    requested_bytes = dy.UInt64(nullable=True)
    allocated_bytes = dy.UInt64(nullable=True)
    stream = dy.String(nullable=True)
    segment_id = dy.UInt64(nullable=True)


class Blocks(Evidence):
    """One row per block of an allocator snapshot."""

    snapshot = dy.String()
    segment_id = dy.UInt64()
    address_id = dy.UInt64()
    size_bytes = dy.UInt64()
    requested_bytes = dy.UInt64(nullable=True)
    state = dy.Enum(("active", "awaiting", "inactive", "free"))


class KvBlocks(Evidence):
    """One row per KV block or pool sample."""

    time = _time()
    block_id = dy.UInt64(nullable=True)
    filled_tokens = dy.UInt32(nullable=True)
    state = dy.Enum(("free", "active", "cached"))


class Kernels(Evidence):
    """One row per GPU activity of a trace."""

    time = _time()
    name = dy.String()
    duration_s = dy.Float64(min=0)
    stream = dy.String(nullable=True)
    correlation_id = dy.UInt64(nullable=True)
    launch_s = dy.Float64(nullable=True, min=0)


class Deployments(Evidence):
    """One row per engine configuration found."""

    start_id = dy.String(nullable=True)
    model = dy.String(nullable=True)
    engine = dy.String()
    engine_version = dy.String(nullable=True)
    gpu = dy.String(nullable=True)
    gpu_count = dy.UInt32(nullable=True)
    precision = dy.String(nullable=True)
    price_per_gpu_h = dy.Float64(nullable=True, min=0)
    kv_cache_tokens = dy.UInt64(nullable=True, description="tokens that the KV pool holds")
    max_running_count = dy.UInt32(nullable=True, description="sequence limit of the scheduler")
    max_batch_tokens = dy.UInt32(nullable=True, description="token budget of a step")
    flags = dy.String(nullable=True, description="the rest of the configuration as the log prints it, redacted")


class Rejected(Evidence):
    """One row per line that a rule claims and cannot read."""

    rule = dy.String()
    text = dy.String(description="redacted, cut to 200 characters")


FRAMES: dict[str, type[dy.Schema]] = {
    "starts": Starts,
    "phases": Phases,
    "progress": Progress,
    "incidents": Incidents,
    "requests": Requests,
    "engine_samples": EngineSamples,
    "engine_steps": EngineSteps,
    "gpu_samples": GpuSamples,
    "allocator_events": AllocatorEvents,
    "blocks": Blocks,
    "kv_blocks": KvBlocks,
    "kernels": Kernels,
    "deployments": Deployments,
    "rejected": Rejected,
}
"""The frames of a `Recording` by the name of its field."""
