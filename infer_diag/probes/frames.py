"""The frames of probe results, declared once; what fits a frame of `infer_diag.schema` uses that one instead."""

from __future__ import annotations

import dataframely as dy

from infer_diag.schema import Blocks


class CacheSteps(dy.Schema):
    """One row per call on the page cache and repetition, with what the cache holds afterwards."""

    repeat_id = dy.UInt32()
    sequence = dy.Enum(("stepwise", "article"), description="our order of calls, or the article's on a warm cache")
    step_id = dy.UInt32(description="place in its sequence, from 1")
    call = dy.String()
    file_bytes = dy.UInt64()
    resident_bytes = dy.UInt64(nullable=True, description="null where the kernel does not tell this user")
    resident_ratio = dy.Float64(nullable=True, min=0, max=1)
    duration_s = dy.Float64(min=0, description="of the call alone; WILLNEED returns before its reading is done")


class ReadRuns(dy.Schema):
    """One row per reading of a file."""

    repeat_id = dy.UInt32()
    method = dy.String()
    cache = dy.Enum(("cold", "warm"))
    size_bytes = dy.UInt64()
    resident_before_ratio = dy.Float64(nullable=True, min=0, max=1)
    duration_s = dy.Float64(nullable=True, min=0)
    bytes_per_s = dy.Float64(nullable=True, min=0)
    refusal = dy.String(nullable=True, description="why the method does not work here")


class ReadRates(dy.Schema):
    """One row per method and state of the cache: median and quartiles over the repetitions."""

    method = dy.String()
    cache = dy.Enum(("cold", "warm"))
    run_count = dy.UInt32()
    p50_bytes_per_s = dy.Float64(min=0)
    q1_bytes_per_s = dy.Float64(nullable=True, min=0)
    q3_bytes_per_s = dy.Float64(nullable=True, min=0)
    is_wide = dy.Bool(nullable=True, description="interquartile range above 30 % of the median")


class BlockSettings(dy.Schema):
    """One row per setting of the block device: as it is, as the kernel has it by default, as the article wants it."""

    setting = dy.String(primary_key=True)
    value = dy.String(nullable=True)
    kernel_default = dy.String(nullable=True)
    article_advice = dy.String(nullable=True)
    reading = dy.String()


class LoadFloors(dy.Schema):
    """One row per model: the least time that its bytes take at a rate."""

    model = dy.String()
    size_bytes = dy.UInt64()
    method = dy.String()
    bytes_per_s = dy.Float64(min=0)
    floor_s = dy.Float64(min=0)


class ContextSteps(dy.Schema):
    """One row per fresh process and step of setting up a CUDA context."""

    repeat_id = dy.UInt32()
    step = dy.String()
    duration_s = dy.Float64(nullable=True, min=0)
    taken_bytes = dy.Int64(nullable=True, description="growth of the device's used memory over the step")
    refusal = dy.String(nullable=True, description="why the step could not be done")


class ContextStepStats(dy.Schema):
    """One row per step: median and quartiles over the processes."""

    step = dy.String()
    run_count = dy.UInt32()
    p50_s = dy.Float64(min=0)
    q1_s = dy.Float64(nullable=True, min=0)
    q3_s = dy.Float64(nullable=True, min=0)
    p50_bytes = dy.Float64(nullable=True, description="device memory that the step takes")
    is_wide = dy.Bool(nullable=True, description="interquartile range above 30 % of the median")


class ContextArticle(dy.Schema):
    """One row per stage of the article's table, with the step of ours that comes nearest to it."""

    stage = dy.String(primary_key=True)
    a100_s = dy.Float64(description="as the article has it")
    h100_s = dy.Float64(description="as the article has it")
    a100_over_h100_ratio = dy.Float64()
    step = dy.String()
    p50_s = dy.Float64(nullable=True, min=0, description="ours, on the device of this result")


class FlagPairs(dy.Schema):
    """One row per pair of fresh processes that create a context without and with `CU_CTX_MAP_HOST`."""

    pair_id = dy.UInt32()
    without_flag_s = dy.Float64(min=0)
    with_flag_s = dy.Float64(min=0)
    with_flag_first = dy.Bool()


class FlagEffect(dy.Schema):
    """One row: the median difference (with minus without) and its bootstrap interval at 95 %."""

    pair_count = dy.UInt32()
    difference_s = dy.Float64()
    lower_s = dy.Float64()
    upper_s = dy.Float64()
    without_flag_p50_s = dy.Float64(min=0)
    article_s = dy.Float64(description="what the article says that the flag costs")


class LargestAllocations(dy.Schema):
    """One row per search for the largest allocation that the device serves."""

    before = dy.String(description="what was done to the pool before the search")
    total_bytes = dy.UInt64()
    free_bytes = dy.UInt64()
    headroom_bytes = dy.UInt64(description="never asked for, so that neighbours keep working")
    largest_bytes = dy.UInt64()
    next_failed_bytes = dy.UInt64(nullable=True, description="smallest size that failed; null: stopped at the headroom")
    attempt_count = dy.UInt32()


