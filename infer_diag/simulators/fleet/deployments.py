"""The 27 deployments of the sample fleet: what each is without a fault, and which causes are at work in it.

Models are those of the article (Llama-2-13B, Qwen2-7B, Phi-3-mini) and two of Llama 3.1; prices are round figures of
the order that clouds ask. A cause carries the name that the cost analysis has for it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from infer_diag.errors import UnknownNameError
from infer_diag.simulators.fleet.plan import Plan

_WRITES_LONG = {"prompt_median": 420.0, "prompt_cv": 0.7, "output_median": 640.0, "output_cv": 0.5}
_REVIEWS_CODE = {
    "prompt_median": 1469.0,
    "prompt_cv": 0.95,
    "output_median": 13.0,
    "output_cv": 1.9,
    "arrival_cv": 13.2,
}
_SPOT = {
    "pod_life_s": 1500.0,
    "image_cached": False,
    "compile_cached": False,
    "weights_bytes_per_s": 3.5e8,
    "node_s": 21.0,
}
_WHOLE_BATCHES = {"scheduler": "dynamic-batch", "batch_size": 8, "batch_wait_s": 0.2, "host_s": 0.02}
_NO_EVENTS = frozenset({"log", "scrapes", "prices"})
_NO_SCRAPES = frozenset({"log", "events", "prices"})
_NO_PRICE = frozenset({"log", "events", "scrapes"})
_TRACED = frozenset({"log", "events", "spans", "prices"})
_APP = frozenset({"events", "spans", "prices"})
_PAGES = frozenset({"log", "events", "pages", "prices"})


def _slots(hours: float) -> tuple[tuple[float, float], ...]:
    """Demand for eight minutes of every twenty, from the third minute on."""
    return tuple((20 * slot / 60 + 0.05, 20 * slot / 60 + 0.19) for slot in range(int(3 * hours) + 1))


def _llama2(name: str, engine: str, version: str, about: str, **more: Any) -> Plan:
    return Plan(name, "Llama-2-13B", "A100-SXM-80GB", engine, version, about, price_per_gpu_h=1.9, **more)


def _qwen2(name: str, engine: str, version: str, about: str, **more: Any) -> Plan:
    found = Plan(name, "Qwen2-7B", "A100-SXM-80GB", engine, version, about, price_per_gpu_h=1.9, max_model_len=8192)
    return replace(found, **more)


def _phi3(name: str, engine: str, version: str, about: str, **more: Any) -> Plan:
    return Plan(name, "Phi-3-mini", "A100-SXM-40GB", engine, version, about, price_per_gpu_h=1.3, **more)


def _llama3(name: str, engine: str, version: str, about: str, **more: Any) -> Plan:
    found = Plan(name, "Llama-3.1-8B", "H100-SXM", engine, version, about, price_per_gpu_h=3.2, max_model_len=8192)
    return replace(found, **more)


_PLANS = (
    _llama2("chat-eu", "vllm", "0.11.0", "a chat; its server's log, its pods' events, its metrics from Prometheus"),
    _llama2(
        "support-bot",
        "vllm",
        "0.11.2",
        "a support chat; log, events, metrics from Prometheus",
        causes={"batching": {"max_num_seqs": 8}},
    ),
    _llama2(
        "rag-legal",
        "vllm",
        "0.11.2",
        "answers from contracts; log, events, pages of /metrics every five minutes",
        keeps=_PAGES,
        scrape_every_s=300.0,
        causes={"fragmentation": {"memory_utilization": 0.46}},
    ),
    _llama2(
        "helpdesk",
        "vllm-v0",
        "0.6.6",
        "a help desk on an engine of 2024; log and metrics, no events",
        keeps=_NO_EVENTS,
        causes={"batching": {"scheduler": "vllm-v0", "max_num_batched_tokens": 4096, "max_num_seqs": 12}},
    ),
    _llama2(
        "assist-fr",
        "sglang",
        "0.4.10",
        "an assistant that writes long; log and events",
        keeps=_NO_SCRAPES,
        span_h=2.5,
        causes={"mix": _WRITES_LONG},
    ),
    _llama2(
        "agent-tools",
        "vllm",
        "0.11.0",
        "an agent's model on nodes that are taken away; log of all pods, events, metrics",
        causes={"cold_start": _SPOT},
    ),
    _llama2(
        "writer",
        "tgi",
        "3.3.4",
        "a writing aid; log with a line per request, events",
        keeps=_NO_SCRAPES,
        span_h=1.5,
        causes={"mix": _WRITES_LONG},
    ),
    _llama2(
        "batch-hf",
        "pipeline",
        "1.8.2",
        "a pipeline of transformers behind a queue; traces of its requests and of its start, events",
        keeps=_APP | {"starts"},
        causes={"batching": _WHOLE_BATCHES},
    ),
    _qwen2("search-qa", "vllm", "0.11.0", "answers over search results; log, events, metrics from Prometheus"),
    _qwen2(
        "search-qa-canary",
        "vllm",
        "0.11.0",
        "the same, on GPUs rented by the hour; log, events, metrics",
        causes={"price": {"price_per_gpu_h": 4.1}},
    ),
    _qwen2(
        "code-review",
        "vllm",
        "0.11.2",
        "reviews of code: long prompts, short answers, in bursts; log, events, metrics",
        causes={"mix": _REVIEWS_CODE},
    ),
    _qwen2(
        "night-desk",
        "vllm",
        "0.11.0",
        "jobs that come every twenty minutes; log, events, metrics",
        causes={"idle": {"demand_h": _slots(4.0)}},
    ),
    _qwen2(
        "translate",
        "tensorrt-llm",
        "0.20.0",
        "translations; a log that ends with the start, a trace per request, events",
        keeps=_TRACED,
        span_h=0.75,
        causes={"mix": {**_WRITES_LONG, "output_median": 900.0}},
    ),
    _qwen2(
        "forms",
        "tgi",
        "3.3.4",
        "forms filled from letters; log with a line per request, events",
        keeps=_NO_SCRAPES,
        span_h=1.5,
        causes={"batching": {"max_num_seqs": 6}, "mix": _WRITES_LONG},
    ),
    _qwen2(
        "kb-chat",
        "vllm",
        "0.11.0",
        "a chat over a knowledge base; log of all pods, events, metrics",
        causes={"cold_start": {**_SPOT, "pod_life_s": 2100.0}, "batching": {"max_num_seqs": 8}},
    ),
    _phi3("edge-qa", "vllm", "0.11.2", "short answers; log, events, metrics from Prometheus"),
    _phi3(
        "phi-chat",
        "vllm",
        "0.11.0",
        "a chat whose container's clock is 95 s ahead; log, events, metrics",
        clock_ahead_s=95.0,
    ),
    _phi3(
        "classify",
        "sglang",
        "0.4.10",
        "labels with reasons; a log of which an hour was rotated away, events",
        keeps=_NO_SCRAPES,
        span_h=2.5,
        hole_h=(0.9, 1.6),
        causes={"mix": {**_WRITES_LONG, "output_median": 1000.0}},
    ),
    _phi3(
        "tagger",
        "vllm",
        "0.11.2",
        "tags beside another process on the same GPU; log, events, metrics",
        causes={"fragmentation": {"memory_utilization": 0.36}},
    ),
    _phi3(
        "phi-sessions",
        "pipeline",
        "2.1.0",
        "a pipeline that keeps sessions' caches on the GPU; log, events, traces, a memory snapshot",
        keeps=_APP | {"log", "first_start", "snapshot"},
        span_h=2.5,
        session_cache_ratio=0.75,
        causes={"batching": _WHOLE_BATCHES, "fragmentation": {"expandable_segments": False}},
    ),
    _llama3("copilot", "vllm", "0.11.2", "completions; log, events, metrics from Prometheus", span_h=2.5),
    _llama3(
        "copilot-b",
        "vllm",
        "0.11.0",
        "completions behind one system prompt; log, events, metrics",
        span_h=2.5,
        prefix_tokens=1600,
        causes={"prefix_cache": {"prefix_caching": False}},
    ),
    _llama3(
        "extract",
        "tensorrt-llm",
        "0.20.0",
        "fields out of documents; a log that ends with the start, a trace per request, events",
        keeps=_TRACED,
        span_h=1.5,
        causes={"batching": {"max_num_seqs": 4}, "mix": {**_WRITES_LONG, "output_median": 1000.0}},
    ),
    _llama3(
        "live-chat",
        "vllm",
        "0.11.0",
        "a chat; a log without the runtime's stamps in a container on Berlin's time, metrics, no events",
        keeps=_NO_EVENTS,
        span_h=2.5,
        stamped=False,
        zone_h=2,
    ),
    _llama3(
        "gen-api",
        "sglang",
        "0.4.10",
        "an interface for other teams; log, events, metrics, and nobody knows the price",
        keeps=_NO_PRICE,
        span_h=2.5,
        causes={"idle": {"demand_h": _slots(2.5)}, "mix": {**_WRITES_LONG, "output_median": 1000.0}},
    ),
    Plan(
        "deep-research",
        "Llama-3.1-70B",
        "H100-SXM",
        "vllm",
        "0.11.2",
        "long reports on four GPUs; log, events, metrics",
        gpu_count=4,
        price_per_gpu_h=3.2,
        max_model_len=8192,
    ),
    Plan(
        "desk-llama",
        "Llama-3.1-8B",
        "L4",
        "llama.cpp",
        "b6123",
        "a small server under a desk; its log alone",
        price_per_gpu_h=0.7,
        precision="Q4_K",
        max_num_seqs=4,
        target_running=4,
        keeps=frozenset({"log", "prices"}),
        prefix_caching=False,
        **_WRITES_LONG,  # type: ignore[arg-type]
    ),
)
PLANS = {plan.name: plan for plan in _PLANS}


def plan_named(name: str) -> Plan:
    """The deployment of this name, without its causes.

    Raises:
        UnknownNameError: the fleet has none of this name.
    """
    if name not in PLANS:
        raise UnknownNameError("deployment of the sample fleet", name, PLANS)
    return PLANS[name]
