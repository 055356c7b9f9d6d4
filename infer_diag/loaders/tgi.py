"""Text Generation Inference, 0.2 to 3.3: launcher, download, shards, warm-up and finished requests; text or JSON."""

from __future__ import annotations

from functools import partial

import polars as pl

from infer_diag import redact
from infer_diag.loaders import engine_log
from infer_diag.loaders.engine_log import Engine, Frames, replica
from infer_diag.loaders.loader import Loader
from infer_diag.loaders.observations import StartRule
from infer_diag.loaders.sniff import Signature
from infer_diag.loaders.text.reader import Batch, TextFormat

_ORIGIN = (
    r"^(?:[A-Z]+ +)?(?:[a-z][a-z0-9_-]*(?:\{[^{}]*\})?: *)*text_generation_[a-z0-9_]+(?:::[a-z0-9_]+)*: *"
    r"(?:[a-z0-9_/.-]+\.rs:[0-9]+: *)?"
)
"""What Rust's tracing prints between the level and the message: spans, target and place."""

_RANK = r'(?:\brank=|"rank":|^(?:Starting|Waiting for) shard |^Shard )([0-9]+)'

RULES = (
    StartRule("Args {", r"Args \{(?P<fields>.*)", kind="engine_begin", edge="mark"),
    StartRule("Starting download process", phase="weights_fetch", edge="begin"),
    StartRule("Starting check and download process", phase="weights_fetch", edge="begin"),
    StartRule("Successfully downloaded weights", phase="weights_fetch", edge="end"),
    StartRule("Files are already present", kind="weights_cache_hit", edge="mark"),
    # A shard's start is its Python process and the whole load; "Waiting for shard" is a heartbeat and says nothing.
    StartRule("Starting shard", phase="weights_load", edge="begin"),
    StartRule(
        "Shard ",
        r"Shard (?:[0-9]+ )?ready in (?:(?P<ms>[0-9.]+)ms|(?P<seconds>[0-9.]+)s)\b",
        phase="weights_load",
        strict=False,
    ),
    StartRule("Warming up model", phase="warmup", edge="begin"),
    StartRule("Setting max batch total tokens to ", phase="warmup", edge="end"),
    StartRule("Connected", r"Connected(?: |$)", kind="ready", edge="mark", strict=False),
    StartRule("Shard ", r"(?P<fields>Shard [0-9]+ failed to start.*)", kind="failed", edge="mark", strict=False),
    StartRule(
        "hard process was signaled to shutdown",
        r"(?P<fields>Shard process was signaled to shutdown.*)",
        kind="failed",
        edge="mark",
    ),
    StartRule(
        "ownload encountered an error", r"(?P<fields>Download encountered an error.*)", kind="failed", edge="mark"
    ),
    StartRule("encountered an error.", r"(?P<fields>Method Warmup encountered an error.*)", kind="failed", edge="mark"),
    StartRule("Error when initializing model", kind="failed", edge="mark"),
    StartRule("Webserver Crashed", kind="failed", edge="mark"),
    *(
        StartRule(f"Error: {name}", rf"(?P<fields>Error: {name}.*)", kind="failed", edge="mark")
        for name in ("ShardCannotStart", "ShardDisconnected", "Webserver", "DownloadError", "ArgumentValidation")
    ),
    StartRule("Shutting down shards", kind="shutdown", edge="mark"),
    StartRule("Shard ", r"Shard [0-9]+ crashed", kind="shutdown", edge="mark", strict=False),
)

CONFIGURATION = ("model_id: ", "Sharding model on ", "KV-cache blocks: ")

