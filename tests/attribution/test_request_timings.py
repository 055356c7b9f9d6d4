"""Durations that an engine prints count like those that its events give."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from infer_diag import schema
from infer_diag.attribution.requests import each_request, request_count, request_shares, request_stats
from infer_diag.attribution.serving import serving
from infer_diag.diagnose import diagnose
from infer_diag.recording import Recording, Source


def recorded(**frames: list[dict[str, Any]]) -> Recording:
    """A recording of one file with these rows; a column that a row leaves out is null."""
    made = {}
    for name, rows in frames.items():
        columns = schema.FRAMES[name].create_empty().schema
        full = [{"source_id": 0, "line": number, "request_id": str(number)} | row for number, row in enumerate(rows, 1)]
        shaped = [{column: row.get(column) for column in columns.names()} for row in full]
        made[name] = schema.FRAMES[name].validate(pl.DataFrame(shaped, schema=columns, orient="row"))
    return Recording(sources=(Source("server.log", "llama.cpp", "llama.cpp", lines=99),), **made)  # type: ignore[arg-type]


EVENTS = {"arrival_s": 0.0, "queued_s": 0.0, "scheduled_s": 1.0, "first_token_s": 3.0, "last_token_s": 8.0}
TOKENS = {"prompt_tokens": 100, "output_tokens": 11}
PRINTED = {"queue_s": 1.0, "prefill_s": 2.0, "decode_s": 5.0, "ttft_s": 3.0, "e2e_s": 8.0}


def test_the_same_request_told_in_both_ways_is_the_same() -> None:
    events = each_request(recorded(requests=[EVENTS | TOKENS]))
    timed = each_request(recorded(request_timings=[PRINTED | TOKENS]))
    assert events.drop("teller").to_dicts() == timed.drop("teller").to_dicts()


def test_a_client_and_its_server_are_not_pooled() -> None:
    server = [PRINTED, PRINTED]
    client = [EVENTS | {"source_id": 1, "last_token_s": 10.0}, EVENTS | {"source_id": 1, "last_token_s": 10.0}]
    recording = recorded(requests=client, request_timings=server)
    recording = recording.replace(sources=(*recording.sources, Source("bench.json", "vllm_bench", "client", lines=2)))
    stats = {row["measure"]: row for row in request_stats(recording).to_dicts()}
    assert (stats["e2e_s"]["request_count"], stats["e2e_s"]["mean"]) == (2, 8.0)
    assert request_count(recording) == 2


def test_a_measure_that_only_the_client_has_comes_from_the_client() -> None:
    server = [{"queue_s": 1.0, "prefill_s": 2.0}]
    recording = recorded(requests=[EVENTS | {"source_id": 1}], request_timings=server)
    recording = recording.replace(sources=(*recording.sources, Source("bench.json", "vllm_bench", "client", lines=2)))
    stats = {row["measure"]: row["mean"] for row in request_stats(recording).to_dicts()}
    assert stats["e2e_s"] == 8.0
    assert stats["queue_s"] == 1.0


def test_both_kinds_add_up() -> None:
    both = recorded(requests=[EVENTS], request_timings=[PRINTED, PRINTED])
    assert request_count(both) == 3
    assert request_stats(both).filter(measure="e2e_s")["request_count"].to_list() == [3]


def test_a_printed_tpot_wins_over_a_computed_one() -> None:
    rows = [
        {"decode_s": 5.0, "output_tokens": 11},
        {"decode_s": 5.0, "output_tokens": 11, "tpot_s": 0.4},
        {"decode_s": 5.0},
    ]
    assert each_request(recorded(request_timings=rows))["tpot_s"].to_list() == [0.5, 0.4, None]


def test_prefill_and_decode_that_are_not_told_apart_still_leave_the_rest() -> None:
    shares = request_shares(recorded(request_timings=[{"queue_s": 1.0, "compute_s": 6.0, "e2e_s": 8.0}]))
    assert shares == {"queue": 0.125, "prefill": None, "decode": None, "other": 0.125}


def test_no_request_is_no_serving() -> None:
    assert serving(recorded()) is None
    assert serving(recorded(request_timings=[{"prefill_s": 1.0}])) is not None


@pytest.mark.parametrize(
    ("row", "finding"),
    [
        ({"prefill_s": 7.0, "decode_s": 1.0, "e2e_s": 8.0}, "batching.prefill_bound"),
        ({"queue_s": 7.0, "compute_s": 1.0, "e2e_s": 8.0}, "batching.queue"),
    ],
)
def test_where_the_time_goes_is_found_with_its_line(row: dict[str, float], finding: str) -> None:
    found = {each.id: each for each in diagnose(recorded(request_timings=[row])).findings}
    assert found[finding].evidence == ("server.log:1",)
