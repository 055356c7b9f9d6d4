from __future__ import annotations

import json
from typing import Any

import made
import polars as pl
import pytest

from infer_diag import charts, results


@pytest.fixture
def told() -> made.ColdStart:
    return made.cold_start()


def traces(figure: Any) -> dict[str, dict[str, Any]]:
    return {trace["name"]: trace for trace in figure.to_dict()["data"]}


def timeline(told: made.ColdStart, start: str) -> Any:
    return charts.cold_start_timeline(told.slices, told.phases, told.summary, start)


def test_the_first_row_adds_up_to_the_span(told: made.ColdStart) -> None:
    drawn = traces(timeline(told, "start-1"))
    assert sum(drawn["parts"]["x"]) + sum(drawn["gaps"]["x"]) == pytest.approx(85.0)
    assert list(drawn["gaps"]["text"]) == ["silent 9 s", "silent 8 s"]
    assert list(drawn["gaps"]["base"]) == [14.0, 74.5]
    assert drawn["gaps"]["marker"]["pattern"]["shape"] == ["/", "/"]


def test_a_cut_gap_is_not_called_silent(told: made.ColdStart) -> None:
    gaps = traces(timeline(told, "start-2"))["gaps"]
    assert list(gaps["text"]) == ["text missing 10 s"]
    assert gaps["marker"]["pattern"]["shape"] == ["x"]


def test_phases_and_ranks_have_rows_and_bounds_are_said(told: made.ColdStart) -> None:
    phases = traces(timeline(told, "start-1"))["phases"]
    length = dict(zip(phases["y"], phases["text"], strict=True))
    assert length["weights load · rank 0"] == "19 s" and length["weights load · rank 1"] == "21.5 s"
    assert length["weights load · another line"] == "12 s"
    assert length["↳ kv profile"] == "≥ 2.8 s"
    assert phases["marker"]["opacity"][list(phases["y"]).index("weights load · another line")] < 0.5


def test_a_phase_without_a_place_is_text_and_no_bar(told: made.ColdStart) -> None:
    drawn = traces(timeline(told, "start-1"))
    assert "↳ weights read" not in drawn["phases"]["y"]
    texts = dict(zip(drawn["without a place"]["y"], drawn["without a place"]["text"], strict=True))
    assert texts == {"↳ weights read": " 18.2 s, place unknown", "first request": " length unknown"}


def test_a_phase_with_one_rank_is_shown_once(told: made.ColdStart) -> None:
    extra = made.frame(
        results.StartPhases,
        [made.phase("start-9", "compile", 0.0, 4.0), made.phase("start-9", "compile", 0.0, 4.0, rank="TP0")],
    )
    figure = charts.cold_start_timeline(
        made.frame(results.StartSlices, made.slices("start-9", [("compile", 4.0)])), extra, told.summary, "start-9"
    )
    assert list(traces(figure)["phases"]["y"]) == ["↳ compile"]


def test_a_start_without_stamps_is_stacked_and_says_so(told: made.ColdStart) -> None:
    figure = timeline(told, "start-3")
    assert figure.layout.barmode == "stack"
    assert {name: list(trace["x"]) for name, trace in traces(figure).items()} == {
        "weights load": [30.0],
        "compile": [12.0],
        "silent": [4.0],
    }
    assert all(trace.get("base") is None for trace in figure.to_dict()["data"])
    assert "no stamps" in figure.layout.title.subtitle.text


def test_bars_of_each_start_add_up_to_its_slices(told: made.ColdStart) -> None:
    figure = charts.cold_start_bars(told.slices, told.summary)
    sums: dict[str, float] = {}
    for trace in figure.to_dict()["data"]:
        for name, seconds in zip(trace["y"], trace["x"], strict=True):
            sums[name] = sums.get(name, 0.0) + seconds
    assert sums == pytest.approx({"start-1": 85.0, "start-2 (failed)": 110.0, "start-3 (unfinished)": 46.0})
    assert list(figure.layout.yaxis.categoryarray) == list(sums)
    assert {"silent", "text missing"} <= set(traces(figure))


def test_five_hundred_starts_stay_one_screen_and_few_traces() -> None:
    rows, summary = [], []
    for number in range(500):
        rows += made.slices(f"start-{number}", [("weights_load", 20.0 + number), ("silent", 3.0), ("compile", 5.0)])
        summary.append({"start_id": f"start-{number}", "outcome": "ready", "span_s": 28.0 + number})
    figure = charts.cold_start_bars(made.frame(results.StartSlices, rows), made.frame(results.StartSummary, summary))
    assert len(figure.data) == 3
    assert figure.layout.height <= 1000
    assert sum(len(trace.x) for trace in figure.data) == 1500


def test_titles_say_how_the_numbers_are_known(told: made.ColdStart) -> None:
    layout = timeline(told, "start-1").layout
    assert layout.title.text == "Cold start · start-1"
    assert layout.title.subtitle.text.startswith("measured, bounded, not identifiable · ready · span 85 s")
    assert layout.template.layout.uirevision == charts.NAME


def test_log_text_draws_no_markup(told: made.ColdStart) -> None:
    evil = "<script>alert(1)</script><b>x</b>"
    slices = told.slices.with_columns(after=pl.lit(evil), start_id=pl.lit(evil))
    phases = told.phases.with_columns(rank=pl.lit(evil) + pl.int_range(pl.len()).cast(pl.String), start_id=pl.lit(evil))
    summary = told.summary.head(1).with_columns(start_id=pl.lit(evil))
    for figure in (
        charts.cold_start_timeline(slices, phases, summary, evil),
        charts.cold_start_bars(slices, summary),
    ):
        text = json.dumps(figure.to_dict(), default=str)
        assert "<script" not in text and "<b>x" not in text
        assert "&lt;script" in text


def test_empty_frames_draw_an_empty_figure() -> None:
    empty = results.StartSlices.create_empty(), results.StartPhases.create_empty(), results.StartSummary.create_empty()
    assert not charts.cold_start_timeline(*empty, "start-1").data
    assert not charts.cold_start_bars(empty[0], empty[2]).data
