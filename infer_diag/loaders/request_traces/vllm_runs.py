"""Recorded vLLM runs as LLMServingSim keeps them: requests with their events, the engine second by second, its set-up.

A request's events are on the engine's monotonic clock and its arrival on the wall clock. Nothing tells how the two lie
to each other within milliseconds, so no duration is taken between them: a request counts as arrived when it was queued.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from infer_diag.errors import SourceError
from infer_diag.loaders.conformed import CLAIMED, recorded
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.json_documents import document
from infer_diag.loaders.loader import Loader, Options
from infer_diag.loaders.request_traces.delimited import table
from infer_diag.loaders.request_traces.jsonl import json_lines
from infer_diag.loaders.request_traces.moments import counted, epoch_times
from infer_diag.loaders.request_traces.numbers import length, number, whole
from infer_diag.loaders.request_traces.values import as_object, count, moment, text
from infer_diag.loaders.sniff import Signature
from infer_diag.loaders.text.stamps import ASSUMED_YEAR
from infer_diag.recording import Clock, Recording

_PATHS = {
    "request_id": "$.request_id",
    "prompt": "$.input_toks",
    "output": "$.output_toks",
    "wall": "$.arrival_time",
    "queued": "$.queued_ts",
    "scheduled": "$.scheduled_ts",
    "first_token": "$.first_token_ts",
    "last_token": "$.last_token_ts",
}
_EVENTS = ("queued", "scheduled", "first_token", "last_token")
_SERIES = ("t", "prompt_throughput", "gen_throughput", "running", "waiting", "kv_cache_pct")
_LONGEST_S = 3e7
_TELLING_SAMPLES = 5
_TELLING_RUNNING = 8
"""So many requests hold at least so many blocks: a share of 0.00 % would take a pool of more than 100,000 blocks."""
_NOTE = "a request counts as arrived when the engine queued it: its arrival is told on another clock than its events"


def load_requests(file: LogFile, *, options: Options) -> Recording:
    """Events of the requests on the engine's clock."""
    told = json_lines(file, options, _PATHS, needed="queued", what="a request of a recorded run")
    rows = told.rows.select(
        "line",
        "request_id",
        whole(pl.col("prompt")).alias("prompt_tokens"),
        whole(pl.col("output")).alias("output_tokens"),
        number(pl.col("wall")).alias("wall"),
        *(number(pl.col(name)).alias(name) for name in _EVENTS),
    )
    requests, first = counted(rows.drop("wall").with_columns(pl.col("queued").alias("arrival")), 1)
    walls = [rows["wall"].min(), rows["wall"].max()]
    clocks = [Clock("inner", str(first), year_known=False, date_known=False)] if first is not None else []
    if walls[0] is not None:
        clocks.insert(0, Clock("outer", str(walls[0]), zone="UTC"))
    return recorded(
        file,
        {"requests": requests},
        options=options,
        format="vllm-run",
        engine="vllm",
        lines=told.lines,
        understood=len(requests),
        rejected=told.damaged,
        times=epoch_times(walls, 1),
        clocks=tuple(clocks),
        notes=(_NOTE,),
    )


def load_series(file: LogFile, *, options: Options) -> Recording:
    """The engine's figures at each tick, in seconds since the run began (no date is told).

    Raises:
        SourceError: the table lacks one of its columns.
    """
    told = table(file, options, _SERIES)
    missing = [name for name in _SERIES if name not in told.header]
    if missing:
        raise SourceError(f"{file.label} has no column {', '.join(missing)}", hint="give the series as it was recorded")
    samples = _samples(told.rows)
    broken = samples["time"].is_null()
    text = pl.concat_str(pl.exclude("line").fill_null(""), separator=",").alias("text")
    damaged = told.rows.filter(broken).select("line", pl.lit("a row of a series").alias("rule"), text)
    samples, doubts = _without_empty_columns(samples.filter(~broken))
    first = told.rows.filter(~broken)["t"].first()
    return recorded(
        file,
        {"engine_samples": samples},
        options=options,
        format="vllm-run-series",
        engine="vllm",
        lines=told.lines,
        understood=len(samples) + 1,
        rejected=damaged,
        times=samples["time"],
        clocks=(Clock("inner", str(first), None, 0.0, year_known=False),) if first is not None else (),
        doubts=doubts,
    )


def _samples(cells: pl.DataFrame) -> pl.DataFrame:
    origin = pl.datetime(ASSUMED_YEAR, 1, 1, time_zone="UTC", time_unit="us")
    seconds = length(pl.col("t"))
    return cells.select(
        "line",
        # A cell may hold any number; one beyond a year is no time of a run.
        (origin + pl.duration(microseconds=pl.when(seconds < _LONGEST_S).then(seconds * 1e6).round())).alias("time"),
        pl.lit("interval").alias("kind"),
        whole(pl.col("running")).alias("running_count"),
        whole(pl.col("waiting")).alias("waiting_count"),
        (length(pl.col("kv_cache_pct")) / 100).alias("kv_usage_ratio"),
        length(pl.col("prompt_throughput")).alias("prompt_tokens_per_s"),
        length(pl.col("gen_throughput")).alias("output_tokens_per_s"),
    )


