"""Which metric of which engine means what: names across versions, units, and how series of one engine add up."""

from __future__ import annotations

from dataclasses import dataclass

MIB = float(1 << 20)


@dataclass(frozen=True)
class Family:
    """One metric; `names` without the engine's prefix, `scale` turns its unit into the base unit.

    `kind` is `gauge`, `counter` (its increase counts), `histogram` (`_sum`, `_count`, `_bucket`) or `device`. `across`
    says what series of one replica make together: ranks repeat a value (`max`), reasons and models share it (`sum`).
    """

    column: str
    names: tuple[str, ...]
    kind: str = "gauge"
    scale: float = 1.0
    across: str = "sum"


@dataclass(frozen=True)
class Exporter:
    """The metrics of one engine; collectors turn the colon of a prefix into an underscore."""

    engine: str
    prefixes: tuple[str, ...]
    families: tuple[Family, ...]


def _counter(column: str, *names: str, across: str = "sum") -> Family:
    return Family(column, (*(f"{name}_total" for name in names), *names), "counter", across=across)


def _histogram(column: str, *names: str) -> Family:
    return Family(column, names, "histogram")


VLLM = Exporter(
    "vllm",
    ("vllm:", "vllm_"),
    (
        Family("running_count", ("num_requests_running",)),
        Family("waiting_count", ("num_requests_waiting",)),
        Family("swapped_count", ("num_requests_swapped",)),
        # A fraction in spite of the name; 0.11 exports it under both.
        Family("kv_usage_ratio", ("kv_cache_usage_perc", "gpu_cache_usage_perc"), across="max"),
        _counter("preemption_count", "num_preemptions"),
        _counter("prompt_tokens", "prompt_tokens"),
        _counter("output_tokens", "generation_tokens"),
        _counter("prefix_queries", "prefix_cache_queries", "gpu_prefix_cache_queries"),
        _counter("prefix_hits", "prefix_cache_hits", "gpu_prefix_cache_hits"),
        _histogram("ttft_s", "time_to_first_token_seconds"),
        _histogram("tpot_s", "request_time_per_output_token_seconds"),
        _histogram("e2e_s", "e2e_request_latency_seconds"),
        _histogram("queue_s", "request_queue_time_seconds"),
        _histogram("prefill_s", "request_prefill_time_seconds"),
        _histogram("decode_s", "request_decode_time_seconds"),
        _histogram("prompt_tokens", "request_prompt_tokens"),
        _histogram("output_tokens", "request_generation_tokens"),
    ),
)
SGLANG = Exporter(
    "sglang",
    ("sglang:", "sglang_"),
    (
        Family("running_count", ("num_running_reqs",), across="max"),
        Family("waiting_count", ("num_queue_reqs",), across="max"),
        Family("kv_usage_ratio", ("token_usage",), across="max"),
        Family("prefix_hit_ratio", ("cache_hit_rate",), across="max"),
        _counter("preemption_count", "num_retracted_requests", across="max"),
        _counter("prompt_tokens", "prompt_tokens"),
        _counter("output_tokens", "generation_tokens"),
        _histogram("ttft_s", "time_to_first_token_seconds"),
        _histogram("e2e_s", "e2e_request_latency_seconds"),
        _histogram("queue_s", "queue_time_seconds"),
    ),
)
TGI = Exporter(
    "tgi",
    ("tgi_",),
    (
        Family("running_count", ("batch_current_size",)),
        Family("waiting_count", ("queue_size",)),
        _histogram("e2e_s", "request_duration"),
        _histogram("queue_s", "request_queue_duration"),
        _histogram("prompt_tokens", "request_input_length"),
        _histogram("output_tokens", "request_generated_tokens"),
    ),
)
LLAMA_CPP = Exporter(
    "llama.cpp",
    ("llamacpp:", "llamacpp_"),
    (
        Family("running_count", ("requests_processing",)),
        Family("waiting_count", ("requests_deferred",)),
        Family("kv_usage_ratio", ("kv_cache_usage_ratio",), across="max"),
        _counter("prompt_tokens", "prompt_tokens"),
        _counter("output_tokens", "tokens_predicted"),
    ),
)
LMDEPLOY = Exporter(
    "lmdeploy",
    ("lmdeploy:", "lmdeploy_"),
    (
        Family("running_count", ("num_requests_running",)),
        Family("waiting_count", ("num_requests_waiting",)),
        _counter("prompt_tokens", "prompt_tokens"),
        _counter("output_tokens", "generation_tokens"),
        _histogram("ttft_s", "time_to_first_token_seconds"),
        _histogram("e2e_s", "e2e_request_latency_seconds"),
        _histogram("queue_s", "request_queue_time_seconds"),
        _histogram("prefill_s", "request_prefill_time_seconds"),
        _histogram("decode_s", "request_decode_time_seconds"),
    ),
)
TENSORRT_LLM = Exporter(
    "tensorrt-llm",
    ("trtllm:", "trtllm_"),
    (
        _histogram("ttft_s", "time_to_first_token_seconds"),
        _histogram("e2e_s", "e2e_request_latency_seconds"),
        _histogram("queue_s", "request_queue_time_seconds"),
    ),
)
TRITON = Exporter(
    "triton",
    ("nv_",),
    (
        Family("waiting_count", ("inference_pending_request_count",)),
        # Cumulative microseconds: with the count of successful requests they are sums over requests.
        Family("request_count", ("inference_request_success",), "counter"),
        Family("e2e_s", ("inference_request_duration_us",), "counter", 1e-6),
        Family("queue_s", ("inference_queue_duration_us",), "counter", 1e-6),
        Family("used_bytes", ("gpu_memory_used_bytes",), "device"),
        Family("power_w", ("gpu_power_usage",), "device"),
    ),
)
DCGM = Exporter(
    "dcgm-exporter",
    ("DCGM_FI_",),
    (
        Family("used_bytes", ("DEV_FB_USED",), "device", MIB),
        Family("free_bytes", ("DEV_FB_FREE",), "device", MIB),
        Family("reserved_bytes", ("DEV_FB_RESERVED",), "device", MIB),
        Family("sm_active_ratio", ("PROF_SM_ACTIVE",), "device"),
        Family("dram_active_ratio", ("PROF_DRAM_ACTIVE",), "device"),
        Family("power_w", ("DEV_POWER_USAGE",), "device"),
        Family("xid", ("DEV_XID_ERRORS",), "device"),
    ),
)

