"""How long an engine's step takes, from what it computes: by a fit or by a roofline, and it says which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from infer_diag.errors import DiagError
from infer_diag.simulators.serving.hardware import Gpu, Model

MEMORY_SHARE = 0.8
"""Share of a GPU's memory bandwidth that serving kernels reach; between 0.7 and 0.94 in published measurements."""
COMPUTE_SHARE = 0.55
"""Share of a GPU's dense throughput that serving kernels reach; between 0.45 and 0.7."""
HOST_S = 1e-3
"""Scheduler, launch and sampling of a step whose kernels are replayed as a graph: 0.2 to 2 ms."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step: `fixed_s` + memory + compute, or `fixed_s` + the larger of both where they overlap.

    memory = `weights_s` + `experts_s` · (1 − `expert_idle_ratio` ^ tokens) + `per_context_token_s` · tokens in the
    batch's KV: each token of a mixture of experts wakes a share 1 − `expert_idle_ratio` of them, and only those are
    read. compute = `per_prefill_token_s` · prompt tokens + `per_decode_s` · requests in their output + `per_pair_s` ·
    pairs of a prompt token with one before it.
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
        return (*parts, self.weights_s, self.experts_s, self.expert_idle_ratio, float(self.overlapped))

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
        memory = self.weights_s + self.experts_s * awake + self.per_context_token_s * context
        compute = self.per_prefill_token_s * prefill + self.per_decode_s * decode + self.per_pair_s * paired
        spent = np.maximum(memory, compute) if self.overlapped else memory + compute
        return np.asarray(self.fixed_s + spent, dtype=np.float64)

    def decode_s(self, batch_count: ArrayLike, mean_context_tokens: float) -> NDArray[np.float64]:
        """Seconds of steps with so many requests in their output: s(b), the time per token of each."""
        batch = np.asarray(batch_count, dtype=np.float64)
        return self.seconds(0.0, batch, batch * mean_context_tokens)


def roofline(
    model: Model,
    gpu: Gpu,
    *,
    gpu_count: int = 1,
    memory_share: float = MEMORY_SHARE,
    compute_share: float = COMPUTE_SHARE,
    host_s: float = HOST_S,
) -> StepTime:
    """Step time from published constants: max(bytes / bandwidth, operations / throughput) + host time. Modelled.

    bytes = weights + KV of the contexts; operations = 2 · parameters per token + 4 · layers · query heads · head width
    per pair of tokens. Tensor parallelism divides both by `gpu_count`; what its ranks tell each other is not counted.

    Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009; operations per token as in Kaplan et al. 2020.
    """
    bandwidth = gpu.memory_bytes_per_s * memory_share * gpu_count
    throughput = gpu.flop_per_s * compute_share * gpu_count
    per_token = 2.0 * model.parameters / throughput
    return StepTime(
        fixed_s=host_s,
        per_prefill_token_s=per_token,
        per_decode_s=per_token,
        per_context_token_s=model.kv_bytes_per_token / bandwidth,
        per_pair_s=4.0 * model.layers * model.query_heads * model.head_dim / throughput,
        weights_s=model.parameters * model.weight_bytes / bandwidth,
        overlapped=True,
        origin="roofline",
        basis=f"{model.name} on {gpu_count} x {gpu.name}, {memory_share:.0%} of its bandwidth and {compute_share:.0%} "
        "of its throughput",
    )
