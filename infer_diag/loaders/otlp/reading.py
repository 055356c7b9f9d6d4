"""A file of OpenTelemetry's exports to a recording: spans and metrics, of one kind or mixed, in JSON or protobuf."""

from __future__ import annotations

import json
from dataclasses import dataclass

import polars as pl

from infer_diag.loaders.conformed import CLAIMED, recorded
from infer_diag.loaders.exposition.reading import value_frames
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.json_documents import documents
from infer_diag.loaders.loader import Loader, Options
from infer_diag.loaders.otlp import json_points, json_spans, protobuf, protobuf_rows
from infer_diag.loaders.otlp.points import POINTS, sampled
from infer_diag.loaders.request_traces.jsonl import claimed, text_lines
from infer_diag.loaders.request_traces.moments import NANOSECONDS, epoch_times
from infer_diag.loaders.request_traces.span_frames import told_by
from infer_diag.loaders.request_traces.spans import SPAN
from infer_diag.loaders.sniff import Signature
from infer_diag.recording import Clock, Recording

_WHAT = "an export of spans or metrics"
_LOGS = '"resourceLogs"'


@dataclass(frozen=True)
class Decoded:
    """Spans (columns of SPAN), points (columns of POINTS), lines that cannot be read (of CLAIMED), lines in all."""

    spans: pl.DataFrame
    points: pl.DataFrame
    damaged: pl.DataFrame
    lines: int

    @property
    def is_empty(self) -> bool:
        """Whether nothing was found."""
        return self.spans.is_empty() and self.points.is_empty()


def load(file: LogFile, *, options: Options) -> Recording:
    """Spans and metrics as the collector's file exporter writes them, an export per line, or as one document."""
    if protobuf.is_otlp(file.begin()):
        return decoded_recorded(file, options, _of_protobuf(file, options))
    read = _of_lines(file, options)
    if read.is_empty:
        # One document over many lines; what is in it keeps the line at which it begins.
        read = _of_documents(file, options)
    return decoded_recorded(file, options, read)


def decoded_recorded(file: LogFile, options: Options, read: Decoded) -> Recording:
    """The recording of what a file of exports holds."""
    samples, series = sampled(read.points)
    metrics = value_frames(samples, series)
    first_us, last_us = samples["us"].min(), samples["us"].max()
    told = told_by(read.spans, first_us * 1000 if isinstance(first_us, int) else None)
    bounds = [told.first_ns, told.last_ns]
    bounds += [us * 1000 for us in (first_us, last_us) if isinstance(us, int)]
    clocks = told.clocks or ((Clock("inner", "epoch", zone="UTC"),) if metrics.frames else ())
    return recorded(
        file,
        {**metrics.frames, **told.frames},
        options=options,
        format="otlp",
        engine=told.engine if told.frames else metrics.engine,
        lines=read.lines,
        understood=read.lines - len(read.damaged),
        rejected=read.damaged,
        times=epoch_times(bounds, NANOSECONDS),
        clocks=clocks,
        notes=told.notes,
    )


def _of_lines(file: LogFile, options: Options) -> Decoded:
    spans, points = [pl.DataFrame(schema=SPAN)], [pl.DataFrame(schema=POINTS)]
    damaged = [pl.DataFrame(schema=CLAIMED)]
    count, logs = 0, 0
    for lines, read in text_lines(file, options):
        count = read
        logs += int(lines["text"].str.contains(_LOGS, literal=True).sum())
        told, numbers, broken = _decoded(lines.filter(pl.col("text").str.contains(r"^\s*\{")))
        spans.append(told)
        points.append(numbers)
        damaged.append(broken)
    _note_logs(file, logs)
    return Decoded(pl.concat(spans), pl.concat(points), pl.concat(damaged), count)


def _note_logs(file: LogFile, count: int) -> None:
    if count:
        file.notes.append(f"{count:,} exports of logs among them are left out: give logs a file of their own")


def _of_protobuf(file: LogFile, options: Options) -> Decoded:
    read = list(protobuf.requests(protobuf.messages(file, options), file))
    texts = [text for kind, text in read if kind == "json"]
    lines = pl.DataFrame({"text": texts}, schema={"text": pl.String}).with_row_index("line", offset=1)
    spans, points, damaged = _decoded(lines)
    _note_logs(file, sum(kind == "logs" for kind, _ in read))
    return Decoded(
        pl.concat([spans, protobuf_rows.spans(request for kind, request in read if kind == "traces")]),
        pl.concat([points, protobuf_rows.points(request for kind, request in read if kind == "metrics")]),
        damaged,
        0,
    )


def _of_documents(file: LogFile, options: Options) -> Decoded:
    read = documents(file, options)
    rows = [(read.line_at(begin), json.dumps(value)) for begin, value in read.found if isinstance(value, dict)]
    lines = pl.DataFrame(rows, schema={"line": pl.UInt32, "text": pl.String}, orient="row")
    file.cut = file.cut or read.cut
    return Decoded(*_decoded(lines), read.lines)


def _decoded(lines: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    of_spans = pl.col("text").str.contains(json_spans.NEEDLE)
    spans, no_spans = json_spans.decoded(lines.filter(of_spans))
    of_metrics = pl.col("text").str.contains(json_points.NEEDLE, literal=True)
    points, no_points = json_points.decoded(lines.filter(of_metrics))
    return spans, points, pl.concat([claimed(no_spans, _WHAT), claimed(no_points, _WHAT)])


LOADER = Loader(
    name="otlp",
    about="OpenTelemetry, JSON and protobuf (collector's files, Tempo): vLLM's and gen_ai spans, engines' metrics",
    versions="OTLP 1; vLLM's spans to 0.32",
    frames=(
        "starts",
        "phases",
        "progress",
        "requests",
        "request_timings",
        "request_totals",
        "engine_samples",
        "gpu_samples",
    ),
    example=(
        '{"resourceSpans":[{"resource":{"attributes":[{"key":"service.name",'
        '"value":{"stringValue":"vllm-server"}}]},'
        '"scopeSpans":[{"spans":[{"traceId":"5b8efff798038103d269b633813fc60c",'
        '"spanId":"eee19b7ec3c1b174","name":"llm_request","kind":2,'
        '"startTimeUnixNano":"1770000000000000000","endTimeUnixNano":"1770000001000000000",'
        '"attributes":[{"key":"gen_ai.usage.completion_tokens","value":{"intValue":"20"}}]}]}]}]}'
    ),
    signature=Signature(
        phrases=(
            r'"resourceSpans"\s*:\s*\[',
            r'"(?:scopeSpans|instrumentationLibrarySpans)"\s*:\s*\[',
            r'"startTimeUnixNano"\s*:',
            r'"resourceMetrics"\s*:\s*\[',
            r'"scopeMetrics"\s*:\s*\[',
        ),
        shape=protobuf.is_otlp,
    ),
    load=load,
)
