"""A log whose clock begins anew with every start: runs of one replica that seem to lie over each other."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import infer_diag as diag
from infer_diag import samples
from infer_diag.attribution.cost import activity
from infer_diag.attribution.cost.spread import disjoint, merged

T0 = datetime(2026, 1, 1, tzinfo=UTC)
LOG = samples.path("captured/plain/server.log")


def length_s(intervals: pl.DataFrame) -> float:
    return float(intervals.select((pl.col("end") - pl.col("begin")).dt.total_microseconds().sum()).item()) / 1e6


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), min_size=1, max_size=30))
def test_disjoint_runs_cover_what_the_runs_cover_and_nothing_twice(drawn: list[tuple[int, int]]) -> None:
    rows = [(T0 + timedelta(seconds=begin), T0 + timedelta(seconds=begin + span)) for begin, span in drawn]
    runs = pl.DataFrame(rows, schema=["begin", "end"], orient="row")
    apart = disjoint(runs)
    assert length_s(apart) == pytest.approx(length_s(merged(runs)))
    assert merged(apart)["begin"].to_list() == merged(runs)["begin"].to_list()


def test_as_many_rows_as_samples_however_often_the_clock_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    told = activity.told_stretches
    monkeypatch.setattr(activity, "told_stretches", lambda *given: seen.append(len(rows := told(*given))) or rows)
    copies = 12
    (tmp_path / "server.log").write_bytes(LOG.read_bytes() * copies)
    recording = diag.load(tmp_path / "server.log")
    assert len(recording.starts) == copies
    diag.diagnose(recording).to_json()
    assert seen
    assert max(seen) <= 2 * len(recording.engine_samples)
