"""A simulated run written as vLLM writes: its log and a page of `/metrics`, so that loaders read it like a real one.

What is written is what vLLM 0.19 prints with `--enable-log-requests` and `--enable-logging-iteration-details`; stamps
are whole seconds of the simulation, which begins at `BEGIN`. The text says in its first line that it is simulated.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from infer_diag.simulators.serving.result import BEGIN, Simulation

VERSION = "0.19.0"
MODEL = "simulated"
BUCKETS_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
BUCKETS_TOKENS = (1.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0, 50000.0)
_STAMP = "%m-%d %H:%M:%S"
_HISTOGRAMS = {
    "time_to_first_token_seconds": ("arrival_s", "first_token_s"),
    "e2e_request_latency_seconds": ("arrival_s", "last_token_s"),
    "request_queue_time_seconds": ("queued_s", "scheduled_s"),
    "request_prefill_time_seconds": ("scheduled_s", "first_token_s"),
    "request_decode_time_seconds": ("first_token_s", "last_token_s"),
}
"""As vLLM's front end measures them; those of tokens are added below."""


def log_text(simulated: Simulation) -> str:
    """The run as vLLM's log: configuration, requests, a line per step, and statistics at each sample."""
    parts = [_received(simulated), _iterations(simulated), _statistics(simulated)]
    lines = pl.concat([part.select("us", "text") for part in parts]).sort("us", maintain_order=True)
    stamp = pl.from_epoch("us", time_unit="us").dt.strftime(_STAMP)
    place = pl.col("text").str.extract(r"^(\([^)]*\) )").fill_null("")
    body = pl.col("text").str.replace(r"^\([^)]*\) ", "")
    told = lines.select(pl.format("{}INFO {} {}", place, stamp, body))
    return "\n".join([*_configuration(simulated), *told.to_series()]) + "\n"


def _configuration(simulated: Simulation) -> list[str]:
    settings = simulated.settings
    stamp = BEGIN.strftime(_STAMP)
    front, engine = f"(APIServer pid=1) INFO {stamp}", f"(EngineCore pid=2) INFO {stamp}"
    arguments = {
        "model": MODEL,
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
    }
    lines = [
        f"# simulated by infer_diag: {settings.scheduler}; step times are {simulated.step_time.origin}",
        f"{front} [api_server.py:1] vLLM API server version {VERSION}",
        f"{front} [utils.py:1] non-default args: {arguments}",
    ]
    if settings.chunked_prefill:
        budget = settings.max_num_batched_tokens
        lines.append(f"{front} [scheduler.py:1] Chunked prefill is enabled with max_num_batched_tokens={budget}.")
    lines.append(f"{engine} [core.py:1] Initializing a V1 LLM engine (v{VERSION}) with config: model='{MODEL}'")
    if settings.kv_cache_tokens is not None:
        lines.append(f"{engine} [kv_cache_utils.py:1] GPU KV cache size: {settings.kv_cache_tokens:,} tokens")
    return [*lines, "(APIServer pid=1) INFO:     Application startup complete."]


def _us(seconds: pl.Expr) -> pl.Expr:
    return (int(BEGIN.timestamp() * 1e6) + (seconds * 1e6).round().cast(pl.Int64)).alias("us")


def _received(simulated: Simulation) -> pl.DataFrame:
    asked = simulated.asked
    frame = pl.DataFrame({"id": asked.request_ids, "at_s": asked.arrival_s, "most": asked.max_output_tokens})
    text = "(APIServer pid=1) [logger.py:1] Received request {}: params: SamplingParams(max_tokens={})"
    return frame.select(_us(pl.col("at_s")), pl.format(text, "id", "most").alias("text"))


def _process(replica: pl.Expr) -> pl.Expr:
    return pl.concat_str([pl.lit("(EngineCore"), pl.lit("_") + replica, pl.lit(" pid=2) ")], ignore_nulls=True)


def _iterations(simulated: Simulation) -> pl.DataFrame:
    steps = simulated.engine_steps.with_row_index("number").with_columns(pl.col("replica").cast(pl.String))
    text = (
        "{}[core.py:1] Iteration({}): {} context requests, {} context tokens, {} generation requests, "
        "{} generation tokens, iteration elapsed time: {} ms"
    )
    counts = ["prefill_count", "prefill_tokens", "decode_count", "decode_tokens"]
    shown_ms = (pl.col("duration_s") * 1e3).round(2)
    return steps.select(
        pl.col("time").dt.epoch("us").alias("us"),
        pl.format(text, _process(pl.col("replica")), "number", *counts, shown_ms).alias("text"),
    )


