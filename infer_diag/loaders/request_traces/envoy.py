"""Envoy's access logs: when each request came in, how long its answer took, and how it ended.

Read alike as they are, in a container runtime's wrapper, or as Loki hands them out. The stamp is Envoy's own, the begin
of the request: a collector stamps the line, which is written at the end.
"""

from __future__ import annotations

import polars as pl

from infer_diag.loaders.conformed import CLAIMED, recorded
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.loader import Loader, Options
from infer_diag.loaders.request_traces.jsonl import claimed, text_lines
from infer_diag.loaders.request_traces.moments import MICROSECONDS, counted, times_of
from infer_diag.loaders.request_traces.numbers import length
from infer_diag.loaders.sniff import Signature
from infer_diag.loaders.text import stamps
from infer_diag.loaders.text.prefixes import ascii_classes
from infer_diag.recording import Clock, Recording
from infer_diag.units import format_ratio

_WHAT = "a line of Envoy's access log"
_STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?Z"
_BEGIN = rf'\[(?P<start>{_STAMP})\] "(?P<method>[A-Z]+|-) (?P<path>\S+) (?P<protocol>HTTP/[0-9.]+|-)" '
_END = (
    r'(?P<received>\d+) (?P<sent>\d+) (?P<duration>\d+|-) (?P<upstream>\d+|-) "(?P<forwarded>[^"]*)" '
    r'"(?P<agent>[^"]*)" "(?P<id>[^"]*)" "(?P<authority>[^"]*)" "(?P<host>[^"]*)"'
)
# Istio's default has the details of the response, of the connection and of the transport in between.
_TEXT = ascii_classes(rf'{_BEGIN}(?P<code>\d+) (?P<flags>\S+) (?:\S+ \S+ "[^"]*" )?{_END}')
_CLAIM = ascii_classes(_BEGIN.replace("(?P<start>", "(?:").replace("(?P<method>", "(?:"))
_WRAPPED = ("$.log", "$.line")
_JSON = {
    "start": ("$.start_time",),
    "path": ("$.path",),
    "code": ("$.response_code",),
    "flags": ("$.response_flags",),
    "duration": ("$.duration",),
    "upstream": ("$.upstream_service_time", "$.x_envoy_upstream_service_time"),
    "id": ("$.request_id", "$.x_request_id"),
}
_COLUMNS = tuple(_JSON)
_READ: dict[str, pl.DataType | type[pl.DataType]] = {"line": pl.UInt32, **dict.fromkeys(_COLUMNS, pl.String)}
_INFERENCE = (
    r"^(?:https?://[^/]+)?(?:/[\w.-]+)*/(?:completions|embeddings|messages|responses|rerank|generate(?:_stream)?"
    r"|infer|chat|api/(?:generate|chat|embed(?:dings)?)|ModelInfer|ModelStreamInfer)(?:\?.*)?$"
)
_GONE = "DC"
"""Response flag of a client that hung up."""
_KEPT_ID = 200
_MOST_FLAGS = 6


def load(file: LogFile, *, options: Options) -> Recording:
    """Requests to an engine's endpoints; other paths (health, metrics) are counted in a note.

    `arrival_s` is when Envoy had the request, `last_token_s` when it had passed on the last byte of a complete answer.
    No line tells of a first token: the upstream's service time ends with the headers, which a streaming server sends
    before it has computed one.
    """
    read: list[pl.DataFrame] = [pl.DataFrame(schema=_READ)]
    damaged: list[pl.DataFrame] = [pl.DataFrame(schema=CLAIMED)]
    count = 0
    for lines, so_far in text_lines(file, options):
        count = so_far
        found, broken = _lines(lines)
        read.append(found)
        damaged.append(claimed(broken, _WHAT))
    rows = _typed(pl.concat(read))
    lines_asked = rows.filter(pl.col("path").str.contains(ascii_classes(_INFERENCE)))
    asked = _told_once(lines_asked)
    requests, first = counted(_events(asked), MICROSECONDS)
    example = rows["start"].drop_nulls().head(1).to_list()
    return recorded(
        file,
        {"requests": requests},
        options=options,
        format="envoy",
        engine="envoy",
        lines=count,
        understood=len(rows),
        rejected=pl.concat(damaged),
        times=times_of(_events(asked), MICROSECONDS),
        clocks=(Clock("inner", example[0][:40], zone="UTC"),) if example and first is not None else (),
        notes=_notes(asked, others=len(rows) - len(lines_asked), again=len(lines_asked) - len(asked)),
    )


