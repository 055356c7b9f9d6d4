"""Results of `vllm bench serve` and of SGLang's `bench_serving`: what the benchmark's client saw, run after run.

A run with details tells of each request, on the client's monotonic clock where it tells when each began. One without
tells means, which become `RequestTotals`; its percentiles are in the notes, since no frame holds a percentile that
nobody can check.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from infer_diag.loaders.conformed import CLAIMED, Frames, recorded
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.json_documents import documents
from infer_diag.loaders.loader import Loader, Options
from infer_diag.loaders.request_traces.moments import counted
from infer_diag.loaders.request_traces.totals import mean_rows, seconds, shared, totals_frame
from infer_diag.loaders.request_traces.values import Object, amount, count, figure, text, values
from infer_diag.loaders.sniff import Signature
from infer_diag.recording import Recording

_SAME_RATIO = 0.005
"""Figures that the tool rounds for printing still agree to half a percent."""
_NOTED_RUNS = 8
_DETAIL: dict[str, Any] = {
    "line": pl.UInt32,
    "began": pl.Float64,
    "ttft_s": pl.Float64,
    "e2e_s": pl.Float64,
    "prompt_tokens": pl.UInt32,
    "output_tokens": pl.UInt32,
    "finish_reason": pl.String,
}


@dataclass(frozen=True)
class Run:
    """One run of the benchmark: its document and, where it has details, a row per request."""

    line: int
    told: Object
    requests: pl.DataFrame

    @property
    def finished(self) -> int | None:
        """Requests that the run counts as completed."""
        return count(self.told.get("completed"))

    @property
    def succeeded(self) -> pl.DataFrame:
        """The requests that did not fail."""
        return self.requests.filter(pl.col("finish_reason").is_null())


def load_vllm(file: LogFile, *, options: Options) -> Recording:
    """Runs of `vllm bench serve`."""
    return _load(file, options, "vllm-bench")


def load_sglang(file: LogFile, *, options: Options) -> Recording:
    """Runs of SGLang's `bench_serving`."""
    return _load(file, options, "sglang-bench")


def _load(file: LogFile, options: Options, name: str) -> Recording:
    read = documents(file, options)
    told = [(begin, each) for begin, found in read.found for each in _runs(found)]
    runs = [Run(read.line_at(begin), each, _requests(each, read.line_at(begin))) for begin, each in told]
    file.cut = file.cut or read.cut
    doubts = [doubt for number, run in enumerate(runs) for doubt in _contradictions(run, number, len(runs))]
    return recorded(
        file,
        _frames(runs),
        options=options,
        format=name,
        engine=name,
        lines=read.lines,
        understood=read.lines,
        rejected=pl.DataFrame(schema=CLAIMED),
        times=pl.Series([], dtype=pl.Datetime("us", "UTC")),
        notes=tuple(_notes(runs)),
        doubts=tuple(doubts),
    )


def _runs(found: Any) -> list[Object]:
    """The runs in a document: itself, or the objects of a list."""
    listed = found if isinstance(found, list) else [found]
    return [each for each in listed if isinstance(each, dict) and ("completed" in each or "ttfts" in each)]


def _requests(run: Object, line: int) -> pl.DataFrame:
    """One row per request of a run with details; a failed one has no times and no output."""
    ttfts, gaps = values(run.get("ttfts")), values(run.get("itls"))
    began, whole = values(run.get("start_times")), values(run.get("latencies"))
    prompts, outputs, errors = (values(run.get(name)) for name in ("input_lens", "output_lens", "errors"))
    rows = []
    for place, first in enumerate(ttfts):
        ttft, between = amount(first), _summed(_at(gaps, place))
        failed = bool(_at(errors, place)) if errors else not ttft and not between
        e2e = amount(_at(whole, place))
        if e2e is None and ttft is not None and between is not None:
            e2e = ttft + between
        rows.append(
            (
                line,
                figure(_at(began, place)),
                None if failed else ttft,
                None if failed else e2e,
                count(_at(prompts, place)),
                None if failed else count(_at(outputs, place)),
                "error" if failed else None,
            )
        )
    return pl.DataFrame(rows, schema=_DETAIL, orient="row")


def _at(listed: list[Any], place: int) -> Any:
    return listed[place] if place < len(listed) else None


def _summed(gaps: Any) -> float | None:
    """Seconds between the first and the last piece of output; null where a gap is no number."""
    if not isinstance(gaps, list):
        return None
    try:
        return amount(sum(gaps))
    except TypeError:
        return None


