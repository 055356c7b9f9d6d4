"""Sources of one deployment beside each other on one clock."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import written
from test_shapes import read

from infer_diag.loaders.one_clock import aligned
from infer_diag.recording import Recording


def dated(tmp_path: Path, at: datetime, name: str = "dated.log") -> Recording:
    """A log of a minute that prints its year."""
    batch = (
        "Decode batch. #running-req: 5, #token: 900, token usage: 0.02, gen throughput (token/s): 1.0, #queue-req: 0"
    )
    stamps = (at + timedelta(seconds=n) for n in range(0, 120, 10))
    return read(tmp_path, [f"[{stamp:%Y-%m-%d %H:%M:%S} TP0] {batch}" for stamp in stamps], name)


def test_a_year_is_lent_to_a_log_beside(tmp_path: Path) -> None:
    undated = read(tmp_path, written.vllm_lines())
    other = dated(tmp_path, written.BEGIN)
    first, _ = aligned([undated, other])
    assert first.sources[0].first_time == other.sources[0].first_time
    assert first.sources[0].dated
    assert first.starts["first_time"][0].year == written.BEGIN.year
    assert (first.engine_samples["time"] - undated.engine_samples["time"]).n_unique() == 1
    assert "lends" in first.sources[0].notes[-1]


def test_no_year_is_lent_where_the_days_do_not_meet(tmp_path: Path) -> None:
    undated = read(tmp_path, written.vllm_lines())
    first, _ = aligned([undated, dated(tmp_path, written.BEGIN + timedelta(days=40))])
    assert not first.sources[0].dated
    assert first.sources[0].notes == ()


def test_a_zone_is_never_guessed_but_the_distance_is_named(tmp_path: Path) -> None:
    one = dated(tmp_path, written.BEGIN, "one.log")
    other = dated(tmp_path, written.BEGIN + timedelta(hours=7), "other.log")
    first, _ = aligned([one, other])
    assert first.sources[0].first_time == one.sources[0].first_time
    assert f"{7 * 3600 - 110} s from that of" in first.sources[0].notes[-1]


def test_a_recording_alone_stays_as_it_is(tmp_path: Path) -> None:
    undated = read(tmp_path, written.vllm_lines())
    assert aligned([undated])[0] is undated
