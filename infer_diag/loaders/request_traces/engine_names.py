"""Which engine wrote the spans of requests, by what they call themselves."""

from __future__ import annotations

import polars as pl

_ENGINES = {
    "vllm": r"vllm",
    "sglang": r"sglang",
    "tensorrt-llm": r"tensorrt[-_ ]?llm|trt[-_]?llm",
    "tgi": r"text[-_]generation[-_](?:inference|router|launcher|server)|\btgi\b",
    "lmdeploy": r"lmdeploy",
    "llama.cpp": r"llama[-._]?cpp|llama[-_]server",
    "ollama": r"ollama",
    "triton": r"triton",
}
"""Engines by what the scope of the instrumentation, or a service, is called."""

UNKNOWN_ENGINE = "opentelemetry"
"""The engine of spans that name none."""


def engine_of(asked: pl.DataFrame) -> str:
    """The engine that most request spans name: by vLLM's own attributes, else by their scope, else by their service.

    Spans in: columns of `SPAN`. `opentelemetry` where none names one.
    """
    own = pl.any_horizontal(pl.col(name).is_not_null() for name in ("process_kind", "process_name"))
    scope = pl.coalesce("scope", "scope_tag", "library_tag")
    named = asked.select(
        engine=pl.when(own)
        .then(pl.lit("vllm"))
        .otherwise(pl.coalesce(_engine_in(scope), _engine_in(pl.col("service"))))
    )
    votes = named.drop_nulls()["engine"].value_counts().sort("count", "engine", descending=[True, False])
    return str(votes["engine"][0]) if len(votes) else UNKNOWN_ENGINE


def _engine_in(text: pl.Expr) -> pl.Expr:
    lower = text.str.to_lowercase()
    return pl.coalesce(
        pl.when(lower.str.contains(pattern)).then(pl.lit(engine)) for engine, pattern in _ENGINES.items()
    )
