"""Exports of GenAI-Perf and AIPerf: each request with its times, or the statistics over all of them."""

from __future__ import annotations

import json
import re
from typing import Any

import polars as pl

from infer_diag.errors import SourceError
from infer_diag.loaders.conformed import CLAIMED, recorded
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.json_documents import JsonDocuments, document, documents
from infer_diag.loaders.loader import Loader, Options
from infer_diag.loaders.request_traces.jsonl import json_lines
from infer_diag.loaders.request_traces.moments import NANOSECONDS, counted, times_of
from infer_diag.loaders.request_traces.numbers import length, whole
from infer_diag.loaders.request_traces.totals import mean_rows, totals_frame
from infer_diag.loaders.request_traces.values import Object, amount, as_object, count, objects, text, values
from infer_diag.loaders.sniff import Signature
from infer_diag.recording import Clock, Recording

_EPOCH_NS = 1e17
"""Smaller numbers of nanoseconds count from a machine's start."""
_UNITS_S = {"s": 1.0, "sec": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_CLIENT = "times are those of the benchmark's client: network and front end are in them"
_REQUEST: dict[str, Any] = {
    "line": pl.UInt32,
    "arrival": pl.Int64,
    "first_token": pl.Int64,
    "last_token": pl.Int64,
    "output_tokens": pl.UInt32,
}
_RECORD = {
    "request_id": "$.metadata.x_request_id",
    "phase": "$.metadata.benchmark_phase",
    "cancelled": "$.metadata.was_cancelled",
    "began": "$.metadata.request_start_ns",
    "ended": "$.metadata.request_end_ns",
    "error": "$.error",
    "ttft": "$.metrics.time_to_first_token.value",
    "ttft_unit": "$.metrics.time_to_first_token.unit",
    "whole": "$.metrics.request_latency.value",
    "whole_unit": "$.metrics.request_latency.unit",
    "prompt": "$.metrics.input_sequence_length.value",
    "output": "$.metrics.output_sequence_length.value",
}
_SUMMED = {
    "e2e_s": "request_latency",
    "ttft_s": "time_to_first_token",
    "tpot_s": "inter_token_latency",
    "prompt_tokens": "input_sequence_length",
    "output_tokens": "output_sequence_length",
}


def load_profile(file: LogFile, *, options: Options) -> Recording:
    """GenAI-Perf's `profile_export.json`: when each request was sent and each piece of its response came.

    The first token is the first piece that holds text; a piece that only opens or ends the stream is none. Tokens are
    known where the server counts them itself.
    """
    read = documents(file, options)
    rows = pl.DataFrame(_profiled(read), schema=_REQUEST, orient="row").drop_nulls("arrival")
    file.cut = file.cut or read.cut
    requests, first = counted(rows, NANOSECONDS)
    dated = first is not None and first >= _EPOCH_NS
    return recorded(
        file,
        {"requests": requests},
        options=options,
        format="genai-perf",
        engine="genai-perf",
        lines=read.lines,
        understood=read.lines,
        rejected=pl.DataFrame(schema=CLAIMED),
        times=times_of(rows if dated else rows.head(0), NANOSECONDS),
        clocks=(Clock("inner", str(first), zone="UTC"),) if dated else (),
        notes=(_CLIENT,),
    )


def _profiled(read: JsonDocuments) -> list[tuple[Any, ...]]:
    places = [match.start() for match in re.finditer(r'"timestamp"\s*:', read.text)]
    listed = [
        request
        for _, each in read.found
        for experiment in objects(as_object(each).get("experiments"))
        for request in objects(experiment.get("requests"))
    ]
    # A prompt may hold the same words; then no line can be told.
    exact = len(places) == len(listed)
    return [_sent(each, read.line_at(places[at]) if exact else 0) for at, each in enumerate(listed)]


def _sent(request: Object, line: int) -> tuple[Any, ...]:
    stamps = [_ns(each) for each in values(request.get("response_timestamps"))]
    outputs = values(request.get("response_outputs"))
    spoken = [at for at in range(len(stamps)) if at >= len(outputs) or _speaks(outputs[at])]
    times = [stamps[at] for at in spoken if stamps[at] is not None]
    tokens = next((found for each in reversed(outputs[-3:]) if (found := _counted(each)) is not None), None)
    return line, _ns(request.get("timestamp")), times[0] if times else None, times[-1] if times else None, tokens


def _ns(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


def _speaks(output: object) -> bool:
    """Whether a piece of a response holds text; what cannot be read is taken to."""
    piece = output if not isinstance(output, dict) else output.get("response", output.get("text_output", output))
    if piece is None or piece == "":
        return False
    if not isinstance(piece, str):
        return True
    body = piece.strip().removeprefix("data:").strip()
    if body in ("", "[DONE]"):
        return False
    said = _opened(body)
    choices = objects(said.get("choices")) if said else []
    if not said or "choices" not in said:
        return True
    return any(
        bool(holder.get(name))
        for choice in choices
        for holder in (choice, as_object(choice.get("delta")), as_object(choice.get("message")))
        for name in ("text", "content", "reasoning_content", "reasoning", "tool_calls")
    )


def _counted(output: object) -> int | None:
    piece = as_object(output).get("response")
    if not isinstance(piece, str) or '"usage"' not in piece:
        return None
    usage = as_object(_opened(piece.strip().removeprefix("data:").strip()).get("usage"))
    return count(usage.get("completion_tokens"))


def _opened(body: str) -> Object:
    try:
        return as_object(json.loads(body))
    except (ValueError, RecursionError):
        return {}


def load_records(file: LogFile, *, options: Options) -> Recording:
    """AIPerf's `profile_export.jsonl`: each request's begin, first token and end; those that failed have no end."""
    told = json_lines(file, options, _RECORD, needed="began", what="a request of an AIPerf export")
    warmed = (told.rows["phase"] == "warmup").fill_null(False)
    rows = told.rows.filter(~warmed)
    failed = pl.col("error").is_not_null() | (pl.col("cancelled") == "true").fill_null(False)
    began, ended = (pl.col(name).cast(pl.Int64, strict=False) for name in ("began", "ended"))
    ttft, spent = _ns_of("ttft"), _ns_of("whole")
    read = rows.select(
        "line",
        "request_id",
        began.alias("arrival"),
        pl.when(~failed).then(began + ttft).alias("first_token"),
        pl.when(~failed).then(pl.coalesce(began + spent, ended)).alias("last_token"),
        whole(pl.col("prompt")).alias("prompt_tokens"),
        pl.when(~failed).then(whole(pl.col("output"))).alias("output_tokens"),
        pl.when(failed).then(pl.lit("error")).alias("finish_reason"),
    ).drop_nulls("arrival")
    requests, first = counted(read, NANOSECONDS)
    warmups = (f"{warmed.sum():,} requests of the warm-up are left out",) if warmed.any() else ()
    return recorded(
        file,
        {"requests": requests},
        options=options,
        format="aiperf",
        engine="aiperf",
        lines=told.lines,
        understood=len(told.rows),
        rejected=told.damaged,
        times=times_of(read, NANOSECONDS),
        clocks=(Clock("inner", str(first), zone="UTC"),) if first is not None else (),
        notes=(_CLIENT, *warmups),
    )


def _ns_of(name: str) -> pl.Expr:
    scale = pl.col(f"{name}_unit").replace_strict(_UNITS_S, default=None, return_dtype=pl.Float64)
    return (length(pl.col(name)) * scale * NANOSECONDS).round().cast(pl.Int64, strict=False)


def load_summary(file: LogFile, *, options: Options) -> Recording:
    """The summary of GenAI-Perf or AIPerf: means over all requests.

    Raises:
        SourceError: it does not say over how many.
    """
    read = document(file, options)
    told = as_object(read.value)
    finished = count(_mean(told, "request_count"))
    if not finished:
        raise SourceError(
            f"{file.label} holds statistics, and does not say over how many requests",
            hint="give profile_export.jsonl (AIPerf) or profile_export.json (GenAI-Perf), which hold the requests",
        )
    line = read.line_of("request_latency") or 1
    means = {measure: _measured(told, name, measure) for measure, name in _SUMMED.items()}
    model = text(
        next(iter(values(as_object(as_object(told.get("input_config")).get("endpoint")).get("model_names"))), None)
    )
    shown = [
        f"{name} {stat} {value:.6g}"
        for name in _SUMMED.values()
        for stat in ("p50", "p95", "p99")
        if (value := amount(as_object(told.get(name)).get(stat))) is not None
    ]
    return recorded(
        file,
        {"request_totals": totals_frame(mean_rows(line, model, finished, means))},
        options=options,
        format="genai-perf-summary",
        engine="genai-perf",
        lines=read.lines,
        understood=read.lines,
        rejected=pl.DataFrame(schema=CLAIMED),
        times=pl.Series([], dtype=pl.Datetime("us", "UTC")),
        notes=(_CLIENT, *((f"as the tool sums it up: {', '.join(shown)}",) if shown else ())),
    )


def _mean(told: Object, name: str) -> float | None:
    return amount(as_object(told.get(name)).get("avg"))


def _measured(told: Object, name: str, measure: str) -> float | None:
    mean = _mean(told, name)
    if not measure.endswith("_s"):
        return mean
    scale = _UNITS_S.get(str(as_object(told.get(name)).get("unit")))
    return mean * scale if mean is not None and scale is not None else None


PROFILE = Loader(
    name="genai-perf",
    about="GenAI-Perf profile_export.json: each request and each piece of its response",
    versions="perf_analyzer's layout of 2025",
    frames=("requests",),
    example=(
        '{"experiments":[{"experiment":{"mode":"concurrency","value":1},'
        '"requests":[{"timestamp":1770000000000000000,"response_timestamps":[1770000000250000000,'
        "1770000001000000000]}]}]}"
    ),
    signature=Signature(phrases=(r'"response_timestamps"\s*:\s*\[', r'"experiments"\s*:\s*\[\s*\{\s*"experiment"')),
    load=load_profile,
)
RECORDS = Loader(
    name="aiperf",
    about="AIPerf profile_export.jsonl: each request with its first token, end and tokens",
    versions="as of 2026",
    frames=("requests",),
    example=(
        '{"metadata":{"x_request_id":"r-0","request_start_ns":1770000000000000000,'
        '"request_end_ns":1770000001000000000,"benchmark_phase":"profiling"},'
        '"metrics":{"time_to_first_token":{"value":250.0,"unit":"ms"},'
        '"output_sequence_length":{"value":40,"unit":"tokens"}},"error":null}'
    ),
    signature=Signature(phrases=(r'"request_start_ns"\s*:\s*[0-9]', r'"benchmark_phase"\s*:')),
    load=load_records,
)
SUMMARY = Loader(
    name="genai-perf-summary",
    about="Summaries of GenAI-Perf and AIPerf (JSON): means over the requests",
    versions="GenAI-Perf of 2025, AIPerf of 2026",
    frames=("request_totals",),
    example=(
        '{"request_count":{"unit":"requests","avg":20},"time_to_first_token":{"unit":"ms","avg":250.0,'
        '"p50":240.0,"max":400.0},"output_sequence_length":{"unit":"tokens","avg":40.0}}'
    ),
    signature=Signature(
        phrases=(
            r'"(?:request_latency|time_to_first_token|inter_token_latency)"\s*:\s*\{\s*"unit"\s*:',
            r'"output_sequence_length"\s*:\s*\{\s*"unit"',
        )
    ),
    load=load_summary,
)
