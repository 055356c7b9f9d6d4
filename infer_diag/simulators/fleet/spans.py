"""Request traces as an OpenTelemetry collector's file exporter writes them: one export per line."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import polars as pl

from infer_diag.simulators.fleet.models import repository
from infer_diag.simulators.fleet.plan import BEGIN
from infer_diag.simulators.fleet.run import Part, Run

_BATCH_S = 30.0


def engine_spans(run: Run) -> str:
    """Spans `llm_request` with the durations that the engine measured, as vLLM and TensorRT-LLM send them."""
    return _exports(run, "trtllm-server", "tensorrt_llm.llmapi.otel_tracing", _engine_span)


def application_spans(run: Run) -> str:
    """Spans of an application that calls its own pipeline, by OpenTelemetry's conventions for generative AI."""
    return _exports(run, f"{run.plan.name}-app", "chat.app", _application_span)


def _exports(run: Run, service: str, scope: str, span_of: Any) -> str:
    model, random = repository(run.plan.model), np.random.default_rng(run.plan.seed("spans"))
    ended = pl.concat([_ended(part) for part in run.parts]).sort("end_s")
    lines: list[str] = []
    batch: list[dict[str, Any]] = []
    until = _BATCH_S
    for row in ended.iter_rows(named=True):
        while row["end_s"] >= until:
            lines += [_export(service, scope, batch)] if batch else []
            batch, until = [], until + _BATCH_S
        batch.append(_span(row, model, f"{int(random.integers(1 << 62)):016x}", span_of))
    lines += [_export(service, scope, batch)] if batch else []
    return "".join(f"{line}\n" for line in lines)


def _ended(part: Part) -> pl.DataFrame:
    """Requests that came to their end, or to that of their process; what is under way has sent no span yet."""
    over = pl.col("done") | (pl.lit(part.life.ends == "oom") & pl.col("scheduled_s").is_not_null())
    end = pl.when("done").then("last_s").otherwise(pl.lit(part.life.ended_s))
    return part.requests.filter(over).with_columns(end_s=end)


def _span(row: dict[str, Any], model: str, number: str, span_of: Any) -> dict[str, Any]:
    name, attributes = span_of(row, model)
    return {
        "traceId": row["request_id"],
        "spanId": number,
        "parentSpanId": "",
        "name": name,
        "kind": 2,
        "startTimeUnixNano": _nanoseconds(row["arrival_s"]),
        "endTimeUnixNano": _nanoseconds(row["end_s"]),
        "attributes": [{"key": key, "value": value} for key, value in attributes.items()],
        "status": {} if row["done"] else {"code": 2, "message": "worker died"},
    }


def _nanoseconds(seconds: float) -> str:
    return str(round(BEGIN.timestamp()) * 10**9 + round(seconds * 1e6) * 1000)


def _engine_span(row: dict[str, Any], model: str) -> tuple[str, dict[str, Any]]:
    return "llm_request", {
        "gen_ai.response.model": {"stringValue": model},
        "gen_ai.request.id": {"stringValue": row["request_id"][:8]},
        "gen_ai.usage.prompt_tokens": {"intValue": str(row["prompt_tokens"])},
        "gen_ai.usage.completion_tokens": {"intValue": str(row["output_tokens"])},
        "gen_ai.latency.time_to_first_token": {"doubleValue": _since(row, "first_s")},
        "gen_ai.latency.e2e": {"doubleValue": round(row["end_s"] - row["arrival_s"], 6)},
        "gen_ai.latency.time_in_queue": {"doubleValue": _since(row, "scheduled_s")},
    }


def _since(row: dict[str, Any], event: str) -> float:
    return round(float(row[event]) - float(row["arrival_s"]), 6)


def _application_span(row: dict[str, Any], model: str) -> tuple[str, dict[str, Any]]:
    attributes = {
        "gen_ai.operation.name": {"stringValue": "chat"},
        "gen_ai.request.model": {"stringValue": model},
        "gen_ai.usage.input_tokens": {"intValue": str(row["prompt_tokens"])},
    }
    if row["done"]:
        attributes["gen_ai.usage.output_tokens"] = {"intValue": str(row["output_tokens"])}
    return f"chat {model}", attributes


def _export(service: str, scope: str, spans: list[dict[str, Any]]) -> str:
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": service}}]}
    scopes = [{"scope": {"name": scope}, "spans": spans}]
    return json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": scopes}]}, separators=(",", ":"))
