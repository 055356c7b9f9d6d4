"""GuideLLM's reports: benchmarks with their requests, in the layout up to 0.2 and in that of later versions."""

from __future__ import annotations

import re
from typing import Any

import polars as pl

from infer_diag.loaders.conformed import CLAIMED, Frames, recorded
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.json_documents import JsonDocuments, documents
from infer_diag.loaders.loader import Loader, Options
from infer_diag.loaders.request_traces.moments import counted, times_of
from infer_diag.loaders.request_traces.totals import mean_rows, seconds, totals_frame
from infer_diag.loaders.request_traces.values import Object, amount, as_object, count, figure, objects, text
from infer_diag.loaders.sniff import Signature
from infer_diag.recording import Clock, Recording

_ENDS = {"successful": None, "errored": "error", "incomplete": "incomplete"}
_REQUEST: dict[str, Any] = {
    "line": pl.UInt32,
    "request_id": pl.String,
    "arrival": pl.Float64,
    "first_token": pl.Float64,
    "last_token": pl.Float64,
    "prompt_tokens": pl.UInt32,
    "output_tokens": pl.UInt32,
    "finish_reason": pl.String,
}
_MEANS = {
    "ttft_s": "time_to_first_token_ms",
    "tpot_s": "inter_token_latency_ms",
    "prompt_tokens": "prompt_token_count",
    "output_tokens": "output_token_count",
}
"""Its `time_per_output_token_ms` counts the first token and what precedes it, so it is no time per output token."""


def load(file: LogFile, *, options: Options) -> Recording:
    """Requests of all benchmarks of a report on the client's wall clock; means where a benchmark keeps no request."""
    read = documents(file, options)
    told = [each for _, found in read.found for each in objects(as_object(found).get("benchmarks"))]
    lines = _lines(read, sum(len(objects(as_object(each.get("requests")).get(end))) for each in told for end in _ENDS))
    rows = pl.DataFrame(_rows(told, lines), schema=_REQUEST, orient="row").drop_nulls("arrival")
    totals = [row for each in told if not _kept(each) for row in _means(each)]
    requests, first = counted(rows, 1)
    frames: Frames = {"requests": requests, "request_totals": totals_frame(totals)}
    file.cut = file.cut or read.cut
    return recorded(
        file,
        frames,
        options=options,
        format="guidellm",
        engine="guidellm",
        lines=read.lines,
        understood=read.lines,
        rejected=pl.DataFrame(schema=CLAIMED),
        times=times_of(rows, 1),
        clocks=(Clock("inner", str(first), zone="UTC"),) if first is not None else (),
        notes=tuple(_notes(told)),
    )


def _lines(read: JsonDocuments, wanted: int) -> list[int]:
    """The lines of the requests in order; 0 where the text has other objects with an id of a request."""
    places = [match.start() for match in re.finditer(r'"request_id"\s*:', read.text)]
    return [read.line_at(place) for place in places] if len(places) == wanted else [0] * wanted


def _kept(benchmark: Object) -> list[tuple[str, Object]]:
    """The requests that a benchmark keeps, each with how it ended, in the order of the document."""
    requests = as_object(benchmark.get("requests"))
    return [(end, each) for end in requests if end in _ENDS for each in objects(requests[end])]


def _rows(told: list[Object], lines: list[int]) -> list[tuple[Any, ...]]:
    kept = [pair for each in told for pair in _kept(each)]
    return [_row(each, end, line) for (end, each), line in zip(kept, lines, strict=True)]


def _row(request: Object, end: str, line: int) -> tuple[Any, ...]:
    timings = as_object(as_object(request.get("info")).get("timings"))
    began = _first(request, ("request_start_time", "start_time")) or _first(timings, ("request_start",))
    first = _first(timings, ("first_token_iteration", "first_iteration")) or _first(request, ("first_token_time",))
    ttft = amount(request.get("time_to_first_token_ms"))
    if first is None and began is not None and ttft is not None:
        first = began + ttft / 1e3
    last = _first(timings, ("last_token_iteration", "last_iteration")) or _first(
        request, ("last_token_time", "request_end_time", "end_time")
    )
    done = end == "successful"
    tokens = count(request.get("output_tokens")) if done else None
    prompt = count(request.get("prompt_tokens"))
    name = text(request.get("request_id"))
    return line, name, began, first, last if done else None, prompt, tokens, _ENDS[end]


def _first(holder: Object, names: tuple[str, ...]) -> float | None:
    return next((value for name in names if (value := figure(holder.get(name))) is not None), None)


def _means(benchmark: Object) -> list[tuple[Any, ...]]:
    metrics = as_object(benchmark.get("metrics"))
    good = {
        name: as_object(as_object(metrics.get(name)).get("successful"))
        for name in (*_MEANS.values(), "request_latency")
    }
    finished = count(good["request_latency"].get("count"))
    means = {measure: amount(good[name].get("mean")) for measure, name in _MEANS.items()}
    means = {measure: seconds(mean) if measure.endswith("_s") else mean for measure, mean in means.items()}
    return mean_rows(1, None, finished, {"e2e_s": amount(good["request_latency"].get("mean")), **means})


def _notes(told: list[Object]) -> list[str]:
    notes = ["times are those of the benchmark's client: network and front end are in them"]
    if len(told) > 1:
        notes.append(f"{len(told)} benchmarks in one report: their requests are put together")
    for number, each in enumerate(told):
        whole = as_object(as_object(each.get("metrics")).get("request_totals"))
        finished = count(whole.get("successful"))
        kept = sum(end == "successful" for end, _ in _kept(each))
        if finished is not None and 0 < kept < finished:
            notes.append(f"benchmark {number + 1} keeps {kept:,} of its {finished:,} finished requests")
    return notes


LOADER = Loader(
    name="guidellm",
    about="GuideLLM reports (JSON): each request, or the statistics over all of them",
    versions="up to 0.2; 0.3 to 0.8.1",
    frames=("requests", "request_totals"),
    example=(
        '{"metadata":{"guidellm_version":"0.8.1"},"benchmarks":[{"type_":"generative_benchmark",'
        '"requests":{"successful":[{"type_":"generative_request_stats","request_id":"r-0",'
        '"request_start_time":1770000000.0,"request_end_time":1770000001.0,'
        '"time_to_first_token_ms":250.0,"prompt_tokens":50,"output_tokens":20}],"incomplete":[],'
        '"errored":[]}}]}'
    ),
    signature=Signature(
        phrases=(
            r'"guidellm_version"\s*:',
            r'"type_"\s*:\s*"generative_',
            r'"benchmarks"\s*:\s*\[\s*\{\s*"type_"\s*:',
        )
    ),
    load=load,
)
