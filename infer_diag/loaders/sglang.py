"""SGLang's text log, 0.2 to 0.5: start-up, prefill and decode batches, retractions."""

from __future__ import annotations

from functools import partial

import polars as pl

from infer_diag import redact
from infer_diag.loaders import engine_log
from infer_diag.loaders.engine_log import Engine, Frames, replica
from infer_diag.loaders.loader import Loader
from infer_diag.loaders.observations import BAR, StartRule
from infer_diag.loaders.sglang_troubles import GAVE_UP, WATCHDOG, WEB_SERVER_UP, with_watchdog, without_failed_warmup
from infer_diag.loaders.sniff import Signature
from infer_diag.loaders.text import prefixes
from infer_diag.loaders.text.reader import Batch, TextFormat
from infer_diag.loaders.vllm import RESPONSES, answered

_ELAPSED = r"(?:(?:Time )?elapsed[:=] ?(?P<seconds>[0-9.]+) ?s\b)?"

RULES = (
    StartRule(
        "server_args=",
        r"(?:server_args=)(?P<fields>ServerArgs\(.*)",
        kind="engine_begin",
        edge="mark",
        strict=False,
    ),
    StartRule("Init torch distributed begin", phase="device_init", edge="begin"),
    StartRule(
        "Init torch distributed ends", rf"Init torch distributed ends\.? ?{_ELAPSED}", phase="device_init", edge="end"
    ),
    StartRule("Load weight begin", phase="weights_load", edge="begin"),
    StartRule(
        "Load weight end.",
        rf"Load weight end\. ?{_ELAPSED}.*?(?:mem usage=(?P<gib>[0-9.]+) GB)?\.?$",
        phase="weights_load",
        edge="end",
    ),
    StartRule("Memory pool end", phase="kv_alloc", edge="end"),
    StartRule(
        "graph begin",
        r"Capture (?:.* )?[A-Za-z]+ graph begin",
        phase="graph_capture",
        edge="begin",
        strict=False,
    ),
    StartRule(
        "graph end",
        rf"Capture (?:.* )?[A-Za-z]+ graph end\. ?{_ELAPSED}",
        phase="graph_capture",
        edge="end",
        strict=False,
    ),
    StartRule(
        "shards:",
        rf"(?:Loading \S+ checkpoint|Multi-thread loading) shards:{BAR}",
        phase="weights_read",
        edge="bar",
        strict=False,
    ),
    StartRule(
        "Compiling a graph for",
        r"Compiling a graph for .+? takes (?P<seconds>[0-9.]+) s",
        phase="compile",
        inside="graph_capture",
    ),
    StartRule(
        "Capturing ", rf"Capturing (?:batches|num tokens).*?:{BAR}", phase="graph_capture", edge="bar", strict=False
    ),
    StartRule("The server is fired up and ready to roll", kind="ready", edge="mark"),
    StartRule(WEB_SERVER_UP, rf"(?P<fields>{WEB_SERVER_UP})", kind="ready", edge="mark"),
    StartRule("Application startup failed", kind="failed", edge="mark"),
    # What says only that something failed is not quoted: a later line gives the reason.
    StartRule("Scheduler hit an exception", kind="failed", edge="mark"),
    StartRule("Initialization failed", r"(?P<fields>.*Initialization failed.*)", kind="failed", edge="verdict"),
    StartRule("Received sigquit from a child proc", kind="failed", edge="mark"),
    StartRule(
        WATCHDOG, rf"(?P<fields>.*{WATCHDOG} \(self\.watchdog_timeout=\d+.*)", kind=GAVE_UP, edge="mark", strict=False
    ),
    StartRule(
        "apture cuda graph failed",
        r"(?i)(?P<fields>.*capture cuda graph failed.*)",
        kind="failed",
        edge="verdict",
        strict=False,
    ),
    StartRule(
        "ranks that didn't finish loading",
        r"(?P<fields>.*other ranks that didn't finish loading.*)",
        kind="failed",
        edge="verdict",
        strict=False,
    ),
    StartRule("Not enough memory", r"(?P<fields>.*Not enough memory.*)", kind="failed", edge="verdict"),
    StartRule(
        "out of memory. Tried to allocate",
        r"(?P<fields>.*(?:CUDA|HIP) out of memory\. Tried to allocate.*)",
        kind="oom",
        edge="mark",
    ),
    StartRule("Shutting down", kind="shutdown", edge="mark", strict=False),
    StartRule("Application shutdown complete", kind="shutdown", edge="mark"),
)

