"""The article's figures on schedulers and on request lengths (its sections 3.3 and 1) beside simulated ones."""

from __future__ import annotations

import polars as pl

from infer_diag.report.claims import Claim, Claims
from infer_diag.simulators.serving.hardware import GPUS, MODELS
from infer_diag.units import format_bytes, format_s

_REQUESTS, _TOKENS = 128, 2048
_RATES = {"vLLM": (18_420, 0.342), "Orca": (17_930, 0.427), "Punica": (16_750, 0.518)}
"""Output tokens per second and the 99th percentile of latency that the article prints for so many requests."""
_BLOCK_TOKENS, _BLOCK_RATIO = 16, 0.092
_PUBLISHED = {
    "vllm-v1": ("vLLM", "−12.3 %"),
    "orca-article": ("Orca with a priority queue", "−19.1 %"),
    "punica": ("Punica", "−28.6 %"),
}
_NOT_SO = {
    "vllm-v1": "No GPU, model or interval is named; 128 · 2,048 tokens of Llama-2-13B need 215 GB of KV.",
    "orca-article": "Orca serves in order of arrival and has no such queue; simulated is the article's own design.",
    "punica": "Punica batches LoRA adapters; it has no KV cache shared by tenants and prefetches nothing.",
}


def scheduler_claims(runs: pl.DataFrame, where: str) -> Claims:
    """What real traffic takes from each scheduler, and what the article's re-sorting costs.

    Frame in: SchedulerRuns; rows named `orca` and `orca-article` give the cost of re-sorting. `where` says on which
    model, GPU and traffic it was simulated.
    """
    rows = {row["scheduler"]: row for row in runs.iter_rows(named=True)}
    found = [
        Claim(
            f"{name}: throughput under real traffic",
            published,
            _change(rows[key]),
            "simulated",
            _NOT_SO[key],
            where,
        )
        for key, (name, published) in _PUBLISHED.items()
        if key in rows
    ]
    if {"orca", "orca-article"} <= rows.keys():
        cost = 1 - rows["orca-article"]["real_tokens_per_s"] / rows["orca"]["real_tokens_per_s"]
        longer = rows["orca-article"]["longest_wait_s"] - rows["orca"]["longest_wait_s"]
        found.append(
            Claim(
                "re-sorting five requests at 0.8 ms each",
                "meets the SLA under load",
                f"{_signed(-cost)} throughput, the longest wait {longer:+.1f} s",
                "simulated",
                f"Five heads of a long queue are not its tail; 4 ms are taken from every step, of {_step_ms():.1f} ms "
                "by the article's own throughput. Python's PriorityQueue has neither peek_top_k nor reheapify.",
                where,
            )
        )
    return Claims(found)


def printed_claims() -> Claims:
    """The article's throughputs, latencies, prefetch and block fragmentation, held to what memory allows. Bounded.

    A step that computes an output of each request reads the weights and all of their KV once:
    seconds ≥ (weights + requests · tokens · KV per token) / bandwidth. Tokens in a latency = latency · rate / requests.
    """
    return Claims([_throughput_claim(), _latency_claim(), _PREFETCH, _block_claim()])


_PREFETCH = Claim(
    "Punica's useless prefetch",
    "37 %",
    None,
    "not_identifiable",
    "Punica prefetches no KV and shares none between tenants; what was counted is not said.",
)


def _throughput_claim() -> Claim:
    small, large = MODELS["Qwen2-7B"], MODELS["Llama-2-13B"]
    kv_bytes = _REQUESTS * _TOKENS * small.kv_bytes_per_token
    read_bytes = small.matrix_parameters * small.weight_bytes + kv_bytes
    floors = [
        f"{format_s(read_bytes / GPUS[name].memory_bytes_per_s)} ({name})"
        for name in ("H200-SXM", "H100-SXM", "A100-SXM-80GB")
    ]
    too_large = format_bytes(round(_REQUESTS * _TOKENS * large.kv_bytes_per_token))
    steps = [format_s(_REQUESTS / rate) for rate, _ in _RATES.values()]
    return Claim(
        f"throughput of vLLM, Orca, Punica at {_REQUESTS} requests of {_TOKENS:,} tokens",
        ", ".join(f"{rate:,}" for rate, _ in _RATES.values()) + " tokens/s",
        f"steps of {', '.join(steps)}; Qwen2-7B's take at least {', '.join(floors)}",
        "bounded",
        "No GPU and no model is named. Only the newest card reads fast enough, with the model of fewest KV heads; the "
        f"KV of Llama-2-13B alone would be {too_large}, on no single GPU.",
        "weights and KV of so much context over the bandwidth of datasheets",
    )


