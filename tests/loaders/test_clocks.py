"""Times of stamps that say too little, and of two clocks beside each other."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
import written
from hypothesis import given
from hypothesis import strategies as st
from test_shapes import read

from infer_diag.errors import DiagError
from infer_diag.loaders import load
from infer_diag.loaders.text import stamps

STATISTICS = (
    "Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 tokens/s, Running: 3 reqs, "
    "Waiting: 0 reqs, GPU KV cache usage: 4.5%"
)


def sampled(tmp_path: Path, prefixes: list[str], **options: object) -> pl.Series:
    """Seconds between the samples that these prefixes stamp."""
    recording = read(tmp_path, [f"{prefix}{STATISTICS}" for prefix in prefixes], **options)
    return recording.engine_samples["time"].diff().dt.total_seconds()


def test_the_year_turns_between_two_lines(tmp_path: Path) -> None:
    gaps = sampled(
        tmp_path, ["INFO 12-31 23:59:55 [l.py:1] ", "INFO 01-01 00:00:05 [l.py:1] ", "INFO 01-01 00:00:15 [l.py:1] "]
    )
    assert gaps.to_list() == [None, 10, 10]


def test_the_year_turns_under_a_given_year(tmp_path: Path) -> None:
    seen = ("12-31 23:59:55", "01-01 00:00:05", "01-01 00:00:15")
    lines = [f"INFO {stamp} [l.py:1] {STATISTICS}" for stamp in seen]
    recording = read(tmp_path, lines, year=2025, tz="UTC")
    first = datetime(2025, 12, 31, 23, 59, 55, tzinfo=UTC)
    assert recording.engine_samples["time"].to_list() == [first + timedelta(seconds=s) for s in (0, 10, 20)]


@pytest.mark.parametrize("year", [None, 2023, 2024, 2025])
def test_spring_after_a_turned_year_lies_in_its_own_calendar(tmp_path: Path, year: int | None) -> None:
    """A year has 365 days or 366; adding a fixed number of days moves every date behind 29 February."""
    recording = read(
        tmp_path, [f"INFO {day} 12:00:00 [l.py:1] {STATISTICS}" for day in ("11-20", "01-10", "04-10")], year=year
    )
    days = recording.engine_samples["time"].dt.strftime("%m-%d").to_list()
    assert days == ["11-20", "01-10", "04-10"]


def test_midnight_passes_on_a_clock_without_a_date(tmp_path: Path) -> None:
    batch = (
        "Decode batch. #running-req: 5, #token: 900, token usage: 0.02, gen throughput (token/s): 1.0, #queue-req: 0"
    )
    recording = read(tmp_path, [f"[23:59:59 TP0] {batch}", f"[00:00:02 TP0] {batch}", f"[00:00:03 TP0] {batch}"])
    assert recording.engine_samples["time"].diff().dt.total_seconds().to_list() == [None, 3, 1]
    assert not recording.sources[0].dated


def test_a_late_line_does_not_turn_the_year(tmp_path: Path) -> None:
    gaps = sampled(
        tmp_path, ["INFO 03-02 10:36:23 [l.py:1] ", "INFO 03-02 10:27:36 [l.py:1] ", "INFO 03-02 10:36:31 [l.py:1] "]
    )
    assert gaps.to_list() == [None, -527, 535]


@pytest.mark.parametrize("hours", [-7, 0, 5.5, 9])
def test_the_offset_between_the_clocks_is_their_zones_difference(tmp_path: Path, hours: float) -> None:
    begin = datetime(2026, 8, 14, 23, 59, 30)
    lines = [
        f"{begin - timedelta(hours=hours) + timedelta(seconds=n):%Y-%m-%dT%H:%M:%S}.75Z INFO "
        f"{begin + timedelta(seconds=n):%m-%d %H:%M:%S} [l.py:1] {STATISTICS}"
        for n in range(0, 60, 10)
    ]
    recording = read(tmp_path, lines)
    outer, inner = recording.sources[0].clocks
    assert (outer.where, outer.zone, outer.offset_s) == ("outer", "Z", -hours * 3600)
    assert inner.where == "inner"
    assert outer.spread_s == pytest.approx(0, abs=1)
    assert recording.engine_samples["time"].diff().dt.total_seconds().to_list()[1:] == [10] * 5


def test_a_collector_that_stamps_when_it_flushes_is_not_believed(tmp_path: Path) -> None:
    lines = [f"2026-08-14T23:59:5{n % 2}Z INFO 08-14 23:5{n}:00 [l.py:1] {STATISTICS}" for n in range(6)]
    recording = read(tmp_path, lines)
    assert recording.engine_samples["time"].diff().dt.total_seconds().to_list()[1:] == [60] * 5
    assert (recording.sources[0].clocks[0].spread_s or 0) > 100


def test_a_dated_stamp_lends_its_year(tmp_path: Path) -> None:
    other = (
        "2026-02-01 13:18:22,229 - INFO - autotuner.py:256 - flashinfer.jit: [Autotuner]: Autotuning process starts ..."
    )
    recording = read(tmp_path, [other, f"INFO 02-01 13:19:00 [l.py:1] {STATISTICS}"])
    assert recording.engine_samples["time"][0] == datetime(2026, 2, 1, 13, 19, tzinfo=UTC)
    assert recording.sources[0].dated


def test_a_zone_places_local_stamps(tmp_path: Path) -> None:
    lines = [f"INFO 02-01 13:19:00 [l.py:1] {STATISTICS}"]
    recording = read(tmp_path, lines, year=2026, tz="Asia/Shanghai")
    assert recording.engine_samples["time"][0] == datetime(2026, 2, 1, 5, 19, tzinfo=UTC)


def test_an_unknown_zone_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("\n".join(written.vllm_lines()))
    with pytest.raises(DiagError, match="Asia/Atlantis"):
        load(tmp_path / "a.log", tz="Asia/Atlantis")


@given(
    st.datetimes(datetime(1990, 1, 1), datetime(2100, 1, 1)), st.sampled_from(["Z", "+00:00", "+0530", "-07:00", ""])
)
def test_every_written_stamp_is_read_back(at: datetime, zone: str) -> None:
    table = stamps.parsed(pl.Series([f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond:06d}{zone}"]))
    shift = {"Z": 0, "+00:00": 0, "+0530": 330, "-07:00": -420, "": 0}[zone]
    expected = at.replace(tzinfo=UTC) - timedelta(minutes=shift)
    assert table["us"].cast(pl.Datetime("us", "UTC"))[0] == expected


@pytest.mark.parametrize("ahead", [1, -1])
def test_the_container_clock_rules_where_summer_time_moves_the_local_one(tmp_path: Path, ahead: int) -> None:
    lines = []
    for number in range(12):
        at = written.BEGIN + timedelta(seconds=10 * number)
        local = at + timedelta(hours=2 + (ahead if number >= 6 else 0))
        lines.append(f"{at:%Y-%m-%dT%H:%M:%S}.5Z [{local:%Y-%m-%d %H:%M:%S}] Decode batch, #running-req: 1, "
                     "token usage: 0.10, gen throughput (token/s): 5.00, #queue-req: 0")  # fmt: skip
    lines[9] = lines[9].split(" ", 1)[1]
    gaps = read(tmp_path, lines).engine_samples["time"].diff().drop_nulls().dt.total_seconds(fractional=True)
    assert gaps.is_between(9, 11).all()
