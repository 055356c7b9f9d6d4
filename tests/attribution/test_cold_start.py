"""Lengths, slices and outcomes of starts written by hand."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from handmade_start import HandmadeStart
from hypothesis import given, settings
from hypothesis import strategies as st

from infer_diag.attribution.cold_start import start_phases, start_slices, start_summary
from infer_diag.recording import Recording, combine


def walls(recording: Recording) -> dict[str, float | None]:
    found = start_phases(recording).filter(pl.col("rank").is_null() & pl.col("chosen"))
    return dict(found.select(pl.col("phase").cast(pl.String), "duration_s").iter_rows())


def row(recording: Recording, phase: str, rank: str | None = None) -> dict[str, Any]:
    found = start_phases(recording).filter(pl.col("chosen") & (pl.col("phase") == phase))
    found = found.filter(pl.col("rank").is_null() if rank is None else pl.col("rank") == rank)
    return found.row(0, named=True)


def summary(recording: Recording) -> dict[str, Any]:
    return start_summary(recording).row(0, named=True)


def gaps(recording: Recording) -> list[tuple[float, str | None, str | None, str | None]]:
    found = start_slices(recording).filter(pl.col("phase").is_null())
    return [(one["duration_s"], one["after"], one["before"], one["inside"]) for one in found.iter_rows(named=True)]


def warm_start() -> HandmadeStart:
    """A start whose init contains compile and capture, and 9.6 s that no line names."""
    return (
        HandmadeStart()
        .printed("weights_read", 1, 0.69)
        .printed("weights_load", 1, 0.902026, resolution_s=5e-7)
        .printed("compile_dynamo", 9, 7.51)
        .event("compile_cache_hit", 9)
        .total("compile", 18, 7.51)
        .printed("graph_capture", 35, 17, resolution_s=0.5)
        .printed("init_engine", 35, 34.11)
    )


def test_a_total_is_an_annotation_and_fills_no_gap() -> None:
    recording = warm_start().recording()
    assert walls(recording) == {
        "weights_load": 0.902026,
        "weights_read": 0.69,
        "init_engine": 34.11,
        "compile": 7.51,
        "compile_dynamo": 7.51,
        "graph_capture": 17.0,
    }
    assert gaps(recording) == [
        (0.6, "weights_read", "compile_dynamo", "init_engine"),
        (9.0, "compile_dynamo", "graph_capture", "init_engine"),
    ]
    assert summary(recording)["unlogged_s"] == pytest.approx(9.6)


def test_what_a_total_has_beyond_its_parts_is_placed_before_its_line() -> None:
    log = HandmadeStart().printed("compile_dynamo", 9, 7.0).total("compile", 18, 12.0)
    log.printed("graph_capture", 35, 17).printed("init_engine", 35, 34)
    slices = start_slices(log.recording())
    assert slices.filter(pl.col("phase") == "compile")["duration_s"].to_list() == [5.0]
    assert gaps(log.recording()) == [
        (1.0, "init_engine begin", "compile_dynamo", "init_engine"),
        (4.0, "compile_dynamo", "compile", "init_engine"),
    ]


def test_a_total_without_parts_is_placed_itself() -> None:
    log = HandmadeStart().other(0).total("compile", 20, 15.0).printed("init_engine", 30, 30.0)
    slices = start_slices(log.recording())
    assert slices.filter(pl.col("phase") == "compile")["begin_s"].to_list() == [5.0]
    assert summary(log.recording())["unlogged_s"] == 15.0


def test_a_duration_reaches_back_before_the_first_stamp() -> None:
    recording = HandmadeStart().printed("weights_load", 0, 40.0).other(5).recording()
    assert summary(recording)["span_s"] == 45.0
    assert gaps(recording) == [(5.0, "weights_load", "last line", None)]


def test_time_inside_a_load_that_its_read_leaves_is_the_loads_own() -> None:
    recording = HandmadeStart().printed("weights_read", 9, 6.0).printed("weights_load", 10, 10.0).recording()
    assert summary(recording)["unlogged_s"] == 0.0
    slices = start_slices(recording).group_by("phase").agg(pl.col("duration_s").sum())
    assert dict(slices.iter_rows()) == {"weights_load": 4.0, "weights_read": 6.0}


def test_lines_that_are_known_to_be_missing_make_no_silent_gap() -> None:
    log = HandmadeStart().ends("device_init", 0).event("cut").begins("weights_load", 100).ends("weights_load", 130)
    recording = log.recording()
    found = start_slices(recording).filter(pl.col("phase").is_null())
    assert found["reason"].to_list() == ["cut"]
    assert summary(recording)["unlogged_s"] == 0.0


def test_a_cut_that_names_no_start_counts_for_the_start_around_it() -> None:
    recording = HandmadeStart().other(0).event("cut").printed("weights_load", 50, 10.0).recording()
    loose = recording.replace(incidents=recording.incidents.with_columns(pl.lit(None, pl.String).alias("start_id")))
    assert summary(loose)["unlogged_s"] == 0.0


def test_without_stamps_an_enclosing_duration_bounds_what_is_unlogged() -> None:
    log = HandmadeStart().printed("compile_dynamo", None, 4.6).printed("compile_graph", None, 14.77)
    log.total("compile", None, 19.37).printed("graph_capture", None, 15).printed("init_engine", None, 39.34)
    recording = log.recording()
    assert summary(recording)["span_s"] is None
    assert summary(recording)["unlogged_s"] == pytest.approx(4.97)
    slices = start_slices(recording)
    assert slices["begin_s"].null_count() == len(slices)
    assert slices["duration_s"].sum() == pytest.approx(39.34)


def test_without_stamps_and_enclosure_nothing_is_said_of_unlogged_time() -> None:
    recording = HandmadeStart().printed("graph_capture", None, 10).recording()
    assert summary(recording)["unlogged_s"] is None


def test_parts_make_the_whole_where_no_total_is_printed() -> None:
    log = HandmadeStart().printed("compile_dynamo", 10, 4.0, "TP0").printed("compile_graph", 16, 6.0, "TP0")
    log.printed("compile_dynamo", 10, 4.2, "TP1").printed("compile_graph", 17, 6.5, "TP1")
    found = row(log.recording(), "compile")
    assert (found["duration_s"], found["status"]) == (10.7, "measured")


def test_one_kind_of_part_alone_is_only_a_lower_bound() -> None:
    found = row(HandmadeStart().other(0).printed("compile_graph", 16, 6.0).recording(), "compile")
    assert (found["duration_s"], found["lower_s"], found["status"]) == (6.0, 6.0, "bounded")


def test_several_graphs_of_one_worker_add_up_even_within_a_second() -> None:
    log = HandmadeStart().other(0).printed("compile_graph", 5, 0.4).printed("compile_graph", 5, 0.5)
    assert walls(log.printed("compile_graph", 9, 2.0).recording())["compile_graph"] == pytest.approx(2.9)


def test_barrier_phase_without_stamps_is_as_long_as_its_slowest_worker() -> None:
    log = HandmadeStart().printed("graph_capture", None, 13.63, "TP0").printed("graph_capture", None, 13.67, "TP1")
    assert walls(log.recording())["graph_capture"] == 13.67


def test_barrier_phase_with_stamps_is_the_union() -> None:
    log = HandmadeStart()
    for rank, begin in (("0", 0), ("1", 0), ("2", 0), ("3", 1)):
        log.begins("weights_load", begin, rank)
    for rank, end in (("0", 22), ("2", 23), ("1", 24), ("3", 41)):
        log.ends("weights_load", end, rank)
    recording = log.recording()
    assert walls(recording)["weights_load"] == 41.0
    assert row(recording, "weights_load", "3")["duration_s"] == 40.0


def test_rounded_stamps_do_not_lengthen_a_phase_that_printed_its_length() -> None:
    log = HandmadeStart().other(0).printed("graph_capture", 39, 12.96, "TP0").printed("graph_capture", 40, 13.67, "TP1")
    assert walls(log.recording())["graph_capture"] == 13.67


def test_one_begin_line_stands_for_workers_that_print_none() -> None:
    log = HandmadeStart().other(-4).begins("weights_load", 0, "a").ends("weights_load", 523, "a")
    recording = log.ends("weights_load", 531, "b").recording()
    assert row(recording, "weights_load", "a")["duration_s"] == 523.0
    assert row(recording, "weights_load", "b")["duration_s"] == 531.0


def test_an_end_without_any_begin_has_no_length() -> None:
    log = HandmadeStart().printed("device_init", 5, 3.0).ends("weights_load", 40, "a").ends("weights_load", 41, "b")
    found = row(log.recording(), "weights_load")
    assert (found["duration_s"], found["status"]) == (None, "not_identifiable")


def test_a_second_load_of_a_draft_model_adds_to_the_first() -> None:
    log = HandmadeStart().begins("weights_load", 0).ends("weights_load", 30)
    recording = log.begins("weights_load", 34).ends("weights_load", 44).recording()
    assert walls(recording)["weights_load"] == 40.0


def test_a_printed_length_beside_stamps_of_the_same_time_counts_that_time_once() -> None:
    log = HandmadeStart().begins("weights_load", 0).begins("weights_load", 0).ends("weights_load", 20)
    counted = walls(log.printed("weights_load", 24, 23.5).recording())["weights_load"]
    assert counted is not None
    assert 23.5 <= counted <= 24.0


def test_begin_and_end_in_one_second_are_less_than_that_second_and_not_zero() -> None:
    found = row(HandmadeStart().begins("device_init", 0).ends("device_init", 0).other(5).recording(), "device_init")
    assert (found["duration_s"], found["upper_s"], found["status"]) == (None, 1.0, "bounded")


def test_a_printed_length_wins_over_stamps_that_agree_with_it() -> None:
    recording = HandmadeStart().begins("weights_load", 0).printed("weights_load", 12, 11.08).recording()
    assert walls(recording)["weights_load"] == 11.08
    assert start_phases(recording)["chosen"].all()


def test_a_printed_length_that_contradicts_its_stamps_is_kept_beside_them() -> None:
    recording = HandmadeStart().begins("weights_load", 0).printed("weights_load", 12, 70.0).recording()
    assert walls(recording)["weights_load"] == 12.0
    rejected = start_phases(recording).filter(~pl.col("chosen"))
    assert rejected["duration_s"].to_list() == [70.0]


@pytest.mark.parametrize("lines", [(31.0, 7.51), (7.51, 31.0)])
def test_of_two_values_the_one_that_fits_the_enclosing_phase_is_chosen(lines: tuple[float, float]) -> None:
    log = HandmadeStart().other(0)
    for seconds in lines:
        log.total("compile", 20, seconds)
    log.printed("graph_capture", 35, 17).printed("init_engine", 35, 34.11)
    recording = log.recording()
    assert walls(recording)["compile"] == 7.51
    assert start_phases(recording).filter(~pl.col("chosen"))["duration_s"].to_list() == [31.0]


def test_a_total_shorter_than_its_parts_gives_way_to_their_sum() -> None:
    log = HandmadeStart().printed("compile_dynamo", 10, 8.0).printed("compile_graph", 20, 9.0).total("compile", 20, 5.0)
    recording = log.printed("init_engine", 40, 39.0).recording()
    assert walls(recording)["compile"] == 17.0
    assert start_phases(recording).filter(~pl.col("chosen"))["duration_s"].to_list() == [5.0]


def test_a_total_repeated_in_the_line_of_its_enclosing_phase_counts_once() -> None:
    log = HandmadeStart().other(0).total("compile", 20, 10.0).printed("init_engine", 60, 55.0)
    repeated = dict(log.rows["phases"][0], line=log.line, end=log.rows["phases"][1]["end"])
    log.rows["phases"].append(repeated)
    recording = log.recording()
    assert walls(recording)["compile"] == 10.0
    assert start_phases(recording)["chosen"].all()


def test_a_phase_begun_and_not_ended_has_a_lower_bound_only() -> None:
    log = HandmadeStart().begins("weights_load", 0, "a").begins("weights_load", 0, "b").ends("weights_load", 30, "a")
    recording = log.other(90).recording()
    found = row(recording, "weights_load")
    assert (found["duration_s"], found["lower_s"], found["status"]) == (None, 90.0, "bounded")
    assert row(recording, "weights_load", "a")["duration_s"] == 30.0
    assert summary(recording)["outcome"] == "unfinished"


def test_a_missing_end_line_is_no_running_phase_once_a_later_one_begins() -> None:
    log = HandmadeStart().begins("weights_load", 0, "a").begins("weights_load", 0, "b").ends("weights_load", 30, "a")
    recording = log.begins("graph_capture", 40, "a").ends("graph_capture", 50, "a").recording()
    assert walls(recording)["weights_load"] == 30.0
    assert row(recording, "weights_load", "b")["upper_s"] == 41.0
    assert summary(recording)["outcome"] == "unknown"


def test_a_capture_whose_end_no_version_prints_is_bounded_by_ready() -> None:
    recording = HandmadeStart().begins("graph_capture", 10).ready(25).recording()
    found = row(recording, "graph_capture")
    assert (found["duration_s"], found["upper_s"]) == (None, 16.0)
    assert summary(recording)["outcome"] == "ready"
    assert gaps(recording) == [(15.0, "graph_capture begin", "ready", None)]


def test_gaps_are_named_by_the_engines_begin() -> None:
    log = HandmadeStart().other(0).event("engine_begin", 15).begins("weights_load", 34).ends("weights_load", 45)
    assert gaps(log.ready(50).recording()) == [
        (15.0, "first line", "engine_begin", None),
        (19.0, "engine_begin", "weights_load", None),
        (5.0, "weights_load", "ready", None),
    ]


def test_a_line_without_a_stamp_is_placed_after_the_last_stamp_above_it() -> None:
    log = HandmadeStart().other(0).other(20).event("engine_begin", 20).printed("weights_load", None, 15.0).other(30)
    assert gaps(log.recording()) == [
        (5.0, "first line", "weights_load", None),
        (10.0, "weights_load", "last line", None),
    ]


@pytest.mark.parametrize(
    ("log", "outcome"),
    [
        (HandmadeStart().other(0).ready(9), "ready"),
        (HandmadeStart().failed(3).ready(9), "ready"),
        (HandmadeStart().begins("weights_load", 0).failed(9), "failed"),
        (HandmadeStart().bar(3, 10, 9.0), "unfinished"),
        (HandmadeStart().bar(10, 10, 9.0), "unknown"),
        (warm_start(), "unknown"),
    ],
)
def test_outcome(log: HandmadeStart, outcome: str) -> None:
    assert summary(log.recording())["outcome"] == outcome


def test_an_engine_that_serves_is_ready_although_no_line_says_so() -> None:
    assert summary(warm_start().recording(served=True))["outcome"] == "ready"


def test_hold_needs_acquire_and_ready() -> None:
    log = HandmadeStart().other(0).ready(60)
    assert summary(log.recording())["hold_s"] is None
    acquired = log.recording().starts["first_time"][0]
    assert summary(log.recording(acquire_time=acquired))["hold_s"] == 60.0


@pytest.mark.parametrize(
    ("kinds", "cache"),
    [
        ((), None),
        (("compile_cache_used",), None),
        (("compile_cache_hit", "compile_cache_hit"), "hit"),
        (("compile_cache_miss",), "miss"),
        (("compile_cache_hit", "compile_cache_miss"), "miss"),
    ],
)
def test_compile_cache(kinds: tuple[str, ...], cache: str | None) -> None:
    log = HandmadeStart().other(0)
    for kind in kinds:
        log.event(kind, 1)
    assert summary(log.recording())["compile_cache"] == cache


def test_two_starts_stay_apart() -> None:
    both = combine([warm_start().recording(), HandmadeStart().printed("weights_load", 50, 30.0).recording()])
    assert start_summary(both)["start_id"].to_list() == ["start-1", "start-2"]
    assert start_phases(both).filter(start_id="start-2")["duration_s"].to_list() == [30.0]


def test_nothing_gives_empty_frames() -> None:
    assert len(start_phases(Recording())) == len(start_slices(Recording())) == len(start_summary(Recording())) == 0


PHASES = (
    "device_init",
    "weights_load",
    "weights_read",
    "init_engine",
    "compile_dynamo",
    "compile_graph",
    "graph_capture",
)
marks = st.lists(
    st.tuples(
        st.sampled_from(PHASES),
        st.sampled_from(("printed", "begin", "end", "total")),
        st.integers(0, 200),
        st.integers(1, 90_000).map(lambda milliseconds: milliseconds / 1000),
        st.sampled_from((None, "TP0", "TP1")),
    ),
    min_size=1,
    max_size=14,
)


def built(lines: list[tuple[str, str, int, float, str | None]], shift: int = 0) -> HandmadeStart:
    log = HandmadeStart()
    for phase, kind, time, seconds, rank in lines:
        if kind == "printed":
            log.printed(phase, time + shift, seconds, rank)
        elif kind == "total":
            log.total("compile", time + shift, seconds, rank)
        elif kind == "begin":
            log.begins(phase, time + shift, rank)
        else:
            log.ends(phase, time + shift, rank)
    return log


@settings(max_examples=80, deadline=None)
@given(marks)
def test_slices_add_up_to_the_span_to_the_microsecond(lines: list[tuple[str, str, int, float, str | None]]) -> None:
    recording = built(lines).recording()
    span = summary(recording)["span_s"]
    slices = start_slices(recording).sort("begin_s")
    if span is None:
        return
    in_us = (slices["duration_s"] * 1e6).round().cast(pl.Int64)
    assert in_us.sum() == round(span * 1e6)
    begins = (slices["begin_s"] * 1e6).round().cast(pl.Int64)
    assert begins.to_list() == [0, *(begins + in_us).to_list()[:-1]]
    assert summary(recording)["unlogged_s"] <= span


@settings(max_examples=60, deadline=None)
@given(marks, st.randoms(use_true_random=False), st.integers(-5000, 5000))
def test_row_order_and_clock_shift_change_nothing(
    lines: list[tuple[str, str, int, float, str | None]], random: Any, shift: int
) -> None:
    recording = built(lines).recording()
    order = list(range(len(recording.phases)))
    random.shuffle(order)
    mixed = built(lines, shift).recording()
    mixed = mixed.replace(phases=mixed.phases[order])
    for function in (start_phases, start_slices, start_summary):
        assert function(mixed).equals(function(recording))


@settings(max_examples=60, deadline=None)
@given(marks)
def test_a_wall_clock_lies_between_its_slowest_worker_and_the_sum(
    lines: list[tuple[str, str, int, float, str | None]],
) -> None:
    found = start_phases(built(lines).recording()).filter(pl.col("chosen") & pl.col("duration_s").is_not_null())
    for (phase,), rows in found.group_by("phase"):
        ranks = rows.filter(pl.col("rank").is_not_null())["duration_s"]
        wall = rows.filter(pl.col("rank").is_null())["duration_s"]
        if len(ranks) and len(wall):
            assert ranks.max() - 1e-6 <= wall[0] <= ranks.sum() + 1e-6, phase  # type: ignore[operator]


def test_a_pod_that_tells_of_itself_after_it_became_ready_has_started_by_then() -> None:
    made = HandmadeStart().printed("container_start", 3.0, 2.0).ready(90.0).other(9000.0)
    slices = start_slices(made.recording())
    assert start_summary(made.recording())["span_s"].to_list() == [89.0]
    assert slices["duration_s"].to_list() == [2.0, 87.0]
    assert slices["before"].to_list() == [None, "ready"]


@pytest.mark.parametrize(("back_s", "span_s"), [(20.0, 30.0), (3600.0, None)])
def test_a_clock_that_is_set_back_during_a_start_leaves_its_length_unknown(back_s: float, span_s: float | None) -> None:
    made = HandmadeStart().event("engine_begin", 4000.0).printed("weights_load", 4050.0 - back_s, 20.0)
    recording = made.ready(4050.0 - back_s).recording()
    assert start_summary(recording)["span_s"].to_list() == [span_s]
    assert start_phases(recording)["duration_s"].to_list() == [20.0]
    assert (start_slices(recording)["begin_s"][0] is None) == (span_s is None)


def test_lines_that_reach_the_log_late_set_no_clock_back() -> None:
    made = HandmadeStart().event("engine_begin", 0.0).printed("weights_load", 46.0, 40.0, "TP1")
    made.printed("weights_load", 27.0, 22.0, "TP0")
    assert start_summary(made.ready(60.0).recording())["span_s"].to_list() == [60.0]


@pytest.mark.parametrize(("printed_s", "told_s", "upper_s"), [(100.0, 100.0, None), (2e22, None, 30.0)])
def test_a_length_that_began_long_before_the_engine_is_not_believed(
    printed_s: float, told_s: float | None, upper_s: float | None
) -> None:
    made = HandmadeStart().event("engine_begin", 0.0).printed("weights_load", 30.0, printed_s)
    row = start_phases(made.ready(60.0).recording()).row(0, named=True)
    assert (row["duration_s"], row["upper_s"]) == (told_s, upper_s)
    without = HandmadeStart().printed("weights_load", 30.0, printed_s).ready(60.0)  # the begin may be cut off
    assert start_phases(without.recording())["duration_s"].to_list() == [printed_s]


def test_a_phase_lasts_at_least_as_long_as_what_lies_inside_it() -> None:
    made = HandmadeStart().event("engine_begin", 0.0).ends("weights_load", 50.0)
    row = start_phases(made.printed("weights_read", 48.0, 40.0).ready(60.0).recording()).row(0, named=True)
    assert (row["phase"], row["duration_s"], row["lower_s"], row["status"]) == ("weights_load", None, 40.0, "bounded")