def _latency_claim() -> Claim:
    outputs = [f"{latency_s * rate / _REQUESTS:.0f}" for rate, latency_s in _RATES.values()]
    return Claim(
        "P99 latency of vLLM, Orca, Punica",
        ", ".join(f"{latency_s * 1e3:.0f} ms" for _, latency_s in _RATES.values()),
        f"time for {', '.join(outputs)} outputs at the printed rates",
        "modelled",
        "No request of hundreds of outputs ends so soon: it can be a time to first token, and is not said to.",
        "latency · rate / requests",
    )


def _block_claim() -> Claim:
    half_block = (_BLOCK_TOKENS - 1) / 2
    return Claim(
        "fragmentation of vLLM's blocks",
        f"{_BLOCK_RATIO * 100:.1f} %",
        f"{half_block / (half_block + _TOKENS) * 100:.2f} % at {_TOKENS:,} tokens",
        "modelled",
        f"A sequence leaves (block − 1) / 2 places empty on average: {_BLOCK_RATIO * 100:.1f} % is what sequences of "
        f"{half_block * (1 - _BLOCK_RATIO) / _BLOCK_RATIO:.0f} tokens leave.",
        f"blocks of {_BLOCK_TOKENS} tokens",
    )


def length_claims(
    *,
    padded_change: float,
    static_change: float,
    continuous_change: float,
    aligned_ratio: float,
    faults: tuple[str, ...],
    where: str,
) -> Claims:
    """What the spread of lengths does, what rounding lengths up does, and whether the article's sampler runs.

    `padded_change`: useful tokens of padded batches of 32 at CV 0.89 over those at 0.5, minus 1; `static_change` and
    `continuous_change`: the same of simulated throughput. `aligned_ratio`: tokens that padding to a multiple of 8 adds.
    `faults`: what Python says to the article's line.
    """
    return Claims(
        [
            _variance_claim(padded_change, static_change, continuous_change, where),
            Claim(
                "pad_to_multiple_of=8",
                "reduces padding",
                f"adds {aligned_ratio * 100:.2f} % to the tokens",
                "measured",
                "It rounds every length up, for kernels that like it.",
                "on the same lengths",
            ),
            Claim(
                "BatchSampler(LengthGroupedSampler(dataset, batch_size=64), drop_last=True)",
                "batches by tokens",
                f"{len(faults)} TypeErrors",
                "measured",
                "; ".join(faults),
                "bound to the published signatures",
            ),
        ]
    )


def _variance_claim(padded_change: float, static_change: float, continuous_change: float, where: str) -> Claim:
    return Claim(
        "length variance above 89 %",
        "−38 % throughput",
        f"{_signed(padded_change)} useful tokens in padded batches of 32; throughput {_signed(static_change)} "
        f"in those of 128, {_signed(continuous_change)} in continuous ones",
        "simulated",
        "Variance has no per cent; taken as a coefficient of variation 0.89 is what Azure's traffic has daily.",
        where,
    )


def _step_ms() -> float:
    return 1e3 * _REQUESTS / _RATES["Orca"][0]


def _change(row: dict[str, float]) -> str:
    return f"{_signed(-row['decay_ratio'])} ({_signed(-row['high_ratio'])} to {_signed(-row['low_ratio'])})"


def _signed(ratio: float) -> str:
    return f"{ratio * 100:+.1f} %".replace("-", "−")
