"""The frames that attribution returns, declared once beside those of `infer_diag.schema`.

Seconds count from the begin of the start (`begin_s` 0) or of the recording. A value that the logs cannot tell is null.
"""

from __future__ import annotations

import dataframely as dy

from infer_diag.schema import PHASES, STATUSES

OUTCOMES = ("ready", "failed", "unfinished", "unknown")

OOM_VERDICTS = (
    "fragmentation",
    "capacity",
    "request_exceeds_device",
    "other_process",
    "process_limit",
    "host_or_driver_limit",
    "host_memory",
    "non_framework_memory",
    "borderline",
    "undetermined",
)
"""Why an allocation failed."""


class StartSummary(dy.Schema):
    """One row per start."""

    start_id = dy.String(primary_key=True)
    replica = dy.String(nullable=True)
    outcome = dy.Enum(OUTCOMES)
    span_s = dy.Float64(nullable=True, min=0, description="earliest known begin to last stamp; null without stamps")
    hold_s = dy.Float64(nullable=True, min=0, description="acquire to ready; null unless both are in the logs")
    unlogged_s = dy.Float64(nullable=True, min=0, description="sum of the silent gaps")
    compile_cache = dy.Enum(("hit", "miss"), nullable=True)
    engine_cache = dy.Enum(("hit", "miss"), nullable=True)
    weights_cache = dy.Enum(("hit", "miss"), nullable=True)
    done_count = dy.UInt32(nullable=True, description="progress of a load that was still running")
    total_count = dy.UInt32(nullable=True)
    seconds_each_s = dy.Float64(nullable=True, min=0, description="pace of the parts that still had to be read")
    predicted_total_s = dy.Float64(nullable=True, min=0, description="length of the whole load at that pace")


class StartPhases(dy.Schema):
    """One row per phase and rank of a start, and one with `rank` null per phase for the wall clock of the whole start.

    Wall clock: union of the ranks' intervals; without stamps the slowest rank of a barrier phase.
    """

    start_id = dy.String()
    phase = dy.Enum(PHASES)
    rank = dy.String(nullable=True)
    inside = dy.Enum(PHASES, nullable=True)
    begin_s = dy.Float64(nullable=True)
    end_s = dy.Float64(nullable=True)
    duration_s = dy.Float64(nullable=True, min=0, description="null: visible, but its length is not")
    lower_s = dy.Float64(nullable=True, min=0)
    upper_s = dy.Float64(nullable=True, min=0)
    status = dy.Enum(STATUSES)
    chosen = dy.Bool(description="false: a value that conflicts with the one that phases_s holds")
    source_id = dy.UInt32()
    lines = dy.List(dy.UInt32(), description="evidence")


class StartSlices(dy.Schema):
    """The exclusive parts of a start, in order: their durations add up to its span exactly (whole microseconds)."""

    start_id = dy.String()
    begin_s = dy.Float64(nullable=True, description="null where the log has no stamps and the place is unknown")
    duration_s = dy.Float64(min=0)
    phase = dy.Enum(PHASES, nullable=True, description="deepest active phase; null in a gap")
    after = dy.String(nullable=True, description="gap: what ended before it")
    before = dy.String(nullable=True, description="gap: what began after it")
    inside = dy.Enum(PHASES, nullable=True, description="gap: the phase that encloses it, if one does")
    reason = dy.Enum(("silent", "cut"), nullable=True, description="gap: nothing was printed, or text is missing")
    source_id = dy.UInt32()
    lines = dy.List(dy.UInt32(), description="evidence: the phase's lines, or those around the gap")
    next_source_id = dy.UInt32(nullable=True, description="gap: source of the line after it, where it is another one")
    next_lines = dy.List(dy.UInt32(), nullable=True)


class SampleStats(dy.Schema):
    """One row per measure of the serving samples."""

    measure = dy.Enum(("output_tokens_per_s", "prompt_tokens_per_s", "running", "waiting", "kv_usage_ratio"))
    first = dy.Float64()
    last = dy.Float64()
    min = dy.Float64()
    mean = dy.Float64()
    max = dy.Float64()


