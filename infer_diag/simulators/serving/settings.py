"""How a simulated engine is configured, in the names that vLLM's users know."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields

import polars as pl

from infer_diag.errors import DiagError, UnknownNameError
from infer_diag.simulators.serving import state

SCHEDULERS = ("vllm-v1", "vllm-v0", "orca", "orca-article", "punica", "static", "bucketed", "dynamic-batch")
ORDERS = ("fcfs", "priority", "deadline", "aging")
MOST_COUNT = 1 << 30
"""Counts of requests and tokens are whole numbers of 32 bits; no engine is configured near that."""
MOST_ENGINES = 1024
MOST_BLOCKS = 50_000_000
"""Blocks of all engines together; a pool of so many is held in 1.2 GB."""
_POLICIES = {
    "vllm-v1": state.VLLM_V1,
    "vllm-v0": state.VLLM_V0,
    "orca": state.ORCA,
    "orca-article": state.ORCA,
    "punica": state.PUNICA,
}


@dataclass(frozen=True)
class EngineSettings:
    """One engine's scheduler and memory.

    `kv_cache_tokens` is null where the pool is unknown: it is then taken never to be full, and no use of it is told.
    `async_scheduling`: a step is planned while the one before it runs, the default of vLLM from 0.14 on.
    `whole_prompt_fits`: vLLM from 0.19 on admits a request only where its whole sequence fits. `order` of the queue:
    `fcfs`, `priority` (vLLM), `deadline`, or `aging` (deadline + `aging` · arrival). `data_parallel_size` engines run
    in step, as a mixture of experts makes them. `swap_blocks` above 0 lets vLLM V0 swap, at `swap_block_s` a block.
    `batch_size`, `batch_wait_s` (none: 0 for dynamic-batch, without
    end for the others) and `bucket_tokens` are of the servers that batch whole requests. The article's
    re-sorting looks at `resort_count` requests, `resort_s` each, above `resort_load_ratio` of the pool.
    """

    scheduler: str = "vllm-v1"
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    kv_cache_tokens: int | None = None
    block_tokens: int = 16
    chunked_prefill: bool = True
    prefix_caching: bool = True
    long_prefill_token_threshold: int = 0
    whole_prompt_fits: bool = True
    async_scheduling: bool = True
    order: str = "fcfs"
    aging: float = 1.0
    data_parallel_size: int = 1
    swap_blocks: int = 0
    swap_block_s: float = 0.0
    max_adapters: int = 32
    one_adapter: bool = False
    adapter_load_s: float = 0.0
    adapter_step_s: float = 0.0
    adapter_token_s: float = 0.0
    batch_size: int = 32
    batch_wait_s: float | None = None
    bucket_tokens: tuple[int, ...] = ()
    resort_count: int = 5
    resort_s: float = 0.8e-3
    resort_load_ratio: float = 0.85

    def __post_init__(self) -> None:
        if self.scheduler not in SCHEDULERS:
            raise UnknownNameError("scheduler", self.scheduler, SCHEDULERS)
        if self.order not in ORDERS:
            raise UnknownNameError("order", self.order, ORDERS)
        for each in fields(self):
            _refuse_impossible(each.name, getattr(self, each.name))
        if self.kv_cache_tokens is not None and self.kv_cache_tokens < 2 * self.block_tokens:
            raise DiagError("the KV pool holds no two blocks", hint="give kv_cache_tokens of the whole pool")
        blocks = (self.kv_cache_tokens or 0) // self.block_tokens * self.data_parallel_size
        if blocks > MOST_BLOCKS:
            raise DiagError(f"a KV pool of {blocks:,} blocks is too large to simulate", hint="give fewer tokens")

    @property
    def continuous(self) -> bool:
        """Whether requests join and leave a running batch."""
        return self.scheduler in _POLICIES

    @property
    def pool_blocks(self) -> int | None:
        """Blocks that requests can hold; vLLM V1 keeps one for itself."""
        if self.kv_cache_tokens is None:
            return None
        return self.kv_cache_tokens // self.block_tokens - (self.scheduler in ("vllm-v1", "punica"))

    def limits(self, blocks: int) -> state.Limits:
        """The settings as the compiled loop takes them, for a pool of so many blocks."""
        modern = self.scheduler == "vllm-v1"
        article = self.scheduler == "orca-article"
        return state.Limits(
            policy=_POLICIES[self.scheduler],
            max_seqs=self.max_num_seqs,
            max_batch_tokens=self.max_num_batched_tokens,
            block_tokens=self.block_tokens,
            long_prefill_tokens=self.long_prefill_token_threshold if modern else 0,
            chunked=self.chunked_prefill and modern,
            caching=self.prefix_caching and modern,
            whole_prompt_fits=self.whole_prompt_fits,
            ordered=self.order != "fcfs",
            swap=self.swap_blocks > 0 and self.scheduler == "vllm-v0",
            depth=2 if self.async_scheduling and modern else 1,
            max_adapters=self.max_adapters,
            one_adapter=self.one_adapter,
            resort_count=self.resort_count if article else 0,
            resort_load_ratio=self.resort_load_ratio,
            resort_s=self.resort_s,
            swap_block_s=self.swap_block_s,
            adapter_load_s=self.adapter_load_s,
            adapter_step_s=self.adapter_step_s,
            adapter_token_s=self.adapter_token_s,
            watermark_blocks=math.ceil(0.01 * blocks) if self.scheduler == "vllm-v0" else 0,
            swap_blocks=self.swap_blocks,
        )


_AT_LEAST_ONE = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_tokens",
    "data_parallel_size",
    "batch_size",
    "max_adapters",
)


def _refuse_impossible(name: str, value: object) -> None:
    """Refuse a number that no engine can be set to; other kinds of values pass."""
    if isinstance(value, bool | str) or value is None:
        return
    least = 1 if name in _AT_LEAST_ONE else 0
    most = MOST_ENGINES if name == "data_parallel_size" else math.inf if name == "kv_cache_tokens" else MOST_COUNT
    for each in value if isinstance(value, tuple) else (value,):
        if not least <= each <= most:
            limit = f"{least} to {most:,}" if most < math.inf else f"{least} or more"
            raise DiagError(f"{name} is {each}", hint=f"give {limit}")


def settings_of(deployments: pl.DataFrame, **changes: object) -> EngineSettings:
    """The settings that a log tells of its engine, others as its version has them; `changes` come on top.

    Frame in: Deployments. Where rows differ the last one counts. Before 0.8 vLLM runs its first scheduler, from 0.14 on
    it plans a step while the one before runs, and from 0.19 on it admits a prompt only where all of it fits.

    Raises:
        DiagError: the log does not tell the sequence limit or the token budget of a step, and `changes` do not either.
    """
    told: dict[str, object] = {}
    names = {
        "max_num_seqs": "max_running_count",
        "max_num_batched_tokens": "max_batch_tokens",
        "kv_cache_tokens": "kv_cache_tokens",
        "data_parallel_size": "data_parallel_count",
    }
    for name, column in names.items():
        known = deployments[column].drop_nulls()
        if len(known):
            told[name] = int(known[-1])
    told |= _of_version(deployments["engine_version"].drop_nulls().to_list()) | changes
    missing = [name for name in ("max_num_seqs", "max_num_batched_tokens") if name not in told]
    if missing:
        raise DiagError(
            f"the log does not tell {' and '.join(missing)}",
            hint="load the engine's start-up log as well, where it prints its configuration",
        )
    return EngineSettings(**told)  # type: ignore[arg-type]


def _of_version(versions: list[str]) -> dict[str, object]:
    number = re.match(r"v?(\d+)\.(\d+)", versions[-1]) if versions else None
    if number is None:
        return {}
    version = (int(number[1]), int(number[2]))
    told: dict[str, object] = {"async_scheduling": version >= (0, 14), "whole_prompt_fits": version >= (0, 19)}
    return told | ({"scheduler": "vllm-v0"} if version < (0, 8) else {})
