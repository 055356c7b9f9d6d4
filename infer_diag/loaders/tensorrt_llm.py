"""TensorRT-LLM's text log, C++ and PyTorch backends: build and load, memory ledger, iterations."""

from __future__ import annotations

from functools import partial

import polars as pl

from infer_diag.loaders import engine_log, tensorrt_llm_ledger
from infer_diag.loaders.conformed import Frames
from infer_diag.loaders.engine_log import Engine, replica
from infer_diag.loaders.loader import Loader
from infer_diag.loaders.sniff import Signature
from infer_diag.loaders.tensorrt_llm_rules import CONFIGURATION, RULES
from infer_diag.loaders.text import stamps
from infer_diag.loaders.text.reader import Batch, TextFormat

_ITERATION = "currank_total_requests = "
_BATCH_JSON = '"Active Request Count":'
_KINDS = pl.Enum(("prefill", "decode", "mixed", "idle"))
_HMS_RESOLUTION_S = 1.0
"""`HH:MM:SS` drops what is left of a second."""


def identify(records: pl.DataFrame) -> pl.DataFrame:
    """Adds `replica` (pod or service); `rank` is what the logger prints."""
    return records.with_columns(replica(pl.coalesce("pod", "service"), pl.lit(None, pl.String)))


def serving(batch: Batch) -> Frames:
    """Steps, samples and the memory ledger of a batch."""
    iterations = _iterations(batch.records)
    samples = [_iteration_samples(iterations), _batch_samples(batch.records)]
    return {
        "engine_steps": _iteration_steps(iterations),
        "engine_samples": pl.concat(
            [frame for frame in samples if not frame.is_empty()] or samples[:1], how="diagonal"
        ),
        "components": tensorrt_llm_ledger.components(batch.records),
        "ooms": tensorrt_llm_ledger.failures(batch.records),
    }


def _iterations(records: pl.DataFrame) -> pl.DataFrame:
    """The lines that the PyTorch backend prints for every iteration, those of the first rank."""
    message = pl.col("message")
    mine = records.filter(message.str.contains(_ITERATION, literal=True).fill_null(False))

    def number(pattern: str) -> pl.Expr:
        return message.str.extract(pattern).cast(pl.Float64, strict=False)

    read = mine.select(
        "line",
        "time",
        "replica",
        number(r"\brank = ([0-9]+)").fill_null(0).alias("_rank"),
        number(r"num_scheduled_requests(?: =|:) ([0-9]+)").alias("_scheduled"),
        number(r"'num_ctx_requests': ([0-9]+)").alias("_prefill"),
        number(r"'num_ctx_tokens': ([0-9]+)").alias("_prompt"),
        number(r"'num_generation_tokens': ([0-9]+)").alias("_output"),
        pl.coalesce(number(r"host_step_time = ([0-9.]+)ms") / 1e3, number(r"elapsed_time = ([0-9.]+)s")).alias(
            "duration_s"
        ),
        number(r"kv_cache_util = ([0-9.]+)").alias("kv_usage_ratio"),
    )
    return read.filter(pl.col("_rank") == 0).drop_nulls(["_scheduled", "_prefill", "duration_s"])


def _iteration_steps(iterations: pl.DataFrame) -> pl.DataFrame:
    if iterations.is_empty():
        return pl.DataFrame(schema={"line": pl.UInt32})
    decode = (pl.col("_scheduled") - pl.col("_prefill")).clip(lower_bound=0)
    return steps(
        iterations,
        prefill=pl.col("_prefill"),
        decode=decode,
        prompt=pl.col("_prompt"),
        output=pl.col("_output"),
    )


def steps(rows: pl.DataFrame, *, prefill: pl.Expr, decode: pl.Expr, prompt: pl.Expr, output: pl.Expr) -> pl.DataFrame:
    """Rows of `schema.EngineSteps` (without `source_id`) from rows with `line`, `time`, `replica`, `duration_s`."""
    kind = (
        pl.when((prefill > 0) & (decode > 0))
        .then(pl.lit("mixed"))
        .when(prefill > 0)
        .then(pl.lit("prefill"))
        .when(decode > 0)
        .then(pl.lit("decode"))
        .otherwise(pl.lit("idle"))
    )
    counted = {"prefill_count": prefill, "decode_count": decode, "prefill_tokens": prompt, "decode_tokens": output}
    return rows.select(
        "line",
        "time",
        pl.col("replica").cast(pl.Categorical),
        kind.cast(_KINDS).alias("kind"),
        *[expr.round().cast(pl.UInt32, strict=False).alias(name) for name, expr in counted.items()],
        "duration_s",
    )


def _iteration_samples(iterations: pl.DataFrame) -> pl.DataFrame:
    if iterations.is_empty() or iterations["kv_usage_ratio"].null_count() == len(iterations):
        return pl.DataFrame(schema={"line": pl.UInt32})
    return iterations.drop_nulls("kv_usage_ratio").select(
        "line",
        "time",
        "replica",
        pl.lit("interval").alias("kind"),
        pl.col("_scheduled").cast(pl.UInt32, strict=False).alias("running_count"),
        pl.col("_prefill").cast(pl.UInt32, strict=False).alias("new_count"),
        "kv_usage_ratio",
    )


