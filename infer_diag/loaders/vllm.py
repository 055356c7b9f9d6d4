"""vLLM's text log, 0.2.7 to 0.32: start-up, statistics, per-iteration and request lines."""

from __future__ import annotations

from functools import partial

import polars as pl

from infer_diag.loaders import engine_log, speculation
from infer_diag.loaders.engine_log import REPLICA_PARTS, Engine, Frames, replica
from infer_diag.loaders.loader import Loader
from infer_diag.loaders.sniff import Signature
from infer_diag.loaders.text import prefixes
from infer_diag.loaders.text.dense import DenseRule
from infer_diag.loaders.text.reader import Batch, TextFormat
from infer_diag.loaders.vllm_configuration import NEEDLES as CONFIGURATION
from infer_diag.loaders.vllm_configuration import configured, deployed
from infer_diag.loaders.vllm_rules import RULES

ENDPOINTS = (
    r"/(?:[\w.-]+/)*(?:v1/completions|v1/chat/completions|v1/responses|v1/messages|inference/v1/generate"
    r"|generate(?:_stream)?|invocations|v1/embeddings|v2?/?(?:v1/)?rerank|score|v1/score|pooling|classify"
    r"|v1/audio/\w+)(?:\?\S*)?"
)
"""Paths of requests that the engine computes something for; health checks and the like are none."""

# No part of this pattern can begin where the one before it goes on, so that it is matched in one pass: twice as fast.
STEPS = DenseRule(
    "steps",
    "Iteration(",
    r"^[0-9]+\): (?P<prefill_count>[0-9]+) context requests, (?P<prefill_tokens>[0-9]+) context tokens, "
    r"(?P<decode_count>[0-9]+) generation requests, (?P<decode_tokens>[0-9]+) generation tokens, "
    r"iteration elapsed time: (?P<ms>[0-9.]+) ms(?: \(dummy\))?(?:, [A-Za-z][\w ]*: [0-9.]+%?)*\r?$",
    tag=r"Engine [0-9]+:\s*",
)
STATISTICS = DenseRule(
    "statistics",
    "Avg prompt throughput: ",
    r"^(?P<prompt>[0-9.]+) tokens/s, Avg generation throughput: (?P<output>[0-9.]+) tokens/s, "
    r"(?:[A-Z][\w /]*: ?[0-9.]+ ?m?s, )*Running: (?P<running>[0-9]+) reqs, "
    r"(?:Swapped: (?P<swapped>[0-9]+) reqs, )?(?:Waiting|Pending): (?P<waiting>[0-9]+) reqs(?:, Deferred: [0-9]+ reqs)?"
    r"(?:, KV fetch: [0-9]+ waiting to start, [0-9]+ in progress, [0-9]+ completed waiting)?"
    r"(?:, Preemptions: (?P<preemptions>[0-9]+))?"
    r"(?:, [\w ]+? ?KV cache usage: (?P<kv>[0-9.]+)%)?(?:, CPU KV cache usage: [0-9.]+%)?"
    r"(?:, Prefix cache hit rate: (?P<prefix>[0-9.]+)%)?(?:, [A-Z][\w ]*: [\w.% -]+)*\.?\s*$",
    tag=r"Engine [0-9]+:\s*|[0-9]+ Engines Aggregated:\s*",
)
# What may follow the name is no part of it, and only ASCII's blanks end it, so that it is matched in one pass.
RECEIVED = DenseRule("request", "Received request ", r"^(?P<request_id>[^ \t\r\n:,]+)[:,]?(?:[ \t\r\n]|$)")
RESPONSES = DenseRule(
    "response",
    '"POST ',
    r'^(?P<path>\S+) HTTP/[0-9.]+" (?P<status>[0-9]{3})\b',
    variable_tail=r"\S+ - ",
    repeats=True,
)
_FINISHED = r"^Finished request (?P<request_id>\S+?)\.?$"
_AT_WORK = r"^(?:Processed prompts: *[1-9]|Sleep mode freed |It took [0-9.]+ seconds to (?:fall asleep|wake up))"
_PREEMPTED = r"is preempted by PreemptionMode.*total_num_cumulative_preemption=(?P<cumulative>[0-9]+)"


