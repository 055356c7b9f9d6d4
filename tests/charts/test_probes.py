"""The charts of the storage and pipeline probes: every row of a frame is drawn, nothing is computed or invented."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from infer_diag.charts import probes
from infer_diag.probes.result import framed


def steps(once: float | None = 0.25, repeats: int = 2) -> pl.DataFrame:
    """Both sequences; the last repetition's one WILLNEED leaves `once`."""
    calls = {
        "article": [("read", 1.0), ("DONTNEED", 0.0), ("one WILLNEED", once)],
        "stepwise": [("read", 1.0), ("DONTNEED", 0.0), ("one WILLNEED", once), ("DONTNEED", 0.0), ("<b>x</b>", 1.0)],
    }
    rows = [
        {
            "repeat_id": repeat,
            "sequence": sequence,
            "step_id": place,
            "call": call,
            "file_bytes": 100,
            "resident_bytes": None if ratio is None else round(100 * ratio),
            "resident_ratio": ratio,
            "duration_s": 0.1,
        }
        for repeat in range(1, repeats + 1)
        for sequence, each in calls.items()
        for place, (call, ratio) in enumerate(each, 1)
    ]
    return framed("cache_steps", rows)


def rates(**quartiles: float | None) -> pl.DataFrame:
    row = {"q1_bytes_per_s": None, "q3_bytes_per_s": None, "is_wide": None, **quartiles}
    kinds = [("read", "cold", 4e8), ("read", "warm", 9e8), ("parallel_read", "cold", 6e8)]
    made = [{"method": m, "cache": c, "run_count": 5, "p50_bytes_per_s": p, **row} for m, c, p in kinds]
    return framed("read_rates", made)


def traces(figure: Any) -> dict[str, dict[str, Any]]:
    return {trace["name"]: trace for trace in figure.to_dict()["data"]}


def test_every_call_has_its_share_and_every_repetition_its_dot() -> None:
    drawn = probes.cache_steps_chart(steps(repeats=3)).to_dict()["data"]
    assert [len(trace["y"]) for trace in drawn] == [5, 15, 3, 9]
    assert drawn[0]["x"] == [1.0, 0.0, 0.25, 0.0, 1.0]
    assert drawn[0]["y"][1:4:2] == ["2 · DONTNEED", "4 · DONTNEED"]
    assert drawn[2]["x"] == [1.0, 0.0, 0.25]


def test_calls_are_shown_without_their_markup() -> None:
    assert "<b>" not in "".join(probes.cache_steps_chart(steps()).to_dict()["data"][0]["y"])


def test_a_cache_that_the_kernel_hides_is_no_empty_one() -> None:
    bars = probes.cache_steps_chart(steps(once=None)).to_dict()["data"][0]
    assert bars["x"][2] is None and bars["text"][2] == "the kernel does not tell"


def test_rates_stand_at_their_medians_and_quartiles_are_lines() -> None:
    drawn = traces(probes.read_rates_chart(rates(q1_bytes_per_s=3e8, q3_bytes_per_s=8e8)))
    assert drawn["cold page cache"]["x"] == [4e8, 6e8]
    assert drawn["cold page cache"]["y"] == ["read", "parallel read"]
    assert drawn["warm page cache"]["x"] == [9e8]
    assert drawn["cold, quartiles"]["x"] == [3e8, 8e8, None] * 2


def test_few_runs_have_no_quartiles() -> None:
    drawn = traces(probes.read_rates_chart(rates()))
    assert set(drawn["cold, quartiles"]["x"]) == {None}


@pytest.mark.parametrize("chart", [probes.cache_steps_chart, probes.read_rates_chart])
def test_nothing_measured_is_an_empty_chart(chart: Any) -> None:
    frame = steps() if chart is probes.cache_steps_chart else rates()
    assert chart(frame.clear()).to_dict()["layout"]["title"]["text"]


def test_basis_and_place_are_told_and_the_place_is_made_safe() -> None:
    said = probes.read_rates_chart(rates(), basis="recorded", place="<i>x</i>").layout.title.subtitle.text
    assert said.startswith("recorded on &lt;i&gt;x")


def test_floors_stand_beside_the_published_starts() -> None:
    rows = [
        {"model": model, "size_bytes": size, "method": "read", "bytes_per_s": 1e9, "floor_s": size / 1e9}
        for model, size in (("large", 26 * 10**9), ("small", 8 * 10**9))
    ]
    drawn = traces(probes.load_floors_chart(framed("load_floors", rows), {"engine": 0.32}))
    floors, article = (
        drawn["reading alone, at the fastest cold rate"],
        drawn["the article's whole start: engine, 320 ms"],
    )
    assert floors["x"] == [8.0, 26.0] and article["x"] == [0.32, 0.32]
    assert floors["y"] == article["y"] == ["small<br>8 GB", "large<br>26 GB"]


def test_a_pipelines_phases_are_drawn_by_start_with_both_clocks() -> None:
    row = {"start_id": 1, "begin_s": 0.0, "peak_bytes": None}
    phases = [
        {**row, "phase": "imports", "duration_s": 2.5, "cpu_s": 2.1},
        {**row, "phase": "weights", "duration_s": 0.3, "cpu_s": 0.1},
        {**row, "phase": "first_token", "duration_s": None, "cpu_s": None},
    ]
    frame = framed("pipeline_phases", phases)
    both = pl.concat([frame.with_columns(start=pl.lit(name)) for name in ("cold", "warm")])
    drawn = probes.pipeline_phases_chart(both, basis="recorded", place="2 CPU cores").to_dict()["data"]
    assert [(trace["name"], trace["x"]) for trace in drawn] == [
        ("cold", [2.5, 0.3]),
        ("cold", [2.1, 0.1]),
        ("warm", [2.5, 0.3]),
        ("warm", [2.1, 0.1]),
    ]
    assert [trace["showlegend"] for trace in drawn] == [True, False, True, False]
