"""How long an engine's step takes, from what it computes: by a fit or by a roofline, and it says which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from infer_diag.errors import DiagError
from infer_diag.simulators.serving.hardware import Gpu, Model

MEMORY_SHARE = 0.9
"""Share of a GPU's memory bandwidth that kernels of decode reach.

Published steps of whole engines reach 0.7 to 0.94 of it, host included; Llama-3.1-8B takes 5.1 ms a step on an H100
with graphs, of which its matrices need 4.48 ms at the full rate: 0.88 with nothing else in the step.
"""
COMPUTE_SHARE = 0.7
"""Share of a GPU's dense throughput that matrix products of a prompt reach.

Whole prefill steps reach 0.45 to 0.7, attention and host included, which are counted by themselves here; the best
shapes alone reach 0.80 on an H100 and 0.86 on an A100 (Bekman, "Machine Learning Engineering", table of achievable
FLOPS).
"""
HOST_S = 1e-3
"""Scheduler, launch and sampling of a step whose kernels are replayed as a graph: 0.2 to 2 ms."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step: `fixed_s` + memory + compute, or `fixed_s` + the larger of both where they overlap.

    memory = `weights_s` + `experts_s` · (1 − `expert_idle_ratio` ^ tokens) + `per_context_token_s` · tokens in the
    batch's KV: each token of a mixture of experts wakes a share 1 − `expert_idle_ratio` of them, and only those are
    read. compute = `per_prefill_token_s` · prompt tokens + `per_decode_s` · requests in their output + `per_pair_s` ·
    pairs of a prompt token with one before it. With `attention_apart` the parts of contexts and pairs overlap with
    nothing and come on top, as kernels of attention follow matrix products.
    `origin` is `roofline`, `fitted` or `given`, `basis` says of what, `error_ratio` is the median of |modelled −
    measured| / measured over what it was fitted on (null without).
    """

    fixed_s: float
    per_prefill_token_s: float
    per_decode_s: float
    per_context_token_s: float = 0.0
    per_pair_s: float = 0.0
    weights_s: float = 0.0
    experts_s: float = 0.0
    expert_idle_ratio: float = 0.0
    overlapped: bool = False
    attention_apart: bool = False
    origin: Literal["roofline", "fitted", "given"] = "given"
    basis: str = "given by the caller"
    error_ratio: float | None = None
    fitted_count: int = 0

    def __post_init__(self) -> None:
        if not all(np.isfinite(part) and part >= 0 for part in self.parameters):
            raise DiagError("a part of a step time is negative or not a number", hint="give seconds, 0 or more")

    @property
    def parameters(self) -> tuple[float, ...]:
        """The numbers that a simulation needs, in the order of the fields."""
        parts = (self.fixed_s, self.per_prefill_token_s, self.per_decode_s, self.per_context_token_s, self.per_pair_s)
        memory = (self.weights_s, self.experts_s, self.expert_idle_ratio)
        return (*parts, *memory, float(self.overlapped), float(self.attention_apart))

    def seconds(
        self,
        prefill_tokens: ArrayLike,
        decode_count: ArrayLike,
        context_tokens: ArrayLike,
        pairs: ArrayLike = 0.0,
    ) -> NDArray[np.float64]:
        """Seconds of steps that compute so many prompt tokens and outputs over so much context; arrays broadcast."""
        prefill, decode, context, paired = (
            np.asarray(each, dtype=np.float64) for each in (prefill_tokens, decode_count, context_tokens, pairs)
        )
        awake = 1.0 - self.expert_idle_ratio ** (prefill + decode)
        read, attended = self.per_context_token_s * context, self.per_pair_s * paired
        memory = self.weights_s + self.experts_s * awake
        compute = self.per_prefill_token_s * prefill + self.per_decode_s * decode
        if not self.overlapped:
            spent = memory + read + compute + attended
        elif self.attention_apart:
            spent = np.maximum(memory, compute) + read + attended
        else:
            spent = np.maximum(memory + read, compute + attended)
        return np.asarray(self.fixed_s + spent, dtype=np.float64)

    def decode_s(self, batch_count: ArrayLike, mean_context_tokens: float) -> NDArray[np.float64]:
        """Seconds of steps with so many requests in their output: s(b), the time per token of each."""
        batch = np.asarray(batch_count, dtype=np.float64)
        return self.seconds(0.0, batch, batch * mean_context_tokens)


SHORTEST_RATIO = 0.25
"""A step that scatters takes at least this share of its step time."""


@dataclass(frozen=True, eq=False)
class StepScatter:
    """Seconds by which steps one after another take longer, or shorter, than their step time says; each kind's own.

    The n-th pure decode step of a simulation takes `decode_s[n]` more, the n-th one that computes prompts
    `prompt_s[n]`; after the last comes the first again. No step gets shorter than a quarter of its step time.

    Raises:
        DiagError: a kind without a number, or one that is none.
    """

    decode_s: NDArray[np.float64]
    prompt_s: NDArray[np.float64]

    def __post_init__(self) -> None:
        if not all(len(each) and np.isfinite(each).all() for each in (self.decode_s, self.prompt_s)):
            raise DiagError("a scatter of steps needs seconds of both kinds", hint="give 0 where none scatters")

    def drawn(self, random: np.random.Generator) -> StepScatter:
        """The same scatter in another order: blocks of neighbours, so that slow spells stay together.

        Source: the circular block bootstrap of Politis and Romano, 1992, with blocks of √n.
        """
        return StepScatter(_drawn(self.decode_s, random), _drawn(self.prompt_s, random))


def _drawn(values: NDArray[np.float64], random: np.random.Generator) -> NDArray[np.float64]:
    count = len(values)
    block = max(1, round(count**0.5))
    begins = random.integers(0, count, -(-count // block))
    places = ((begins[:, None] + np.arange(block)) % count).ravel()[:count]
    return np.asarray(values[places], dtype=np.float64)


EVEN = StepScatter(np.zeros(1), np.zeros(1))
"""No scatter."""


def roofline(
    model: Model,
    gpu: Gpu,
    *,
    gpu_count: int = 1,
    memory_share: float = MEMORY_SHARE,
    compute_share: float = COMPUTE_SHARE,
    host_s: float = HOST_S,
) -> StepTime:
    """Step time from published constants: matrix products, then attention, then the host. Modelled.

    matrix products = max(weights / bandwidth, 2 · weights per token / throughput), where the table of embeddings is
    looked up and not multiplied, and the output layer is for tokens that are sampled; attention = KV of the contexts /
    bandwidth + 4 · layers · query heads · head width per pair of tokens / throughput. Tensor parallelism divides all by
    `gpu_count`; what its ranks tell each other is not counted.

    Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009; operations per token as in Kaplan et al. 2020.
    """
    bandwidth = gpu.memory_bytes_per_s * memory_share * gpu_count
    throughput = gpu.flop_per_s * compute_share * gpu_count
    return StepTime(
        fixed_s=host_s,
        per_prefill_token_s=2.0 * model.layer_parameters / throughput,
        per_decode_s=2.0 * model.matrix_parameters / throughput,
        per_context_token_s=model.kv_bytes_per_token / bandwidth,
        per_pair_s=4.0 * model.layers * model.query_heads * model.head_dim / throughput,
        weights_s=model.matrix_parameters * model.weight_bytes / bandwidth,
        overlapped=True,
        attention_apart=True,
        origin="roofline",
        basis=f"{model.name} on {gpu_count} x {gpu.name}, {memory_share:.0%} of its bandwidth and {compute_share:.0%} "
        "of its throughput",
    )