_BATCH = r"(?:Prefill|Decode) batch(?: \[\d+\])?[.,] "
_KEYS = {
    "running": r"#running-req: (\d+)",
    "waiting": r"#queue-req: (\d+)",
    "new": r"#new-seq: (\d+)",
    "new_tokens": r"#new-token: (\d+)",
    "cached_tokens": r"#cached-token: (\d+)",
    "usage": r"(?:^|[ ,])(?:full )?token usage: ([0-9.]+)",
    "hit": r"cache hit rate: ([0-9.]+)%",
    "output": r"gen throughput \(token/s\): ([0-9.]+)",
    "input": r"input throughput \(token/s\): ([0-9.]+)",
}
_RETRACTED = r"#retracted_reqs: \d+"
_RANKS = 1 << 16
"""More ranks than any pipeline stage has."""


def identify(records: pl.DataFrame) -> pl.DataFrame:
    """Adds `replica` (data-parallel engine, pod or service) and `rank` (the rest of the rank labels) from the stamp."""
    ranks = pl.col("ranks").str.strip_chars()
    data_parallel = ranks.str.extract(r"\b(DP\d+)")
    rest = ranks.str.replace(r"\bDP\d+ ?", "").str.strip_chars()
    return records.with_columns(
        replica(pl.coalesce("pod", "service"), data_parallel),
        # Where a logging configuration prints no ranks, the workers' process ids still tell them apart.
        pl.coalesce(pl.when(rest != "").then(rest), "rank", pl.when(pl.col("process").is_null()).then("pid")).alias(
            "rank"
        ),
    )


def serving(batch: Batch) -> Frames:
    """Samples, responses and retractions of a batch, and the damaged lines."""
    mine = batch.records.filter(pl.col("message").str.contains(f"^{_BATCH}"))
    read = mine.with_columns(
        pl.col("message").str.extract(pattern).cast(pl.Float64, strict=False).alias(name)
        for name, pattern in _KEYS.items()
    )
    whole = pl.col("running").is_not_null() & pl.col("waiting").is_not_null()
    damaged = read.filter(~whole).select("line", pl.lit("batch").alias("rule"), pl.col("message").alias("text"))
    responses, _ = batch.rows(RESPONSES)
    return {
        "engine_samples": _samples(read.filter(whole)),
        "incidents": pl.concat([answered(responses, batch), _retractions(batch.records)], how="diagonal"),
        "rejected": damaged,
    }


def _samples(rows: pl.DataFrame) -> pl.DataFrame:
    if rows.is_empty():
        return pl.DataFrame(schema={"line": pl.UInt32})
    counts = {
        "running": "running_count",
        "waiting": "waiting_count",
        "new": "new_count",
        "new_tokens": "new_tokens",
        "cached_tokens": "cached_tokens",
    }
    return rows.select(
        "line",
        "time",
        "replica",
        "rank",
        pl.col("message").str.extract("^(Prefill|Decode)").str.to_lowercase().alias("kind"),
        *[pl.col(name).cast(pl.UInt32, strict=False).alias(column) for name, column in counts.items()],
        pl.col("usage").alias("kv_usage_ratio"),
        pl.col("input").alias("prompt_tokens_per_s"),
        pl.col("output").alias("output_tokens_per_s"),
        (pl.col("hit") / 100).alias("prefix_hit_ratio"),
    )


def _retractions(records: pl.DataFrame) -> pl.DataFrame:
    fields = pl.col("message").str.extract(f"({_RETRACTED})")
    told = records.filter(fields.is_not_null())
    return told.select("line", "time", "replica", "rank", pl.lit("preemption").alias("kind"), fields.alias("fields"))


