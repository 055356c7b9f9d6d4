"""The frames of serving: requests, what the engine prints of itself, its steps and its configuration."""

from __future__ import annotations

import dataframely as dy

from infer_diag.schema.evidence import Evidence, time_column


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


class RequestTimings(Evidence):
    """One row per finished request of an engine that prints durations and not the events between which they lie.

    Each is what the engine's line says under the glossary's definition; a duration that the engine defines otherwise is
    null (its time per token that counts the prompt is no `tpot_s`). `time` is the stamp of the line that tells.
    """

    request_id = dy.String()
    time = time_column()
    replica = dy.String(nullable=True)
    queue_s = dy.Float64(nullable=True, min=0)
    prefill_s = dy.Float64(nullable=True, min=0)
    decode_s = dy.Float64(nullable=True, min=0)
    compute_s = dy.Float64(nullable=True, min=0, description="prefill and decode together, not told apart")
    ttft_s = dy.Float64(nullable=True, min=0)
    tpot_s = dy.Float64(nullable=True, min=0)
    e2e_s = dy.Float64(nullable=True, min=0)
    prompt_tokens = dy.UInt32(nullable=True)
    cached_tokens = dy.UInt32(nullable=True)
    output_tokens = dy.UInt32(nullable=True)


class RequestTotals(Evidence):
    """One row per model and measure of a source that prints sums over requests and no single one.

    A request that one model passes on to others is told once, by the model that the client called.
    """

    model = dy.String(nullable=True)
    measure = dy.Enum(
        ("queue_s", "prefill_s", "decode_s", "ttft_s", "tpot_s", "e2e_s", "prompt_tokens", "output_tokens")
    )
    request_count = dy.UInt64()
    mean = dy.Float64(min=0, description="sum over the requests, divided by their number")
    bucket_max = dy.List(
        dy.Float64(nullable=True), nullable=True, description="upper bounds of a histogram's buckets; null: without one"
    )
    bucket_counts = dy.List(dy.UInt64(), nullable=True, description="requests in each bucket, above the bound before")


class EngineSamples(Evidence):
    """One row per statistics line, batch line or scrape."""

    time = time_column()
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
    acceptance_length_tokens = dy.Float64(nullable=True, min=0, description="mean per step of the verified model")
    draft_acceptance_ratio = dy.Float64(nullable=True, min=0, description="drafted tokens that were accepted")
    accepted_tokens_per_s = dy.Float64(nullable=True, min=0)
    drafted_tokens_per_s = dy.Float64(nullable=True, min=0)


class EngineSteps(Evidence):
    """One row per engine step."""

    time = time_column()
    replica = dy.Categorical(nullable=True)
    kind = dy.Enum(("prefill", "decode", "mixed", "idle"))
    prefill_count = dy.UInt32(description="requests in their prompt")
    decode_count = dy.UInt32(description="requests in their output")
    prefill_tokens = dy.UInt32()
    decode_tokens = dy.UInt32()
    duration_s = dy.Float64(min=0)


class KvBlocks(Evidence):
    """One row per KV block or pool sample."""

    time = time_column()
    block_id = dy.UInt64(nullable=True)
    filled_tokens = dy.UInt32(nullable=True)
    state = dy.Enum(("free", "active", "cached"))


class Deployments(Evidence):
    """One row per engine configuration found."""

    start_id = dy.String(nullable=True)
    model = dy.String(nullable=True)
    engine = dy.String()
    engine_version = dy.String(nullable=True)
    gpu = dy.String(nullable=True)
    gpu_count = dy.UInt32(nullable=True, description="of one engine, where engines run data-parallel")
    data_parallel_count = dy.UInt32(nullable=True, description="engines that share the requests of one server")
    precision = dy.String(nullable=True)
    price_per_gpu_h = dy.Float64(nullable=True, min=0)
    kv_cache_tokens = dy.UInt64(nullable=True, description="tokens that the KV pool holds")
    max_running_count = dy.UInt32(nullable=True, description="sequence limit of the scheduler")
    max_batch_tokens = dy.UInt32(nullable=True, description="token budget of a step")
    flags = dy.String(nullable=True, description="the rest of the configuration as the log prints it, redacted")
