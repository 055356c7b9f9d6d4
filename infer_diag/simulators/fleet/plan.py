"""What a simulated deployment is: model, GPU, engine, traffic, how it is run, and which causes are planted in it."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from infer_diag.simulators.serving import GPUS, MODELS, EngineSettings, Gpu, Model, StepTime

BEGIN = datetime(2026, 9, 15, 8, 0, 0, tzinfo=UTC)
"""Second 0 of every deployment's logs."""
ACTIVATION_BYTES = 2e9
"""What an engine's profiling run sets aside beside weights and KV cache."""
GRAPH_BYTES = 0.6e9
MEMORY_SHARE = 0.8
"""Share of its GPU's bandwidth that an engine of the fleet reaches."""
COMPUTE_SHARE = 0.55
"""Share of its GPU's dense throughput that an engine of the fleet reaches."""

EVERYTHING = frozenset({"log", "events", "scrapes", "prices"})


@dataclass(frozen=True)
class Plan:
    """One deployment as it would be without a fault; `causes` are the changes that plant one, by the cause's name.

    Lengths are lognormal with these medians and coefficients of variation; `demand_h` are the hours with traffic. The
    logs cover `span_h` hours of one replica of many: an autoscaler gives each `load_ratio` of what it carries with at
    most `target_running` requests at work, so a replica that carries less gets less. `pod_life_s`: how long a pod lives
    before its node is taken away. `keeps` are the sources that the team has, `hole_h` the hours that its log lacks,
    `clock_ahead_s` how far the engine's clock is ahead, `zone_h` the container's zone.
    """

    name: str
    model: str
    gpu: str
    engine: str
    version: str
    about: str
    gpu_count: int = 1
    price_per_gpu_h: float = 2.5
    precision: str = "bf16"
    span_h: float = 4.0
    target_running: int = 24
    load_ratio: float = 0.85
    arrival_cv: float = 1.09
    prompt_median: float = 1020.0
    prompt_cv: float = 0.8
    output_median: float = 129.0
    output_cv: float = 1.29
    prefix_tokens: int = 0
    demand_h: tuple[tuple[float, float], ...] = ((0.0, 24.0),)
    scheduler: str = "vllm-v1"
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    batch_size: int = 8
    batch_wait_s: float = 0.05
    memory_utilization: float = 0.9
    kv_tokens_limit: int | None = None
    prefix_caching: bool = True
    host_s: float = 1e-3
    max_model_len: int = 4096
    image_cached: bool = True
    node_s: float = 4.0
    weights_bytes_per_s: float = 2.2e9
    compile_cached: bool = True
    pod_life_s: float | None = None
    session_cache_ratio: float = 0.0
    expandable_segments: bool = True
    stats_every_s: float = 10.0
    scrape_every_s: float = 30.0
    keeps: frozenset[str] = EVERYTHING
    stamped: bool = True
    hole_h: tuple[float, float] | None = None
    clock_ahead_s: float = 0.0
    zone_h: int = 0
    causes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def planted(self, causes: Iterable[str] | None = None) -> Plan:
        """The deployment with these causes at work; all of them where none are named."""
        chosen = self.causes if causes is None else causes
        changes = {key: value for cause in chosen for key, value in self.causes[cause].items()}
        return replace(self, **changes)

    def seed(self, purpose: str) -> int:
        """A number of this deployment and purpose alone: traffic stays the same when a cause is switched off."""
        return zlib.crc32(f"{self.name} {purpose}".encode())

    @property
    def span_s(self) -> float:
        """Logs were kept from second 0 to here."""
        return self.span_h * 3600.0

    @property
    def hardware(self) -> Gpu:
        """Its GPU."""
        return GPUS[self.gpu]

    @property
    def shape(self) -> Model:
        """Its model, with the bytes that its precision takes."""
        bits = {"bf16": 16, "fp16": 16, "fp8": 8, "Q4_K": 4.85}[self.precision]
        return replace(MODELS[self.model], weight_bytes=bits / 8)

    @property
    def weight_bytes(self) -> float:
        """Of all weights."""
        return self.shape.parameters * self.shape.weight_bytes

    @property
    def kv_bytes(self) -> float:
        """What is left for the KV cache on all GPUs: memory · utilization − weights − activations."""
        held = self.hardware.memory_bytes * self.memory_utilization * self.gpu_count
        return held - self.weight_bytes - (ACTIVATION_BYTES + GRAPH_BYTES) * self.gpu_count

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV cache holds, in whole blocks of 16."""
        found = int(self.kv_bytes / self.shape.kv_bytes_per_token)
        return min(found, self.kv_tokens_limit or found) // 16 * 16

    def settings(self) -> EngineSettings:
        """Scheduler and memory as the serving simulator takes them."""
        return EngineSettings(
            scheduler=self.scheduler,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            kv_cache_tokens=self.kv_tokens if self.scheduler != "dynamic-batch" else None,
            prefix_caching=self.prefix_caching,
            batch_size=self.batch_size,
            batch_wait_s=self.batch_wait_s,
        )

    def step_time(self) -> StepTime:
        """Seconds of a step on this fleet's machines: the larger of all bytes and all operations, and the host.

        Its own formula and not `roofline`: a reference by roofline then has to estimate these deployments, as it has to
        with real ones, and the shipped logs stay what they are when that estimate gets better.
        """
        shape, gpus = self.shape, self.gpu_count
        bandwidth = self.hardware.memory_bytes_per_s * MEMORY_SHARE * gpus
        throughput = self.hardware.flop_per_s * COMPUTE_SHARE * gpus
        per_token = 2.0 * shape.parameters / throughput
        return StepTime(
            fixed_s=self.host_s,
            per_prefill_token_s=per_token,
            per_decode_s=per_token,
            per_context_token_s=shape.kv_bytes_per_token / bandwidth,
            per_pair_s=4.0 * shape.layers * shape.query_heads * shape.head_dim / throughput,
            weights_s=shape.parameters * shape.weight_bytes / bandwidth,
            overlapped=True,
            basis=f"{shape.name} on {gpus} x {self.hardware.name} of the sample fleet",
        )
