"""GPUs and models as the roofline needs them, each figure with where it is published.

GPUs: the makers' datasheets; tensor throughput is dense (no sparsity), bf16 with fp32 accumulation. Models: the
configuration and parameter count that their authors publish with the weights.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from infer_diag.errors import UnknownNameError

GIB = 1 << 30


@dataclass(frozen=True)
class Gpu:
    """One GPU: dense bf16 operations and memory bytes per second at their peak, and bytes of memory.

    `host_bytes_per_s` is what a copy from host memory reaches in practice.
    """

    name: str
    flop_per_s: float
    memory_bytes_per_s: float
    memory_bytes: float
    host_bytes_per_s: float


@dataclass(frozen=True)
class Model:
    """A dense decoder: parameters, layers, heads of queries and keys, width of a head, bytes of a weight and of KV.

    `embedding_parameters` = vocabulary · hidden size: a table of that size maps tokens to vectors, and so does another
    one back, the output layer, unless both are `tied`, one table.
    """

    name: str
    parameters: float
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    embedding_parameters: float
    tied: bool = False
    weight_bytes: float = 2.0
    kv_value_bytes: float = 2.0

    @property
    def matrix_parameters(self) -> float:
        """Parameters that a step with an output multiplies by, and so reads: all but a table that is looked up."""
        return self.parameters - (0.0 if self.tied else self.embedding_parameters)

    @property
    def layer_parameters(self) -> float:
        """Parameters that every token is multiplied by: those of the layers, without the output layer."""
        return self.matrix_parameters - self.embedding_parameters

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes that the keys and values of one token take: 2 · layers · KV heads · head width · bytes."""
        return 2.0 * self.layers * self.kv_heads * self.head_dim * self.kv_value_bytes


def _gpu(name: str, teraflop: float, gb_per_s: float, gib: float, host_gb_per_s: float) -> Gpu:
    return Gpu(name, teraflop * 1e12, gb_per_s * 1e9, gib * GIB, host_gb_per_s * 1e9)


GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        _gpu("A10", 125, 600, 24, 25),
        _gpu("A40", 149.7, 696, 48, 25),
        _gpu("A100-SXM-40GB", 312, 1555, 40, 25),
        _gpu("A100-SXM-80GB", 312, 2039, 80, 25),
        _gpu("H100-PCIe", 756, 2000, 80, 55),
        _gpu("H100-SXM", 989, 3350, 80, 55),
        _gpu("H200-SXM", 989, 4800, 141, 55),
        _gpu("L4", 121, 300, 24, 25),
        _gpu("L40S", 362, 864, 48, 25),
        _gpu("RTX 4090", 165.2, 1008, 24, 25),
        _gpu("V100-SXM-32GB", 125, 900, 32, 12),
    )
}
"""By name. V100 has no bf16: its figure is fp16."""

MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        Model("Llama-2-7B", 6.74e9, 32, 32, 32, 128, 32_000 * 4_096),
        Model("Llama-2-13B", 13.02e9, 40, 40, 40, 128, 32_000 * 5_120),
        Model("Llama-2-70B", 68.98e9, 80, 64, 8, 128, 32_000 * 8_192),
        Model("Llama-3.1-8B", 8.03e9, 32, 32, 8, 128, 128_256 * 4_096),
        Model("Llama-3.1-70B", 70.55e9, 80, 64, 8, 128, 128_256 * 8_192),
        Model("Mistral-7B", 7.24e9, 32, 32, 8, 128, 32_000 * 4_096),
        Model("Phi-3-mini", 3.82e9, 32, 32, 32, 96, 32_064 * 3_072),
        Model("Qwen2-7B", 7.62e9, 28, 28, 4, 128, 152_064 * 3_584),
        Model("Qwen3-8B", 8.19e9, 36, 32, 8, 128, 151_936 * 4_096),
        Model("Qwen3-32B", 32.76e9, 64, 64, 8, 128, 151_936 * 5_120),
    )
}
"""By name; dense models only, since what a mixture of experts reads in a step depends on the step's tokens."""


_WRITTEN = {
    "A10": r"A10",
    "A40": r"A40",
    "A100-SXM-40GB": r"A100[- ]SXM\d?[- ]40GB",
    "A100-SXM-80GB": r"A100[- ]SXM\d?[- ]80GB",
    "H100-PCIe": r"H100[- ]PCIe",
    "H100-SXM": r"H100(?: 80GB HBM3|[- ]SXM\d?(?:[- ]80GB)?)",
    "H200-SXM": r"H200(?:[- ]SXM\d?)?",
    "L4": r"L4",
    "L40S": r"L40S",
    "RTX 4090": r"RTX 4090(?! (?:D|Laptop))",
    "V100-SXM-32GB": r"V100[- ]SXM\d?[- ]32GB",
}
"""How the driver writes each name; a name that says less (`A100`) leaves open which GPU it is."""

_QUANTISED = re.compile(r"fp8|fp4|int[48]|w[48]a\d+|awq|gptq|gguf|bnb|[48]bit|quantized", re.IGNORECASE)


def gpu_named(name: str) -> Gpu:
    """The GPU of this name, or the one that the driver's text names (`NVIDIA GeForce RTX 4090`).

    Raises:
        UnknownNameError: none is.
    """
    if name in GPUS:
        return GPUS[name]
    found = [each for each, written in _WRITTEN.items() if re.search(rf"\b{written}\b", name)]
    if len(found) != 1:
        raise UnknownNameError("GPU", name, GPUS)
    return GPUS[found[0]]


def model_named(name: str) -> Model:
    """The model of this name, or the one whose name the text contains (`meta-llama/Llama-3.1-8B-Instruct`).

    Raises:
        UnknownNameError: none is, or the name tells of quantised weights, whose bytes are others.
    """
    if name in MODELS:
        return MODELS[name]
    plain = _plain(name)
    found = [each for each in MODELS if re.search(rf"{re.escape(_plain(each))}(?!\d)", plain)]
    if len(found) != 1 or _QUANTISED.search(name):
        raise UnknownNameError("model", name, MODELS)
    return MODELS[found[0]]


def _plain(text: str) -> str:
    return "".join(letter for letter in text.casefold() if letter.isalnum())


EXPERTS = {
    "DeepSeek-V3": (8, 256),
    "Mixtral-8x7B": (2, 8),
    "Mixtral-8x22B": (2, 8),
    "Qwen3-30B-A3B": (8, 128),
    "Qwen3-235B-A22B": (8, 128),
    "gpt-oss-20b": (4, 32),
    "gpt-oss-120b": (4, 128),
}
"""Experts that a token passes and experts of a layer, from the models' configuration."""


def expert_idle_ratio(model: str | None) -> float:
    """Share of a mixture's experts that one token leaves alone: 1 − experts per token / experts; else 0."""
    plain = _plain(model or "")
    found = [each for name, each in EXPERTS.items() if re.search(rf"{re.escape(_plain(name))}(?!\d)", plain)]
    return 1.0 - found[0][0] / found[0][1] if len(found) == 1 else 0.0