def _statistics(simulated: Simulation) -> pl.DataFrame:
    samples = simulated.engine_samples.with_columns(pl.col("replica").cast(pl.String))
    number = pl.col("replica").str.extract(r"(\d+)").fill_null("0").str.zfill(3)
    text = (
        "(APIServer pid=1) [loggers.py:1] Engine {}: Avg prompt throughput: {} tokens/s, "
        "Avg generation throughput: {} tokens/s, Running: {} reqs, Waiting: {} reqs{}{}"
    )
    usage = pl.when(pl.col("kv_usage_ratio").is_not_null()).then(
        pl.format(", GPU KV cache usage: {}%", (pl.col("kv_usage_ratio") * 100).round(1))
    )
    hits = pl.format(", Prefix cache hit rate: {}%", (pl.col("prefix_hit_ratio").fill_null(0.0) * 100).round(1))
    rates = [pl.col(name).round(1) for name in ("prompt_tokens_per_s", "output_tokens_per_s")]
    shown = pl.format(text, number, *rates, "running_count", "waiting_count", usage.otherwise(pl.lit("")), hits)
    return samples.select(pl.col("time").dt.epoch("us").alias("us"), shown.alias("text"))


def metrics_text(simulated: Simulation) -> str:
    """The page of `/metrics` when the last request has ended, with the histograms over all requests.

    Counters and sums are exact; gauges are those of the end, when nothing runs.
    """
    done = simulated.requests.filter(pl.col("last_token_s").is_not_null())
    counters = {
        "num_preemptions": int(done["preemption_count"].sum()),
        "prompt_tokens": int(done["prompt_tokens"].sum()),
        "generation_tokens": int(done["output_tokens"].sum()),
        "prefix_cache_queries": int(done["prompt_tokens"].sum()),
        "prefix_cache_hits": int(done["cached_tokens"].sum()),
    }
    gauges = {"num_requests_running": 0.0, "num_requests_waiting": 0.0, "kv_cache_usage_perc": 0.0}
    lines = ["# simulated by infer_diag"]
    for name, value in gauges.items():
        lines += [f"# TYPE vllm:{name} gauge", f"vllm:{name}{{{_labels()}}} {float(value)}"]
    for name, value in counters.items():
        lines += [f"# TYPE vllm:{name} counter", f"vllm:{name}_total{{{_labels()}}} {float(value)}"]
    for name, (begin, end) in _HISTOGRAMS.items():
        lines += _histogram(name, (done[end] - done[begin]).to_numpy(), BUCKETS_S)
    later = done["output_tokens"].cast(pl.Int64) - 1
    per_token = ((done["last_token_s"] - done["first_token_s"]) / later).filter(later > 0)
    lines += _histogram("request_time_per_output_token_seconds", per_token.to_numpy(), BUCKETS_S)
    lines += _histogram("request_prompt_tokens", done["prompt_tokens"].to_numpy(), BUCKETS_TOKENS)
    lines += _histogram("request_generation_tokens", done["output_tokens"].to_numpy(), BUCKETS_TOKENS)
    return "\n".join(lines) + "\n"


def _labels(bound: str | None = None) -> str:
    return f'engine="0",{"le=" + chr(34) + bound + chr(34) + "," if bound else ""}model_name="{MODEL}"'


def _histogram(name: str, values: np.ndarray, bounds: tuple[float, ...]) -> list[str]:
    lines = [f"# TYPE vllm:{name} histogram"]
    for bound in bounds:
        lines.append(f"vllm:{name}_bucket{{{_labels(str(bound))}}} {float((values <= bound).sum())}")
    lines.append(f"vllm:{name}_bucket{{{_labels('+Inf')}}} {float(len(values))}")
    lines.append(f"vllm:{name}_count{{{_labels()}}} {float(len(values))}")
    lines.append(f"vllm:{name}_sum{{{_labels()}}} {float(values.sum())!r}")
    return lines