class RequestStats(dy.Schema):
    """One row per measure of the requests: linear quantiles over those that have it, null where only sums are told."""

    measure = dy.Enum(
        ("queue_s", "prefill_s", "decode_s", "ttft_s", "tpot_s", "e2e_s", "prompt_tokens", "output_tokens")
    )
    request_count = dy.UInt32()
    mean = dy.Float64()
    p50 = dy.Float64(nullable=True)
    p95 = dy.Float64(nullable=True)
    max = dy.Float64(nullable=True)


class QuantileBounds(dy.Schema):
    """One row per measure and quantile of which a histogram tells only the bounds; `max` null: above the last one."""

    measure = dy.Enum(
        ("queue_s", "prefill_s", "decode_s", "ttft_s", "tpot_s", "e2e_s", "prompt_tokens", "output_tokens")
    )
    quantile_ratio = dy.Float64(min=0, max=1)
    min = dy.Float64()
    max = dy.Float64(nullable=True)


class StepKinds(dy.Schema):
    """One row per kind of engine step that occurs."""

    kind = dy.Enum(("prefill", "decode", "mixed", "idle"))
    step_count = dy.UInt32()
    duration_s = dy.Float64(description="sum over the steps")
    prefill_tokens = dy.UInt64()
    decode_tokens = dy.UInt64()
    mean_batch_count = dy.Float64(description="requests per step")
    source_id = dy.UInt32()
    lines = dy.List(dy.UInt32(), description="evidence: the longest steps of the kind, three at most")


class StepBins(dy.Schema):
    """One row per interval of the recording and kind of engine step that ends in it."""

    time = dy.Datetime(time_unit="us", time_zone="UTC", description="middle of the interval")
    width_s = dy.Float64(min=0, description="length of the interval")
    kind = dy.Enum(("prefill", "decode", "mixed", "idle"))
    step_count = dy.UInt32()
    duration_s = dy.Float64(min=0, description="sum over the steps")


class StepRates(dy.Schema):
    """One row per interval of the recording; null rates where no step ends in it."""

    time = dy.Datetime(time_unit="us", time_zone="UTC", description="middle of the interval")
    prompt_tokens_per_s = dy.Float64(nullable=True, min=0)
    output_tokens_per_s = dy.Float64(nullable=True, min=0)


class StepSizes(dy.Schema):
    """One row per kind of engine step and range of batch sizes: linear quantiles of the step's duration."""

    kind = dy.Enum(("prefill", "decode", "mixed", "idle"))
    batch_count = dy.UInt32(description="smallest batch of the range, in requests")
    step_count = dy.UInt32()
    p50_duration_s = dy.Float64(min=0)
    p95_duration_s = dy.Float64(min=0)


class OomReadings(dy.Schema):
    """One row per failed allocation; bytes as printed, or completed from those that are."""

    source_id = dy.UInt32()
    line = dy.UInt32(description="evidence")
    time = dy.Datetime(nullable=True, time_unit="us", time_zone="UTC")
    replica = dy.String(nullable=True)
    rank = dy.String(nullable=True)
    gpu = dy.String(nullable=True)
    component = dy.String(nullable=True, description="what could not be created, where the engine names it")
    requested_bytes = dy.Float64(nullable=True, min=0)
    total_bytes = dy.Float64(nullable=True, min=0)
    free_bytes = dy.Float64(nullable=True, min=0)
    process_bytes = dy.Float64(nullable=True, min=0)
    allocated_bytes = dy.Float64(nullable=True, min=0)
    reserved_bytes = dy.Float64(nullable=True, min=0)
    reserved_unallocated_bytes = dy.Float64(nullable=True, min=0)
    usable_idle_lower_bytes = dy.Float64(
        nullable=True, min=0, description="idle where the allocator may serve the request from, as a block map tells"
    )
    usable_idle_upper_bytes = dy.Float64(nullable=True, min=0)
    usable_segments = dy.String(nullable=True, description="which segments those are, in words")
    private_pools_bytes = dy.Float64(nullable=True, min=0)
    allowed_bytes = dy.Float64(nullable=True, min=0)
    other_bytes = dy.Float64(nullable=True, min=0, description="in use by the other processes that the message lists")
    verdict = dy.Enum(OOM_VERDICTS)
    compaction_would_help = dy.Bool(nullable=True, description="idle bytes joined or returned would have served")
    recovered = dy.Bool(nullable=True, description="a later line shows the process going on, or its end")