def _frames(runs: list[Run]) -> Frames:
    """Events where one run tells when its requests began, durations where that is unknown or several runs would mix."""
    bare = [run for run in runs if run.requests.is_empty()]
    frames: Frames = {"request_totals": totals_frame(row for run in bare for row in _means(run))}
    detailed = [run for run in runs if not run.requests.is_empty()]
    if not detailed:
        return frames
    rows = pl.concat([run.requests for run in detailed])
    if len(runs) == 1 and rows["began"].null_count() == 0:
        began = pl.col("began")
        events = rows.with_columns(
            began.alias("arrival"),
            (began + pl.col("ttft_s")).alias("first_token"),
            (began + pl.col("e2e_s")).alias("last_token"),
        ).drop("began", "ttft_s", "e2e_s")
        return frames | {"requests": counted(events, 1)[0]}
    named = rows.with_row_index("request_id", offset=1).with_columns(pl.col("request_id").cast(pl.String))
    finished = named.filter(pl.col("finish_reason").is_null())
    # What passes after the first token is all decoding to a client.
    decoding = (pl.col("e2e_s") - pl.col("ttft_s")).clip(lower_bound=0).alias("decode_s")
    return frames | {"request_timings": finished.with_columns(decoding).drop("began", "finish_reason")}


def _means(run: Run) -> list[tuple[Any, ...]]:
    told, finished = run.told, run.finished
    whole = told.get("mean_e2el_ms", told.get("mean_e2e_latency_ms"))
    means = {
        "ttft_s": seconds(amount(told.get("mean_ttft_ms"))),
        "tpot_s": seconds(amount(told.get("mean_tpot_ms"))),
        "e2e_s": seconds(amount(whole)),
        "prompt_tokens": shared(amount(told.get("total_input_tokens")), finished),
        "output_tokens": shared(amount(told.get("total_output_tokens")), finished),
    }
    return mean_rows(run.line, text(told.get("model_id")), finished, means)


def _contradictions(run: Run, number: int, runs: int) -> list[str]:
    """Totals of a run that its own requests do not add up to."""
    if run.requests.is_empty():
        return []
    good = run.succeeded
    where = f" of run {number + 1}" if runs > 1 else ""
    summed = {"completed": float(len(good))}
    for name, column in (("total_input_tokens", "prompt_tokens"), ("total_output_tokens", "output_tokens")):
        if good[column].null_count() == 0:
            summed[name] = float(good[column].cast(pl.UInt64).sum())
    mean = good["ttft_s"].mean()
    if isinstance(mean, float):
        summed["mean_ttft_ms"] = mean * 1e3
    told = {name: amount(run.told.get(name)) for name in summed}
    return [
        f"`{name}`{where} is {told[name]:,.6g} where its requests give {rows:,.6g}; the requests are used"
        for name, rows in summed.items()
        if (said := told[name]) is not None and abs(said - rows) > _SAME_RATIO * max(said, rows)
    ]


def _notes(runs: list[Run]) -> list[str]:
    notes = ["times are those of the benchmark's client: network and front end are in them"]
    if len(runs) > 1:
        notes.append(f"{len(runs)} runs in one file: their requests are put together")
    failed = sum(len(run.requests) - len(run.succeeded) for run in runs)
    if failed:
        notes.append(f"{failed:,} requests failed and have no times")
    for number, run in enumerate(runs[:_NOTED_RUNS]):
        if run.requests.is_empty() and (shown := _percentiles(run.told)):
            notes.append(f"run {number + 1} as its tool sums it up, in ms: {shown}")
    return notes


def _percentiles(told: Object) -> str:
    names = [name for name in told if name.endswith("_ms") and name.startswith(("median_", "p9"))]
    shown = {name: amount(told[name]) for name in names[:12]}
    return ", ".join(f"{name.removesuffix('_ms')} {value:.6g}" for name, value in shown.items() if value is not None)


VLLM = Loader(
    name="vllm-bench",
    about="vllm bench serve results (JSON, appended ones too), with and without --save-detailed",
    versions="0.32 and older layouts",
    frames=("requests", "request_timings", "request_totals"),
    example=(
        '{"date":"20260123-123456","backend":"vllm","model_id":"org/some-8b",'
        '"tokenizer_id":"org/some-8b","num_prompts":2,"duration":10.0,"completed":2,'
        '"total_input_tokens":100,"total_output_tokens":40,"total_token_throughput":14.0,'
        '"mean_ttft_ms":250.0}'
    ),
    signature=Signature(phrases=(r'"tokenizer_id"\s*:', r'"total_token_throughput"\s*:', r'"request_goodput')),
    load=load_vllm,
)
SGLANG = Loader(
    name="sglang-bench",
    about="SGLang bench_serving results (one JSON object per run), with and without --output-details",
    versions="0.5.23 and older layouts",
    frames=("request_timings", "request_totals"),
    example=(
        '{"backend":"sglang","dataset_name":"random","duration":10.0,"completed":2,'
        '"total_input_tokens":100,"total_output_tokens":40,"total_output_tokens_retokenized":40,'
        '"mean_ttft_ms":250.0,"mean_e2e_latency_ms":900.0}'
    ),
    signature=Signature(
        phrases=(
            r'"total_output_tokens_retokenized"\s*:',
            r'"sharegpt_output_len"\s*:',
            r'"(?:mean|median)_e2e_latency_ms"\s*:',
            r'"random_range_ratio"\s*:',
        )
    ),
    load=load_sglang,
)
