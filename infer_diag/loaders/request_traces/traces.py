"""Traces of Jaeger to a recording: the requests in them, and the starts of engines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import polars as pl

from infer_diag.loaders.conformed import CLAIMED, recorded
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.json_documents import documents
from infer_diag.loaders.loader import Loader, Options
from infer_diag.loaders.request_traces.moments import NANOSECONDS, epoch_times
from infer_diag.loaders.request_traces.span_frames import told_by
from infer_diag.loaders.request_traces.spans import ATTRIBUTES, SPAN
from infer_diag.loaders.request_traces.values import Object, as_object, objects, text
from infer_diag.loaders.sniff import Signature
from infer_diag.recording import Recording


def load_jaeger(file: LogFile, *, options: Options) -> Recording:
    """Spans as Jaeger's API and its page export them: times in microseconds, parents as references."""
    read = documents(file, options)
    rows = [
        row
        for begin, found in read.found
        for trace in objects(as_object(found).get("data"))
        for row in _jaeger_rows(trace, read.line_at(begin))
    ]
    spans = pl.DataFrame(rows, schema=SPAN, orient="row")
    file.cut = file.cut or read.cut
    return _recorded(file, options, spans, read.lines)


def _jaeger_rows(trace: Object, line: int) -> Iterator[dict[str, Any]]:
    processes = as_object(trace.get("processes"))
    for span in objects(trace.get("spans")):
        process = as_object(span.get("process")) or as_object(processes.get(str(span.get("processID"))))
        tags = {**_tags(process), **_tags(span)}
        begin, lasted = (_microseconds(span.get(name)) for name in ("startTime", "duration"))
        known = begin is not None and lasted is not None
        yield {
            "line": line,
            "trace": text(span.get("traceID")),
            "span": text(span.get("spanID")),
            "parent": _parent(span),
            "name": text(span.get("operationName")),
            "service": text(process.get("serviceName")),
            "begin_ns": begin * 1000 if begin is not None else None,
            "end_ns": (begin + lasted) * 1000 if known and begin is not None and lasted is not None else None,
            "failed": tags.get("error") == "true" or tags.get("otel.status_code") == "ERROR",
            **{column: tags.get(name) for name, column in ATTRIBUTES.items()},
        }


def _parent(span: Object) -> str | None:
    inside = [each for each in objects(span.get("references")) if each.get("refType") == "CHILD_OF"]
    return text(inside[0].get("spanID")) if inside else text(span.get("parentSpanID"))


def _tags(holder: Object) -> dict[str, str]:
    """Tags as text; JSON's true and false are written as such."""
    told = ((each.get("key"), each.get("value")) for each in objects(holder.get("tags")))
    return {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in told
        if isinstance(key, str) and isinstance(value, (str, int, float, bool))
    }


def _microseconds(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 52 else None


def _recorded(file: LogFile, options: Options, spans: pl.DataFrame, lines: int) -> Recording:
    told = told_by(spans)
    return recorded(
        file,
        dict(told.frames),
        options=options,
        format="jaeger",
        engine=told.engine,
        lines=lines,
        understood=lines,
        rejected=pl.DataFrame(schema=CLAIMED),
        times=epoch_times([told.first_ns, told.last_ns], NANOSECONDS),
        clocks=told.clocks,
        notes=told.notes,
    )


JAEGER = Loader(
    name="jaeger",
    about="Jaeger traces as JSON (its API and its page): gen_ai and vLLM spans, starts included",
    versions="version 1; vLLM's spans to 0.32",
    frames=("starts", "phases", "requests", "request_timings"),
    example=(
        '{"data":[{"traceID":"5b8efff798038103","spans":[{"traceID":"5b8efff798038103",'
        '"spanID":"eee19b7ec3c1b174","operationName":"llm_request","references":[],'
        '"startTime":1770000000000000,"duration":1000000,"tags":[{"key":"gen_ai.usage.completion_tokens",'
        '"type":"int64","value":20}],"processID":"p1"}],"processes":{"p1":{"serviceName":"vllm-server",'
        '"tags":[]}}}]}'
    ),
    signature=Signature(
        phrases=(
            r'"operationName"\s*:\s*"[^"]*"\s*,\s*"(?:references|startTime|flags)"\s*:',
            r'"startTime"\s*:\s*[0-9]{16}\s*,\s*"duration"\s*:\s*[0-9]+',
        )
    ),
    load=load_jaeger,
)
