"""What bpftrace prints, as text and as JSON lines: the CUDA driver's grants as allocator events, its maps as a table.

The events are those of `cuda_allocations.bt`, which comes with infer_diag. No frame of a recording holds histograms of
driver calls or of disk reads: `load` sums them up in notes, `histograms` reads them whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from infer_diag.errors import SourceError
from infer_diag.loaders.allocator.bpftrace_text import SCHEMA, maps_of_text
from infer_diag.loaders.conformed import CLAIMED, recorded
from infer_diag.loaders.files import LogFile, find
from infer_diag.loaders.loader import Loader, Options
from infer_diag.loaders.request_traces.jsonl import claimed, text_lines
from infer_diag.loaders.request_traces.values import figure
from infer_diag.loaders.sniff import Signature
from infer_diag.loaders.text import stamps
from infer_diag.recording import Clock, Recording
from infer_diag.units import format_count, format_s

_CLAIM = r"infer_diag cuda_(?:alloc|free) "
_EVENT = (
    r"infer_diag cuda_(?P<what>alloc|free) time=(?P<time>[0-9T:.+-]+) pid=(?P<pid>[0-9]{1,10}) "
    r"address=0x(?P<address>[0-9a-f]{1,16}) (?:size=(?P<size>[0-9]{1,19}) )?result=(?P<result>-?[0-9]{1,10}) "
    r"ns=(?P<ns>[0-9]{1,18})"
)
_OUT_OF_MEMORY = "2"
"""CUDA_ERROR_OUT_OF_MEMORY; of other errors no memory is the cause."""
_SCALARS = r'"type": ?"(?:hist|lhist|map|stats)"'
_KEPT_TEXT = 200
_MOST_MAPS = 6


def load(file: LogFile, *, options: Options) -> Recording:
    """Grants and refusals of the driver as `segment_alloc` and `oom`, what it took back as `segment_free`.

    Addresses are those of one process: of several, the events of the one with most are kept, and a note says so.

    Raises:
        SourceError: there are maps alone, which no frame holds.
    """
    parts, damaged, count = [_events(pl.DataFrame(schema={"line": pl.UInt32, "text": pl.String}))], [], 0
    tables = [pl.DataFrame(schema=SCHEMA)]
    for lines, so_far in text_lines(file, options):
        count = so_far
        told = lines.filter(pl.col("text").str.contains(_CLAIM))
        events = _events(told)
        parts.append(events)
        damaged.append(claimed(told.filter(~pl.col("line").is_in(events["line"].implode())), "an event of a driver"))
        tables.append(_maps(lines.filter(~pl.col("text").str.contains(_CLAIM))))
    found, maps = pl.concat(parts), pl.concat(tables)
    if found.is_empty() and not maps.is_empty():
        raise SourceError(
            f"{file.label} holds maps of bpftrace and no event, and no frame of a recording holds those",
            hint="infer_diag.loaders.allocator.bpftrace.histograms(path) reads them",
        )
    kept, notes = _of_one_process(found)
    rows = _sized(kept)
    return recorded(
        file,
        {"allocator_events": rows, "ooms": _failed(rows)},
        options=options,
        format="bpftrace",
        engine="bpftrace",
        lines=count,
        understood=len(found) + maps["line"].n_unique(),
        rejected=pl.concat([pl.DataFrame(schema=CLAIMED), *damaged]),
        times=rows["time"],
        clocks=(Clock("inner", str(kept["stamp"][0])[:40], zone="UTC"),) if len(kept) else (),
        notes=(*notes, *_times_told(found), *_maps_told(maps)),
    )


def histograms(path: str | Path) -> pl.DataFrame:
    """One row per bucket or value of every map that bpftrace printed: `map`, `key`, `lower`, `upper`, `count`, `value`.

    A bucket holds values from `lower` to below `upper` (null: without end); a map of sums or counts has a `value`
    alone. The unit stands at the end of the map's name (`@cuLaunchKernel_us`).

    Raises:
        SourceError: the file cannot be read, or holds no map.
    """
    (file,) = find((path,))[:1]
    parts = [_maps(lines) for lines, _ in text_lines(file, Options())]
    found = pl.concat([pl.DataFrame(schema=SCHEMA), *parts])
    if found.is_empty():
        raise SourceError(f"{file.label} holds no map of bpftrace", hint="give what bpftrace printed, as text or JSON")
    return found


def _events(lines: pl.DataFrame) -> pl.DataFrame:
    read = lines.with_columns(pl.col("text").str.extract_groups(_EVENT).alias("_g")).unnest("_g").drop_nulls("what")
    known = stamps.parsed(read["time"]).select(pl.col("raw").alias("time"), "us")
    told = read.join(known, on="time", how="left", maintain_order="left").drop_nulls("us")
    failed, granted = pl.col("result") == _OUT_OF_MEMORY, pl.col("result") == "0"
    action = (
        pl.when((pl.col("what") == "alloc") & granted)
        .then(pl.lit("segment_alloc"))
        .when((pl.col("what") == "alloc") & failed)
        .then(pl.lit("oom"))
        .when((pl.col("what") == "free") & granted)
        .then(pl.lit("segment_free"))
    )
    return told.select(
        "line",
        pl.col("time").alias("stamp"),
        pl.col("us").cast(pl.Datetime("us", "UTC")).alias("time"),
        "pid",
        "what",
        action.alias("action"),
        pl.when(granted)
        .then(pl.col("address").str.to_integer(base=16, dtype=pl.UInt64, strict=False))
        .alias("address_id"),
        pl.col("size").cast(pl.UInt64, strict=False).alias("size"),
        (pl.col("ns").cast(pl.Float64) / 1e9).alias("seconds"),
    )


def _of_one_process(events: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    counted = events.group_by("pid").len().sort(["len", "pid"], descending=[True, False])
    if len(counted) < 2:
        return events, []
    pid, others = counted["pid"][0], int(counted["len"][1:].sum())
    note = f"{others:,} events of {len(counted) - 1:,} other processes are left out: addresses are of process {pid}"
    return events.filter(pl.col("pid") == pid), [note]


def _sized(events: pl.DataFrame) -> pl.DataFrame:
    """Rows of `allocator_events`; what is given back has its size where the event before it is its grant."""
    granted = pl.when(pl.col("action") == "segment_alloc").then("size").shift(1).over("address_id")
    size = pl.when(pl.col("action") == "segment_free").then(granted).otherwise("size")
    refused = pl.col("action") == "oom"
    return (
        events.with_columns(size.alias("size"))
        .drop_nulls("action")
        .select(
            "line",
            "time",
            "action",
            "address_id",
            pl.when(refused).then("size").alias("requested_bytes"),
            pl.when(~refused).then("size").alias("allocated_bytes"),
        )
    )


def _failed(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(pl.col("action") == "oom").select(
        "line",
        "time",
        pl.lit("device").alias("memory"),
        pl.col("requested_bytes").cast(pl.Float64),
        pl.lit(0.0).alias("requested_resolution_bytes"),
    )


def _times_told(events: pl.DataFrame) -> Iterator[str]:
    for what, name in (("alloc", "cuMemAlloc"), ("free", "cuMemFree")):
        mine = events.filter(pl.col("what") == what)["seconds"]
        if len(mine):
            longest = format_s(float(mine.max()))  # type: ignore[arg-type]
            yield f"{len(mine):,} calls of {name} took {format_s(float(mine.sum()))}, the longest {longest}"


def _maps_told(maps: pl.DataFrame) -> Iterator[str]:
    named = maps.drop_nulls("count").group_by("map", maintain_order=True).agg(pl.col("count").sum())
    for name, number in named.head(_MOST_MAPS).iter_rows():
        yield f"{name}: {format_count(number)} values, which no frame holds"


def _maps(lines: pl.DataFrame) -> pl.DataFrame:
    text = pl.col("text")
    is_json = text.str.contains(_SCALARS) & text.str.starts_with("{")
    rows = [
        row for line, told in lines.filter(is_json).select("line", "text").iter_rows() for row in _of_json(line, told)
    ]
    return pl.concat([pl.DataFrame(rows, schema=SCHEMA, orient="row"), maps_of_text(lines.filter(~is_json))])


def _of_json(line: int, told: str) -> Iterator[tuple[Any, ...]]:
    try:
        document = json.loads(told)
    except (ValueError, RecursionError):
        return
    data = document.get("data") if isinstance(document, dict) else None
    for name, value in data.items() if isinstance(data, dict) else ():
        # A map without keys holds its value itself, one with keys an object of them.
        for key, inner in value.items() if isinstance(value, dict) else ((None, value),):
            yield from _values(line, str(name)[:_KEPT_TEXT], None if key is None else str(key)[:_KEPT_TEXT], inner)


def _values(line: int, name: str, key: str | None, value: Any) -> Iterator[tuple[Any, ...]]:
    for bucket in value if isinstance(value, list) else ():
        told = bucket if isinstance(bucket, dict) else {}
        lower, last, held = (figure(told.get(part)) for part in ("min", "max", "count"))
        if held is not None and held >= 0 and held == int(held) and held < 2**63:
            yield line, name, key, lower, None if last is None else last + 1, int(held), None
    number = figure(value)
    if number is not None:
        yield line, name, key, None, None, None, number


LOADER = Loader(
    name="bpftrace",
    about="bpftrace's output (text, JSON) of infer_diag's scripts: what the CUDA driver grants, refuses and takes back",
    versions="bpftrace 0.17",
    frames=("allocator_events", "ooms"),
    example=(
        "infer_diag cuda_alloc time=2026-01-23T12:34:56.789012+0000 pid=4242 address=0x7f0000000000 size=2097152 "
        "result=0 ns=278513"
    ),
    signature=Signature(
        phrases=(
            _CLAIM + "time=",
            r"^Attaching [0-9]+ probes?\.\.\.$",
            r'^\{"type": ?"attached_probes", ?"data"',
        )
    ),
    load=load,
)
