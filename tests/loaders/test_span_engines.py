"""Spans of requests are an engine's only where they say so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import infer_diag as diag


def trace(service: str, scope: str, attribute: str = "gen_ai.system") -> str:
    span = {
        "traceId": "5b8efff798038103d269b633813fc60c",
        "spanId": "eee19b7ec3c1b174",
        "name": "llm_request",
        "startTimeUnixNano": "1770000000000000000",
        "endTimeUnixNano": "1770000001000000000",
        "attributes": [
            {"key": "gen_ai.usage.completion_tokens", "value": {"intValue": "20"}},
            {"key": attribute, "value": {"stringValue": "x"}},
        ],
    }
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": service}}]}
    return json.dumps(
        {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": scope}, "spans": [span]}]}]}
    )


@pytest.mark.parametrize(
    ("service", "scope", "engine"),
    [
        ("chat", "vllm.llm_engine", "vllm"),
        ("vllm-server", "", "vllm"),
        ("chat", "tensorrt_llm.llmapi.otel_tracing", "tensorrt-llm"),
        ("trtllm-server", "app", "tensorrt-llm"),
        ("sglang-prod", "sglang.srt", "sglang"),
        ("text-generation-inference.router", "", "tgi"),
        # The program that traces counts, and not the name that somebody gave to the service in front.
        ("vllm-proxy", "sglang.srt.tracing", "sglang"),
        ("unknown_service:python", "chat.app", "opentelemetry"),
        ("checkout", "", "opentelemetry"),
    ],
)
def test_the_engine_is_the_one_that_the_spans_name(tmp_path: Path, service: str, scope: str, engine: str) -> None:
    (tmp_path / "spans.jsonl").write_text(trace(service, scope))
    assert diag.load(tmp_path / "spans.jsonl").sources[0].engine == engine


def test_attributes_of_vllm_are_its_name(tmp_path: Path) -> None:
    (tmp_path / "spans.jsonl").write_text(trace("chat", "app", "vllm.process_kind"))
    assert diag.load(tmp_path / "spans.jsonl").sources[0].engine == "vllm"
