"""TensorRT-LLM's iteration statistics as JSON (`/metrics` of trtllm-serve, `LLM.get_stats`), arrays or lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import polars as pl

from infer_diag.loaders.conformed import recorded
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.json_documents import JsonDocuments, documents
from infer_diag.loaders.loader import Loader, Options
from infer_diag.loaders.sniff import Signature
from infer_diag.loaders.tensorrt_llm import steps
from infer_diag.loaders.text import stamps
from infer_diag.recording import Clock, Recording

_COUNTS = ("numActiveRequests", "numQueuedRequests", "numCompletedRequests")
_POOL = ("usedNumBlocks", "maxNumBlocks", "tokensPerBlock", "cacheHitRate")
_BATCH = ("numContextRequests", "numGenRequests", "numCtxTokens", "numPausedRequests", "avgNumDecodedTokensPerIter")
_COLUMNS: dict[str, Any] = {
    "line": pl.UInt32,
    "raw": pl.String,
    "ms": pl.Float64,
    **dict.fromkeys((*_COUNTS, *_POOL, *_BATCH), pl.Float64),
    "max_batch": pl.Float64,
    "max_tokens": pl.Float64,
}
_LAST_WINDOW = "iterLatencyMS"


def load(file: LogFile, *, options: Options) -> Recording:
    """One file as a recording.

    An iteration that stands in two answers of the server, which each hold the last ones, is one iteration.
    """
    text = documents(file, options)
    rows = pl.DataFrame(list(_iterations(text)), schema=_COLUMNS, orient="row")
    rows = rows.unique([name for name in rows.columns if name != "line"], keep="first", maintain_order=True)
    timed = _timed(rows, options)
    file.cut = file.cut or text.cut
    stamped = timed.drop_nulls("time")
    clocks = (Clock("inner", stamped["raw"][0], zone=options.tz),) if not stamped.is_empty() else ()
    return recorded(
        file,
        {"engine_samples": _samples(timed), "engine_steps": _steps(timed), "deployments": _deployment(timed)},
        options=options,
        format="tensorrt-llm-statistics",
        engine="tensorrt-llm",
        lines=text.lines,
        understood=text.lines,
        rejected=pl.DataFrame(schema={"line": pl.UInt32, "rule": pl.String, "text": pl.String}),
        times=timed["time"],
        clocks=clocks,
    )


def _iterations(text: JsonDocuments) -> Iterator[tuple[Any, ...]]:
    places = [match.start() for match in re.finditer(rf'"{_LAST_WINDOW}"\s*:', text.text)]
    number = 0
    for begin, document in text.found:
        for each in _flat(document):
            # The draft model's own latency has the same name and stands inside the iteration.
            line = text.line_at(places[number]) if number < len(places) else text.line_at(begin)
            number += 1 + ("iterLatencyMS" in (each.get("specDecodingStats") or {}))
            yield _row(each, line)


def _flat(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, list):
        for each in value:
            yield from _flat(each)
    elif isinstance(value, dict):
        if "iterLatencyMS" in value and "numActiveRequests" in value:
            yield value
        else:
            for each in value.values():
                yield from _flat(each)


def _row(each: dict[str, Any], line: int) -> tuple[Any, ...]:
    pool = each.get("kvCacheStats") or {}
    batch = each.get("inflightBatchingStats") or each.get("staticBatchingStats") or {}
    stamp = each.get("timestamp")
    return (
        line,
        stamp if isinstance(stamp, str) and stamp else None,
        _number(each.get("iterLatencyMS")),
        *(_number(each.get(name)) for name in _COUNTS),
        *(_number(pool.get(name)) for name in _POOL),
        *(_number(batch.get(name)) for name in _BATCH),
        _number(each.get("maxBatchSizeRuntime") or each.get("maxNumActiveRequests")),
        _number(each.get("maxNumTokensRuntime")),
    )


def _number(value: Any) -> float | None:
    try:
        number = float(value) if value is not None and not isinstance(value, bool) else None
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number is not None and 0 <= number < float("inf") else None


def _timed(rows: pl.DataFrame, options: Options) -> pl.DataFrame:
    known = stamps.parsed(rows["raw"], options.year, options.tz)
    at = pl.from_epoch("us", time_unit="us").dt.replace_time_zone("UTC").alias("time")
    dated = known.filter("has_date").select("raw", at)
    return rows.join(dated, on="raw", how="left", maintain_order="left").with_columns(
        pl.lit(None, pl.String).alias("replica"), (pl.col("ms") / 1e3).alias("duration_s")
    )


def _samples(rows: pl.DataFrame) -> pl.DataFrame:
    decoded = pl.col("numGenRequests") * pl.max_horizontal(pl.col("avgNumDecodedTokensPerIter"), pl.lit(1.0))
    lasted = pl.col("duration_s") > 0
    return rows.select(
        "line",
        "time",
        "replica",
        pl.lit("interval").alias("kind"),
        pl.col("numActiveRequests").cast(pl.UInt32, strict=False).alias("running_count"),
        pl.col("numQueuedRequests").cast(pl.UInt32, strict=False).alias("waiting_count"),
        pl.col("numContextRequests").cast(pl.UInt32, strict=False).alias("new_count"),
        pl.when(pl.col("maxNumBlocks") > 0)
        .then(pl.col("usedNumBlocks") / pl.col("maxNumBlocks"))
        .alias("kv_usage_ratio"),
        pl.when(lasted).then(pl.col("numCtxTokens") / pl.col("duration_s")).alias("prompt_tokens_per_s"),
        pl.when(lasted).then(decoded / pl.col("duration_s")).alias("output_tokens_per_s"),
        pl.col("numPausedRequests").cast(pl.UInt32, strict=False).alias("preemption_count"),
    )


def _steps(rows: pl.DataFrame) -> pl.DataFrame:
    """Steps of the iterations that took a time: the overlapping scheduler prints 0 for the first one."""
    told = rows.filter(pl.col("duration_s") > 0).drop_nulls("numGenRequests")
    decoded = pl.col("numGenRequests") * pl.max_horizontal(pl.col("avgNumDecodedTokensPerIter"), pl.lit(1.0))
    return steps(
        told,
        prefill=pl.col("numContextRequests"),
        decode=pl.col("numGenRequests"),
        prompt=pl.col("numCtxTokens"),
        output=decoded,
    )


def _deployment(rows: pl.DataFrame) -> pl.DataFrame:
    if rows.is_empty():
        return pl.DataFrame(schema={"line": pl.UInt32})
    last = rows.select(pl.exclude("line").drop_nulls().last(), pl.col("line").first())
    return last.select(
        "line",
        pl.lit("tensorrt-llm").alias("engine"),
        (pl.col("maxNumBlocks") * pl.col("tokensPerBlock")).cast(pl.UInt64, strict=False).alias("kv_cache_tokens"),
        pl.col("max_batch").cast(pl.UInt32, strict=False).alias("max_running_count"),
        pl.col("max_tokens").cast(pl.UInt32, strict=False).alias("max_batch_tokens"),
    )


SIGNATURE = Signature(
    phrases=(
        r'"iterLatencyMS"\s*:',
        r'"inflightBatchingStats"\s*:',
        r'"numActiveRequests"\s*:',
    ),
)

LOADER = Loader(
    name="tensorrt-llm-statistics",
    about="TensorRT-LLM iteration statistics as JSON arrays or lines (/metrics of trtllm-serve, LLM.get_stats)",
    versions="layouts of 2025 and 2026",
    frames=("engine_samples", "engine_steps", "deployments"),
    example=(
        '[{"timestamp":"01-23-2026 12:34:56.789012","iter":7,"iterLatencyMS":12.5,"numActiveRequests":3,'
        '"numQueuedRequests":1}]'
    ),
    signature=SIGNATURE,
    load=load,
)
