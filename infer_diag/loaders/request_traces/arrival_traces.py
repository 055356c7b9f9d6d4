"""Public traces of what production services were asked: Azure's, BurstGPT and Mooncake. When, and how many tokens."""

from __future__ import annotations

import polars as pl

from infer_diag.errors import SourceError
from infer_diag.loaders.conformed import CLAIMED, recorded
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.loader import Loader, Options
from infer_diag.loaders.request_traces.delimited import Table, parts, table
from infer_diag.loaders.request_traces.jsonl import json_lines
from infer_diag.loaders.request_traces.moments import MICROSECONDS, counted, times_of
from infer_diag.loaders.request_traces.numbers import length, number, whole
from infer_diag.loaders.sniff import Signature
from infer_diag.loaders.text import stamps
from infer_diag.recording import Clock, Recording

_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_BURST = ("Timestamp", "Elapsed time", "Request tokens", "Response tokens", "Total tokens")
_AZURE_HEADER = r'^"?TIMESTAMP"?,(?:"?NumImages"?,)?"?ContextTokens"?,"?GeneratedTokens"?[ \t\r]*$'
_BURST_HEADER = r"^Timestamp,(?:[A-Za-z ]+,)*Model,Request tokens,Response tokens,Total tokens,Log Type[ \t\r]*$"


def load_azure(file: LogFile, *, options: Options) -> Recording:
    """Arrivals, prompt and output tokens; stamps have seven digits of a second and, in later traces, a zone.

    A stamp without a zone is taken at `tz`, or as if it were UTC. Numbers of images are not read.

    Raises:
        SourceError: the table lacks one of its columns.
    """
    good, damaged = [], [pl.DataFrame(schema=CLAIMED)]
    clocks: tuple[Clock, ...] = ()
    lines = 0
    for told in parts(file, options, _AZURE):
        _refuse_without(file, told, _AZURE)
        lines = told.lines
        rows, broken, clock = _azure_rows(told.rows, options)
        good.append(rows)
        damaged.append(_rejected(broken, _AZURE, "a row of an Azure LLM trace"))
        clocks = clocks or clock
    rows = pl.concat(good)
    requests, _ = counted(rows, MICROSECONDS)
    return recorded(
        file,
        {"requests": requests},
        options=options,
        format="azure-llm",
        engine="azure-llm",
        lines=lines,
        understood=len(rows) + 1,
        rejected=pl.concat(damaged),
        times=times_of(rows, MICROSECONDS),
        clocks=clocks,
    )


def _azure_rows(cells: pl.DataFrame, options: Options) -> tuple[pl.DataFrame, pl.DataFrame, tuple[Clock, ...]]:
    """(requests, rows that are none, the clock of the first stamp)."""
    known = stamps.parsed(cells["TIMESTAMP"], options.year, options.tz)
    rows = cells.join(known, left_on="TIMESTAMP", right_on="raw", how="left", maintain_order="left")
    read = rows.select(
        "line",
        pl.when("has_date").then("us").alias("arrival"),
        whole(pl.col("ContextTokens")).alias("prompt_tokens"),
        whole(pl.col("GeneratedTokens")).alias("output_tokens"),
    )
    broken = _incomplete(read, ("arrival", "prompt_tokens", "output_tokens"))
    stamp = rows.filter(~broken).select("TIMESTAMP", "zone", "has_year").head(1).to_dicts()
    clocks = tuple(Clock("inner", each["TIMESTAMP"], each["zone"], 0.0, year_known=each["has_year"]) for each in stamp)
    return read.filter(~broken), cells.filter(broken), clocks


def load_burstgpt(file: LogFile, *, options: Options) -> Recording:
    """Arrivals, tokens and, in later files, the end of the response (its time is told in whole seconds).

    No response token means that the request failed: how many it would have had is unknown.

    Raises:
        SourceError: the table lacks one of its columns.
    """
    told = table(file, options, _BURST)
    _refuse_without(file, told, ("Timestamp", "Request tokens", "Response tokens"))
    missing = [pl.lit(None, pl.String).alias(name) for name in _BURST if name not in told.rows.columns]
    good, broken = _burst_rows(told.rows.with_columns(missing))
    requests, _ = counted(good.drop("total"), 1)
    return recorded(
        file,
        {"requests": requests},
        options=options,
        format="burstgpt",
        engine="burstgpt",
        lines=told.lines,
        understood=len(good) + 1,
        rejected=_rejected(broken, _BURST, "a row of BurstGPT"),
        times=pl.Series([], dtype=pl.Datetime("us", "UTC")),
        notes=("response times are whole seconds",) if requests["last_token_s"].count() else (),
        doubts=_contradicted(good),
    )


