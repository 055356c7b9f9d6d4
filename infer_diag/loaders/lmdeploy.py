"""LMDeploy's text log, TurboMind and PyTorch engine: loads, the statistics line, responses."""

from __future__ import annotations

from functools import partial

import polars as pl

from infer_diag.loaders import engine_log
from infer_diag.loaders.engine_log import Engine, Frames, replica
from infer_diag.loaders.loader import Loader
from infer_diag.loaders.observations import BAR, StartRule
from infer_diag.loaders.sniff import Signature
from infer_diag.loaders.text.dense import DenseRule
from infer_diag.loaders.text.reader import Batch, TextFormat
from infer_diag.loaders.vllm import RESPONSES, answered

STATISTICS = DenseRule(
    "statistics",
    "Avg thr (in/out): ",
    r"^(?P<prompt>[0-9.]+) / (?P<output>[0-9.]+) tokens/s, "
    r"(?:Server \(succeeded/failed/routed/waiting\): [0-9]+ / [0-9]+ / [0-9]+ / (?P<unrouted>[0-9]+), )?"
    r"Engine \(running/waiting\): (?P<running>[0-9]+) / (?P<waiting>[0-9]+), KV cache: (?P<kv>[0-9.]+)%"
    r"(?:, Prefix cache hit rate: (?P<prefix>[0-9.]+)%)?(?:,|$)",
)

RULES = (
    StartRule("Convert to turbomind format:", rf"Convert to turbomind format:{BAR}", phase="weights_load", edge="bar"),
    StartRule(
        "Loading weights from", rf"Loading weights from \S+:{BAR}", phase="weights_read", edge="bar", strict=False
    ),
    StartRule(
        "checkpoint shards:", rf"Loading \S* ?checkpoint shards:{BAR}", phase="weights_read", edge="bar", strict=False
    ),
    StartRule("Application startup complete.", kind="ready", edge="mark"),
    StartRule("Application startup failed", kind="failed", edge="mark"),
    StartRule(
        "[TM][ERROR] CUDA runtime error",
        r"(?P<fields>\[TM\]\[ERROR\] CUDA runtime error: out of memory.*)",
        kind="oom",
        edge="mark",
        strict=False,
    ),
    StartRule("CUDA runtime error", r"(?P<fields>CUDA runtime error: out of memory.*)", kind="oom", edge="mark"),
    StartRule(
        "out of memory. Tried to allocate",
        r"(?P<fields>.*(?:CUDA|HIP) out of memory\. Tried to allocate.*)",
        kind="oom",
        edge="mark",
    ),
    StartRule("Shutting down", kind="shutdown", edge="mark", strict=False),
    StartRule("Application shutdown complete", kind="shutdown", edge="mark"),
)


def identify(records: pl.DataFrame) -> pl.DataFrame:
    """Adds `replica` (pod, service or data-parallel engine) and `rank` (none) from the stamp."""
    engine = pl.col("ranks").str.extract(r"\b(?:DP|Engine )0*([0-9]+)")
    return records.with_columns(
        replica(pl.coalesce("pod", "service"), pl.lit("DP") + engine), pl.lit(None, pl.String).alias("rank")
    )


def serving(batch: Batch) -> Frames:
    """Samples and responses of a batch, and the damaged lines."""
    statistics, damaged = batch.rows(STATISTICS)
    responses, _ = batch.rows(RESPONSES)
    return {"engine_samples": _samples(statistics), "incidents": answered(responses, batch), "rejected": damaged}


def _samples(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of `EngineSamples`; requests that the server has not yet handed to an engine wait as well."""
    if rows.is_empty():
        return pl.DataFrame(schema={"line": pl.UInt32})
    number = {name: pl.col(name).cast(pl.Float64, strict=False) for name in ("prompt", "output", "kv", "prefix")}
    count = {name: pl.col(name).cast(pl.UInt32, strict=False) for name in ("running", "waiting", "unrouted")}
    return rows.select(
        "line",
        "time",
        "replica",
        pl.lit("interval").alias("kind"),
        count["running"].alias("running_count"),
        (count["waiting"] + count["unrouted"].fill_null(0)).alias("waiting_count"),
        (number["kv"] / 100).alias("kv_usage_ratio"),
        number["prompt"].alias("prompt_tokens_per_s"),
        number["output"].alias("output_tokens_per_s"),
        (number["prefix"] / 100).alias("prefix_hit_ratio"),
    )


def configured(records: pl.DataFrame) -> pl.DataFrame:
    """Rows of `deployments` (without `source_id`), one per line that tells of the configuration."""
    message = pl.col("message")
    rows = records.filter(message.str.contains_any(["engine_config", "model_path="]).fill_null(False))

    def number(name: str) -> pl.Expr:
        return message.str.extract(rf"\b{name}=([0-9]+)").cast(pl.UInt32, strict=False)

    return rows.select(
        "line",
        message.str.extract(r"\bmodel_path='([^']+)'").alias("model"),
        pl.lit(None, pl.String).alias("engine_version"),
        number("tp").alias("gpu_count"),
        number("max_batch_size").alias("max_running_count"),
        number("max_prefill_token_num").alias("max_batch_tokens"),
    )


SIGNATURE = Signature(
    phrases=(
        r"Avg thr \(in/out\): [0-9.]+ / [0-9.]+ tokens/s",
        r" - lmdeploy - [A-Z]+ - ",
        r"\[TM\]\[(?:INFO|WARNING|ERROR|DEBUG)\]",
        r"Convert to turbomind format:",
    ),
)

ENGINE = Engine(
    name="lmdeploy",
    text=TextFormat(
        start_needles=tuple(sorted({rule.claim for rule in RULES} | {"engine_config", "model_path="})),
        serving_needles=(STATISTICS.needle, RESPONSES.needle),
        dense=(STATISTICS, RESPONSES),
    ),
    rules=RULES,
    identify=identify,
    serving=serving,
    configured=configured,
)

LOADER = Loader(
    name="lmdeploy",
    about="LMDeploy's text log: loads of TurboMind and the PyTorch engine, the statistics line, responses",
    versions="layouts of 2024 to 2026",
    frames=("starts", "progress", "incidents", "engine_samples"),
    example=(
        "[2026-01-23 12:34:56 DP0] Avg thr (in/out): 123.4 / 56.7 tokens/s, Server "
        "(succeeded/failed/routed/waiting): 10 / 0 / 5 / 4, Engine (running/waiting): 3 / 2, KV cache: "
        "12.3%, "
    ),
    signature=SIGNATURE,
    load=partial(engine_log.load, engine=ENGINE),
)