class GpuMemory(dy.Schema):
    """One row per source, device and partition that was sampled; levels of the last sample."""

    source_id = dy.UInt32()
    gpu = dy.String()
    instance = dy.String(nullable=True, description="MIG instance")
    sample_count = dy.UInt32()
    used_bytes = dy.UInt64(nullable=True)
    free_bytes = dy.UInt64(nullable=True)
    reserved_bytes = dy.UInt64(nullable=True)
    growth_bytes = dy.Int64(nullable=True, description="used: last minus first sample; null with fewer than two")
    lines = dy.List(dy.UInt32(), description="evidence: the first and the last sample")


class AllocatorPool(dy.Schema):
    """One row per source whose framework allocator told of itself; null where neither table nor block map tells."""

    source_id = dy.UInt32()
    reserved_bytes = dy.Float64(nullable=True, min=0)
    allocated_bytes = dy.Float64(nullable=True, min=0)
    active_bytes = dy.Float64(nullable=True, min=0)
    idle_bytes = dy.Float64(nullable=True, min=0, description="reserved and in no use, where blocks tell it")
    inactive_split_bytes = dy.Float64(nullable=True, min=0, description="idle beside live blocks of their segments")
    largest_free_bytes = dy.Float64(nullable=True, min=0, description="largest idle block")
    external_frag_ratio = dy.Float64(nullable=True, min=0)
    unusable_free_ratio = dy.Float64(nullable=True, min=0, description="for the last request that failed")
    segment_count = dy.UInt64(nullable=True)
    oom_count = dy.UInt64(nullable=True, description="failed allocations that the allocator counts itself")
    lines = dy.List(dy.UInt32(), description="evidence")


class BlockSummary(dy.Schema):
    """One row per source, snapshot and device whose allocator's blocks are known."""

    source_id = dy.UInt32()
    snapshot = dy.String()
    gpu = dy.String(nullable=True)
    reserved_bytes = dy.UInt64()
    allocated_bytes = dy.UInt64(description="in live tensors")
    active_bytes = dy.UInt64(description="live, or freed and still waited for by a stream")
    requested_bytes = dy.UInt64(nullable=True, description="what live tensors asked for, before rounding")
    idle_bytes = dy.UInt64(description="in blocks that nobody uses")
    inactive_split_bytes = dy.UInt64(description="idle beside live blocks of their segments")
    largest_free_bytes = dy.UInt64(description="largest idle block")
    external_frag_ratio = dy.Float64(nullable=True, min=0, max=1, description="null when nothing is idle")
    unusable_free_ratio = dy.Float64(nullable=True, min=0, max=1, description="for the last request that failed")
    segment_count = dy.UInt32()
    block_count = dy.UInt32()
    lines = dy.List(dy.UInt32(), description="evidence; 0 where the source has no lines")


class AllocatorPeaks(dy.Schema):
    """One row per source and device whose allocator recorded its events."""

    source_id = dy.UInt32()
    gpu = dy.String(nullable=True)
    peak_bytes = dy.Int64(min=0, description="largest running sum of allocations minus frees, from nothing")
    basis = dy.Enum(("requested", "allocated"), description="which size the events tell")
    time = dy.Datetime(nullable=True, time_unit="us", time_zone="UTC", description="of the peak")
    alloc_count = dy.UInt32()
    free_count = dy.UInt32()
    oom_count = dy.UInt32()
    orphan_free_count = dy.UInt32(description="frees of what was allocated before the first event")


class GpuActivity(dy.Schema):
    """One row per source and device of a trace."""

    source_id = dy.UInt32()
    gpu = dy.String(nullable=True)
    kernel_count = dy.UInt32()
    copy_count = dy.UInt32(description="copies and fills of memory")
    span_s = dy.Float64(min=0, description="first begin to last end")
    busy_s = dy.Float64(min=0, description="at least one activity runs, whichever its stream")
    kernel_busy_s = dy.Float64(min=0, description="at least one kernel runs")
    launch_p50_s = dy.Float64(nullable=True, min=0, description="from the call that launched a kernel to its begin")