def first_ranks(frames: Frames) -> Frames:
    """The samples of one rank of each replica: in some versions every rank prints the same batch.

    With data-parallel attention a replica's only rank may be any, so the first that prints this kind speaks for it.
    """
    samples = frames.get("engine_samples")
    if samples is None:
        return frames
    numbers = [
        pl.col("rank").str.extract(rf"\b{name}(\d+)").cast(pl.UInt32, strict=False).fill_null(0)
        for name in ("PP", "TP", "EP")
    ]
    place = pl.when(pl.col("rank").is_not_null()).then(sum(numbers[1:], numbers[0] * _RANKS).alias("place"))
    ranked = samples.with_columns(place.alias("_place"))
    first = pl.col("_place") == pl.col("_place").min().over("replica", "kind")
    kept = ranked.filter(pl.col("_place").is_null() | first)
    return frames | {"engine_samples": kept.drop("_place", "rank")}


def whole(frames: Frames) -> Frames:
    """The frames of a whole file: one rank speaks for its replica, and a web server without its engine is not ready."""
    return without_failed_warmup(with_watchdog(first_ranks(frames)))


def configured(records: pl.DataFrame) -> pl.DataFrame:
    """Rows of `deployments` (without `source_id`), one per line that tells of the configuration."""
    message = pl.col("message")
    rows = records.filter(message.str.contains_any(["server_args=", "max_total_num_tokens="]).fill_null(False))

    def number(name: str) -> pl.Expr:
        return message.str.extract(rf"\b{name}'?[=:] ?(\d+)").cast(pl.UInt64, strict=False)

    tensor, pipeline, data = number("tp_size"), number("pp_size").fill_null(1), number("dp_size").fill_null(1)
    # With data-parallel attention the engines share the GPUs of one tensor-parallel group.
    shared = message.str.contains(r"\benable_dp_attention'?[=:] ?True\b") & (data > 0) & (tensor % data == 0)
    gpus = pl.when(shared).then(tensor * pipeline // data).otherwise(tensor * pipeline)
    return rows.select(
        "line",
        message.str.extract(r"\bmodel_path'?[=:] ?'([^']+)'").alias("model"),
        pl.lit(None, pl.String).alias("engine_version"),
        gpus.cast(pl.UInt32, strict=False).alias("gpu_count"),
        pl.when(tensor.is_not_null()).then(data).cast(pl.UInt32, strict=False).alias("data_parallel_count"),
        message.str.extract(r"\bquantization='([^']+)'").alias("precision"),
        number("max_total_num_tokens").alias("kv_cache_tokens"),
        number("max_running_requests").cast(pl.UInt32, strict=False).alias("max_running_count"),
        number("chunked_prefill_size").cast(pl.UInt32, strict=False).alias("max_batch_tokens"),
        redact.redacted(message.str.extract(r"^server_args=(.+)$").str.slice(0, 2000)).alias("flags"),
    )


SIGNATURE = Signature(
    stamp=prefixes.SGLANG_STAMP,
    phrases=(
        r"(?:Prefill|Decode) batch(?: \[\d+\])?[.,] ",
        r"Load weight (?:begin|end)\.",
        r"Memory pool end\.",
        r"Capture (?:.* )?[A-Za-z]+ graph (?:begin|end)",
        r"max_total_num_tokens=\d+",
        r"The server is fired up and ready to roll!",
        r"server_args=ServerArgs\(|\bsglang\b",
        r"Init torch distributed (?:begin|ends)",
        r"\] Scheduler hit an exception: ",
        r"Retract requests\.|#retracted_reqs",
    ),
)

ENGINE = Engine(
    name="sglang",
    text=TextFormat(
        start_needles=tuple(sorted({rule.claim for rule in RULES} | {"max_total_num_tokens="})),
        serving_needles=("Prefill batch", "Decode batch", '"POST ', "#retracted_reqs"),
        dense=(RESPONSES,),
    ),
    rules=RULES,
    identify=identify,
    serving=serving,
    configured=configured,
    whole=whole,
)

LOADER = Loader(
    name="sglang",
    about="SGLang text log: start-up, prefill and decode batches, retractions",
    versions="0.2.15 to 0.5.23",
    frames=("starts", "phases", "progress", "incidents", "engine_samples", "ooms", "deployments"),
    example=(
        "[2026-01-23 12:34:56 TP0] Decode batch. #running-req: 3, #token: 900, token usage: 0.01, cuda "
        "graph: True, gen throughput (token/s): 123.45, #queue-req: 0"
    ),
    signature=SIGNATURE,
    load=partial(engine_log.load, engine=ENGINE),
)
