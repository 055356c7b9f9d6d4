"""Failed allocations read: their numbers completed and made plausible, a verdict for each, and what came after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import dataframely as dy
import polars as pl

from infer_diag.attribution.oom_verdict import NOTHING, Numbers, Reading, Span, reading
from infer_diag.attribution.usable_idle import usable_idle
from infer_diag.recording import Recording
from infer_diag.results import OomReadings

Row = dict[str, Any]

_SIZES = ("requested", "total", "free", "process", "allocated", "reserved", "idle", "private_pools", "allowed")
_CONTEXT_RATIO = 0.02
"""Share of a device that its driver's own bookkeeping takes without any process being charged for it."""


def oom_readings(recording: Recording) -> dy.DataFrame[OomReadings]:
    """One row per failed allocation: its bytes, its verdict, and whether the process is seen going on afterwards.

    Frames in: Ooms, AllocatorEvents, Blocks, EngineSamples, EngineSteps, Incidents. Frame out: OomReadings, in the
    order of the logs. Reserved = allocated + idle where one of them is not printed; where a block map tells which idle
    bytes may serve the request (`usable_idle`), only those count for it. Bytes of a process that exceed the device are
    a known fault of the driver's accounting (virtualised GPUs) and count as unknown.
    """
    rows = recording.ooms.sort("source_id", "line", maintain_order=True)
    if rows.is_empty():
        return OomReadings.create_empty()
    usable = usable_idle(recording, rows)
    found = [_read(row, serves) for row, serves in zip(rows.iter_rows(named=True), usable, strict=True)]
    table = pl.DataFrame(found, schema=_columns(), orient="row")
    return OomReadings.validate(_followed(table, recording), cast=True)


def _columns() -> dict[str, Any]:
    return {name: kind for name, kind in OomReadings.create_empty().schema.items() if name != "recovered"}


def numbers(row: Row) -> Numbers:
    """What a row of `schema.Ooms` says, completed; which listed process is the failing one is told by its size."""
    said = {name: _span(row[f"{name}_bytes"], row[f"{name}_resolution_bytes"]) for name in _SIZES}
    if said["reserved"] is None and said["allocated"] is not None and said["idle"] is not None:
        said["reserved"] = said["allocated"] + said["idle"]
    if said["idle"] is None and said["allocated"] is not None and said["reserved"] is not None:
        idle = said["reserved"] - said["allocated"]
        said["idle"] = Span(max(idle.low, 0.0), max(idle.high, 0.0))
    said["process"] = _plausible(said["process"], said["total"])
    sizes, steps = row["listed_bytes"] or [], row["listed_resolution_bytes"] or []
    spans = [_plausible(_span(size, step), said["total"]) for size, step in zip(sizes, steps, strict=True)]
    listed = [span for span in spans if span is not None]
    if len(listed) < len(spans):
        listed = []
    if said["process"] is None and row["process_bytes"] is None:
        own = _own(listed, said)
        if own is not None:
            said["process"] = listed.pop(own)
    return Numbers(**said, listed=tuple(listed))


def _own(listed: Sequence[Span], said: dict[str, Span | None]) -> int | None:
    """Which of the listed processes is the failing one, as a container shows it under its host's id.

    It holds at least what the framework has reserved, and it has to be the only one that does; where the device has as
    much in use beside all that are listed, the failing process may not be among them.
    """
    reserved, total, free = said["reserved"], said["total"], said["free"]
    if reserved is None or reserved.high == 0:
        return None
    able = [place for place, span in enumerate(listed) if span.at_least(reserved) is not False]
    if len(able) != 1:
        return None
    if total is not None and free is not None:
        unlisted = total - free - sum(listed, NOTHING) - total.share(_CONTEXT_RATIO)
        if unlisted.at_least(reserved) is not False:
            return None
    return able[0]


def _span(size: float | None, resolution: float | None) -> Span | None:
    return None if size is None else Span(max(size - (resolution or 0.0), 0.0), size + (resolution or 0.0))


def _plausible(span: Span | None, total: Span | None) -> Span | None:
    return None if span is not None and total is not None and span.low > total.high else span


def _read(row: Row, usable: tuple[Span, str] | None) -> Row:
    known = numbers(row)
    span, where = usable or (None, None)
    known = replace(known, usable=span)
    found = Reading("host_memory") if row["memory"] == "host" else reading(known)
    others = sum(known.listed, NOTHING) if known.listed and known.process is not None else None
    return {
        **{name: row[name] for name in ("source_id", "line", "time", "replica", "rank", "gpu", "component")},
        **{f"{name}_bytes": row[f"{name}_bytes"] for name in _SIZES if name not in ("process", "reserved", "idle")},
        "process_bytes": _middle(known.process),
        "reserved_bytes": row["reserved_bytes"] if row["reserved_bytes"] is not None else _middle(known.reserved),
        "reserved_unallocated_bytes": row["idle_bytes"] if row["idle_bytes"] is not None else _middle(known.idle),
        "usable_idle_lower_bytes": span and span.low,
        "usable_idle_upper_bytes": span and span.high,
        "usable_segments": where,
        "other_bytes": _middle(others),
        "verdict": found.verdict,
        "compaction_would_help": found.compaction_would_help,
    }


def _middle(span: Span | None) -> float | None:
    return None if span is None else span.middle


def _followed(table: pl.DataFrame, recording: Recording) -> pl.DataFrame:
    """Adds `recovered`: true where a later line shows the engine serving, false where the next one shows its end."""
    answered = recording.incidents.filter(kind="response").filter(pl.col("fields").str.contains(r"\s2\d\d(?:\s|$)"))
    busy = pl.any_horizontal(pl.col("running_count") > 0, pl.col("output_tokens_per_s") > 0).fill_null(False)
    serving = [recording.engine_samples.filter(busy), recording.engine_steps.filter(pl.col("kind") != "idle"), answered]
    ends = [
        recording.incidents.filter(pl.col("kind").is_in(["failed", "shutdown", "engine_begin"])),
        recording.starts.drop_nulls("failed_line").select("source_id", line="failed_line"),
    ]
    marks = [frame.select("source_id", "line", goes_on=pl.lit(True)) for frame in serving]
    marks += [frame.select("source_id", "line", goes_on=pl.lit(False)) for frame in ends]
    # The line that tells of the failure may itself be the one on which a start is found to have failed.
    later = pl.concat(marks).with_columns(pl.col("line").cast(pl.Int64)).sort("source_id", "line", "goes_on")
    placed = table.with_columns(_next=pl.col("line").cast(pl.Int64))
    joined = placed.sort("_next").join_asof(
        later.sort("line"),
        left_on="_next",
        right_on="line",
        by="source_id",
        strategy="forward",
        suffix="_later",
        check_sortedness=False,
    )
    return joined.sort("source_id", "line").select(
        *(name for name in table.columns), pl.col("goes_on").alias("recovered")
    )
