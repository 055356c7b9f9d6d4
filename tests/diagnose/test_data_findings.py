"""Findings on the logs themselves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest

from infer_diag import schema
from infer_diag.attribution.serving import serving
from infer_diag.diagnose import data
from infer_diag.diagnose.finding import Finding
from infer_diag.recording import Clock, Recording, Source

T0 = datetime(2026, 6, 24, 9, 55, 30, tzinfo=UTC)
CLOCK = Clock("inner", "06-24 09:55:30")


def frame(name: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    columns = schema.FRAMES[name]
    whole = [{"source_id": 0, "line": number, **row} for number, row in enumerate(rows, 1)]
    made = {column: [row.get(column) for row in whole] for column in columns.column_names()}
    return columns.validate(pl.DataFrame(made, strict=False), cast=True)


def found(source: Source, **frames: list[dict[str, Any]]) -> list[Finding]:
    recording = Recording(sources=(source,), **{name: frame(name, rows) for name, rows in frames.items()})  # type: ignore[arg-type]
    return data.findings(recording, serving(recording))


def ids(findings: list[Finding]) -> list[str]:
    return [finding.id for finding in findings]


def test_a_clean_log_that_served_nothing_has_no_finding() -> None:
    assert found(Source("a.log", "vllm", "vllm", clocks=(CLOCK,), first_time=T0)) == []
    assert data.findings(Recording(), None) == []


def test_a_cut_log_is_said_to_be_one_with_the_line() -> None:
    (told,) = found(
        Source("a.log", "vllm", "vllm", cut=True, clocks=(CLOCK,)), incidents=[{"kind": "cut", "line": 812}]
    )
    assert (told.id, told.evidence) == ("data.cut", ("a.log:812",))


@pytest.mark.parametrize(
    ("offset_s", "spread_s", "conflict"), [(25200.0, 1.0, False), (0.0, None, False), (2.0, 61.0, True)]
)
def test_clocks_conflict_when_their_distance_moves_and_not_when_a_zone_lies_between(
    offset_s: float, spread_s: float | None, conflict: bool
) -> None:
    outer = Clock("outer", "2025-08-14T23:59:26Z", zone="UTC", offset_s=offset_s, spread_s=spread_s)
    assert ("data.clock_conflict" in ids(found(Source("a.log", "vllm", "vllm", clocks=(outer, CLOCK))))) is conflict


def test_requests_on_two_clocks_are_a_conflict() -> None:
    rows = [
        {"request_id": "a", "arrival_s": 5.0, "last_token_s": 1.0},
        {"request_id": "b", "arrival_s": 1.0, "last_token_s": 2.0},
    ]
    told = found(Source("a.log", "vllm", "vllm", clocks=(CLOCK,)), requests=rows)
    assert "1 of 2 requests" in next(finding.sentence for finding in told if finding.id == "data.clock_conflict")


def test_a_log_without_stamps_is_said_to_be_one() -> None:
    incidents = [{"kind": "ready"}]
    assert ids(found(Source("a.log", "vllm", "vllm"), incidents=incidents)) == ["data.clock_missing"]
    assert found(Source("a.log", "vllm", "vllm", clocks=(CLOCK,)), incidents=incidents) == []


def test_rejected_lines_are_counted_and_cited_five_at_most() -> None:
    rows = [{"rule": "statistics", "text": "x", "line": 10 * n} for n in range(1, 9)]
    (told,) = found(Source("a.log", "vllm", "vllm", lines=100, rejected_lines=8, clocks=(CLOCK,)), rejected=rows)
    assert told.id == "data.rejected_lines"
    assert "8 of 100" in told.sentence
    assert "statistics" in told.sentence
    assert told.evidence == tuple(f"a.log:{10 * n}" for n in range(1, 6))


def sample(**values: Any) -> dict[str, Any]:
    return {
        "time": T0,
        "kind": "interval",
        "running_count": 3,
        "waiting_count": 0,
        "output_tokens_per_s": 9.0,
        **values,
    }


def untold(findings: list[Finding]) -> Finding:
    return next(finding for finding in findings if finding.id == "data.not_identifiable")


def test_what_statistics_lines_do_not_tell_is_named_with_the_source_that_would() -> None:
    told = untold(found(Source("a.log", "vllm", "vllm", clocks=(CLOCK,)), engine_samples=[sample()]))
    assert told.status == "not_identifiable"
    assert "how long requests took" in told.sentence
    assert "preempted" in told.sentence
    assert "output rate" not in told.sentence
    assert "--otlp-traces-endpoint" in (told.remedy or "")


def test_prefill_lines_alone_tell_no_output_rate() -> None:
    rows = [sample(kind="prefill", output_tokens_per_s=None)]
    told = untold(found(Source("a.log", "sglang", "sglang", clocks=(CLOCK,)), engine_samples=rows))
    assert "output rate" in told.sentence
    assert "--decode-log-interval" in (told.remedy or "")


def test_nothing_is_called_untold_that_the_log_tells() -> None:
    rows = [sample(preemption_count=0)]
    finished = [{"request_id": "a", "arrival_s": 0.0, "last_token_s": 1.0}]
    assert found(Source("a.log", "vllm", "vllm", clocks=(CLOCK,)), engine_samples=rows, requests=finished) == []


def test_a_stall_without_a_baseline_is_refused_with_the_reason() -> None:
    step = {
        "time": T0 + timedelta(seconds=1),
        "kind": "mixed",
        "prefill_count": 1,
        "decode_count": 4,
        "prefill_tokens": 100,
        "decode_tokens": 4,
        "duration_s": 0.1,
    }
    told = found(Source("a.log", "vllm", "vllm", clocks=(CLOCK,)), engine_steps=[step])
    assert any("pure decode steps" in finding.sentence for finding in told)
