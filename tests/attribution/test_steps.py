"""Engine steps made by hand: what they are spent on, and what waits for what."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import infer_diag
from infer_diag import schema
from infer_diag.attribution.steps import (
    Recomputed,
    decode_baseline,
    decode_stall,
    host_time,
    recomputed,
    step_growth,
    step_kinds,
)

T0 = datetime(2026, 2, 1, 13, 22, tzinfo=UTC)
Step = tuple[int, int, float]
PACKAGE = Path(infer_diag.__file__).parent


def steps(rows: list[Step], *, at_s: list[float] | None = None) -> pl.DataFrame:
    def row(number: int, prefill: int, decode: int, duration_s: float) -> dict[str, Any]:
        kind = "mixed" if prefill and decode else "prefill" if prefill else "decode" if decode else "idle"
        time = None if at_s is None else T0 + timedelta(seconds=at_s[number])
        counts = {
            "prefill_count": prefill,
            "decode_count": decode,
            "prefill_tokens": 100 * prefill,
            "decode_tokens": decode,
        }
        return {
            "source_id": 0,
            "line": number + 1,
            "time": time,
            "replica": None,
            "kind": kind,
            "duration_s": duration_s,
            **counts,
        }

    whole = [row(number, *each) for number, each in enumerate(rows)]
    data = {column: [each[column] for each in whole] for column in schema.EngineSteps.column_names()}
    return schema.EngineSteps.validate(pl.DataFrame(data), cast=True)


def test_kinds_cover_all_steps_and_cite_the_longest() -> None:
    told = step_kinds(steps([(1, 0, 0.1), (0, 2, 0.01), (0, 4, 0.03), (0, 4, 0.02), (0, 3, 0.025), (2, 4, 0.2)]))
    decode = told.filter(pl.col("kind") == "decode").row(0, named=True)
    assert decode["step_count"] == 4
    assert decode["duration_s"] == pytest.approx(0.085)
    assert decode["mean_batch_count"] == 3.25
    assert decode["lines"] == [3, 5, 4]
    assert told["kind"].to_list() == ["prefill", "decode", "mixed"]


def test_no_steps_give_no_kinds_and_no_stall() -> None:
    assert step_kinds(steps([])).is_empty()
    assert decode_stall(steps([])).stalled_s is None


def test_decode_waits_for_what_the_step_takes_beyond_a_decode_step_of_its_batch() -> None:
    rows: list[Step] = [(0, 8, 0.010)] * 15 + [(0, 64, 0.020)] * 15 + [(1, 8, 0.050)] * 2 + [(1, 60, 0.070)]
    told = decode_stall(steps(rows))
    assert told.stalled_s == pytest.approx(2 * 0.040 + 0.050)
    assert told.waited_s == pytest.approx(2 * 0.040 * 8 + 0.050 * 60)
    assert (told.mixed_count, told.mixed_s) == (3, pytest.approx(0.17))


def test_one_slow_decode_step_does_not_move_the_baseline() -> None:
    rows: list[Step] = [(0, 8, 0.010)] * 30 + [(0, 9, 5.0)] + [(1, 9, 0.030)]
    assert decode_stall(steps(rows)).stalled_s == pytest.approx(0.020)


def test_without_decode_steps_to_compare_with_the_stall_is_refused() -> None:
    few = decode_stall(steps([(0, 8, 0.01)] * 19 + [(1, 8, 0.05)]))
    assert few.stalled_s is None
    assert few.reason is not None
    assert "19" in few.reason
    unlike = decode_stall(steps([(0, 2, 0.01)] * 40 + [(1, 100, 0.05)]))
    assert unlike.stalled_s is None


def test_no_mixed_step_is_no_stall_but_no_zero_either() -> None:
    told = decode_stall(steps([(0, 8, 0.01)] * 40))
    assert (told.stalled_s, told.mixed_count) == (None, 0)


ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(1, 200).map(lambda ms: ms / 1000)),
    min_size=1,
    max_size=80,
)


@given(ROWS, st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_kinds_add_up_and_the_order_of_rows_is_irrelevant(rows: list[Step], random: Any) -> None:
    frame = steps(rows)
    shuffled = frame[random.sample(range(len(frame)), len(frame))]
    told, again = step_kinds(frame), step_kinds(shuffled)
    assert told["duration_s"].sum() == pytest.approx(sum(row[2] for row in rows))
    assert told["step_count"].sum() == len(rows)
    assert told.drop("duration_s", "mean_batch_count").equals(again.drop("duration_s", "mean_batch_count"))
    assert told["duration_s"].to_list() == pytest.approx(again["duration_s"].to_list())


@given(ROWS, st.integers(2, 1000))
@settings(max_examples=40, deadline=None)
def test_the_stall_lies_within_the_mixed_time_and_scales_with_the_clock(rows: list[Step], factor: int) -> None:
    decode: list[Step] = [(0, batch, 0.001 * batch) for batch in range(1, 41) for _ in range(3)]
    told = decode_stall(steps(decode + rows))
    slower = decode_stall(steps([(p, d, s * factor) for p, d, s in decode + rows]))
    if told.stalled_s is None:
        assert slower.stalled_s is None
    else:
        assert 0 <= told.stalled_s <= told.mixed_s + 1e-9
        assert slower.stalled_s == pytest.approx(told.stalled_s * factor, abs=1e-6)


def test_the_baseline_leaves_out_batches_seen_once() -> None:
    told = decode_baseline(steps([(0, 8, 0.01)] * 3 + [(0, 9, 1.0)]))
    assert told.rows() == [(8, 0.01)]


def with_tokens(frame: pl.DataFrame, tokens: list[int]) -> pl.DataFrame:
    return frame.with_columns(decode_tokens=pl.Series(tokens, dtype=pl.UInt32))


def test_a_request_that_starts_over_shows_as_more_tokens_than_requests() -> None:
    frame = with_tokens(steps([(0, 5, 0.01)] * 10), [5] * 9 + [128])
    assert recomputed(frame) == Recomputed(tokens=123, decode_tokens=173, step_count=1, busy_count=10)
    assert recomputed(steps([(0, 5, 0.01)] * 10)) is None


def test_tokens_guessed_ahead_in_most_steps_are_not_recomputed_ones() -> None:
    assert recomputed(with_tokens(steps([(0, 5, 0.01)] * 10), [15] * 8 + [5] * 2)) is None


def test_growth_compares_like_with_like() -> None:
    rows: list[Step] = [(0, 8, 0.010)] * 30 + [(0, 64, 0.020)] * 30 + [(0, 8, 0.015)] * 30
    told = step_growth(steps(rows))
    assert told is not None
    assert told.ratio == pytest.approx(1.5)
    assert (told.early_s, told.late_s, told.batch_count) == (0.010, 0.015, 8)
    assert step_growth(steps([(0, 8, 0.010)] * 30 + [(0, 64, 0.020)] * 30)) is None


def test_host_time_is_what_no_step_covers_between_two_stamps() -> None:
    at_s = [0.1 * i for i in range(401)]
    told = host_time(steps([(0, 8, 0.08)] * 401, at_s=at_s))
    assert told is not None
    assert told.wall_s == pytest.approx(40)
    assert told.host_s == pytest.approx(8)


@pytest.mark.parametrize("rows", [[(0, 1, 0.08)] * 401, [(0, 8, 0.08)] * 100])
def test_host_time_is_refused_where_the_engine_may_have_been_idle_or_the_stretch_is_short(rows: list[Step]) -> None:
    assert host_time(steps(rows, at_s=[0.1 * i for i in range(len(rows))])) is None
    assert host_time(steps(rows)) is None


def test_a_pause_in_the_log_is_not_host_time() -> None:
    at_s = [0.1 * i for i in range(401)] + [100 + 0.1 * i for i in range(401)]
    told = host_time(steps([(0, 8, 0.1)] * 802, at_s=at_s))
    assert told is not None
    assert told.host_s == pytest.approx(0, abs=1e-6)
    assert told.wall_s == pytest.approx(80)


def test_quantiles_are_taken_in_one_place() -> None:
    callers = [
        path.name for path in PACKAGE.rglob("*.py") if re.search(r"\.quantile\(", path.read_text(encoding="utf-8"))
    ]
    assert callers == ["quantiles.py"]