def identify(records: pl.DataFrame) -> pl.DataFrame:
    """Adds `replica` (data-parallel engine, pod or service) and `rank` from the process names."""
    process = pl.col("process")
    worker = process.str.starts_with("Worker") | process.str.contains("Worker")
    parallel = process.str.extract(r"_((?:PP|PCP|TP|DCP|EP)\d+(?:_(?:PP|PCP|TP|DCP|EP)\d+)*)$")
    numbered = process.str.extract(r"Worker-(\d+)$")
    anonymous = pl.when(
        process.str.contains(r"^(?:RayWorker\w*|RayExecutorWorker|VllmWorkerProcess|\w*RayActor)$")
    ).then(
        pl.concat_str([pl.lit("pid "), pl.col("pid"), pl.lit(" "), pl.col("ip")], ignore_nulls=True).str.strip_chars()
    )
    # Until 0.10.1 the engines of data parallelism are numbered without a name.
    data_parallel = pl.coalesce(process.str.extract(r"_DP(?:Rank_)?(\d+)"), process.str.extract(r"^EngineCore_(\d+)$"))
    return records.with_columns(
        replica(pl.coalesce("pod", "service"), pl.lit("DP") + data_parallel),
        pl.when(worker.fill_null(False) | pl.col("rank").is_not_null())
        .then(pl.coalesce(parallel, "rank", numbered, anonymous))
        .otherwise(anonymous)
        .alias("rank"),
    )


def serving(batch: Batch) -> Frames:
    """Samples, steps, requests, responses and preemptions of a batch, and the damaged lines."""
    steps, damaged_steps = batch.rows(STEPS)
    statistics, damaged_statistics = batch.rows(STATISTICS)
    received, _ = batch.rows(RECEIVED)
    responses, _ = batch.rows(RESPONSES)
    return {
        "engine_steps": _steps(steps),
        "engine_samples": _samples(statistics),
        "requests": _requests(received, batch.records),
        "incidents": pl.concat(
            [answered(responses, batch), _preemptions(batch.records), _in_use(batch.records)], how="diagonal"
        ),
        "speculation": speculation.speculation(batch.records),
        "rejected": pl.concat([damaged_steps, damaged_statistics]),
    }


def _steps(rows: pl.DataFrame) -> pl.DataFrame:
    if rows.is_empty():
        return pl.DataFrame(schema={"line": pl.UInt32})
    counts = [
        pl.col(name).cast(pl.UInt32, strict=False)
        for name in ("prefill_count", "decode_count", "prefill_tokens", "decode_tokens")
    ]
    read = rows.select(
        "line",
        "time",
        pl.col("replica").cast(pl.Categorical),
        *counts,
        (pl.col("ms").cast(pl.Float64, strict=False) / 1e3).alias("duration_s"),
    )
    prefill, decode = pl.col("prefill_count") > 0, pl.col("decode_count") > 0
    kind = (
        pl.when(prefill & decode)
        .then(pl.lit("mixed"))
        .when(prefill)
        .then(pl.lit("prefill"))
        .when(decode)
        .then(pl.lit("decode"))
        .otherwise(pl.lit("idle"))
    )
    return read.with_columns(kind.cast(pl.Enum(("prefill", "decode", "mixed", "idle"))).alias("kind"))


def _engine_replica() -> pl.Expr:
    """The replica of a line that the front end prints on behalf of a numbered engine."""
    number = pl.col("message").str.extract(r"^Engine 0*(\d+):")
    place = pl.col("replica").str.extract(f"^([^{REPLICA_PARTS}]*)")
    return (
        pl.when(number.is_not_null()).then(place + REPLICA_PARTS + "DP" + number).otherwise("replica").alias("replica")
    )


def _samples(rows: pl.DataFrame) -> pl.DataFrame:
    if rows.is_empty():
        return pl.DataFrame(schema={"line": pl.UInt32})
    number = {name: pl.col(name).cast(pl.Float64, strict=False) for name in ("prompt", "output", "kv", "prefix")}
    count = {
        name: pl.col(name).cast(pl.UInt32, strict=False) for name in ("running", "waiting", "swapped", "preemptions")
    }
    return rows.select(
        "line",
        "time",
        _engine_replica(),
        pl.lit("interval").alias("kind"),
        count["running"].alias("running_count"),
        count["waiting"].alias("waiting_count"),
        count["swapped"].alias("swapped_count"),
        (number["kv"] / 100).alias("kv_usage_ratio"),
        number["prompt"].alias("prompt_tokens_per_s"),
        number["output"].alias("output_tokens_per_s"),
        (number["prefix"] / 100).alias("prefix_hit_ratio"),
        count["preemptions"].alias("preemption_count"),
    )


def _requests(received: pl.DataFrame, records: pl.DataFrame) -> pl.DataFrame:
    ended = records.filter(pl.col("message").str.starts_with("Finished request "))
    finished = ended.select("line", "time", pl.col("message").str.extract(_FINISHED).alias("request_id"))
    rows = [
        received.select("line", "request_id", pl.col("time").alias("arrival")) if not received.is_empty() else None,
        finished.select("line", "request_id", pl.col("time").alias("last_token")) if not finished.is_empty() else None,
    ]
    told = [row for row in rows if row is not None]
    return pl.concat(told, how="diagonal") if told else pl.DataFrame(schema={"line": pl.UInt32})


