"""OTLP by the official SDK: to a collector over HTTP, or to a file with one export a line that `load` reads back."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import logging
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import (
    Gauge,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

from infer_diag import __version__
from infer_diag.errors import DiagError, SourceError
from infer_diag.export.exports import Exports
from infer_diag.export.measures import MEASURES
from infer_diag.redact import redact

_TIMEOUT_S = 10.0
_TOLD_CHARACTERS = 160
_SPANS_AT_ONCE = 2000
_POINTS_AT_ONCE = 20_000
_IDS = ("traceId", "spanId", "parentSpanId")
_SCOPE = InstrumentationScope("infer_diag", __version__)


def to_endpoint(exports: Exports, endpoint: str) -> None:
    """Sends everything to a collector's OTLP over HTTP (its port 4318; `/v1/traces` and `/v1/metrics` are added).

    Headers and certificates are those of the SDK's own variables, such as OTEL_EXPORTER_OTLP_HEADERS.

    Raises:
        SourceError: the collector cannot be reached or refuses.
    """
    base, label = _endpoint(endpoint)
    spans = OTLPSpanExporter(endpoint=f"{base}/v1/traces", timeout=_TIMEOUT_S)
    metrics = OTLPMetricExporter(endpoint=f"{base}/v1/metrics", timeout=_TIMEOUT_S)
    with _told() as said:
        try:
            done = all(spans.export(part) is SpanExportResult.SUCCESS for part in _span_parts(exports)) and all(
                metrics.export(part) is MetricExportResult.SUCCESS for part in _metric_parts(exports)
            )
        finally:
            spans.shutdown()  # type: ignore[no-untyped-call]
            metrics.shutdown()
    if not done:
        raise SourceError(
            f"{label} did not take the export: {_reason(said)}",
            hint="the endpoint is OTLP over HTTP, port 4318 by custom",
        )


def to_file(exports: Exports, path: Path) -> None:
    """Writes OTLP's JSON, an export per line, as a collector's file exporter does: a line per span, then metrics."""
    lines = [_json(encode_spans([span])) for part in _span_parts(exports) for span in part]
    lines += [_json(encode_metrics(part)) for part in _metric_parts(exports)]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _span_parts(exports: Exports) -> Iterator[list[ReadableSpan]]:
    resource = Resource(exports.resource)
    trace = int.from_bytes(hashlib.sha256(f"trace {exports.seed}".encode()).digest()[:16], "big") or 1
    contexts = {one.key: _context(trace, one.key) for one in exports.intervals}
    whole = (
        ReadableSpan(
            one.name,
            contexts[one.key],
            contexts[one.parent] if one.parent is not None else None,
            resource,
            {**exports.labels.of_spans, **one.attributes},
            [Event(note.name, dict(note.attributes), note.us * 1000) for note in one.notes],
            status=Status(StatusCode.ERROR) if one.failed else Status(),
            start_time=one.begin_us * 1000,
            end_time=one.end_us * 1000,
            instrumentation_scope=_SCOPE,
        )
        for one in exports.intervals
    )
    while part := list(islice(whole, _SPANS_AT_ONCE)):
        yield part


def _context(trace: int, key: str) -> SpanContext:
    span = int.from_bytes(hashlib.sha256(f"span {trace:032x} {key}".encode()).digest()[:8], "big") or 1
    return SpanContext(trace, span, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _metric_parts(exports: Exports) -> Iterator[MetricsData]:
    resource = Resource(exports.resource)
    points = (
        (one.name, NumberDataPoint({**exports.labels.of_metrics, **dict(one.attributes)}, 0, us * 1000, value))
        for one in exports.series
        for us, value in one.points
    )
    while part := list(islice(points, _POINTS_AT_ONCE)):
        named: dict[str, list[NumberDataPoint]] = defaultdict(list)
        for name, point in part:
            named[name].append(point)
        metrics = [Metric(name, MEASURES[name][1], MEASURES[name][0], Gauge(told)) for name, told in named.items()]
        yield MetricsData([ResourceMetrics(resource, [ScopeMetrics(_SCOPE, metrics, "")], "")])


def _json(request: Any) -> str:
    """OTLP's JSON differs from protobuf's: ids are hexadecimal and enumerations are numbers."""
    told = MessageToDict(request, use_integers_for_enums=True)
    for resource in told.get("resourceSpans", ()):
        for scope in resource.get("scopeSpans", ()):
            for span in scope.get("spans", ()):
                for name in _IDS:
                    if name in span:
                        span[name] = _hexadecimal(span[name])
    return json.dumps(told, ensure_ascii=False, separators=(",", ":"))


def _hexadecimal(base64_text: str) -> str:
    return base64.b64decode(base64_text).hex()


def _endpoint(text: str) -> tuple[str, str]:
    """(the URL in front of `/v1/…`, what may be shown of it)."""
    try:
        parts = urlsplit(text)
        valid = bool(parts.hostname) and (parts.port is None or parts.port > 0) and not (parts.query or parts.fragment)
    except ValueError:
        valid = False
    if not valid:
        raise DiagError(f"{redact(text.rpartition('@')[2])[:60]!r} is no OTLP endpoint", hint="http://collector:4318")
    path = parts.path.rstrip("/").removesuffix("/v1/traces").removesuffix("/v1/metrics")
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{parts.netloc}{path}", f"{parts.scheme}://{host}{path}"


def _reason(said: Sequence[str]) -> str:
    """Why, out of what the SDK logged: the system's own words where it has any, before the SDK's giving up."""
    for text in said:
        if (found := re.search(r"\[Errno -?\d+\] ([A-Za-z ]+)", text)) is not None:
            return found.group(1)
    return redact(" ".join(said[-1].split()))[:_TOLD_CHARACTERS] if said else "no reason is given"


@contextlib.contextmanager
def _told() -> Iterator[list[str]]:
    """What the SDK logs meanwhile: its exporters return success or failure, and log the reason."""
    said: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    logger, handler = logging.getLogger("opentelemetry"), Keep()
    before = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield said
    finally:
        logger.removeHandler(handler)
        logger.propagate = before
