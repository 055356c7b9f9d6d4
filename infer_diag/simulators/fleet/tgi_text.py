"""Text Generation Inference's own text, as 3.3 prints it: launcher, shard, warm-up, and a line per finished request."""

from __future__ import annotations

import numpy as np

from infer_diag.simulators.fleet.models import repository
from infer_diag.simulators.fleet.pod_log import PodLog
from infer_diag.simulators.fleet.run import Part, Run
from infer_diag.simulators.fleet.starts import Life

_LAUNCHER = "text_generation_launcher"
_ROUTER = "text_generation_router_v3"
_TOLD_EVERY_S = 10.0


def tgi_log(run: Run) -> str:
    """The log of all pods."""
    log = PodLog(run.plan, "tgi")
    for number, part in enumerate(run.parts):
        log.enter(part.life.pod)
        _start(log, part.life)
        _requests(log, part, run.plan.seed(f"seeds {number}"))
        if part.life.ends == "taken":
            _say(log, part.life.ended_s - 1.0, _LAUNCHER, "Shutting down shards")
    return log.text()


def _say(log: PodLog, seconds: float, target: str, message: str, span: str = "") -> None:
    stamp = f"{log.clock(seconds):%Y-%m-%dT%H:%M:%S.%f}Z"
    log.say(seconds, f"{stamp}  INFO {span}{target}: {message}")


def _start(log: PodLog, life: Life) -> None:
    plan = log.plan
    model = repository(plan.model)
    size = "None" if plan.max_num_seqs == 256 else f"Some({plan.max_num_seqs})"
    arguments = (
        f'Args {{ model_id: "{model}", revision: None, validation_workers: 2, sharded: None, num_shard: '
        f"Some({plan.gpu_count}), quantize: None, speculate: None, dtype: Some(BFloat16), kv_cache_dtype: None, "
        f"trust_remote_code: false, max_concurrent_requests: 512, max_input_tokens: None, max_total_tokens: "
        f"Some({plan.max_model_len}), max_batch_prefill_tokens: Some({plan.max_num_batched_tokens}), "
        f"max_batch_total_tokens: None, max_batch_size: {size}, cuda_memory_fraction: {plan.memory_utilization}, "
        'hostname: "0.0.0.0", port: 8000 }'
    )
    at = life.begun_s + 0.1
    _say(log, at, _LAUNCHER, arguments)
    _say(log, at + 0.2, _LAUNCHER, f"Starting check and download process for {model}", "download: ")
    _say(log, at + 0.5 * life.import_s, _LAUNCHER, "Files are already present on the host. Skipping download.")
    loading = at + 0.6 * life.import_s
    _say(log, loading, _LAUNCHER, f"Successfully downloaded weights for {model}", "download: ")
    _say(log, loading + 0.1, _LAUNCHER, "Starting shard rank=0", "shard-manager: ")
    load_s = life.read_s + 0.4 * life.import_s
    for waited in np.arange(_TOLD_EVERY_S, load_s, _TOLD_EVERY_S):
        _say(log, loading + float(waited), _LAUNCHER, "Waiting for shard to be ready... rank=0", "shard-manager: ")
    at = loading + 0.1 + load_s
    _say(log, at, _LAUNCHER, f"Shard ready in {load_s:.9f}s rank=0", "shard-manager: ")
    _say(log, at + 0.1, _LAUNCHER, "Starting Webserver")
    _say(log, at + 0.4, _ROUTER, "backends/v3/src/lib.rs:125: Warming up model")
    warm = at + 0.4 + life.capture_s
    _say(log, warm, _LAUNCHER, f"KV-cache blocks: {plan.kv_tokens}, size: 1")
    told = f"backends/v3/src/lib.rs:145: Setting max batch total tokens to {plan.kv_tokens}"
    _say(log, warm + 0.1, _ROUTER, told)
    _say(log, life.ready_s, "text_generation_router::server", "router/src/server.rs:2402: Connected")


def _requests(log: PodLog, part: Part, seed: int) -> None:
    random = np.random.default_rng(seed)
    done = part.requests.filter("done").sort("last_s")
    for row in done.iter_rows(named=True):
        validation_ns = int(random.integers(300_000, 2_600_000))
        queue_ns = round((row["scheduled_s"] - row["arrival_s"]) * 1e9) + int(random.integers(20_000, 90_000))
        compute_ns = round((row["last_s"] - row["scheduled_s"]) * 1e9)
        times = {
            "total_time": validation_ns + queue_ns + compute_ns,
            "validation_time": validation_ns,
            "queue_time": queue_ns,
            "inference_time": compute_ns,
            "time_per_token": compute_ns // row["output_tokens"],
        }
        shown = " ".join(f'{name}="{_duration(value)}"' for name, value in times.items())
        drawn = int(random.integers(1 << 62))
        span = f'chat_completions{{{shown} seed="Some({drawn})"}}: '
        place = "text_generation_router::server"
        _say(log, row["last_s"], place, "router/src/server.rs:432: Success", span)


def _duration(nanoseconds: int) -> str:
    """As Rust prints a duration: in the largest unit of which there is a whole one, without trailing zeros."""
    for unit, size in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
        if nanoseconds >= size:
            whole, rest = divmod(nanoseconds, size)
            digits = f"{rest:0{len(str(size)) - 1}d}".rstrip("0")
            return f"{whole}.{digits}{unit}" if digits else f"{whole}{unit}"
    return f"{nanoseconds}ns"
