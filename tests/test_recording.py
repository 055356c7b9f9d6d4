"""The frozen bundle of frames."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

import polars as pl
import pytest

from infer_diag import schema
from infer_diag.recording import Clock, Recording, Source, combine, start_id

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def recording(path: str, starts: int = 1) -> Recording:
    """A recording of one source whose starts each load weights for a second."""
    ids = [start_id(number) for number in range(starts)]
    rows = pl.DataFrame({"start_id": ids, "line": range(1, starts + 1)})
    frame = schema.Starts.create_empty()
    whole = pl.concat(
        [
            frame,
            rows.with_columns(source_id=0, last_line=pl.col("line"), first_time=NOON, last_time=NOON, served=False),
        ],
        how="diagonal_relaxed",
    ).select(frame.columns)
    return Recording(sources=(Source(path, "vllm", "vllm"),), starts=schema.Starts.validate(whole, cast=True))


def test_an_empty_recording_has_every_frame() -> None:
    empty = Recording()
    for name, frame in schema.FRAMES.items():
        frame.validate(getattr(empty, name))
    assert empty.rows() == {}
    assert repr(empty) == "Recording(no source: no rows)"


def test_it_is_frozen_and_replaced() -> None:
    first = recording("a.log")
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.sources = ()  # type: ignore[misc]
    second = first.replace(sources=())
    assert second.sources == ()
    assert second.starts is first.starts


def test_its_text_counts_rows_and_names_three_sources() -> None:
    assert repr(recording("a.log", 2)) == "Recording(a.log: starts 2)"
    many = combine(recording(f"{name}.log") for name in "abcd")
    assert repr(many) == "Recording(a.log, b.log, c.log …: starts 4)"


def test_combined_rows_keep_their_source_and_get_their_own_start() -> None:
    whole = combine([recording("a.log", 2), recording("b.log", 1), Recording(), recording("c.log", 1)])
    assert whole.starts["start_id"].to_list() == ["start-1", "start-2", "start-3", "start-4"]
    assert [whole.evidence(*row) for row in whole.starts.select("source_id", "line").iter_rows()] == [
        "a.log:1",
        "a.log:2",
        "b.log:1",
        "c.log:1",
    ]
    schema.Starts.validate(whole.starts)


def test_a_single_recording_is_returned_as_it_is() -> None:
    only = recording("a.log")
    assert combine([only]) is only
    assert combine([]).rows() == {}


def test_a_source_is_dated_only_by_a_clock_with_year_and_date() -> None:
    assert not Source("a", "vllm", "vllm").dated
    assert not Source("a", "vllm", "vllm", clocks=(Clock("inner", "03-11 08:05:01", year_known=False),)).dated
    assert not Source("a", "vllm", "vllm", clocks=(Clock("inner", "08:05:01", date_known=False),)).dated
    assert Source("a", "vllm", "vllm", clocks=(Clock("outer", "2026-03-11T08:05:01Z", zone="UTC"),)).dated


def test_requests_of_combined_sources_count_from_the_earliest_stamp() -> None:
    def requested(path: str, first: datetime, *, dated: bool = True) -> Recording:
        clock = Clock("inner", "12:00:00", year_known=dated)
        rows = pl.DataFrame(
            {"source_id": [0], "line": [1], "request_id": ["r"], "arrival_s": [2.0], "last_token_s": [5.0]}
        )
        empty = schema.Requests.create_empty()
        whole = pl.concat([empty, rows], how="diagonal_relaxed").select(empty.columns)
        source = Source(path, "vllm", "vllm", first_time=first, clocks=(clock,))
        return Recording(sources=(source,), requests=schema.Requests.validate(whole, cast=True))

    later = NOON.replace(minute=1)
    both = combine([requested("b.log", later), requested("a.log", NOON)])
    assert both.requests.select("arrival_s", "last_token_s").rows() == [(62.0, 65.0), (2.0, 5.0)]
    unknown = combine([requested("b.log", later, dated=False), requested("a.log", NOON)])
    assert unknown.requests["arrival_s"].to_list() == [2.0, 2.0]
