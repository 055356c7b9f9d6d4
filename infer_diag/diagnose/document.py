"""A diagnosis as the JSON document that tools outside Python read; every key is always there, unknown is null."""

from __future__ import annotations

import math
from datetime import datetime
from typing import TYPE_CHECKING, Any

import polars as pl

from infer_diag.attribution.serving import Serving
from infer_diag.diagnose.cost_document import deployment_document
from infer_diag.diagnose.memory import document as memory_document
from infer_diag.recording import Clock, Recording, Source
from infer_diag.redact import redact
from infer_diag.schema import PHASES

if TYPE_CHECKING:
    from infer_diag.diagnose import ColdStart, Diagnosis

SCHEMA_VERSION = 1
DIGITS = 6
"""Microseconds and millionths: finer than any log prints, coarser than the noise of floating point."""
SAMPLE_MEASURES = ("output_tokens_per_s", "prompt_tokens_per_s", "running", "waiting", "kv_usage_ratio")
REQUEST_MEASURES = ("queue_s", "prefill_s", "decode_s", "ttft_s", "tpot_s", "e2e_s", "prompt_tokens", "output_tokens")


def document(diagnosis: Diagnosis) -> dict[str, Any]:
    """The JSON contract, version 1: base units, ISO times only where the date is real, floats to 6 decimals.

    The same recording gives the same document whatever the order of its rows.
    """
    recording = diagnosis.recording
    whole = {
        "schema_version": SCHEMA_VERSION,
        "sources": [_source(source) for source in recording.sources],
        "skipped": [{"path": file.path, "reason": redact(file.reason)} for file in recording.skipped],
        "starts": starts(recording, diagnosis.cold_start),
        "serving": None if diagnosis.batching is None else serving(diagnosis.batching),
        "memory": None if diagnosis.memory is None else memory_document(recording, diagnosis.memory),
        "cost": deployment_document(diagnosis.cost),
        "findings": [finding.to_dict() for finding in diagnosis.findings],
    }
    return {key: _plain(value) for key, value in whole.items()}


def starts(recording: Recording, cold_start: ColdStart) -> list[dict[str, Any]]:
    """`starts[]` of the contract, in the order of their ids.

    Frames in: StartSummary, StartPhases, StartSlices.
    """
    phases = cold_start.phases.with_columns(pl.col("phase", "inside", "status").cast(pl.String))
    slices = cold_start.slices.with_columns(pl.col("reason").cast(pl.String)).filter(pl.col("phase").is_null())
    slices = slices.sort("begin_s", maintain_order=True, nulls_last=True)
    told, gaps = (frame.partition_by("start_id", as_dict=True) for frame in (phases, slices))
    return [
        _start(recording, row, told.get(key, phases.clear()), gaps.get(key, slices.clear()))
        for row in sorted(cold_start.summary.iter_rows(named=True), key=lambda row: _number(row["start_id"]))
        for key in [(row["start_id"],)]
    ]


def serving(told: Serving) -> dict[str, Any]:
    """`serving` of the contract."""
    samples = {str(row.pop("measure")): row for row in told.samples.iter_rows(named=True)}
    requests = {str(row.pop("measure")): row for row in told.requests.iter_rows(named=True)}
    for measure, row in requests.items():
        row.pop("request_count")
        row["bounds"] = _bounds(told, measure)
    return {
        "samples": told.sample_count,
        "window_s": told.window_s,
        **{measure: samples.get(measure) for measure in SAMPLE_MEASURES},
        "preemptions": told.preemptions.count,
        "requests": {"count": told.request_count, **{measure: requests.get(measure) for measure in REQUEST_MEASURES}},
        "shares": told.shares,
    }


def _bounds(told: Serving, measure: str) -> dict[str, Any] | None:
    """Between which values the quantiles of a measure lie, where only a histogram tells."""
    rows = told.bounds.filter(pl.col("measure").cast(pl.String) == measure)
    if rows.is_empty():
        return None
    return {f"p{row['quantile_ratio'] * 100:g}": [row["min"], row["max"]] for row in rows.iter_rows(named=True)}