def _without_empty_columns(samples: pl.DataFrame) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """A pool that many requests never fill by one block was not recorded."""
    busy = samples.filter(pl.col("running_count") > 0)
    most = busy["running_count"].max()
    empty = bool((samples["kv_usage_ratio"].fill_null(0.0) == 0).all()) and samples["kv_usage_ratio"].count() > 0
    if not empty or len(busy) < _TELLING_SAMPLES or not isinstance(most, int) or most < _TELLING_RUNNING:
        return samples, ()
    doubt = (
        f"`kv_cache_pct` is 0 in all {len(samples):,} rows while up to {most:,} requests run, so the column was never "
        "filled; it is not used"
    )
    return samples.with_columns(pl.lit(None, pl.Float64).alias("kv_usage_ratio")), (doubt,)


def load_meta(file: LogFile, *, options: Options) -> Recording:
    """The engine's configuration, and when the run began and ended."""
    read = document(file, options)
    meta = as_object(read.value)
    version = text(meta.get("vllm_version"))
    row = {"line": read.line_of("engine_kwargs") or 1, "engine": "vllm", "engine_version": version, **_limits(meta)}
    ends = [meta.get("started_at"), meta.get("finished_at")]
    known = [begun for each in ends if (begun := moment(each)) is not None]
    return recorded(
        file,
        {"deployments": pl.DataFrame([row], infer_schema_length=None)},
        options=options,
        format="vllm-run-meta",
        engine="vllm",
        engine_version=version,
        lines=read.lines,
        understood=read.lines,
        rejected=pl.DataFrame(schema=CLAIMED),
        times=pl.Series("time", known, dtype=pl.Datetime("us", "UTC")),
        clocks=(Clock("inner", str(ends[0])[:40], zone="UTC"),) if known else (),
    )


def _limits(meta: dict[str, Any]) -> dict[str, Any]:
    kwargs, pool, device = (as_object(meta.get(name)) for name in ("engine_kwargs", "kv_cache", "hardware"))
    blocks, size = count(pool.get("num_gpu_blocks")), count(pool.get("block_size"))
    tokens = count(pool.get("num_kv_tokens"))
    return {
        "model": text(meta.get("model")),
        "gpu": text(device.get("device_name")),
        "gpu_count": count(kwargs.get("tensor_parallel_size")),
        "data_parallel_count": count(kwargs.get("data_parallel_size")),
        "precision": text(kwargs.get("dtype")),
        "kv_cache_tokens": tokens if tokens is not None else blocks * size if blocks and size else None,
        "max_running_count": count(kwargs.get("max_num_seqs")),
        "max_batch_tokens": count(kwargs.get("max_num_batched_tokens")),
    }


REQUESTS = Loader(
    name="vllm-run",
    about="Recorded vLLM runs (LLMServingSim): queued, scheduled, first and last token of each request",
    versions="vLLM 0.19",
    frames=("requests",),
    example=(
        '{"request_id":"r-0","arrival_time":1770000000.0,"queued_ts":10.0,"scheduled_ts":10.5,'
        '"first_token_ts":11.0,"last_token_ts":12.0,"num_prompt_tokens":10,"num_output_tokens":5}'
    ),
    signature=Signature(phrases=(r'"queued_ts"\s*:\s*[0-9]', r'"first_token_ts"\s*:\s*[0-9]')),
    load=load_requests,
)
SERIES = Loader(
    name="vllm-run-series",
    about="Recorded vLLM runs (LLMServingSim): rates, queue and KV use second by second (CSV)",
    versions="vLLM 0.19",
    frames=("engine_samples",),
    example=("t,prompt_throughput,gen_throughput,running,waiting,kv_cache_pct\n1.0,120.5,410.0,12,3,41.5"),
    signature=Signature(phrases=(r"^t,prompt_throughput,gen_throughput,running,waiting,kv_cache_pct[ \t\r]*$",)),
    load=load_series,
)
META = Loader(
    name="vllm-run-meta",
    about="Recorded vLLM runs (LLMServingSim): the engine's configuration (meta.json)",
    versions="vLLM 0.19",
    frames=("deployments",),
    example='{"vllm_version":"0.19.0","engine_kwargs":{"model":"org/some-8b","max_num_seqs":128}}',
    signature=Signature(phrases=(r'"vllm_version"\s*:\s*"[^"]*"[^{}]{0,300}"engine_kwargs"\s*:\s*\{',)),
    load=load_meta,
)
