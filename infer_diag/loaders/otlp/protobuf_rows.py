"""Decoded requests of OTLP's protobuf to the same rows that its JSON gives: spans, points, records of logs.

The decoder's objects are walked one by one, for columns cannot be cut from them; evidence has no lines there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import polars as pl

from infer_diag.loaders.otlp.points import POINT_LABELS, POINTS, RESOURCE_LABELS, WANTED
from infer_diag.loaders.request_traces.spans import ATTRIBUTES, SPAN

_ERROR = 2
_DELTA = 1


def spans(requests: Iterable[Any]) -> pl.DataFrame:
    """Spans (columns of SPAN) of requests of traces."""
    return pl.DataFrame([row for request in requests for row in _span_rows(request)], schema=SPAN, orient="row")


def points(requests: Iterable[Any]) -> pl.DataFrame:
    """Points (columns of POINTS) of requests of metrics, as far as they fill a frame."""
    return pl.DataFrame([row for request in requests for row in _point_rows(request)], schema=POINTS, orient="row")


def texts(attributes: Iterable[Any]) -> dict[str, str]:
    """Attributes as text, as OTLP's JSON writes them; lists and maps are left out."""
    told = {}
    for each in attributes:
        value = plain(each.value)
        if value is not None:
            told[each.key] = value
    return told


def plain(value: Any) -> str | None:
    """A value as text; null where it is a list, a map, bytes or nothing."""
    kind = value.WhichOneof("value")
    if kind == "string_value":
        return str(value.string_value)
    if kind == "bool_value":
        return "true" if value.bool_value else "false"
    return repr(getattr(value, kind)) if kind in ("int_value", "double_value") else None


def _span_rows(request: Any) -> Iterator[dict[str, Any]]:
    for resource in request.resource_spans:
        around = texts(resource.resource.attributes)
        for scope in resource.scope_spans:
            for span in scope.spans:
                told = {**around, **texts(span.attributes)}
                yield {
                    "line": 0,
                    "trace": span.trace_id.hex() or None,
                    "span": span.span_id.hex() or None,
                    "parent": span.parent_span_id.hex() or None,
                    "name": span.name,
                    "service": around.get("service.name"),
                    "scope": scope.scope.name or None,
                    "begin_ns": _signed(span.start_time_unix_nano),
                    "end_ns": _signed(span.end_time_unix_nano),
                    "failed": span.status.code == _ERROR,
                    **{column: told.get(name) for name, column in ATTRIBUTES.items()},
                }


def _point_rows(request: Any) -> Iterator[dict[str, Any]]:
    for resource in request.resource_metrics:
        around = {
            RESOURCE_LABELS[name]: value
            for name, value in texts(resource.resource.attributes).items()
            if name in RESOURCE_LABELS
        }
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                kind = metric.WhichOneof("data")
                if metric.name in WANTED and kind in ("gauge", "sum", "histogram"):
                    yield from _of_metric(metric, kind, around)


def _of_metric(metric: Any, kind: str, around: dict[str, str]) -> Iterator[dict[str, Any]]:
    data = getattr(metric, kind)
    is_delta = kind != "gauge" and data.aggregation_temporality == _DELTA
    for point in data.data_points:
        own = {POINT_LABELS.get(name, name): value for name, value in texts(point.attributes).items()}
        labels = json.dumps(sorted({**around, **own}.items()))
        shared = {
            "line": 0,
            "labels": labels,
            "begin_ns": _signed(point.start_time_unix_nano),
            "ns": _signed(point.time_unix_nano),
            "is_delta": is_delta,
        }
        for suffix, le, value in _values(point, kind):
            yield {**shared, "name": WANTED[metric.name] + suffix, "le": le, "value": value}


def _values(point: Any, kind: str) -> Iterator[tuple[str, str | None, float]]:
    if kind != "histogram":
        which = point.WhichOneof("value")
        if which is not None:
            yield "", None, float(getattr(point, which))
        return
    yield "_sum", None, point.sum
    yield "_count", None, float(point.count)
    if len(point.bucket_counts) == len(point.explicit_bounds) + 1:
        held = 0
        for count, bound in zip(point.bucket_counts, [*map(repr, point.explicit_bounds), "+Inf"], strict=True):
            held += count
            yield "_bucket", bound, float(held)


def _signed(nanoseconds: int) -> int | None:
    """Nanoseconds that 63 bits hold; a later moment is none."""
    return nanoseconds if nanoseconds < 1 << 63 else None