def _source(source: Source) -> dict[str, Any]:
    zoned = any(clock.zone for clock in source.clocks)
    return {
        "path": source.path,
        "format": source.format,
        "engine": source.engine,
        "engine_version": source.engine_version,
        "lines": source.lines,
        "rejected_lines": source.rejected_lines,
        "cut": source.cut,
        "first_time": _iso(source.first_time, source.dated, zoned),
        "last_time": _iso(source.last_time, source.dated, zoned),
        "clocks": [_clock(clock) for clock in source.clocks],
        "notes": list(source.notes),
    }


def _clock(clock: Clock) -> dict[str, Any]:
    return {"where": clock.where, "example": clock.example, "zone": clock.zone, "offset_s": clock.offset_s}


def _iso(time: datetime | None, dated: bool, zoned: bool) -> str | None:
    if time is None or not dated:
        return None
    return time.isoformat() if zoned else time.replace(tzinfo=None).isoformat()


def _start(recording: Recording, row: dict[str, Any], phases: pl.DataFrame, gaps: pl.DataFrame) -> dict[str, Any]:
    in_order = _in_order(phases)
    chosen = [phase for phase in in_order if phase["chosen"]]
    ranks = sorted({phase["rank"] for phase in in_order if phase["rank"] is not None}, key=_number)
    return {
        "start_id": row["start_id"],
        "replica": row["replica"],
        "outcome": row["outcome"],
        "span_s": row["span_s"],
        "hold_s": row["hold_s"],
        "phases_s": _by_phase(chosen, None),
        "by_rank_s": {rank: _by_phase(chosen, rank) for rank in ranks},
        "phases": [_phase(recording, phase) for phase in in_order],
        "gaps": [_gap(recording, gap) for gap in gaps.iter_rows(named=True)],
        "unlogged_s": row["unlogged_s"],
        "caches": {name: row[f"{name}_cache"] for name in ("compile", "engine", "weights")},
        "progress": None if row["done_count"] is None else _progress(row),
    }


def _by_phase(phases: list[dict[str, Any]], rank: str | None) -> dict[str, float | None]:
    return {row["phase"]: row["duration_s"] for row in phases if row["rank"] == rank}


def _in_order(phases: pl.DataFrame) -> list[dict[str, Any]]:
    def place(row: dict[str, Any]) -> tuple[Any, ...]:
        rank = (row["rank"] is not None, _number(row["rank"] or ""))
        return (PHASES.index(row["phase"]), *rank, not row["chosen"], row["source_id"], row["lines"])

    return sorted(phases.iter_rows(named=True), key=place)


def _phase(recording: Recording, row: dict[str, Any]) -> dict[str, Any]:
    plain = {name: row[name] for name in ("phase", "duration_s", "lower_s", "upper_s", "status", "rank", "inside")}
    return {**plain, "evidence": _evidence(recording, row)}


def _gap(recording: Recording, row: dict[str, Any]) -> dict[str, Any]:
    plain = {"after": row["after"], "before": row["before"], "seconds": row["duration_s"], "reason": row["reason"]}
    after = [(row["next_source_id"], line) for line in row["next_lines"] or []]
    return {**plain, "evidence": _evidence(recording, row) + [recording.evidence(*place) for place in after]}


def _progress(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "done": row["done_count"],
        "total": row["total_count"],
        "seconds_each": row["seconds_each_s"],
        "predicted_total_s": row["predicted_total_s"],
    }


def _evidence(recording: Recording, row: dict[str, Any]) -> list[str]:
    return [recording.evidence(row["source_id"], line) for line in row["lines"] if line]


def _number(name: str) -> tuple[int, int, str]:
    digits = "".join(character for character in name if character.isdecimal())
    return (0, int(digits), name) if digits else (1, 0, name)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, DIGITS) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value
