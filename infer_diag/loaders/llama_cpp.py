"""llama.cpp's server and tools, 2023 to 2026: loads, buffers, slots, timings of requests, a full KV cache."""

from __future__ import annotations

from functools import partial

import polars as pl

from infer_diag.loaders import engine_log, llama_timings
from infer_diag.loaders.engine_log import Engine, Frames, replica
from infer_diag.loaders.loader import Loader
from infer_diag.loaders.observations import StartRule
from infer_diag.loaders.oom_messages import resolution, size
from infer_diag.loaders.sniff import Signature
from infer_diag.loaders.text.reader import Batch, TextFormat

_FUNCTION = r"(?:(?:srv +|slot +)?[A-Za-z_]+ ?: +)?"
"""The function that prints, behind the part of the server that it belongs to."""


def _mark(claim: str, pattern: str, kind: str) -> StartRule:
    return StartRule(claim, pattern, kind=kind, edge="mark", strict=False)


def _edge(claim: str, pattern: str, phase: str, edge: str) -> StartRule:
    return StartRule(claim, pattern, phase=phase, edge=edge, strict=False)


_CONTEXT = r"(?:llama_context: constructing llama_context|llama_(?:new_context_with_model|init_from_model): n_ctx +=)"

RULES = (
    _mark("build", r"(?:main: )?build(?:_info)?(?::| =) ?(?P<fields>b?[0-9]+\S*)", "engine_begin"),
    _mark("build info", r"build info\b", "engine_begin"),
    _edge("loading model", rf"{_FUNCTION}loading model (?:tensors|'|\")", "weights_load", "begin"),
    _edge("ctx size", r"llm_load_tensors: ggml ctx size +=", "weights_load", "begin"),
    *(
        rule
        for claim in ("constructing llama_context", "n_ctx ")
        for rule in (_edge(claim, _CONTEXT, "weights_load", "end"), _edge(claim, _CONTEXT, "kv_alloc", "begin"))
    ),
    _edge("graph splits", r"llama_[a-z_]+: graph splits = ", "kv_alloc", "end"),
    _edge("warming up the model", rf"{_FUNCTION}warming up the model", "warmup", "begin"),
    _edge("initializing slots", rf"{_FUNCTION}initializing slots", "warmup", "end"),
    StartRule(
        "load time",
        r"(?:[a-z_]+ ?: +)?load time += +(?P<ms>[0-9.]+) ms",
        phase="weights_load",
        edge="bound",
        strict=False,
    ),
    _mark("model loaded", rf"{_FUNCTION}model loaded\b", "ready"),
    _mark("listening on http", r"(?:main: server is|srv +[a-z_]+:) listening on http", "ready"),
    *(
        _mark(claim, rf"(?P<fields>{_FUNCTION}(?:error: )?{claim}.*)", "failed")
        for claim in (
            "error loading model",
            "failed to load model",
            "exiting due to model loading error",
            "unable to load model",
        )
    ),
    _mark("cudaMalloc failed", r"(?P<fields>.*cudaMalloc failed: out of memory.*)", "oom"),
    _mark("cleaning up before exit", rf"{_FUNCTION}{_FUNCTION}cleaning up before exit", "shutdown"),
    # The shell's `time` around a whole run.
    *(
        StartRule(
            claim, r"real\s+(?P<minutes>[0-9]+)m(?P<seconds>[0-9.]+)s$", kind="shutdown", edge="mark", strict=False
        )
        for claim in ("real\t", "real    ")
    ),
)

CONFIGURATION = (
    "loaded meta data with ",
    "compute capability ",
    "file type   =",
    "model ftype ",
    " cells, ",
    "n_slots = ",
    "n_batch  ",
)

