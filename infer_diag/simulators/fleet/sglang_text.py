"""SGLang's own text, as 0.4.10 prints it with mixed chunks: its start, its prefill and decode batches, retractions."""

from __future__ import annotations

import polars as pl

from infer_diag.simulators.fleet.models import repository
from infer_diag.simulators.fleet.pod_log import PodLog
from infer_diag.simulators.fleet.run import Part, Run
from infer_diag.simulators.fleet.starts import Life

DECODE_LOG_INTERVAL = 400
_GIB = float(1 << 30)


def sglang_log(run: Run) -> str:
    """The log of all pods."""
    log = PodLog(run.plan, "sglang")
    for part in run.parts:
        log.enter(part.life.pod)
        _start(log, part.life)
        _batches(log, part)
        if part.life.ends == "taken":
            at = part.life.ended_s - 1.0
            for line in ("Shutting down", "Waiting for application shutdown.", "Application shutdown complete."):
                log.say(at, f"INFO:     {line}")
    return log.text()


def _start(log: PodLog, life: Life) -> None:
    plan = log.plan
    model, whole = repository(plan.model), plan.hardware.memory_bytes / _GIB - 0.6
    weights = plan.weight_bytes / plan.gpu_count / _GIB
    kv = plan.kv_tokens * plan.shape.kv_bytes_per_token / plan.gpu_count / _GIB

    def say(seconds: float, message: str) -> None:
        log.say(seconds, f"[{log.clock(seconds):%Y-%m-%d %H:%M:%S}] {message}")

    at = life.begun_s + 0.7 * life.import_s
    say(at, _arguments(log))
    at = life.begun_s + life.import_s
    say(at, "Init torch distributed begin.")
    say(at + 0.4, "Init torch distributed ends. mem usage=0.00 GB")
    say(at + 0.5, f"Load weight begin. avail mem={whole:.2f} GB")
    kind = "Qwen2ForCausalLM" if "Qwen" in model else "Phi3ForCausalLM" if "Phi" in model else "LlamaForCausalLM"
    left = whole - weights
    done = f"Load weight end. type={kind}, dtype=torch.bfloat16, avail mem={left:.2f} GB, mem usage={weights:.2f} GB."
    say(at + 0.5 + life.read_s, done)
    at += 0.6 + life.read_s
    say(at, f"KV Cache is allocated. #tokens: {plan.kv_tokens}, K size: {kv / 2:.2f} GB, V size: {kv / 2:.2f} GB")
    left -= kv
    say(at, f"Memory pool end. avail mem={left:.2f} GB")
    say(at + 0.2, f"Capture cuda graph begin. This can take up to several minutes. avail mem={left - 0.1:.2f} GB")
    at += 0.2 + life.capture_s
    took = f"Time elapsed: {life.capture_s:.2f} s. mem usage=0.58 GB. avail mem={left - 0.68:.2f} GB."
    say(at, f"Capture cuda graph end. {took}")
    say(at + 0.3, _limits(log))
    for line in ("Started server process [1]", "Waiting for application startup.", "Application startup complete."):
        log.say(at + 0.6, f"INFO:     {line}")
    say(life.ready_s, "The server is fired up and ready to roll!")


def _arguments(log: PodLog) -> str:
    plan = log.plan
    return (
        f"server_args=ServerArgs(model_path='{repository(plan.model)}', tokenizer_path='{repository(plan.model)}', "
        f"tokenizer_mode='auto', load_format='auto', trust_remote_code=False, dtype='auto', kv_cache_dtype='auto', "
        f"quantization=None, context_length={plan.max_model_len}, device='cuda', host='0.0.0.0', port=8000, "
        f"mem_fraction_static={plan.memory_utilization}, max_running_requests={_running(log)}, max_total_tokens=None, "
        f"chunked_prefill_size={plan.max_num_batched_tokens}, schedule_policy='fcfs', tp_size={plan.gpu_count}, "
        f"enable_mixed_chunk=True, decode_log_interval={DECODE_LOG_INTERVAL}, log_level_http='warning')"
    )


def _running(log: PodLog) -> str:
    return "None" if log.plan.max_num_seqs == 256 else str(log.plan.max_num_seqs)


def _limits(log: PodLog) -> str:
    plan = log.plan
    return (
        f"max_total_num_tokens={plan.kv_tokens}, chunked_prefill_size={plan.max_num_batched_tokens}, "
        f"max_prefill_tokens=16384, max_running_requests={plan.max_num_seqs}, context_len={plan.max_model_len}, "
        f"available_gpu_mem={plan.hardware.memory_bytes / _GIB * (1 - plan.memory_utilization):.2f} GB"
    )


def _batches(log: PodLog, part: Part) -> None:
    """A line per step that computes prompts, and one per interval of steps that only decode."""
    capacity = max((part.pool_blocks or 1) * 16, 1)
    decoded = pl.col("prefill_count") == 0
    steps = part.steps.with_columns(
        number=decoded.cum_sum(), came=pl.col("output_tokens").cum_sum(), retracted=pl.col("preempted_count")
    )
    shown = steps.filter(~decoded | (pl.col("number") % DECODE_LOG_INTERVAL == 0) | (pl.col("retracted") > 0))
    before_s, before = part.life.ready_s, 0
    for row in shown.iter_rows(named=True):
        at, usage = row["end_s"], row["used_blocks"] * 16 / capacity
        stamp = f"[{log.clock(at):%Y-%m-%d %H:%M:%S}]"
        if row["retracted"]:
            told = f"#retracted_reqs: {row['retracted']}, #new_token_ratio: 0.1000 -> 0.3000"
            log.say(at, f"{stamp} KV cache pool is full. Retract requests. {told}")
        if row["prefill_count"]:
            log.say(
                at,
                f"{stamp} Prefill batch. #new-seq: {row['prefill_count']}, #new-token: {row['prefill_tokens']}, "
                f"#cached-token: {row['cached_tokens']}, token usage: {usage:.2f}, "
                f"#running-req: {row['decode_count']}, #queue-req: {row['waiting_count']}, ",
            )
        elif row["number"] % DECODE_LOG_INTERVAL == 0:
            rate = (row["came"] - before) / max(at - before_s, 1e-3)
            before_s, before = at, row["came"]
            log.say(
                at,
                f"{stamp} Decode batch. #running-req: {row['running_count']}, #token: {row['used_blocks'] * 16}, "
                f"token usage: {usage:.2f}, cuda graph: True, gen throughput (token/s): {rate:.2f}, "
                f"#queue-req: {row['waiting_count']}, ",
            )
