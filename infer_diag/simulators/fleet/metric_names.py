"""How each engine names what it exports."""

from __future__ import annotations

from infer_diag.simulators.fleet.models import repository
from infer_diag.simulators.fleet.plan import Plan
from infer_diag.simulators.fleet.scrapes import SECONDS, TOKENS, Names


def names_of(plan: Plan) -> Names:
    """The metrics of a deployment's engine."""
    model = repository(plan.model)
    if plan.engine in ("vllm", "vllm-v0"):
        return _vllm(plan, model)
    if plan.engine == "sglang":
        return _sglang(model)
    return _TGI if plan.engine == "tgi" else _tensorrt_llm(model)


def _vllm(plan: Plan, model: str) -> Names:
    old = plan.engine == "vllm-v0"
    labels = (("model_name", model),) if old else (("engine", "0"), ("model_name", model))
    counters = {
        "vllm:num_preemptions_total": "preempted",
        "vllm:prompt_tokens_total": "prompt_tokens",
        "vllm:generation_tokens_total": "output_tokens",
    }
    if not old:
        counters |= {"vllm:prefix_cache_queries_total": "prompt_tokens", "vllm:prefix_cache_hits_total": "prefix_hits"}
    usage = "gpu_cache_usage_perc" if old else "kv_cache_usage_perc"
    return Names(
        labels,
        {
            "vllm:num_requests_running": "running",
            "vllm:num_requests_waiting": "waiting",
            f"vllm:{usage}": "kv_usage",
        },
        counters,
        {
            "vllm:time_to_first_token_seconds": ("ttft", SECONDS),
            "vllm:e2e_request_latency_seconds": ("e2e", SECONDS),
            "vllm:request_queue_time_seconds": ("queue", SECONDS),
            "vllm:request_prefill_time_seconds": ("prefill", SECONDS),
            "vllm:request_decode_time_seconds": ("decode", SECONDS),
            "vllm:request_prompt_tokens": ("prompt", TOKENS),
            "vllm:request_generation_tokens": ("output", TOKENS),
        },
    )


def _sglang(model: str) -> Names:
    return Names(
        (("model_name", model), ("tp_rank", "0")),
        {"sglang:num_running_reqs": "running", "sglang:num_queue_reqs": "waiting", "sglang:token_usage": "kv_usage"},
        {
            "sglang:num_retracted_requests_total": "preempted",
            "sglang:prompt_tokens_total": "prompt_tokens",
            "sglang:generation_tokens_total": "output_tokens",
        },
        {
            "sglang:time_to_first_token_seconds": ("ttft", SECONDS),
            "sglang:e2e_request_latency_seconds": ("e2e", SECONDS),
            "sglang:queue_time_seconds": ("queue", SECONDS),
        },
    )


_TGI = Names(
    (),
    {"tgi_batch_current_size": "running", "tgi_queue_size": "waiting"},
    {},
    {
        "tgi_request_duration": ("e2e", SECONDS),
        "tgi_request_queue_duration": ("queue", SECONDS),
        "tgi_request_input_length": ("prompt", TOKENS),
        "tgi_request_generated_tokens": ("output", TOKENS),
    },
)


def _tensorrt_llm(model: str) -> Names:
    return Names(
        (("engine_type", "trt"), ("model_name", model)),
        {},
        {},
        {
            "trtllm:time_to_first_token_seconds": ("ttft", SECONDS),
            "trtllm:e2e_request_latency_seconds": ("e2e", SECONDS),
            "trtllm:request_queue_time_seconds": ("queue", SECONDS),
        },
    )