_BUFFER = r"^[a-z_]+: +([A-Za-z0-9_]+) +(model|KV|RS|compute|output) buffer size += +"
_MEBIBYTES = r"([0-9]+(?:\.[0-9]+)?) (MiB|MB)"
_HOST = (
    rf"failed to allocate {_MEBIBYTES} of pinned memory",
    rf"insufficient memory \(attempted to allocate +{_MEBIBYTES}\)",
)
_DEVICE = rf"allocating {_MEBIBYTES} on device [0-9]+: cudaMalloc failed: out of memory"
_NO_ROOM = "failed to find free space in the KV cache"
_ENDPOINTS = (
    r"/(?:v1/(?:chat/)?completions|v1/messages|v1/embeddings|v1/rerank|completions?|infill|embeddings?|rerank(?:ing)?)"
)
_RESPONSE = rf"^{_FUNCTION}(?:done )?request: +(POST {_ENDPOINTS}) \S+ ([0-9]{{3}})\b"


def identify(records: pl.DataFrame) -> pl.DataFrame:
    """Adds `replica` (pod, service or the router's child) and `rank` (none), and brings messages to one shape.

    The prefix of 2024 is taken off, and a decimal comma, which the C library writes in some locales, becomes a point.
    """
    text = pl.col("message")
    child = text.str.extract(r"^\[([0-9]{4,5})\] ")
    message = (
        text.str.replace(r"^\[[0-9]{4,5}\] +", "")
        .str.replace(r"^(?:INFO|WARN|ERR|ERROR|VERB|DBG|DEBUG) +\[ *[A-Za-z0-9_]+ *\] +", "")
        .str.replace_all(r"([0-9]),([0-9]+ ?(?:ms|s|t/s|[MG]i?B|tokens|runs)\b)", "${1}.${2}")
        .str.replace(r"^(real\s+[0-9]+m[0-9]+),([0-9]+s)$", "${1}.${2}")
    )
    return records.with_columns(
        replica(pl.coalesce("pod", "service", child), pl.lit(None, pl.String)),
        pl.lit(None, pl.String).alias("rank"),
        message.alias("message"),
    )


def serving(batch: Batch) -> Frames:
    """Lines of timings, answers, retries for lack of KV space, buffers and failed allocations of a batch."""
    return {
        "timing_lines": llama_timings.timing_lines(batch),
        "incidents": pl.concat([_answered(batch.records), _no_room(batch.records)]),
        "components": _buffers(batch.records),
        "ooms": _ooms(batch.records),
    }


def _answered(records: pl.DataFrame) -> pl.DataFrame:
    got = pl.col("message").str.extract_groups(_RESPONSE)
    told = records.filter(pl.col("message").str.contains(_RESPONSE)).with_columns(got.alias("_g"))
    fields = pl.concat_str([pl.col("_g").struct.field("1"), pl.col("_g").struct.field("2")], separator=" ")
    return told.select("line", "time", "replica", pl.lit("response").alias("kind"), fields.alias("fields"))


def _no_room(records: pl.DataFrame) -> pl.DataFrame:
    told = records.filter(pl.col("message").str.contains(_NO_ROOM, literal=True))
    fields = pl.col("message").str.extract(r"\b(n_batch = [0-9]+)")
    return told.select("line", "time", "replica", pl.lit("kv_full").alias("kind"), fields.alias("fields"))


def _buffers(records: pl.DataFrame) -> pl.DataFrame:
    """Rows of `Components`: the buffers that lie on a device."""
    message = pl.col("message")
    told = records.filter(message.str.contains(_BUFFER + _MEBIBYTES))
    place = message.str.extract(_BUFFER, 1)
    rows = told.select(
        "line",
        "time",
        pl.concat_str([place, message.str.extract(_BUFFER, 2), pl.lit("buffer")], separator=" ").alias("name"),
        size(message.str.extract(f"(?:{_BUFFER})(.*)$", 3), _MEBIBYTES).alias("size_bytes"),
        resolution(message.str.extract(f"(?:{_BUFFER})(.*)$", 3), _MEBIBYTES).alias("resolution_bytes"),
    )
    return rows.filter(~pl.col("name").str.contains(r"^(?:CPU|BLAS)|Host"))