_TIMES = {
    "total_time": "e2e_s",
    "queue_time": "queue_s",
    "inference_time": "compute_s",
    "time_per_token": "per_token_s",
}
_UNITS = {"ns": 1e-9, "µs": 1e-6, "μs": 1e-6, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_WHOLE = 0.02
"""Both durations are printed to the nanosecond, so a quotient farther from a whole number counts no tokens."""


def identify(records: pl.DataFrame) -> pl.DataFrame:
    """Adds `replica` (pod or service) and `rank` (the shard), and takes spans and target off the message."""
    # The span of a finished request holds its times, and without its parameters nothing else tells it from others.
    timed = pl.col("message").str.contains(r'\btotal_time\\?"?[=:]')
    message = pl.when(timed).then("message").otherwise(pl.col("message").str.replace(_ORIGIN, "")).str.strip_prefix('"')
    about_shard = message.str.contains("(?i)shard")
    named = records.with_columns(message.alias("message"))
    return named.with_columns(
        replica(pl.coalesce("pod", "service"), pl.lit(None, pl.String)),
        pl.when(about_shard).then(pl.col("message").str.extract(_RANK)).alias("rank"),
    )


def serving(batch: Batch) -> Frames:
    """The durations of finished requests, and the damaged lines."""
    message = pl.col("message")
    mine = batch.records.filter(message.str.contains(r'total_time\\?"?[=:]') & message.str.contains(r"\bSuccess\b"))
    read = mine.with_columns(_seconds(name).alias(column) for name, column in _TIMES.items())
    whole = pl.col("e2e_s").is_not_null() & pl.col("queue_s").is_not_null()
    damaged = read.filter(~whole).select("line", pl.lit("Success").alias("rule"), message.alias("text"))
    timings = read.filter(whole).select(
        "line",
        "time",
        "replica",
        pl.col("line").cast(pl.String).alias("request_id"),
        "queue_s",
        "compute_s",
        "e2e_s",
        _count("(?:prompt_tokens|input_tokens|input_toks|input_length)").alias("prompt_tokens"),
        pl.coalesce(_count("(?:generated_tokens|output_tokens)"), _generated()).alias("output_tokens"),
    )
    return {"request_timings": timings, "rejected": damaged}


def _seconds(name: str) -> pl.Expr:
    """A duration as Rust writes it; an encoding that spoilt the micro sign leaves something else before the s."""
    printed = pl.col("message").str.extract_groups(rf'\b{name}\\?"?[=:] ?\\?"?(?P<n>[0-9.]+)(?P<u>[^0-9.",}}\\ ]*s)\b')
    unit = printed.struct.field("u")
    scale = unit.replace_strict(_UNITS, default=1e-6, return_dtype=pl.Float64)
    return printed.struct.field("n").cast(pl.Float64, strict=False) * scale


def _count(name: str) -> pl.Expr:
    return pl.col("message").str.extract(rf'\b{name}\\?"?[=:] ?\\?"?([0-9]+)').cast(pl.UInt32, strict=False)


def _generated() -> pl.Expr:
    """Output tokens: the router divides the time of inference by their number and prints both."""
    quotient = pl.col("compute_s") / pl.col("per_token_s")
    number = quotient.round()
    exact = quotient.is_finite() & (number >= 1) & ((quotient - number).abs() < _WHOLE)
    return pl.when(exact).then(number).cast(pl.UInt32, strict=False)


def configured(records: pl.DataFrame) -> pl.DataFrame:
    """Rows of `deployments` (without `source_id`), one per line that tells of the configuration."""
    message = pl.col("message")
    told = message.str.contains_any([*CONFIGURATION, "download process for ", "Setting max batch total tokens to "])
    rows = records.filter(told.fill_null(False))
    shards = pl.coalesce(
        message.str.extract(r"^Sharding model on ([0-9]+) processes"),
        message.str.extract(r"\bnum_shard: (?:Some\()?([0-9]+)"),
    )
    pool = pl.coalesce(
        _product(message, r"^KV-cache blocks: ([0-9]+), size: ([0-9]+)"),
        message.str.extract(r"^Setting max batch total tokens to ([0-9]+)").cast(pl.UInt64, strict=False),
    )
    return rows.select(
        "line",
        pl.coalesce(
            message.str.extract(r'\bmodel_id: "([^"]+)"'), message.str.extract(r"download process for (\S+)$")
        ).alias("model"),
        pl.lit(None, pl.String).alias("engine_version"),
        shards.cast(pl.UInt32, strict=False).alias("gpu_count"),
        message.str.extract(r"\bquantize: Some\(\s*([A-Za-z0-9]+)").str.to_lowercase().alias("precision"),
        pool.alias("kv_cache_tokens"),
        message.str.extract(r"\bmax_batch_prefill_tokens: (?:Some\()?([0-9]+)")
        .cast(pl.UInt32, strict=False)
        .alias("max_batch_tokens"),
        redact.redacted(message.str.extract(r"^Args \{ ?(.+)\}$").str.slice(0, 2000)).alias("flags"),
    )


def _product(message: pl.Expr, pattern: str) -> pl.Expr:
    factors = [message.str.extract(pattern, group).cast(pl.UInt64, strict=False) for group in (1, 2)]
    return factors[0] * factors[1]


SIGNATURE = Signature(
    phrases=(
        r"text_generation_(?:launcher|router)",
        r"Starting (?:check and )?download process",
        r"Shard (?:\d+ )?ready in [0-9.]+m?s\b|Waiting for shard (?:\d+ )?to be ready",
        r'total_time\\?"?[=:].*validation_time\\?"?[=:].*queue_time',
    ),
)

ENGINE = Engine(
    name="tgi",
    text=TextFormat(
        start_needles=tuple(sorted({rule.claim for rule in RULES} | set(CONFIGURATION))),
        serving_needles=("total_time",),
    ),
    rules=RULES,
    identify=identify,
    serving=serving,
    configured=configured,
)

LOADER = Loader(
    name="tgi",
    about="Text Generation Inference, text or JSON: launcher, download, shards, warm-up, times of finished requests",
    versions="0.2 to 3.3",
    frames=("starts", "phases", "incidents", "request_timings", "deployments"),
    example="2026-01-23T12:34:56.789012Z  INFO text_generation_launcher: Shard ready in 12.345678901s rank=0",
    signature=SIGNATURE,
    load=partial(engine_log.load, engine=ENGINE),
)
