"""vLLM's own text: the start of its V1 engine as 0.11 prints it and of its V0 engine as 0.6 does, and statistics."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from infer_diag.simulators.fleet.models import repository
from infer_diag.simulators.fleet.plan import GRAPH_BYTES, Plan
from infer_diag.simulators.fleet.pod_log import PodLog
from infer_diag.simulators.fleet.run import Part, Run, ticks
from infer_diag.simulators.fleet.starts import Life

Say = Callable[[float, str, str, str], None]

_GIB = float(1 << 30)
_SERVER, _ENGINE = "(APIServer pid=1)", "(EngineCore_DP0 pid=76)"
_PREEMPTIONS_SHOWN = (0, 11, 2)
_WARNED_EVERY = 50


def vllm_log(run: Run) -> str:
    """The log of all pods."""
    log = PodLog(run.plan, "vllm")
    for part in run.parts:
        log.enter(part.life.pod)
        if run.plan.engine == "vllm-v0":
            _start_v0(log, part.life)
            _statistics_v0(log, part)
        else:
            _start(log, part.life)
            _statistics(log, part)
        if part.life.ends == "taken":
            _end(log, part.life)
    return log.text()


def _flags(plan: Plan) -> dict[str, object]:
    given: dict[str, object] = {"model": repository(plan.model), "disable_log_requests": True}
    given |= {"max_model_len": plan.max_model_len, "gpu_memory_utilization": plan.memory_utilization}
    if plan.gpu_count > 1:
        given["tensor_parallel_size"] = plan.gpu_count
    if plan.max_num_batched_tokens != 2048:
        given["max_num_batched_tokens"] = plan.max_num_batched_tokens
    if plan.max_num_seqs != 256:
        given["max_num_seqs"] = plan.max_num_seqs
    if not plan.prefix_caching:
        given["enable_prefix_caching"] = False
    return given | {"disable_uvicorn_access_log": True}


def _start(log: PodLog, life: Life) -> None:
    plan = log.plan

    def say(seconds: float, process: str, place: str, message: str) -> None:
        log.say(seconds, f"{process} INFO {log.clock(seconds):%m-%d %H:%M:%S} [{place}] {message}")

    model, limit = repository(plan.model), plan.max_num_batched_tokens
    at = life.begun_s + 0.6 * life.import_s
    say(at, _SERVER, "api_server.py:1839", f"vLLM API server version {plan.version}")
    say(at, _SERVER, "utils.py:233", f"non-default args: {_flags(plan)}")
    say(at + 1.1, _SERVER, "scheduler.py:205", f"Chunked prefill is enabled with max_num_batched_tokens={limit}.")
    at = life.begun_s + life.import_s
    say(at, _ENGINE, "core.py:77", _configuration(plan))
    say(at + 0.3, _ENGINE, "gpu_model_runner.py:2602", f"Starting to load model {model}...")
    loaded = at + 0.3 + life.read_s
    shards = max(round(plan.weight_bytes / 5e9), 1)
    for done in range(1, shards + 1):
        log.say(at + 0.3 + life.read_s * done / shards, _shard_bar(_ENGINE, done, shards, life.read_s * done / shards))
    say(loaded, _ENGINE, "default_loader.py:267", f"Loading weights took {life.read_s - 0.2:.2f} seconds")
    gib = plan.weight_bytes / plan.gpu_count / _GIB
    say(loaded, _ENGINE, "gpu_model_runner.py:2653", f"Model loading took {gib:.4f} GiB and {life.read_s:.6f} seconds")
    _compiled(say, life, loaded, cached=plan.compile_cached)
    at = loaded + life.dynamo_s + life.compile_s
    available = plan.kv_bytes / plan.gpu_count / _GIB
    say(at + 0.6, _ENGINE, "gpu_worker.py:298", f"Available KV cache memory: {available:.2f} GiB")
    say(at + 0.7, _ENGINE, "kv_cache_utils.py:1087", f"GPU KV cache size: {plan.kv_tokens:,} tokens")
    most = f"{plan.max_model_len:,} tokens per request: {plan.kv_tokens / plan.max_model_len:.2f}x"
    say(at + 0.7, _ENGINE, "kv_cache_utils.py:1091", f"Maximum concurrency for {most}")
    at += 0.7 + life.capture_s
    took = f"Graph capturing finished in {life.capture_s:.0f} secs, took {GRAPH_BYTES / _GIB:.2f} GiB"
    say(at, _ENGINE, "gpu_model_runner.py:3480", took)
    whole_s = at - loaded + 0.1
    what = f"init engine (profile, create kv cache, warmup model) took {whole_s:.2f} seconds"
    say(at + 0.1, _ENGINE, "core.py:210", what)
    say(life.ready_s - 0.2, _SERVER, "api_server.py:1912", "Starting vLLM API server 0 on http://0.0.0.0:8000")
    log.say(life.ready_s, *(f"{_SERVER} INFO:     {line}" for line in _UVICORN_UP))


_UVICORN_UP = ("Started server process [1]", "Waiting for application startup.", "Application startup complete.")


def _configuration(plan: Plan) -> str:
    model = repository(plan.model)
    return (
        f"Initializing a V1 LLM engine (v{plan.version}) with config: model='{model}', speculative_config=None, "
        f"tokenizer='{model}', skip_tokenizer_init=False, tokenizer_mode=auto, revision=None, trust_remote_code=False, "
        f"dtype=torch.bfloat16, max_seq_len={plan.max_model_len}, download_dir=None, load_format=auto, "
        f"tensor_parallel_size={plan.gpu_count}, pipeline_parallel_size=1, data_parallel_size=1, quantization=None, "
        f"enforce_eager=False, kv_cache_dtype=auto, device_config=cuda, seed=0, served_model_name={model}, "
        f"enable_prefix_caching={plan.prefix_caching}, chunked_prefill_enabled=True"
    )


def _shard_bar(process: str, done: int, shards: int, seconds: float) -> str:
    percent, minutes = 100 * done // shards, f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"
    left = seconds / done * (shards - done)
    rest = f"{int(left) // 60:02d}:{int(left) % 60:02d}"
    pace = f"{minutes}<{rest}, {seconds / done:5.2f}s/it"
    return f"{process} Loading safetensors checkpoint shards: {percent:3d}% Completed | {done}/{shards} [{pace}]"


def _compiled(say: Say, life: Life, begin_s: float, *, cached: bool) -> None:
    folder = "/root/.cache/vllm/torch_compile_cache/3c1f0a7b52/rank_0_0/backbone"
    say(begin_s + 0.4, _ENGINE, "backends.py:548", f"Using cache directory: {folder} for vLLM's torch.compile")
    dynamo = f"Dynamo bytecode transform time: {life.dynamo_s:.2f} s"
    say(begin_s + life.dynamo_s, _ENGINE, "backends.py:559", dynamo)
    at = begin_s + life.dynamo_s + life.compile_s
    if cached:
        told = f"Directly load the compiled graph(s) for dynamic shape from the cache, took {life.compile_s:.3f} s"
        say(at, _ENGINE, "backends.py:161", told)
    else:
        say(at - 0.1, _ENGINE, "backends.py:197", "Cache the graph for dynamic shape for later use")
        say(at, _ENGINE, "backends.py:218", f"Compiling a graph for dynamic shape takes {life.compile_s:.2f} s")
    total_s = life.dynamo_s + (0.0 if cached else life.compile_s)
    say(at, _ENGINE, "monitor.py:34", f"torch.compile takes {total_s:.2f} s in total")


def _statistics(log: PodLog, part: Part) -> None:
    """A line per interval; after one line of zeros the engine is silent until it works again."""
    plan = log.plan
    shows = tuple(int(each) for each in plan.version.split(".")) >= _PREEMPTIONS_SHOWN
    silent = False
    for row in _intervals(part, plan.stats_every_s).iter_rows(named=True):
        idle = not (row["prompt"] or row["output"] or row["running_count"] or row["waiting_count"])
        if idle and silent:
            continue
        silent = idle
        usage = 100 * row["used_blocks"] / (part.pool_blocks or 1)
        sent_back = f"Preemptions: {row['preempted']}, " if shows and row["preempted"] else ""
        log.say(
            row["at_s"],
            f"{_SERVER} INFO {log.clock(row['at_s']):%m-%d %H:%M:%S} [loggers.py:127] Engine 000: "
            f"Avg prompt throughput: {row['prompt'] / plan.stats_every_s:.1f} tokens/s, "
            f"Avg generation throughput: {row['output'] / plan.stats_every_s:.1f} tokens/s, "
            f"Running: {row['running_count']} reqs, Waiting: {row['waiting_count']} reqs, {sent_back}"
            f"GPU KV cache usage: {usage:.1f}%, Prefix cache hit rate: {100 * row['hit']:.1f}%",
        )


def _intervals(part: Part, every_s: float) -> pl.DataFrame:
    """Ticks with what each interval added: `prompt` (cached tokens with the computed ones), `output`, `preempted`."""
    told = ticks(part, every_s)

    def added(name: str) -> pl.Expr:
        return pl.col(name) - pl.col(name).shift(1, fill_value=0)

    prompt = added("prefill_tokens") + added("cached_tokens")
    cached = pl.col("cached_tokens")
    hit = cached / (cached + pl.col("prefill_tokens"))
    return told.with_columns(
        prompt=prompt, output=added("output_tokens"), preempted=added("preempted_count"), hit=hit.fill_nan(0.0)
    )


def _end(log: PodLog, life: Life) -> None:
    at = life.ended_s - 1.5
    if log.plan.engine == "vllm":
        place = f"{log.clock(at):%m-%d %H:%M:%S} [launcher.py:98]"
        log.say(at, f"{_SERVER} INFO {place} Shutting down FastAPI HTTP server.")
    else:
        log.say(at, f"INFO {log.clock(at):%m-%d %H:%M:%S} launcher.py:57] Shutting down FastAPI HTTP server.")
    front = f"{_SERVER} " if log.plan.engine == "vllm" else ""
    for line in ("Shutting down", "Waiting for application shutdown.", "Application shutdown complete."):
        log.say(life.ended_s - 1.0, f"{front}INFO:     {line}")


def _start_v0(log: PodLog, life: Life) -> None:
    plan = log.plan

    def say(seconds: float, place: str, message: str) -> None:
        log.say(seconds, f"INFO {log.clock(seconds):%m-%d %H:%M:%S} {place}] {message}")

    model = repository(plan.model)
    at = life.begun_s + 0.6 * life.import_s
    say(at, "api_server.py:651", f"vLLM API server version {plan.version}")
    shown = ", ".join(f"{name}={value!r}" for name, value in _flags(plan).items())
    say(at, "api_server.py:652", f"args: Namespace(host=None, port=8000, max_num_seqs={plan.max_num_seqs}, {shown})")
    at = life.begun_s + life.import_s
    config = (
        f"Initializing an LLM engine (v{plan.version}) with config: model='{model}', speculative_config=None, "
        f"tokenizer='{model}', dtype=torch.bfloat16, max_seq_len={plan.max_model_len}, "
        f"tensor_parallel_size={plan.gpu_count}, pipeline_parallel_size=1, quantization=None, enforce_eager=False, "
        f"max_num_seqs={plan.max_num_seqs}, max_num_batched_tokens={plan.max_num_batched_tokens}"
    )
    say(at, "llm_engine.py:234", config)
    say(at + 0.4, "model_runner.py:1094", f"Starting to load model {model}...")
    gib = plan.weight_bytes / plan.gpu_count / _GIB
    say(at + 0.4 + life.read_s, "model_runner.py:1099", f"Loading model weights took {gib:.4f} GB")
    at += 0.4 + life.read_s
    blocks = plan.kv_tokens // 16
    say(at + 1.2, "gpu_executor.py:76", f"# GPU blocks: {blocks}, # CPU blocks: 2048")
    most = f"{plan.max_model_len} tokens per request: {plan.kv_tokens / plan.max_model_len:.2f}x"
    say(at + 1.2, "gpu_executor.py:80", f"Maximum concurrency for {most}")
    say(
        at + 1.4, "model_runner.py:1415", "Capturing cudagraphs for decoding. This may lead to unexpected consequences."
    )
    done = f"Graph capturing finished in {life.capture_s:.0f} secs, took {GRAPH_BYTES / _GIB:.2f} GiB"
    say(at + 1.4 + life.capture_s, "model_runner.py:1535", done)
    whole_s = life.capture_s + 1.5
    what = f"init engine (profile, create kv cache, warmup model) took {whole_s:.2f} seconds"
    say(at + whole_s, "llm_engine.py:431", what)
    log.say(life.ready_s, *(f"INFO:     {line}" for line in _UVICORN_UP))


def _statistics_v0(log: PodLog, part: Part) -> None:
    plan, warned = log.plan, 0
    for row in _intervals(part, plan.stats_every_s).iter_rows(named=True):
        at = row["at_s"]
        # The first preemption and every fiftieth after it are warned of.
        while warned < row["preempted_count"]:
            stamp = f"{log.clock(at - 0.5):%m-%d %H:%M:%S}"
            log.say(at - 0.5, f"WARNING {stamp} {_PREEMPTED.format(chat=f'{warned:08x}', count=warned + 1)}")
            warned += _WARNED_EVERY
        usage = 100 * row["used_blocks"] / (part.pool_blocks or 1)
        log.say(
            at,
            f"INFO {log.clock(at):%m-%d %H:%M:%S} metrics.py:455] "
            f"Avg prompt throughput: {row['prompt'] / plan.stats_every_s:.1f} tokens/s, "
            f"Avg generation throughput: {row['output'] / plan.stats_every_s:.1f} tokens/s, "
            f"Running: {row['running_count']} reqs, Swapped: 0 reqs, Pending: {row['waiting_count']} reqs, "
            f"GPU KV cache usage: {usage:.1f}%, CPU KV cache usage: 0.0%.",
        )


_PREEMPTED = (
    "scheduler.py:1647] Sequence group chatcmpl-{chat} is preempted by PreemptionMode.RECOMPUTE mode because there is "
    "not enough KV cache space. This can affect the end-to-end performance. Increase gpu_memory_utilization or "
    "tensor_parallel_size to provide more KV cache memory. total_num_cumulative_preemption={count}"
)