def _batch_samples(records: pl.DataFrame) -> pl.DataFrame:
    """The JSON object that the C++ batch manager logs for every iteration; it has a stamp of its own inside."""
    message = pl.col("message")
    mine = records.filter(message.str.contains(_BATCH_JSON, literal=True).fill_null(False))
    if mine.is_empty():
        return pl.DataFrame(schema={"line": pl.UInt32})

    def count(name: str) -> pl.Expr:
        return message.str.extract(f'"{name}": ?([0-9]+)').cast(pl.Float64, strict=False)

    own = message.str.extract(r'"Timestamp": ?"([^"]+)"').alias("raw")
    read = mine.with_columns(own)
    known = stamps.parsed(read["raw"]).select(
        "raw", pl.from_epoch("us", time_unit="us").dt.replace_time_zone("UTC").alias("_time")
    )
    return read.join(known, on="raw", how="left", maintain_order="left").select(
        "line",
        pl.coalesce("time", "_time").alias("time"),
        "replica",
        pl.lit("interval").alias("kind"),
        count("Active Request Count").cast(pl.UInt32, strict=False).alias("running_count"),
        count("Waiting Requests").cast(pl.UInt32, strict=False).alias("waiting_count"),
        count("Paused Requests").cast(pl.UInt32, strict=False).alias("preemption_count"),
        count("Context Requests").cast(pl.UInt32, strict=False).alias("new_count"),
        count("Total Context Tokens").cast(pl.UInt32, strict=False).alias("new_tokens"),
        pl.when(count("Max KV cache blocks") > 0)
        .then(count("Used KV cache blocks") / count("Max KV cache blocks"))
        .alias("kv_usage_ratio"),
    )


def configured(records: pl.DataFrame) -> pl.DataFrame:
    """Rows of `deployments` (without `source_id`), one per line that tells of the configuration."""
    message = pl.col("message")
    rows = records.filter(message.str.contains_any(list(CONFIGURATION)).fill_null(False))
    tokens = pl.coalesce(
        message.str.extract(r"for max tokens in paged KV cache \(([0-9]+)\)"),
        message.str.extract(r"^Using ([0-9]+) (?:total )?tokens in paged KV cache"),
    )
    tensor, pipeline = (
        message.str.extract(rf"\b{name}_parallel_size'?[=:] ?([0-9]+)").cast(pl.UInt64, strict=False)
        for name in ("tensor", "pipeline")
    )
    ranks = message.str.extract(r"\bMPI size: ([0-9]+)").cast(pl.UInt64, strict=False)
    return rows.select(
        "line",
        pl.coalesce(tensor * pipeline.fill_null(1), ranks).cast(pl.UInt32, strict=False).alias("gpu_count"),
        pl.coalesce(
            message.str.extract(r"^TensorRT[- ]LLM version: ([0-9]\S*)"),
            message.str.extract(r"^Triton Server Version ([0-9]\S*)"),
            message.str.extract(r"^\|?\s*server_version\s*\|\s*([0-9]\S*)"),
        ).alias("engine_version"),
        tokens.cast(pl.UInt64, strict=False).alias("kv_cache_tokens"),
        message.str.extract(r"^TRTGptModel maxBatchSize: ([0-9]+)")
        .cast(pl.UInt32, strict=False)
        .alias("max_running_count"),
        message.str.extract(r"^TRTGptModel maxNumTokens: ([0-9]+)")
        .cast(pl.UInt32, strict=False)
        .alias("max_batch_tokens"),
    )


def whole(frames: Frames) -> Frames:
    """Frames whose build times, printed as hours, minutes and seconds, are durations."""
    clocked = (pl.col("phase") == "engine_build") & pl.col("seconds").is_null() & pl.col("elapsed_s").is_not_null()
    mended = frames["observations"].with_columns(
        pl.when(clocked).then("elapsed_s").otherwise("seconds").alias("seconds"),
        pl.when(clocked).then(pl.lit(_HMS_RESOLUTION_S)).otherwise("resolution_s").alias("resolution_s"),
    )
    return {**frames, "observations": mended}


SIGNATURE = Signature(
    stamp=r"\[(?:TRT-LLM|TRT)\] |\[TensorRT-LLM\]\[",
    phrases=(
        r"\[TensorRT-LLM\]\[(?:INFO|WARNING|ERROR|DEBUG)\]",
        r"\[TRT-LLM\] (?:\[RANK \d+\] )?\[[VIWE]\]",
        r"TensorRT[- ]LLM version: ",
        r"\[MemUsageChange\] ",
        r"Executor creation failed due to insufficient GPU memory|The following component could not be created: ",
        r"Total time of building all engines: ",
        r"Model init total -- [0-9.]+s",
        r"currank_total_requests = [0-9]+/",
    ),
)

TEXT = TextFormat(
    start_needles=tuple(sorted({rule.claim for rule in RULES} | {*CONFIGURATION, *tensorrt_llm_ledger.NEEDLES})),
    serving_needles=(_ITERATION, _BATCH_JSON),
)

ENGINE = Engine(
    name="tensorrt-llm",
    text=TEXT,
    rules=RULES,
    identify=identify,
    serving=serving,
    configured=configured,
    whole=whole,
)

LOADER = Loader(
    name="tensorrt-llm",
    about="TensorRT-LLM text log, C++ and PyTorch backends: build and load, memory ledger, iterations",
    versions="layouts of 2023 to 2026",
    frames=(
        "starts",
        "phases",
        "progress",
        "incidents",
        "engine_samples",
        "engine_steps",
        "ooms",
        "components",
        "deployments",
    ),
    example="[01/23/2026-12:34:56] [TRT-LLM] [I] Total time of building all engines: 00:03:21",
    signature=SIGNATURE,
    load=partial(engine_log.load, engine=ENGINE),
)
