"""Records of logs in OTLP, whose bodies are lines that engines printed: given to the engines' own loaders.

Each becomes what Loki's client lists: the line, the labels that tell pods apart, and the record's own time, so that one
clock of the collector stands beside the engine's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import polars as pl

from infer_diag.errors import SourceError
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.json_documents import documents
from infer_diag.loaders.loader import Options
from infer_diag.loaders.loki import OrderedFile
from infer_diag.loaders.otlp import protobuf
from infer_diag.loaders.otlp.protobuf_rows import plain, texts
from infer_diag.loaders.otlp.shapes import ATTRIBUTES, RESOURCE, VALUE, exports, pairs
from infer_diag.loaders.request_traces.jsonl import text_lines

_NEEDLE = rb'"(?:resourceLogs|scopeLogs)"\s*:\s*\['
_OTHERS = rb'"(?:resourceSpans|resourceMetrics)"\s*:\s*\['
_HEAD_BYTES = 1 << 18
_PODS = ("k8s.pod.name", "service.instance.id", "host.name")
_RECORD = pl.Struct(
    {"timeUnixNano": pl.String, "observedTimeUnixNano": pl.String, "body": VALUE, "attributes": ATTRIBUTES}
)
_EXPORT = pl.Struct(
    {
        "resourceLogs": pl.List(
            pl.Struct({"resource": RESOURCE, "scopeLogs": pl.List(pl.Struct({"logRecords": pl.List(_RECORD)}))})
        )
    }
)
_ROWS = {"line": pl.UInt32, "ns": pl.Int64, "body": pl.String, "pod": pl.String}


def opened(file: LogFile, head: bytes, options: Options, *, binary: bool) -> LogFile:
    """The lines of a file of OTLP's logs, in the order of time; any other file as it is.

    Raises:
        SourceError: the file holds logs, and none of their bodies is a line of text.
    """
    if binary:
        if not protobuf.is_otlp(head):
            return file
        # A file that is cut cannot be read again, and other loaders have to.
        copy = replace(file, notes=[])
        read = protobuf.messages(copy, options)
        if not _is_of_logs(next(protobuf.requests(read[:1], replace(file, notes=[])), None)):
            return file
        return _as_lines(copy, _of_requests(protobuf.requests(read, copy)), physical=False)
    if re.search(_NEEDLE, head[:_HEAD_BYTES]) and not re.search(_OTHERS, head[:_HEAD_BYTES]):
        return _as_lines(file, _of_json(file, options), physical=True)
    return file


def _is_of_logs(first: tuple[str, Any] | None) -> bool:
    kind, request = first or ("", "")
    return kind == "logs" or (kind == "json" and '"resourceLogs"' in request[:_HEAD_BYTES])


def _as_lines(file: LogFile, rows: pl.DataFrame, *, physical: bool) -> LogFile:
    told = rows.filter(pl.col("body").str.contains(r"\S")).sort("ns", maintain_order=True, nulls_last=True)
    if told.is_empty():
        raise SourceError(
            f"{file.label} holds OTLP's logs, and no body that is text", hint="export the lines that the engine prints"
        )
    left = len(rows) - len(told)
    notes = [*file.notes, f"{left:,} records have no text as their body"] if left else list(file.notes)
    text = "".join(f"{_line(*row)}\n" for row in told.select("ns", "body", "pod").iter_rows())
    places = tuple(told["line"].to_list()) if physical else tuple(range(1, len(told) + 1))
    path, label, size = file.path, file.label, file.size_bytes
    return OrderedFile(path, label, size, file.cut, file.sha256, notes, text.encode(), places)


def _line(ns: int | None, body: str, pod: str | None) -> str:
    labels = {} if pod is None else {"pod": pod}
    told = {"labels": labels, "line": body}
    return json.dumps(told if ns is None else {**told, "timestamp": str(ns)}, ensure_ascii=False)


def _of_json(file: LogFile, options: Options) -> pl.DataFrame:
    found = [pl.DataFrame(schema=_ROWS)]
    for lines, _ in text_lines(file, options):
        found.append(_decoded(lines.filter(pl.col("text").str.contains('"resourceLogs"', literal=True))))
    rows = pl.concat(found)
    if not rows.is_empty():
        return rows
    read = documents(file, options)
    file.cut = file.cut or read.cut
    whole = [(read.line_at(begin), json.dumps(value)) for begin, value in read.found if isinstance(value, dict)]
    return _decoded(pl.DataFrame(whole, schema={"line": pl.UInt32, "text": pl.String}, orient="row"))


def _decoded(lines: pl.DataFrame) -> pl.DataFrame:
    good, _ = exports(lines, _EXPORT)
    resources = good.select("line", pl.col("export").struct.field("resourceLogs").alias("one")).explode("one")
    resources = resources.drop_nulls("one").with_row_index("resource")
    one = pl.col("one").struct
    scopes = resources.select("line", "resource", one.field("scopeLogs").alias("scope")).explode("scope")
    records = scopes.select("line", "resource", pl.col("scope").struct.field("logRecords").alias("r")).explode("r")
    told = records.drop_nulls("r").unnest("r")
    around = pairs(resources.select("resource", one.field("resource").struct.field("attributes")), "resource")
    pods = around.filter(pl.col("name").is_in(_PODS)).with_columns(pl.col("name").cast(pl.Enum(_PODS)))
    pods = pods.sort("name").unique("resource", keep="first", maintain_order=True)
    named = told.join(pods.select("resource", pod="text"), on="resource", how="left", maintain_order="left")
    body = pl.coalesce(pl.col("body").struct.field("stringValue"), pl.lit(None, pl.String))
    return named.select(
        "line",
        pl.coalesce(_nano("timeUnixNano"), _nano("observedTimeUnixNano")).alias("ns"),
        body.alias("body"),
        pl.col("pod").cast(pl.String),
    )


def _nano(name: str) -> pl.Expr:
    value = pl.col(name).cast(pl.Int64, strict=False)
    return pl.when(value > 0).then(value)


def _of_requests(found: Iterable[tuple[str, Any]]) -> pl.DataFrame:
    kept = list(found)
    documents_ = [text for kind, text in kept if kind == "json"]
    lines = pl.DataFrame({"text": documents_}, schema={"text": pl.String}).with_row_index("line", offset=1)
    rows = [row for kind, request in kept if kind == "logs" for row in _record_rows(request)]
    return pl.concat([pl.DataFrame(rows, schema=_ROWS, orient="row"), _decoded(lines)])


def _record_rows(request: Any) -> Iterator[tuple[int, int | None, str | None, str | None]]:
    for resource in request.resource_logs:
        around = texts(resource.resource.attributes)
        pod = next((around[name] for name in _PODS if name in around), None)
        for scope in resource.scope_logs:
            for record in scope.log_records:
                ns = record.time_unix_nano or record.observed_time_unix_nano
                is_text = record.body.WhichOneof("value") == "string_value"
                yield 0, ns if 0 < ns < 1 << 63 else None, plain(record.body) if is_text else None, pod