def answered(responses: pl.DataFrame, batch: Batch) -> pl.DataFrame:
    """Incidents `response`; an access line without a stamp gets that of the record before it."""
    if responses.is_empty():
        return pl.DataFrame(schema={"line": pl.UInt32})
    paths = responses.select(pl.col("path").unique())
    known = paths.filter(pl.col("path").str.contains(f"^{ENDPOINTS}$"))["path"]
    mine = responses.filter(pl.col("path").is_in(known.implode())).sort("line")
    if mine["time"].null_count():
        near = mine.select("line").join_asof(batch.timeline().rename({"time": "near"}), on="line")["near"]
        mine = mine.with_columns(pl.coalesce("time", near).alias("time"))
    fields = pl.concat_str([pl.lit("POST"), "path", "status"], separator=" ").alias("fields")
    return mine.select("line", "time", "replica", pl.lit("response").alias("kind"), fields)


def _preemptions(records: pl.DataFrame) -> pl.DataFrame:
    mine = records.filter(pl.col("message").str.contains("is preempted by PreemptionMode", literal=True))
    counted = pl.col("message").str.extract(_PREEMPTED)
    return mine.filter(counted.is_not_null()).select(
        "line",
        "time",
        "replica",
        pl.lit("preemption").alias("kind"),
        (pl.lit("total_num_cumulative_preemption=") + counted).alias("fields"),
    )


def _in_use(records: pl.DataFrame) -> pl.DataFrame:
    """What only an engine does that has started: answering a batch of prompts, falling asleep, waking up."""
    mine = records.filter(pl.col("message").str.contains(_AT_WORK))
    return mine.select(
        "line", "time", "replica", pl.lit("in_use").alias("kind"), pl.lit(None, pl.String).alias("fields")
    )


SIGNATURE = Signature(
    stamp=prefixes.VLLM_STAMP,
    phrases=(
        r"Avg prompt throughput: [0-9.]+ tokens/s",
        r"init engine \(profile, create kv cache, warmup model\) took",
        r"Initializing an? (?:V[01] )?LLM engine",
        r"vLLM API server version|Starting vLLM|vllm serve \S",
        r"Graph capturing finished in [0-9]+ secs",
        r"Model loading took [0-9.]+ Gi?B|Loading model weights took [0-9.]+ Gi?B",
        r"torch\.compile (?:takes|took) [0-9.]+ s in total",
        r"Dynamo bytecode transform time: ",
        r"Iteration\([0-9]+\): [0-9]+ context requests",
        r"GPU KV cache size: [0-9,]+ tokens|# (?:GPU|cuda) blocks: ",
        r"\((?:EngineCore|VllmWorker|RayWorkerWrapper|APIServer)[\w-]*(?: rank=\d+)? pid=",
        r"Loading (?:safetensors|pt) checkpoint shards:|Loading safetensors using Runai|Multi-thread loading shards:",
        r"Waiting for [0-9]+ (?:local, [0-9]+ remote )?core engine proc",
        r"EngineCore (?:hit an exception|failed to start)",
        r"Starting to load model \S+\.\.\.",
        rf"{prefixes.VLLM_STAMP}.* out of memory",
    ),
)

ENGINE = Engine(
    name="vllm",
    text=TextFormat(
        start_needles=tuple(sorted({rule.claim for rule in RULES} | set(CONFIGURATION))),
        serving_needles=(
            STEPS.needle,
            STATISTICS.needle,
            RECEIVED.needle,
            "Finished request ",
            '"POST ',
            "PreemptionMode",
            *speculation.NEEDLES,
            "Processed prompts:",
            "Sleep mode freed",
            " seconds to ",
        ),
        dense=(STEPS, STATISTICS, RECEIVED, RESPONSES),
    ),
    rules=RULES,
    identify=identify,
    serving=serving,
    configured=configured,
    deployed=deployed,
    whole=speculation.with_speculation,
)

LOADER = Loader(
    name="vllm",
    about="vLLM text log, V0 and V1: start-up, statistics, iterations, requests; also as JSON lines",
    versions="0.2.7 to 0.32",
    frames=(
        "starts",
        "phases",
        "progress",
        "incidents",
        "requests",
        "engine_samples",
        "engine_steps",
        "ooms",
        "deployments",
    ),
    example="INFO 01-23 12:34:56 [gpu_model_runner.py:2653] Model loading took 14.9888 GiB and 6.884285 seconds",
    signature=SIGNATURE,
    load=partial(engine_log.load, engine=ENGINE),
)
