"""Which loader reads a file: decided by what stands in its first megabyte, never by its name."""

from __future__ import annotations

import re
from dataclasses import dataclass

from infer_diag.loaders.text import prefixes

_SAMPLE = 1 << 20


@dataclass(frozen=True)
class Signature:
    """Patterns that only one format prints; each is counted once per kind, a stamp alone is a weak sign."""

    format: str
    stamps: str
    phrases: tuple[str, ...]


SIGNATURES = (
    Signature(
        "vllm",
        prefixes.VLLM_STAMP,
        (
            r"Avg prompt throughput: [0-9.]+ tokens/s",
            r"init engine \(profile, create kv cache, warmup model\) took",
            r"Initializing an? (?:V[01] )?LLM engine",
            r"vLLM API server version|Starting vLLM|vllm serve \S",
            r"Graph capturing finished in [0-9]+ secs",
            r"Model loading took [0-9.]+ Gi?B|Loading model weights took [0-9.]+ Gi?B",
            r"torch\.compile (?:takes|took) [0-9.]+ s in total",
            r"Dynamo bytecode transform time: ",
            r"Iteration\([0-9]+\): [0-9]+ context requests",
            r"GPU KV cache size: [0-9,]+ tokens|# (?:GPU|cuda) blocks: ",
            r"\(?(?:EngineCore|VllmWorker|RayWorkerWrapper|APIServer)[\w-]*(?: rank=\d+)? pid=",
            r"Loading (?:safetensors|pt) checkpoint shards:",
        ),
    ),
    Signature(
        "sglang",
        prefixes.SGLANG_STAMP,
        (
            r"(?:Prefill|Decode) batch(?: \[\d+\])?[.,] ",
            r"Load weight (?:begin|end)\.",
            r"Memory pool end\.",
            r"Capture .{0,40}(?:cuda|CUDA) graph (?:begin|end)",
            r"max_total_num_tokens=\d+",
            r"The server is fired up and ready to roll!",
            r"server_args=ServerArgs\(|sglang",
            r"Init torch distributed (?:begin|ends)",
            r"Retract requests\.|#retracted_reqs",
        ),
    ),
)


def is_binary(head: bytes) -> bool:
    """Whether the bytes are no text."""
    sample = head[:8192]
    odd = sum(sample.count(byte) for byte in range(9)) + sum(sample.count(byte) for byte in range(14, 27))
    return bool(sample) and (b"\0" in sample or odd > 0.1 * len(sample))


def sniffed(head: bytes) -> str | None:
    """The name of the format, or None where nothing speaks for one clearly."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", head[:_SAMPLE].decode("utf-8", "replace")).replace('\\"', '"')
    scores = {signature.format: _score(signature, text) for signature in SIGNATURES}
    best = max(scores, key=lambda name: scores[name])
    return best if scores[best] >= 2 else None


def _score(signature: Signature, text: str) -> int:
    """Two per phrase, one for the stamp: a stamp alone is not enough, a phrase is."""
    phrases = sum(bool(re.search(phrase, text)) for phrase in signature.phrases)
    return 2 * phrases + bool(re.search(signature.stamps, text))
