"""The JSON document: its keys, its numbers, its order, and the text beside it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infer_diag import schema
from infer_diag.diagnose import ColdStart, Diagnosis, diagnose
from infer_diag.diagnose.finding import Finding
from infer_diag.recording import Clock, Recording, Source
from infer_diag.results import StartPhases, StartSlices, StartSummary

T0 = datetime(2026, 6, 24, 9, 55, 30, tzinfo=UTC)
INNER = Clock("inner", "2026-06-24 09:55:30")
SOURCE = Source(
    "logs/a.log", "vllm", "vllm", lines=40, first_time=T0, last_time=T0 + timedelta(seconds=20.5), clocks=(INNER,)
)
TOP = ["schema_version", "sources", "skipped", "starts", "serving", "memory", "cost", "findings"]
SERVING = [
    "samples",
    "window_s",
    "output_tokens_per_s",
    "prompt_tokens_per_s",
    "running",
    "waiting",
    "kv_usage_ratio",
    "preemptions",
    "requests",
    "shares",
]
START = [
    "start_id",
    "replica",
    "outcome",
    "span_s",
    "hold_s",
    "phases_s",
    "by_rank_s",
    "phases",
    "gaps",
    "unlogged_s",
    "caches",
    "progress",
]


def frame(name: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    columns = schema.FRAMES[name]
    whole = [{"source_id": 0, "line": number, **row} for number, row in enumerate(rows, 1)]
    made = {column: [row.get(column) for row in whole] for column in columns.column_names()}
    return columns.validate(pl.DataFrame(made, strict=False), cast=True)


def sample(at_s: float, running: int = 3, **values: Any) -> dict[str, Any]:
    return {"time": T0 + timedelta(seconds=at_s), "kind": "interval", "running_count": running, **values}


def recorded(source: Source = SOURCE, **frames: list[dict[str, Any]]) -> Recording:
    return Recording(sources=(source,), **{name: frame(name, rows) for name, rows in frames.items()})  # type: ignore[arg-type]


def result(columns: Any, rows: list[dict[str, Any]]) -> Any:
    made = {column: [row.get(column) for row in rows] for column in columns.column_names()}
    return columns.validate(pl.DataFrame(made, strict=False), cast=True)


def phase(name: str, duration_s: float | None, rank: str | None = None, **values: Any) -> dict[str, Any]:
    fixed = {"start_id": "start-1", "status": "measured", "chosen": True, "source_id": 0, "lines": [7]}
    return {"phase": name, "duration_s": duration_s, "rank": rank, **fixed, **values}


def cold_start() -> ColdStart:
    phases = [
        phase("graph_capture", 13.67, inside="init_engine"),
        phase("graph_capture", 13.63, "TP10", inside="init_engine"),
        phase("graph_capture", 13.67, "TP2", inside="init_engine"),
        phase("weights_load", None, lower_s=851.0, status="bounded"),
        phase("init_engine", 34.11, lines=[9]),
        phase("init_engine", 31.0, chosen=False, lines=[11]),
    ]
    gap = {"start_id": "start-1", "begin_s": 3.0, "duration_s": 9.6, "after": "compile", "before": "graph_capture"}
    slices = [
        {"start_id": "start-1", "begin_s": 0.0, "duration_s": 3.0, "phase": "compile", "source_id": 0, "lines": [3]},
        {**gap, "reason": "silent", "source_id": 0, "lines": [4, 6]},
    ]
    row = {"outcome": "ready", "span_s": 12.6, "unlogged_s": 9.6, "compile_cache": "hit"}
    loading = {
        "outcome": "unfinished",
        "done_count": 11,
        "total_count": 86,
        "seconds_each_s": 121.6,
        "predicted_total_s": 9970.0,
    }
    summary = [{"start_id": "start-10", **loading}, {"start_id": "start-1", **row}]
    return ColdStart(result(StartPhases, phases), result(StartSlices, slices), result(StartSummary, summary))


def starts(**changes: Any) -> list[dict[str, Any]]:
    diagnosis = Diagnosis(Recording(sources=(SOURCE,)), cold_start(), None, (), **changes)
    return diagnosis.to_dict()["starts"]  # type: ignore[no-any-return]


def test_an_empty_recording_gives_every_key_and_no_error() -> None:
    document = diagnose(Recording()).to_dict()
    assert list(document) == TOP
    assert document == {
        "schema_version": 1,
        "sources": [],
        "skipped": [],
        "starts": [],
        "serving": None,
        "memory": None,
        "cost": None,
        "findings": [],
    }


def test_serving_has_every_key_and_null_for_what_no_line_tells() -> None:
    told = diagnose(recorded(engine_samples=[sample(0), sample(20, 5)])).to_dict()["serving"]
    assert list(told) == SERVING
    assert told["running"] == {"first": 3, "last": 5, "min": 3, "mean": 4, "max": 5}
    assert (told["samples"], told["window_s"]) == (2, 20)
    assert told["waiting"] is None
    assert told["preemptions"] is None
    assert set(told["requests"].values()) == {None}
    assert told["shares"] == {"queue": None, "prefill": None, "decode": None, "other": None}


def test_responses_alone_are_serving() -> None:
    told = diagnose(recorded(incidents=[{"kind": "response", "fields": "POST /v1/completions 200"}])).to_dict()[
        "serving"
    ]
    assert told["requests"]["count"] == 1
    assert told["samples"] == 0


def test_times_are_printed_only_where_the_date_is_real_and_carry_a_zone_only_where_one_is_named() -> None:
    def first(source: Source) -> Any:
        return diagnose(Recording(sources=(source,))).to_dict()["sources"][0]["first_time"]

    assert first(SOURCE) == "2026-06-24T09:55:30"
    zoned = replace(SOURCE, clocks=(Clock("outer", "2026-06-24T09:55:30Z", zone="UTC"), INNER))
    assert first(zoned) == "2026-06-24T09:55:30+00:00"
    assert first(replace(SOURCE, clocks=(replace(INNER, year_known=False),))) is None
    assert first(replace(SOURCE, clocks=(replace(INNER, date_known=False),))) is None
    assert first(replace(SOURCE, clocks=())) is None


def test_clocks_of_a_source() -> None:
    outer = Clock("outer", "2025-08-14T23:59:26Z", zone="UTC", offset_s=25200.0, spread_s=1.0)
    (told,) = diagnose(Recording(sources=(replace(SOURCE, clocks=(outer,)),))).to_dict()["sources"]
    assert told["clocks"] == [{"where": "outer", "example": "2025-08-14T23:59:26Z", "zone": "UTC", "offset_s": 25200.0}]


def test_starts_come_in_the_order_of_their_numbers_with_every_key() -> None:
    told = starts()
    assert [start["start_id"] for start in told] == ["start-1", "start-10"]
    assert all(list(start) == START for start in told)


def test_one_number_per_phase_and_the_conflicting_one_beside_it() -> None:
    told = starts()[0]
    assert told["phases_s"] == {"weights_load": None, "init_engine": 34.11, "graph_capture": 13.67}
    assert list(told["by_rank_s"]) == ["TP2", "TP10"]
    assert told["by_rank_s"] == {"TP2": {"graph_capture": 13.67}, "TP10": {"graph_capture": 13.63}}
    assert [row["duration_s"] for row in told["phases"] if row["phase"] == "init_engine"] == [34.11, 31.0]
    load = told["phases"][0]
    assert (load["duration_s"], load["lower_s"], load["status"]) == (None, 851.0, "bounded")
    assert told["phases"][-1]["inside"] == "init_engine"


def test_gaps_caches_and_progress() -> None:
    first, second = starts()
    evidence = ["logs/a.log:4", "logs/a.log:6"]
    assert first["gaps"] == [
        {"after": "compile", "before": "graph_capture", "seconds": 9.6, "reason": "silent", "evidence": evidence}
    ]
    assert first["caches"] == {"compile": "hit", "engine": None, "weights": None}
    assert first["progress"] is None
    assert second["progress"] == {"done": 11, "total": 86, "seconds_each": 121.6, "predicted_total_s": 9970.0}


def test_numbers_have_six_decimals_and_json_no_nan() -> None:
    told = diagnose(recorded(engine_samples=[sample(0, 1, output_tokens_per_s=1 / 3)]))
    assert json.loads(told.to_json())["serving"]["output_tokens_per_s"]["first"] == 0.333333
    unknown = Finding("batching.queue", "low", "x", "measured", saves=float("nan"))
    assert json.loads(replace(told, findings=(unknown,)).to_json())["findings"][0]["saves"] is None


def test_findings_are_ranked_and_whole() -> None:
    rows = [sample(5.0 * n, 200, waiting_count=40, kv_usage_ratio=0.99, output_tokens_per_s=9.0) for n in range(4)]
    told = diagnose(recorded(engine_samples=rows)).to_dict()["findings"]
    assert told[0]["id"] == "batching.kv_saturation"
    assert [finding["severity"] for finding in told] == sorted(
        (finding["severity"] for finding in told), key=["high", "medium", "low", "info"].index
    )
    assert all(
        list(finding) == ["id", "severity", "sentence", "status", "evidence", "remedy", "saves"] for finding in told
    )


def test_paths_stay_as_given() -> None:
    told = diagnose(recorded(replace(SOURCE, path="./x/../a log.txt"), engine_samples=[sample(0)])).to_dict()
    assert told["sources"][0]["path"] == "./x/../a log.txt"


ROWS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 90), st.integers(0, 20), st.floats(0, 1)), min_size=1, max_size=10
)


@given(ROWS, st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_the_document_does_not_depend_on_the_order_of_rows(
    points: list[tuple[int, int, int, float]], random: Any
) -> None:
    rows = [
        sample(at, running, waiting_count=waiting, kv_usage_ratio=kv, line=line)
        for line, (at, running, waiting, kv) in enumerate(points, 1)
    ]
    shuffled = random.sample(rows, len(rows))
    assert diagnose(recorded(engine_samples=rows)).to_json() == diagnose(recorded(engine_samples=shuffled)).to_json()


def test_text_is_short_and_names_what_weighs_most() -> None:
    many = tuple(Finding(f"batching.{n}", "low", "x", "measured") for n in range(30))
    text = Diagnosis(Recording(sources=(SOURCE,)), cold_start(), None, many).text()
    assert len(text.splitlines()) <= 12
    assert text.splitlines()[0].startswith("logs/a.log (vllm, 40 lines)")
    assert "start-1: ready, span 12.6 s" in text
    assert "more findings" in text.splitlines()[-1]


def test_a_notebook_shows_the_text() -> None:
    diagnosis = diagnose(Recording())
    assert diagnosis._repr_mimebundle_() == {"text/plain": diagnosis.text()}
    assert repr(diagnosis) == diagnosis.text() == "no source\nno findings"


@pytest.mark.parametrize("rows", [[], [sample(0)]])
def test_diagnose_raises_nothing_on_little(rows: list[dict[str, Any]]) -> None:
    json.loads(diagnose(recorded(engine_samples=rows)).to_json())
