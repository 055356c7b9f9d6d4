"""Spans of traces, whatever kept them: what they tell of requests.

vLLM's span of a request carries the durations that the engine measured; they are taken by name. Any other span of a
generation (OpenTelemetry's conventions for generative AI) tells when it was asked and when it was done.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from infer_diag.loaders.conformed import Frames
from infer_diag.loaders.request_traces.moments import NANOSECONDS, counted
from infer_diag.loaders.request_traces.numbers import length, whole

OWN = (
    "engine",
    "clock",
    "start_id",
    "replica",
    "rank",
    "phase",
    "inside",
    "status",
    "outcome",
    "served",
    "open",
    "is_total",
    "duration_s",
    "resolution_s",
    "size_bytes",
    "first_unix_nano",
    "last_unix_nano",
    "ready_unix_nano",
    "acquired_unix_nano",
    "unplaced",
    "bar",
    "readings",
)
"""Attributes of the spans that infer_diag itself exports, behind `infer_diag.`."""

ATTRIBUTES = {
    "gen_ai.request.id": "request_id",
    "gen_ai.response.id": "response_id",
    "gen_ai.usage.prompt_tokens": "prompt_tokens",
    "gen_ai.usage.completion_tokens": "completion_tokens",
    "gen_ai.usage.input_tokens": "input_tokens",
    "gen_ai.usage.output_tokens": "output_tokens",
    "gen_ai.latency.time_in_queue": "queue",
    "gen_ai.latency.time_to_first_token": "ttft",
    "gen_ai.latency.e2e": "e2e",
    "gen_ai.latency.time_in_model_prefill": "prefill",
    "gen_ai.latency.time_in_model_decode": "decode",
    "gen_ai.latency.time_in_model_inference": "compute",
    "vllm.process_kind": "process_kind",
    "vllm.process_name": "process_name",
    "otel.scope.name": "scope_tag",
    "otel.library.name": "library_tag",
    **{f"infer_diag.{name}": f"own_{name}" for name in OWN},
}
"""Attributes of a span or of its resource that are read, and the columns that hold them as text."""

SPAN: dict[str, Any] = {
    "line": pl.UInt32,
    "trace": pl.String,
    "span": pl.String,
    "parent": pl.String,
    "name": pl.String,
    "service": pl.String,
    "scope": pl.String,
    "begin_ns": pl.Int64,
    "end_ns": pl.Int64,
    "failed": pl.Boolean,
    **dict.fromkeys(ATTRIBUTES.values(), pl.String),
}
"""One row per span; a span without both ends is none."""

_DURATIONS = ("queue", "prefill", "decode", "compute", "ttft", "e2e")
_MOST_LEVELS = 64
"""Spans nest by calls between services; deeper nesting is a loop in the data."""


def usable(spans: pl.DataFrame) -> pl.DataFrame:
    """The spans that have both ends in order, each once: exporters send a span again when they get no answer."""
    whole_spans = spans.filter(
        pl.col("begin_ns").is_not_null() & (pl.col("end_ns") >= pl.col("begin_ns")) & (pl.col("begin_ns") > 0)
    )
    return whole_spans.unique(["trace", "span"], keep="last", maintain_order=True)


def request_spans(spans: pl.DataFrame) -> pl.DataFrame:
    """The spans that stand for one request to an engine each.

    Where a client's or an agent's span encloses the engine's own, the innermost one counts, so that no request counts
    twice.
    """
    told = ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", *_DURATIONS)
    asked = spans.filter(
        pl.any_horizontal(pl.col(name).is_not_null() for name in told) | (pl.col("name") == "llm_request")
    )
    outer = _ancestors(spans, asked)
    return asked.join(outer, on=["trace", "span"], how="anti", maintain_order="left")


def _ancestors(spans: pl.DataFrame, of: pl.DataFrame) -> pl.DataFrame:
    """`trace` and `span` of everything that encloses one of the spans."""
    known = spans.select("trace", "span", "parent")
    level = of.select("trace", span="parent").unique()
    found = level
    for _ in range(_MOST_LEVELS):
        level = level.join(known, on=["trace", "span"]).select("trace", span="parent")
        level = level.drop_nulls().join(found, on=["trace", "span"], how="anti").unique()
        if level.is_empty():
            break
        found = pl.concat([found, level])
    return found


def request_frames(asked: pl.DataFrame, first_ns: int) -> Frames:
    """`requests` and `request_timings` of request spans; moments count from `first_ns`."""
    measured = asked.select(pl.any_horizontal(pl.col(name).is_not_null() for name in _DURATIONS)).to_series()
    named = asked.with_columns(pl.coalesce("request_id", "response_id", "span").alias("request_id"))
    engine, plain = named.filter(measured), named.filter(~measured)
    done = ~pl.col("failed")
    events = plain.select(
        "line",
        "request_id",
        pl.col("begin_ns").alias("arrival"),
        pl.when(done).then("end_ns").alias("last_token"),
        _tokens("input_tokens", "prompt_tokens"),
        pl.when(done).then(_tokens("output_tokens", "completion_tokens")).alias("output_tokens"),
        pl.when(~done).then(pl.lit("error")).alias("finish_reason"),
    )
    # The engine's durations stand beside the arrival alone, so that none of them is told twice.
    arrivals = engine.select("line", "request_id", pl.col("begin_ns").alias("arrival"))
    both = pl.concat([events, arrivals], how="diagonal").sort("line", maintain_order=True)
    return {"requests": counted(both, NANOSECONDS, first_ns)[0], "request_timings": _timings(engine)}


def _timings(engine: pl.DataFrame) -> pl.DataFrame:
    return engine.select(
        "line",
        "request_id",
        (pl.col("end_ns") // 1000).cast(pl.Datetime("us", "UTC")).alias("time"),
        *(length(pl.col(name)).alias(f"{name}_s") for name in _DURATIONS),
        _tokens("prompt_tokens", "input_tokens"),
        _tokens("completion_tokens", "output_tokens").alias("output_tokens"),
    )


def _tokens(name: str, other: str) -> pl.Expr:
    chosen = "prompt_tokens" if name in ("prompt_tokens", "input_tokens") else "output_tokens"
    return pl.coalesce(whole(pl.col(name)), whole(pl.col(other))).alias(chosen)
