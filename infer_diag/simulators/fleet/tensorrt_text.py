"""What `trtllm-serve` prints with an engine of TensorRT: its version, the engine's load, the memory ledger."""

from __future__ import annotations

from infer_diag.simulators.fleet.pod_log import PodLog
from infer_diag.simulators.fleet.run import Run
from infer_diag.simulators.fleet.starts import Life

_MIB, _GIB = float(1 << 20), float(1 << 30)
_RUNTIME = "[TensorRT-LLM][INFO]"
_FOUND = "Engine version {version} found in the config file, assuming engine(s) built by new builder API."


def tensorrt_log(run: Run) -> str:
    """The log of all pods; once it serves, this engine prints nothing."""
    log = PodLog(run.plan, "trtllm")
    for part in run.parts:
        log.enter(part.life.pod)
        _start(log, part.life)
        if part.life.ends == "taken":
            for line in ("Shutting down", "Waiting for application shutdown.", "Application shutdown complete."):
                log.say(part.life.ended_s - 1.0, f"INFO:     {line}")
    return log.text()


def _start(log: PodLog, life: Life) -> None:
    plan = log.plan

    def say(seconds: float, message: str) -> None:
        log.say(seconds, f"[{log.clock(seconds):%m/%d/%Y-%H:%M:%S}] [TRT-LLM] [I] {message}")

    at = life.begun_s + 0.8 * life.import_s
    log.say(at, f"[TensorRT-LLM] TensorRT-LLM version: {plan.version}")
    at = life.begun_s + life.import_s
    if life.compile_s:
        say(at, "Build TensorRT engine Unnamed Network 0")
        say(at + life.compile_s, f"Total time of building all engines: {_hms(life.compile_s)}")
    at += life.compile_s
    gib = plan.weight_bytes / plan.gpu_count / _GIB
    log.say(
        at + 0.3,
        f"{_RUNTIME} {_FOUND.format(version=plan.version)}",
        f"{_RUNTIME} TRTGptModel maxNumSequences: {plan.max_num_seqs}",
        f"{_RUNTIME} TRTGptModel maxBatchSize: {plan.max_num_seqs}",
        f"{_RUNTIME} TRTGptModel maxNumTokens: {plan.max_num_batched_tokens}",
    )
    at += 0.3 + life.read_s
    context = f"[MemUsageChange] Allocated {1150.25:.2f} MiB for execution context memory."
    log.say(
        at,
        f"{_RUNTIME} Loaded engine size: {plan.weight_bytes / plan.gpu_count / _MIB:.0f} MiB",
        f"{_RUNTIME} {context}",
        f"{_RUNTIME} [MemUsageChange] GPU memory usage after loading: {gib:.2f} GiB",
    )
    say(at + 0.1, f"Engine load time {life.read_s * 1e3:.2f} ms")
    pool = plan.kv_tokens * plan.shape.kv_bytes_per_token / plan.gpu_count / _GIB
    kept = f"Allocated {pool:.2f} GiB for max tokens in paged KV cache ({plan.kv_tokens})."
    log.say(at + 0.6, f"{_RUNTIME} [MemUsageChange] {kept}")
    for line in ("Started server process [1]", "Waiting for application startup.", "Application startup complete."):
        log.say(life.ready_s, f"INFO:     {line}")


def _hms(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"
