"""Pace and prediction of loads that were still running."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from handmade_start import HandmadeStart

from infer_diag.attribution.cold_start import start_phases, start_slices, start_summary


def progress(log: HandmadeStart) -> tuple[Any, ...]:
    row = start_summary(log.recording()).row(0, named=True)
    return row["done_count"], row["total_count"], row["seconds_each_s"], row["predicted_total_s"]


def test_leading_parts_out_of_a_cache_do_not_flatter_the_pace() -> None:
    log = HandmadeStart().begins("weights_load", 0)
    for done, elapsed in enumerate([0, 0, 0, 0, 0, 59, 147, 306, 392, 568, 668, 851]):
        log.bar(done, 86, float(elapsed))
    done, total, each, predicted = progress(log)
    assert (done, total) == (11, 86)
    assert each == pytest.approx(851 / 7)
    assert predicted == pytest.approx(851 + 75 * 851 / 7)
    walls = start_phases(log.recording()).filter(phase="weights_load", chosen=True)
    assert walls["lower_s"].to_list() == [851.0]
    assert walls["duration_s"].to_list() == [None]


def test_an_even_pace_counts_every_part() -> None:
    log = HandmadeStart()
    for done in range(5):
        log.bar(done, 10, 2.0 * done)
    assert progress(log) == (4, 10, 2.0, 20.0)


def test_one_reading_is_enough_for_a_pace() -> None:
    assert progress(HandmadeStart().bar(94, 191, 513.0)) == (
        94,
        191,
        pytest.approx(5.457, abs=1e-3),
        pytest.approx(1042.4, abs=0.1),
    )


def test_no_part_means_no_pace() -> None:
    assert progress(HandmadeStart().bar(0, 86, 40.0)) == (0, 86, None, None)


def test_stamps_serve_where_the_bar_has_no_clock() -> None:
    log = HandmadeStart().bar(18, 100, None, time=0.0).bar(47, 100, None, time=3.015)
    assert progress(log)[2:] == (pytest.approx(3.015 / 29), pytest.approx(10.397, abs=1e-3))


def test_a_complete_bar_is_no_progress() -> None:
    assert progress(HandmadeStart().bar(9, 10, 9.0).bar(10, 10, 10.0)) == (None, None, None, None)


def test_a_bar_that_a_later_phase_leaves_behind_is_no_progress() -> None:
    log = HandmadeStart().bar(9, 10, 9.0).begins("graph_capture", 40)
    assert progress(log) == (None, None, None, None)


def test_an_unlabelled_bar_may_belong_to_the_worker_that_ended_after_it() -> None:
    log = HandmadeStart().begins("weights_load", 0, "TP0").bar(9, 10, 9.0).ends("weights_load", 11, "TP0")
    assert progress(log) == (None, None, None, None)


def test_a_bar_that_starts_again_is_another_bar() -> None:
    log = HandmadeStart().bar(0, 4, 0.0).bar(4, 4, 400.0).bar(0, 10, 0.0).bar(5, 10, 10.0)
    assert progress(log) == (5, 10, 2.0, 20.0)


def test_bars_of_several_workers_under_one_name_give_a_pace() -> None:
    log = HandmadeStart()
    for done, elapsed in [(1, 10), (2, 10), (3, 20), (2, 20), (4, 30), (3, 30)]:
        log.bar(done, 8, float(elapsed))
    assert progress(log) == (3, 8, 10.0, 80.0)


@pytest.mark.parametrize(("elapsed", "explained"), [(8.0, 8.0), (30.0, None)])
def test_a_bar_without_stamps_follows_the_line_above_it(elapsed: float, explained: float | None) -> None:
    log = HandmadeStart().other(0.0).bar(1, 4, elapsed / 4).bar(4, 4, elapsed).ready(20.0)
    pieces = start_slices(log.recording())
    known = dict(
        pieces.filter(pl.col("phase").is_not_null()).select(pl.col("phase").cast(pl.String), "duration_s").rows()
    )
    assert known == ({} if explained is None else {"weights_read": explained})
    assert pieces["duration_s"].sum() == 20.0