GEN_AI = Exporter(
    # OpenTelemetry's conventions for servers of generative models, by the names that Prometheus has for them. What
    # clients measure holds the network too and is left out.
    "opentelemetry",
    ("gen_ai_server_",),
    (
        _histogram("e2e_s", "request_duration_seconds"),
        _histogram("ttft_s", "time_to_first_token_seconds"),
        _histogram("tpot_s", "time_per_output_token_seconds"),
    ),
)

KUBELET = Exporter(
    "kubelet",
    ("kubelet_",),
    (
        _histogram("device_allocation", "device_plugin_alloc_duration_seconds"),
        _counter("device_registration", "device_plugin_registration"),
        _histogram("sandbox", "run_podsandbox_duration_seconds"),
        _histogram("operation", "runtime_operations_duration_seconds"),
        _histogram("pod_start", "pod_start_duration_seconds"),
        _histogram("pod_start_total", "pod_start_total_duration_seconds"),
        _histogram("pod_start_without_pulls", "pod_start_sli_duration_seconds"),
    ),
)

EXPORTERS = (VLLM, SGLANG, TGI, LLAMA_CPP, LMDEPLOY, TENSORRT_LLM, TRITON, DCGM, GEN_AI, KUBELET)
HISTOGRAM_PARTS = ("_sum", "_count", "_bucket")


@dataclass(frozen=True)
class Meaning:
    """What samples of one exact name say; `part` is `sum`, `count` or `bucket` of a histogram and else empty."""

    engine: str
    column: str
    kind: str
    part: str
    scale: float
    across: str
    rank: int


def meanings() -> dict[str, Meaning]:
    """Every sample name that fills a frame; `rank` orders the names of one family, the one to prefer first."""
    found: dict[str, Meaning] = {}
    for exporter in EXPORTERS:
        for family in exporter.families:
            parts = HISTOGRAM_PARTS if family.kind == "histogram" else ("",)
            for rank, name in enumerate(family.names):
                for prefix in exporter.prefixes:
                    for part in parts:
                        found[f"{prefix}{name}{part}"] = Meaning(
                            exporter.engine, family.column, family.kind, part[1:], family.scale, family.across, rank
                        )
    return found


MEANINGS = meanings()