class AllocatorRuns(dy.Schema):
    """One row per allocator, sizes and seed: the same requests under the same limit."""

    allocator = dy.String()
    sizes = dy.Enum(("exact", "jittered"))
    seed_id = dy.UInt32()
    limit_bytes = dy.UInt64()
    request_count = dy.UInt32()
    failure_count = dy.UInt32()
    peak_live_bytes = dy.UInt64(description="largest sum of requested bytes alive at a time")
    peak_reserved_bytes = dy.UInt64(nullable=True)
    largest_free_bytes = dy.UInt64(nullable=True, description="largest idle block at the end")
    external_frag_ratio = dy.Float64(nullable=True, min=0, max=1, description="1 − largest/total of the idle blocks")
    internal_waste_ratio = dy.Float64(nullable=True, min=0, max=1, description="handed out and not asked for")
    malloc_p50_s = dy.Float64(nullable=True, min=0)
    malloc_max_s = dy.Float64(nullable=True, min=0)


class GraphRuns(dy.Schema):
    """One row per repetition of a step with a chain of kernels."""

    node_count = dy.UInt32(description="kernels in the chain")
    step = dy.Enum(("eager", "capture", "first_launch", "replay"))
    repeat_id = dy.UInt32()
    duration_s = dy.Float64(min=0)
    taken_bytes = dy.Int64(nullable=True, description="growth of the device's used memory; null where it is not read")


class GraphStats(dy.Schema):
    """One row per length of the chain: medians, and after how many replays the capture has paid for itself."""

    node_count = dy.UInt32()
    eager_p50_s = dy.Float64(min=0)
    capture_p50_s = dy.Float64(min=0)
    first_launch_p50_s = dy.Float64(min=0)
    replay_p50_s = dy.Float64(min=0)
    taken_bytes = dy.Int64(nullable=True)
    break_even_count = dy.Float64(nullable=True, min=0, description="null: a replay saves nothing")


class CaptureChecks(dy.Schema):
    """One row per call that was tried while a stream was being captured."""

    call = dy.String(primary_key=True)
    allowed = dy.Bool()
    error = dy.String(nullable=True)


class KernelRuns(dy.Schema):
    """One row per launch of a dequantisation kernel."""

    kernel = dy.String()
    launch_id = dy.UInt32(description="1 is the first one, compilation and module load included")
    duration_s = dy.Float64(min=0)
    read_bytes = dy.UInt64()
    written_bytes = dy.UInt64()
    bytes_per_s = dy.Float64(min=0)


class KvLayoutRuns(dy.Schema):
    """One row per launch of a kernel that reads a KV cache in a layout, or of a copy on the same device."""

    layout = dy.String()
    launch_id = dy.UInt32()
    duration_s = dy.Float64(min=0)
    moved_bytes = dy.UInt64(description="read, and of a copy written too")
    bytes_per_s = dy.Float64(min=0)
    blocks_per_sm_count = dy.UInt32(nullable=True, description="thread blocks that an SM holds, by the driver")
    register_count = dy.UInt32(nullable=True, description="of a thread")


class KvLayoutRates(dy.Schema):
    """One row per layout and for the copy: median and quartiles over the launches."""

    layout = dy.String(primary_key=True)
    launch_count = dy.UInt32()
    p50_bytes_per_s = dy.Float64(min=0)
    q1_bytes_per_s = dy.Float64(nullable=True, min=0)
    q3_bytes_per_s = dy.Float64(nullable=True, min=0)
    of_copy_ratio = dy.Float64(min=0, description="of what the copy moves; a kernel that only reads may exceed 1")
    is_wide = dy.Bool(nullable=True, description="interquartile range above 30 % of the median")
    blocks_per_sm_count = dy.UInt32(nullable=True)
    register_count = dy.UInt32(nullable=True)


class PipelinePhases(dy.Schema):
    """One row per start and phase of a traced pipeline; seconds count from the launch of its process."""

    start_id = dy.UInt32()
    phase = dy.String()
    begin_s = dy.Float64(min=0)
    duration_s = dy.Float64(nullable=True, min=0, description="null: it never ended")
    cpu_s = dy.Float64(
        nullable=True, min=0, description="processor time of all threads; far below the duration: it waited"
    )
    peak_bytes = dy.UInt64(nullable=True, description="largest resident memory until its end, mapped files included")


class ImportTimes(dy.Schema):
    """One row per module that a start imported, in the order in which the imports ended (`-X importtime`)."""

    start_id = dy.UInt32()
    module = dy.String()
    depth_count = dy.UInt32(description="how many imports enclose it")
    self_s = dy.Float64(min=0)
    cumulative_s = dy.Float64(min=0)


FRAMES: dict[str, type[dy.Schema]] = {
    "cache_steps": CacheSteps,
    "read_runs": ReadRuns,
    "read_rates": ReadRates,
    "block_settings": BlockSettings,
    "load_floors": LoadFloors,
    "context_steps": ContextSteps,
    "context_step_stats": ContextStepStats,
    "context_article": ContextArticle,
    "flag_pairs": FlagPairs,
    "flag_effect": FlagEffect,
    "largest_allocations": LargestAllocations,
    "allocator_runs": AllocatorRuns,
    "free_blocks": Blocks,
    "graph_runs": GraphRuns,
    "graph_stats": GraphStats,
    "capture_checks": CaptureChecks,
    "kernel_runs": KernelRuns,
    "kv_layout_runs": KvLayoutRuns,
    "kv_layout_rates": KvLayoutRates,
    "pipeline_phases": PipelinePhases,
    "import_times": ImportTimes,
}
"""Every frame that a result may hold, by name."""