def _burst_rows(cells: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """(requests with `total`, rows that are none)."""
    read = cells.select(
        "line",
        number(pl.col("Timestamp")).alias("arrival"),
        length(pl.col("Elapsed time")).alias("elapsed"),
        whole(pl.col("Request tokens")).alias("prompt_tokens"),
        whole(pl.col("Response tokens")).alias("output_tokens"),
        whole(pl.col("Total tokens")).alias("total"),
    )
    broken = _incomplete(read, ("arrival", "prompt_tokens", "output_tokens"))
    failed = pl.col("output_tokens") == 0
    ended = pl.when(~failed & (pl.col("elapsed") > 0)).then(pl.col("arrival") + pl.col("elapsed"))
    good = read.filter(~broken).with_columns(
        ended.alias("last_token"),
        pl.when(~failed).then("output_tokens").alias("output_tokens"),
        pl.when(failed).then(pl.lit("failed")).alias("finish_reason"),
    )
    return good.drop("elapsed"), cells.filter(broken)


def load_mooncake(file: LogFile, *, options: Options) -> Recording:
    """Arrivals (milliseconds from the trace's begin) and tokens.

    The hashes of the prompts' blocks are not read: what of a prompt a cache holds depends on the cache.
    """
    paths = {"at": "$.timestamp", "prompt": "$.input_length", "output": "$.output_length"}
    told = json_lines(file, options, paths, needed="prompt", what="a request of a Mooncake trace")
    read = told.rows.select(
        "line",
        number(pl.col("at")).alias("arrival"),
        whole(pl.col("prompt")).alias("prompt_tokens"),
        whole(pl.col("output")).alias("output_tokens"),
    )
    broken = _incomplete(read, ("arrival", "prompt_tokens", "output_tokens"))
    requests, _ = counted(read.filter(~broken), 1000)
    damaged = _rejected(told.rows.filter(broken), tuple(paths), "a request of a Mooncake trace")
    return recorded(
        file,
        {"requests": requests},
        options=options,
        format="mooncake",
        engine="mooncake",
        lines=told.lines,
        understood=len(requests),
        rejected=pl.concat([told.damaged, damaged]),
        times=pl.Series([], dtype=pl.Datetime("us", "UTC")),
    )


def _incomplete(rows: pl.DataFrame, names: tuple[str, ...]) -> pl.Series:
    return rows.select(pl.any_horizontal(pl.col(name).is_null() for name in names)).to_series()


def _rejected(rows: pl.DataFrame, names: tuple[str, ...], what: str) -> pl.DataFrame:
    text = pl.concat_str([pl.col(name).fill_null("") for name in names if name in rows.columns], separator=",")
    return rows.select("line", pl.lit(what).alias("rule"), text.alias("text"))


def _refuse_without(file: LogFile, told: Table, names: tuple[str, ...]) -> None:
    missing = [name for name in names if name not in told.header]
    if missing:
        raise SourceError(
            f"{file.label} has no column {', '.join(missing)}; its first line names {', '.join(told.header[:8])[:90]}",
            hint="give the trace as it was published, or format='table' with columns=",
        )


def _contradicted(rows: pl.DataFrame) -> tuple[str, ...]:
    """What the column of sums says that its own rows do not."""
    summed = pl.col("prompt_tokens").cast(pl.UInt64) + pl.col("output_tokens").fill_null(0).cast(pl.UInt64)
    wrong = rows.filter(pl.col("total").is_not_null() & (pl.col("total") != summed))
    if wrong.is_empty():
        return ()
    return (
        f"`Total tokens` is not the sum of prompt and output in {len(wrong):,} of {len(rows):,} rows (first in line "
        f"{wrong['line'][0]}); it is not used",
    )


AZURE = Loader(
    name="azure-llm",
    about="Azure LLM inference traces (CSV): arrivals, prompt and output tokens",
    versions="2023, 2024, 2025",
    frames=("requests",),
    example=("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10"),
    signature=Signature(phrases=(_AZURE_HEADER,)),
    load=load_azure,
)
BURSTGPT = Loader(
    name="burstgpt",
    about="BurstGPT (CSV, with and without sessions and response times): arrivals, tokens, failures",
    versions="with and without sessions",
    frames=("requests",),
    example=(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log"
    ),
    signature=Signature(phrases=(_BURST_HEADER,)),
    load=load_burstgpt,
)
MOONCAKE = Loader(
    name="mooncake",
    about="Mooncake traces (one JSON object per request): arrivals, prompt and output tokens",
    versions="FAST25 release",
    frames=("requests",),
    example='{"timestamp":27482,"input_length":6758,"output_length":500,"hash_ids":[0,1,2]}',
    signature=Signature(phrases=(r'"input_length"\s*:\s*[0-9.]+\s*,\s*"output_length"\s*:', r'"hash_ids"\s*:\s*\[')),
    load=load_mooncake,
)