def _lines(lines: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """(lines of access logs with the columns of `_READ`, lines that begin as one and cannot be read)."""
    text = pl.col("text")
    # A collector's prefix may stand in front of the object.
    is_json = text.str.contains(r'\{.*\\?"response_flags\\?"\s*:')
    # Inside a collector's JSON the quotes are escaped.
    plain = lines.filter(~is_json).with_columns(text.str.replace_all(r"\"", '"', literal=True))
    told = plain.with_columns(text.str.extract_groups(_TEXT).alias("_g")).unnest("_g")
    broken = told.filter(pl.col("start").is_null() & text.str.contains(_CLAIM))
    documents = _documents(lines.filter(is_json))
    parts = [told.drop_nulls("start"), documents.drop_nulls(["start", "duration"])]
    unread = documents.filter(pl.any_horizontal(pl.col("start", "duration").is_null()))
    good = pl.concat([part.select(pl.col(name).cast(kind) for name, kind in _READ.items()) for part in parts])
    return good.sort("line"), pl.concat([part.select("line", "text") for part in (broken, unread)])


def _documents(lines: pl.DataFrame) -> pl.DataFrame:
    whole = lines.with_columns(pl.col("text").str.extract(r"(?s)(\{.*)$").alias("_whole"))
    inner = pl.coalesce(*(pl.col("_whole").str.json_path_match(path) for path in _WRAPPED), "_whole")
    opened = whole.with_columns(inner.alias("_inner"))
    return opened.with_columns(
        pl.coalesce(pl.col("_inner").str.json_path_match(path) for path in paths).alias(name)
        for name, paths in _JSON.items()
    ).drop("_whole", "_inner")


def _typed(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows with times in microseconds and seconds; `-` is what Envoy writes for what there is not."""
    known = stamps.parsed(rows["start"]).select(pl.col("raw").alias("start"), "us")
    told = rows.join(known, on="start", how="left", maintain_order="left")
    return told.with_columns(
        pl.col("us").cast(pl.Int64).alias("arrival"),
        (length(pl.col("duration")) / 1000).alias("duration_s"),
        (length(pl.col("upstream")) / 1000).alias("upstream_s"),
        pl.col("id").replace(["-", ""], None).str.slice(0, _KEPT_ID).alias("request_id"),
        pl.col("code").cast(pl.Int64, strict=False),
        pl.col("flags").replace(["-", ""], None),
    )


def _told_once(asked: pl.DataFrame) -> pl.DataFrame:
    """Each request by the proxy that had it longest: in a mesh every proxy on the way writes a line with its id.

    Lines of one id that do not overlap are requests of their own, whose client used an id again.
    """
    ordered = asked.with_columns(
        (
            pl.col("arrival") + (pl.col("duration_s").fill_null(0) * MICROSECONDS).round().cast(pl.Int64, strict=False)
        ).alias("_end")
    ).sort("request_id", "arrival", "line", nulls_last=True)
    before = pl.col("_end").cum_max().shift(1).over("request_id")
    begins = (pl.col("arrival") > before).fill_null(True) | pl.col("request_id").is_null()
    numbered = ordered.with_columns(begins.cum_sum().alias("_request"))
    longest = numbered.sort("duration_s", descending=True, nulls_last=True, maintain_order=True)
    return longest.unique("_request", keep="first", maintain_order=True).sort("line").select(asked.columns)


def _events(asked: pl.DataFrame) -> pl.DataFrame:
    gone = pl.col("flags").str.split(",").list.contains(_GONE).fill_null(False)
    reason = pl.when(gone).then(pl.lit("abort")).when(~pl.col("code").is_between(200, 299)).then(pl.lit("error"))
    end = pl.col("arrival") + (pl.col("duration_s") * MICROSECONDS).round().cast(pl.Int64, strict=False)
    return asked.drop_nulls("arrival").select(
        "line",
        "request_id",
        "arrival",
        pl.when(reason.is_null() & pl.col("code").is_not_null()).then(end).alias("last_token"),
        reason.alias("finish_reason"),
    )


def _notes(asked: pl.DataFrame, *, others: int, again: int) -> tuple[str, ...]:
    notes = ["times are those of the proxy: the network behind it and the engine's front end are in them"]
    if others:
        notes.append(f"{others:,} requests to other paths (health, metrics, models) are left out")
    if again:
        notes.append(f"{again:,} lines tell of a request that another proxy had for longer; its line counts")
    both = asked.filter(pl.col("code").is_between(200, 299)).drop_nulls(["duration_s", "upstream_s"])
    whole = float(both["duration_s"].sum())
    if whole > 0:
        share = format_ratio(min(float(both["upstream_s"].sum()) / whole, 1.0))
        notes.append(f"{share} of the time of {len(both):,} answers passes before the upstream's headers come")
    flags = asked.drop_nulls("flags").group_by("flags").len().sort(["len", "flags"], descending=[True, False])
    told = [f"{flag[:40]} {number:,}" for flag, number in flags.head(_MOST_FLAGS).iter_rows()]
    return (*notes, f"response flags: {', '.join(told)}") if told else tuple(notes)


LOADER = Loader(
    name="envoy",
    about="Envoy's access logs, default format, Istio's and JSON, as Loki hands them out too: requests to an engine",
    versions="default format (the same since 1.5), Istio's",
    frames=("requests",),
    example=(
        '[2026-01-23T12:34:56.789Z] "POST /v1/chat/completions HTTP/1.1" 200 - 512 2048 3210 95 "10.0.0.7" '
        '"python-httpx/0.28" "5f0f0d7e-0c1e-4f3a-9b0e-6a1f6a3b2c11" "llm.example" "10.1.2.3:8000"'
    ),
    signature=Signature(
        phrases=(
            rf'\[{_STAMP}\] "[A-Z]+ \S+ HTTP/[0-9.]+" \d+ [A-Za-z,-]+ ',
            r'"response_flags"\s*:',
            r'"(?:x_envoy_)?upstream_service_time"\s*:',
        )
    ),
    load=load,
)