def _ooms(records: pl.DataFrame) -> pl.DataFrame:
    """Rows of `Ooms`: memory of the host that was refused, and of a device."""
    message = pl.col("message")
    found = []
    for memory, patterns in (("host", _HOST), ("device", (_DEVICE,))):
        told = records.filter(pl.any_horizontal(message.str.contains(pattern) for pattern in patterns))
        found.append(
            told.select(
                "line",
                "time",
                "replica",
                pl.lit(memory).alias("memory"),
                message.str.extract(r" on device ([0-9]+): ").alias("gpu"),
                pl.coalesce([size(message, pattern) for pattern in patterns]).alias("requested_bytes"),
                pl.coalesce([resolution(message, pattern) for pattern in patterns]).alias("requested_resolution_bytes"),
            )
        )
    return pl.concat(found)


def configured(records: pl.DataFrame) -> pl.DataFrame:
    """Rows of `deployments` (without `source_id`), one per line that tells of the configuration."""
    message = pl.col("message")
    told = message.str.contains_any([*CONFIGURATION, "build", "loading model '"])
    rows = records.filter(told.fill_null(False))

    def number(pattern: str) -> pl.Expr:
        return message.str.extract(pattern).cast(pl.UInt32, strict=False)

    path = pl.coalesce(
        message.str.extract(r"loaded meta data with .* from (.+) \(version "),
        message.str.extract(r"loading model '([^']+)'"),
    )
    return rows.select(
        "line",
        path.str.replace(r"^.*[/\\]", "").alias("model"),
        message.str.extract(r"^(?:main: )?build(?:_info)?(?::| =) ?(b?[0-9]+)").alias("engine_version"),
        message.str.extract(r"^ *Device [0-9]+: ([^,]+), compute capability").alias("gpu"),
        message.str.extract(r"(?:file type|model ftype) +=\s*([A-Za-z0-9_]+)").alias("precision"),
        message.str.extract(r" MiB \( *([0-9]+) cells, ").cast(pl.UInt64, strict=False).alias("kv_cache_tokens"),
        number(r"\bn_slots = ([0-9]+)").alias("max_running_count"),
        number(r"^llama_[a-z_]+: n_batch +=\s*([0-9]+)").alias("max_batch_tokens"),
    )


SIGNATURE = Signature(
    phrases=(
        r"llama_(?:print_timings|perf_context_print|perf_sampler_print)\s?:|common_perf_print\s?:",
        r"(?:^|\s)slot +(?:launch_slot_|print_timing|update_slots|release|get_availabl): +id ",
        r"(?:^|\s)srv +(?:load_model|update_slots|log_server_r|init|llama_server|operator\(\)): ",
        r"prompt eval time += +[0-9.,]+ ms */ +[0-9]+ tokens",
        r"llama_model_loader: |llama_model_load: ",
        r"ll(?:m|ama)_load_(?:print_meta|tensors|vocab)|load_tensors: |llama_kv_cache|llama_new_context_with_model",
        r"ggml_(?:cuda|backend|metal|gallocr|vulkan|sycl|aligned)\w*: ",
        r"failed to find free space in the KV cache",
    ),
)

ENGINE = Engine(
    name="llama.cpp",
    text=TextFormat(
        start_needles=tuple(sorted({rule.claim for rule in RULES} | set(CONFIGURATION))),
        serving_needles=(
            *llama_timings.NEEDLES,
            "request: ",
            _NO_ROOM,
            " buffer size = ",
            "of pinned memory",
            "attempted to allocate",
        ),
    ),
    rules=RULES,
    identify=identify,
    serving=serving,
    configured=configured,
    whole=llama_timings.whole,
)

LOADER = Loader(
    name="llama.cpp",
    about="llama.cpp's server and tools: loads, buffers, slots, timings of requests, a full KV cache",
    versions="builds of 2023 to 2026",
    frames=("starts", "phases", "incidents", "request_timings", "ooms", "components", "deployments"),
    example=(
        "slot print_timing: id  0 | task 7 | prompt eval time =     350.25 ms /   512 tokens (    0.68 "
        "ms per token,  1461.81 tokens per second)\n"
        "       eval time =    2000.50 ms /   100 tokens (   20.01 ms per token,    49.99 tokens per "
        "second)\n"
        "      total time =    2350.75 ms /   612 tokens"
    ),
    signature=SIGNATURE,
    load=partial(engine_log.load, engine=ENGINE),
)
