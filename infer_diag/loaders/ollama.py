"""Ollama's server, 0.1 to 0.13: loads of models, their progress, answers, and the llama.cpp lines inside."""

from __future__ import annotations

from functools import partial

import polars as pl

from infer_diag import redact
from infer_diag.loaders import engine_log, llama_cpp, llama_timings
from infer_diag.loaders.engine_log import Engine, Frames
from infer_diag.loaders.go_durations import GO_DURATION, go_seconds
from infer_diag.loaders.llama_cpp import identify
from infer_diag.loaders.loader import Loader
from infer_diag.loaders.observations import StartRule
from infer_diag.loaders.sniff import Signature
from infer_diag.loaders.text.reader import Batch, TextFormat

_BEGINS = ("starting llama server", "starting runner")
_FAILURES = (
    "error loading llama server",
    "timed out waiting for llama runner to start",
    "llama runner terminated",
    "llama runner process has terminated",
    "Load failed",
)

RULES = (
    *(StartRule(claim, kind="engine_begin", edge="mark") for claim in _BEGINS),
    # A load runs from the runner's start, its process included, until the runner answers.
    *(StartRule(claim, phase="weights_load", edge="begin") for claim in _BEGINS),
    StartRule(
        "model load progress ", r"model load progress (?P<fraction>[01]\.[0-9]+)", phase="weights_load", edge="bar"
    ),
    StartRule(
        "llama runner started in ", r"llama runner started in (?P<seconds>[0-9.]+) seconds", phase="weights_load"
    ),
    StartRule("llama runner started in ", kind="ready", edge="mark"),
    *(StartRule(claim, rf"(?P<fields>{claim}.*)", kind="failed", edge="mark") for claim in _FAILURES),
    StartRule("stopping llama server", kind="shutdown", edge="mark"),
)

CONFIGURATION = ("Listening on ", "inference compute")

_ENDPOINTS = r"/(?:api/(?:generate|chat|embed(?:dings)?)|v1/(?:(?:chat/)?completions|embeddings|messages|responses))"
_ACCESS = (
    rf"^\[GIN\] [0-9/]+ - [0-9:]+ \| +(?P<status>[0-9]+) \| +{GO_DURATION} \| +\S+ \| (?P<method>[A-Z]+) +"
    rf'"(?P<path>{_ENDPOINTS})"'
)


def serving(batch: Batch) -> Frames:
    """What llama.cpp's lines tell, and the web server's: a response, and the time of each that succeeded.

    The web server's stamp names no zone while the log's others do, so it is left alone.
    """
    claimed = batch.records.filter(pl.col("message").str.contains(_ACCESS))
    read = claimed.with_columns(pl.col("message").str.extract_groups(_ACCESS).alias("_g")).with_columns(
        *(pl.col("_g").struct.field(name).alias(name) for name in ("status", "method", "path")),
        go_seconds(pl.col("_g")).alias("e2e_s"),
    )
    answered = read.select(
        "line",
        "time",
        "replica",
        pl.lit("response").alias("kind"),
        pl.concat_str(["method", "path", "status"], separator=" ").alias("fields"),
    )
    succeeded = read.filter(pl.col("status").str.starts_with("2"))
    timed = succeeded.select("line", "time", "replica", pl.col("line").cast(pl.String).alias("request_id"), "e2e_s")
    inside = llama_cpp.serving(batch)
    return inside | {"incidents": pl.concat([inside["incidents"], answered]), "request_timings": timed}


def whole(frames: Frames) -> Frames:
    """The frames with one kind of request times: a runner's own where it prints them, else the web server's."""
    accesses = frames.pop("request_timings", None)
    told = llama_timings.whole(frames)
    if accesses is None or not told["request_timings"].is_empty():
        return told
    return told | {"request_timings": accesses}


def configured(records: pl.DataFrame) -> pl.DataFrame:
    """Rows of `deployments` (without `source_id`), one per line that tells of the configuration."""
    message = pl.col("message")
    rows = records.filter(message.str.contains_any([*CONFIGURATION, *_BEGINS]).fill_null(False))

    def option(name: str) -> pl.Expr:
        return message.str.extract(rf" --{name} ([0-9]+)").cast(pl.UInt32, strict=False)

    return rows.select(
        "line",
        message.str.extract(r" --model (\S+)").str.replace(r"^.*[/\\]", "").alias("model"),
        message.str.extract(r"^Listening on .*\(version ([^)]+)\)").alias("engine_version"),
        message.str.extract(r'^inference compute" .*\bname="([^"]+)"').alias("gpu"),
        option("ctx-size").cast(pl.UInt64, strict=False).alias("kv_cache_tokens"),
        option("parallel").alias("max_running_count"),
        option("batch-size").alias("max_batch_tokens"),
        redact.redacted(message.str.extract(r' cmd="(.+)"$').str.slice(0, 2000)).alias("flags"),
    )


SIGNATURE = Signature(
    phrases=(
        r"time=\S+ level=\w+ source=\w+\.go:\d+ msg=",
        r"llama runner started in [0-9.]+ seconds|starting llama server|model load progress [01]\.",
        r"ollama_llama_server|ollama(?:\.exe)? runner|OLLAMA_[A-Z]+:",
        r'\[GIN\] .*"/api/(?:chat|generate|embed|tags|version|ps|show)',
    ),
    wraps=("llama.cpp",),
)

ENGINE = Engine(
    name="ollama",
    text=TextFormat(
        start_needles=tuple(sorted({rule.claim for rule in RULES} | set(CONFIGURATION))),
        serving_needles=("[GIN] ", *llama_cpp.ENGINE.text.serving_needles),
    ),
    rules=RULES,
    identify=identify,
    serving=serving,
    configured=configured,
    whole=whole,
    starts_within=True,
)

LOADER = Loader(
    name="ollama",
    about="Ollama's server: loads of models and their progress, answers, llama.cpp's lines inside",
    versions="0.1 to 0.13",
    frames=("starts", "phases", "progress", "incidents", "request_timings", "deployments"),
    example=(
        'time=2026-01-23T12:34:56.789Z level=INFO source=server.go:1289 msg="llama runner started in 12.34 seconds"'
    ),
    signature=SIGNATURE,
    load=partial(engine_log.load, engine=ENGINE),
)
