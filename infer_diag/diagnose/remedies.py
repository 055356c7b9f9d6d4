"""What each engine calls the setting that a remedy speaks of."""

from __future__ import annotations

SETTINGS: dict[str, dict[str, str]] = {
    "vllm": {
        "sequence_limit": "--max-num-seqs",
        "token_budget": "--max-num-batched-tokens",
        "pool_size": "--gpu-memory-utilization",
        "pool_dtype": "--kv-cache-dtype fp8",
        "context_length": "--max-model-len",
        "parallel_size": "--tensor-parallel-size",
        "traces": "--otlp-traces-endpoint",
        "steps": "--enable-logging-iteration-details",
        "request_log": "--enable-log-requests",
    },
    "sglang": {
        "sequence_limit": "--max-running-requests",
        "token_budget": "--chunked-prefill-size",
        "prefill_budget": "--max-prefill-tokens",
        "pool_size": "--mem-fraction-static",
        "pool_dtype": "--kv-cache-dtype fp8_e5m2",
        "context_length": "--context-length",
        "parallel_size": "--tp-size",
        "admission": "--schedule-conservativeness",
        "metrics": "--enable-metrics",
        "decode_lines": "--decode-log-interval",
    },
    "tgi": {
        "sequence_limit": "--max-batch-size",
        "token_budget": "--max-batch-prefill-tokens",
        "pool_size": "--cuda-memory-fraction",
        "pool_tokens": "--max-batch-total-tokens",
    },
}
"""Engine → meaning → flag. An engine or meaning that is not here is spoken of in plain words."""

_WORDS = {
    "sequence_limit": "the limit on sequences that run at once",
    "token_budget": "the token budget of a step",
    "prefill_budget": "the prompt tokens of a batch",
    "pool_size": "the share of memory that the KV pool gets",
    "pool_dtype": "a smaller number format for the KV cache",
    "context_length": "the longest context allowed",
    "parallel_size": "the number of GPUs per replica",
    "admission": "how cautiously requests are admitted",
    "traces": "tracing of requests",
    "steps": "a log of every engine step",
    "metrics": "the metrics endpoint",
    "decode_lines": "the decode lines",
}


def setting(engine: str, meaning: str) -> str:
    """The engine's own flag for `meaning` in backticks, or plain words where the engine is not known here."""
    flag = SETTINGS.get(engine, {}).get(meaning)
    return f"`{flag}`" if flag else _WORDS[meaning]


def has_setting(engine: str, meaning: str) -> bool:
    """Whether the engine has a flag of its own for `meaning`."""
    return meaning in SETTINGS.get(engine, {})


def more_pool(engine: str) -> str:
    """How to let more sequences fit into the KV pool of this engine."""
    grow = f"Raise {setting(engine, 'pool_size')} if memory is left"
    shrink = f"store the KV cache smaller ({setting(engine, 'pool_dtype')})"
    spread = f"spread the model over more GPUs ({setting(engine, 'parallel_size')})"
    return f"{grow}, {shrink}, or {spread}; otherwise add a replica."
