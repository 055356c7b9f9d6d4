"""A small diagnosis made by hand: three starts, serving samples, steps, findings of every severity."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from infer_diag import results, schema
from infer_diag.diagnose.finding import Finding
from infer_diag.diagnose.memory import Memory
from infer_diag.recording import Clock, Recording, Source

T0 = datetime(2026, 2, 1, 13, 17, 26, tzinfo=UTC)


@dataclass(frozen=True)
class ColdStart:
    phases: pl.DataFrame
    slices: pl.DataFrame
    summary: pl.DataFrame


@dataclass(frozen=True)
class Batching:
    steps: pl.DataFrame


@dataclass(frozen=True)
class MadeDiagnosis:
    recording: Recording
    cold_start: ColdStart
    batching: Batching
    findings: tuple[Finding, ...]
    document: dict[str, Any] = field(default_factory=dict)
    memory: Memory | None = None

    def to_dict(self) -> dict[str, Any]:
        return self.document


def frame(model: Any, rows: list[dict[str, Any]]) -> pl.DataFrame:
    empty = dict.fromkeys(model.column_names())
    made: pl.DataFrame = model.validate(
        pl.DataFrame([empty | row for row in rows], schema=model.create_empty().schema, strict=False), cast=True
    )
    return made


def slices(start: str, parts: list[tuple[Any, ...]], *, stamped: bool = True) -> list[dict[str, Any]]:
    rows, begin = [], 0.0
    for number, (what, seconds) in enumerate(parts):
        gap = what in ("silent", "cut")
        rows.append(
            {
                "start_id": start,
                "begin_s": begin if stamped else None,
                "duration_s": seconds,
                "phase": None if gap else what,
                "reason": what if gap else None,
                "after": "weights_load" if gap else None,
                "before": "compile" if gap else None,
                "source_id": 0,
                "lines": [3 + number],
            }
        )
        begin += seconds
    return rows


def phase(start: str, name: str, begin: float | None, seconds: float | None, **more: Any) -> dict[str, Any]:
    return {
        "start_id": start,
        "phase": name,
        "inside": schema.INSIDE.get(name),
        "begin_s": begin,
        "end_s": None if begin is None or seconds is None else begin + seconds,
        "duration_s": seconds,
        "status": "measured",
        "chosen": True,
        "source_id": 0,
        "lines": [5],
        **more,
    }


def cold_start() -> ColdStart:
    made_slices = [
        *slices(
            "start-1",
            [
                ("process", 14.0),
                ("silent", 9.0),
                ("weights_load", 21.5),
                ("compile", 6.2),
                ("kv_profile", 2.8),
                ("graph_capture", 21.0),
                ("silent", 8.0),
                ("warmup", 2.5),
            ],
        ),
        *slices("start-2", [("process", 12.0), ("weights_load", 48.0), ("cut", 10.0), ("compile", 40.0)]),
        *slices("start-3", [("weights_load", 30.0), ("compile", 12.0), ("silent", 4.0)], stamped=False),
    ]
    made_phases = [
        phase("start-1", "process", 0.0, 14.0),
        phase("start-1", "weights_load", 23.0, 21.5),
        phase("start-1", "weights_load", 23.0, 19.0, rank="0"),
        phase("start-1", "weights_load", 23.0, 21.5, rank="1"),
        phase("start-1", "weights_load", 23.0, 12.0, chosen=False, lines=[9]),
        phase("start-1", "weights_read", None, 18.2),
        phase("start-1", "init_engine", 44.5, 30.0),
        phase("start-1", "compile", 44.5, 6.2),
        phase("start-1", "kv_profile", 50.7, None, lower_s=2.8, status="bounded"),
        phase("start-1", "graph_capture", 53.5, 21.0),
        phase("start-1", "warmup", 82.5, 2.5),
        phase("start-1", "first_request", None, None, status="not_identifiable"),
        phase("start-2", "weights_load", 12.0, 48.0),
        phase("start-2", "compile", 70.0, 40.0),
        phase("start-3", "weights_load", None, 30.0),
        phase("start-3", "compile", None, 12.0),
    ]
    summary = [
        {"start_id": "start-1", "outcome": "ready", "span_s": 85.0, "unlogged_s": 17.0, "compile_cache": "hit"},
        {"start_id": "start-2", "outcome": "failed", "span_s": 110.0, "unlogged_s": 0.0, "compile_cache": "miss"},
        {"start_id": "start-3", "outcome": "unfinished", "done_count": 3, "total_count": 15},
    ]
    return ColdStart(
        frame(results.StartPhases, made_phases),
        frame(results.StartSlices, made_slices),
        frame(results.StartSummary, summary),
    )


def samples() -> pl.DataFrame:
    rows = [
        {
            "time": T0 + timedelta(seconds=100 + 10 * number),
            "kind": "interval",
            "running_count": min(128, 13 + 20 * number),
            "waiting_count": max(0, 115 - 12 * number),
            "kv_usage_ratio": min(1.0, 0.02 + 0.05 * number),
            "prompt_tokens_per_s": 7000.0 - 150 * number,
            "output_tokens_per_s": 50.0 + 300 * number,
            "preemption_count": 2 if number > 18 else 0,
            "source_id": 0,
            "line": 20 + number,
        }
        for number in range(24)
    ]
    return frame(schema.EngineSamples, rows)


def steps() -> pl.DataFrame:
    rows = [
        {
            "time": T0 + timedelta(seconds=100 + number // 4),
            "kind": ("decode", "decode", "mixed", "prefill")[number % 4],
            "prefill_count": 0 if number % 4 < 2 else 1 + number % 3,
            "decode_count": 0 if number % 4 == 3 else 20 + number % 90,
            "prefill_tokens": 0 if number % 4 < 2 else 2000,
            "decode_tokens": 20 + number % 90,
            "duration_s": 0.012 + 0.0002 * (number % 90) + (0.06 if number % 4 > 1 else 0),
            "source_id": 0,
            "line": 100 + number,
        }
        for number in range(900)
    ]
    return frame(schema.EngineSteps, rows)


def step_kinds() -> pl.DataFrame:
    rows = [
        {
            "kind": "mixed",
            "step_count": 225,
            "duration_s": 18.5,
            "prefill_tokens": 450_000,
            "decode_tokens": 14_000,
            "mean_batch_count": 66.4,
            "source_id": 0,
            "lines": [101],
        }
    ]
    return frame(results.StepKinds, rows)


FINDINGS = (
    Finding(
        "cold_start.unlogged",
        "high",
        "No line explains 17 s of the 85 s that start-1 took to be ready.",
        "measured",
        ("server.log:4", "server.log:10"),
        "Start with `VLLM_LOGGING_LEVEL=DEBUG` once, so that the silent stretch after the weights gets lines.",
        None,
    ),
    Finding(
        "cold_start.graph_capture",
        "medium",
        "Graph capture took 21 s, a quarter of the start.",
        "measured",
        ("server.log:8",),
        "Fewer sizes: `--cuda-graph-sizes 1 8 64 256`.",
        15.5,
    ),
    Finding(
        "batching.kv_saturation",
        "low",
        "The KV cache was full while requests waited.",
        "bounded",
        ("server.log:40",),
        None,
        3.0,
    ),
    Finding("data.clock_missing", "info", "The log prints no year.", "not_identifiable", (), None, None),
)


def cost() -> dict[str, Any]:
    def entry(value: float | None, unit: str, status: str, **more: Any) -> dict[str, Any]:
        return {"value": value, "unit": unit, "lower": None, "upper": None, "status": status} | {
            "source": None,
            "missing": None,
            "evidence": [],
            **more,
        }

    return {
        "status": "bounded",
        "gpu_s_per_million_tokens": 31414.3,
        "dollars_per_million_tokens": 21.8,
        "lower_dollars_per_million_tokens": 21.8,
        "upper_dollars_per_million_tokens": None,
        "ledger": {
            "held": entry(1200.0, "GPU-s", "bounded", lower=1200.0, source="first to last line"),
            "idle": entry(2.0, "GPU-s", "bounded", lower=2.0, upper=13.0, source="gauges of the engine"),
            "delivered_output": entry(3820.0, "tokens", "bounded", upper=3820.0, source="the engine's counters"),
            "starts": entry(3.0, "starts", "measured", source="starts in the logs"),
            "stall": entry(None, "GPU-s", "not_identifiable", missing="step times"),
        },
        "next_log": "pod events",
        "notes": [],
    }


def document() -> dict[str, Any]:
    def start(name: str, outcome: str, span: float | None) -> dict[str, Any]:
        return {
            "start_id": name,
            "replica": None,
            "outcome": outcome,
            "span_s": span,
            "hold_s": None,
            "phases_s": {"weights_load": 21.5},
            "by_rank_s": {},
            "phases": [
                {
                    "phase": "weights_load",
                    "duration_s": 21.5,
                    "lower_s": None,
                    "upper_s": None,
                    "status": "measured",
                    "rank": None,
                    "inside": None,
                    "evidence": ["server.log:5"],
                },
                {
                    "phase": "kv_profile",
                    "duration_s": None,
                    "lower_s": 2.8,
                    "upper_s": None,
                    "status": "bounded",
                    "rank": "0",
                    "inside": "init_engine",
                    "evidence": ["server.log:7"],
                },
            ],
            "gaps": [
                {
                    "after": "process",
                    "before": "weights_load",
                    "seconds": 9.0,
                    "reason": "silent",
                    "evidence": ["server.log:4"],
                }
            ],
            "unlogged_s": 17.0 if span else None,
            "caches": {"compile": "hit", "engine": None, "weights": None},
            "progress": None
            if outcome == "ready"
            else {"done": 3, "total": 15, "seconds_each": 5.6, "predicted_total_s": 84.0},
        }

    stats = {"first": 50.0, "last": 6950.0, "min": 50.0, "mean": 3500.0, "max": 6950.0}
    request = {"mean": 1.2, "p50": 1.0, "p95": 2.6, "max": 3.1}
    return {
        "schema_version": 1,
        "sources": [],
        "starts": [
            start("start-1", "ready", 85.0),
            start("start-2", "failed", 110.0),
            start("start-3", "unfinished", None),
        ],
        "serving": {
            "samples": 24,
            "window_s": 230.0,
            "output_tokens_per_s": stats,
            "prompt_tokens_per_s": None,
            "running": {"first": 13, "last": 128, "min": 13, "mean": 110.5, "max": 128},
            "waiting": None,
            "kv_usage_ratio": {"first": 0.02, "last": 1.0, "min": 0.02, "mean": 0.58, "max": 1.0},
            "preemptions": 10,
            "requests": {
                "count": 513,
                "queue_s": None,
                "prefill_s": None,
                "decode_s": None,
                "ttft_s": request,
                "tpot_s": None,
                "e2e_s": request,
                "prompt_tokens": {"mean": 900.0, "p50": 850.0, "p95": 2000.0, "max": 4096.0},
                "output_tokens": None,
            },
            "shares": {"queue": 0.62, "prefill": 0.08, "decode": 0.3, "other": None},
        },
        "memory": None,
        "cost": cost(),
        "findings": [],
    }


def source(path: str = "server.log", **more: Any) -> Source:
    return Source(
        path=path,
        format="vllm",
        engine="vllm",
        engine_version="0.15.0",
        lines=1200,
        rejected_lines=2,
        size_bytes=123456,
        sha256="ab" * 32,
        first_time=T0,
        last_time=T0 + timedelta(seconds=330),
        clocks=(Clock("inner", "02-01 13:17:26", year_known=False),),
        **more,
    )


def diagnosis(**changes: Any) -> MadeDiagnosis:
    rejected = frame(
        schema.Rejected,
        [{"source_id": 0, "line": 17, "rule": "vllm stats", "text": "Avg prompt throughput: n/a tokens/s"}],
    )
    recording = Recording(
        sources=(source(),), engine_samples=samples(), engine_steps=steps(), rejected=rejected
    ).replace(**changes.pop("recording", {}))
    parts = {
        "recording": recording,
        "cold_start": cold_start(),
        "batching": Batching(steps=step_kinds()),
        "findings": FINDINGS,
        "document": document(),
    }
    return MadeDiagnosis(**(parts | changes))
