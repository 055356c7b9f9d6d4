"""The validation of the cost analysis on few fleets, and whether it would see a fault; `make validate` runs all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from validation.changes import PROPERTIES, holds
from validation.logged import LoggedFleets, logged_fleets
from validation.scenarios import SCENARIOS
from validation.suite import PACKAGES, counted_up, tasks
from validation.summary import acceptance, interval, summarised
from validation.trials import Row, counted_trial, table, varied_fleet, weak_trial

import infer_diag.attribution.cost.analysis as analysis
from infer_diag.attribution.cost.analysis import costs

SEED = 7
SAVED = Path(__file__).parents[2] / "notebooks" / "99_validation.json"
COUNTED = [each for each in SCENARIOS if each.sights != ("logs",)]


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """Two fleets of every counted scenario and sight."""
    return [
        row
        for scenario in COUNTED
        for sight in scenario.sights
        for number in range(2)
        for row in counted_trial(scenario, sight, number, SEED)
    ]


@pytest.fixture(scope="module")
def summary(rows: list[Row]) -> pl.DataFrame:
    return summarised(table(rows))


def test_what_was_planted_is_found_without_bias(summary: pl.DataFrame) -> None:
    planted = summary.filter("planted")
    assert set(planted["cause"]) == {"cold_start", "batching", "fragmentation", "idle", "residual"}
    assert planted.filter(pl.col("bias").abs() >= 0.05).is_empty()
    assert planted["found"].null_count() == 0


def test_intervals_hold_the_truth_and_nothing_is_made_of_nothing(summary: pl.DataFrame) -> None:
    shares = summary.group_by("planted").agg(pl.col("covered").sum() / pl.col("with_interval").sum())
    assert all(share >= 0.85 for share in shares["covered"])
    assert summary.filter(~pl.col("planted"))["found"].abs().max() < 0.08  # type: ignore[operator]


def test_an_unmodelled_cause_is_the_residual_s_and_two_limits_share(summary: pl.DataFrame) -> None:
    lines = [line for line in acceptance(summary, {}) if line["kind"] in ("unmodelled cause", "two limits")]
    assert len(lines) == 4
    assert all(line["met"] for line in lines), lines


def test_halved_logs_end_in_a_refusal_and_claim_nothing_wrong_on_the_way() -> None:
    found = table([row for number in range(2) for row in weak_trial(number, SEED)])
    given = found.drop_nulls("lower")
    outside = given.filter((pl.col("lower") - 0.03 > pl.col("truth")) | (pl.col("upper") + 0.03 < pl.col("truth")))
    assert len(outside) <= 0.08 * len(given)
    assert found.filter(pl.col("hours") == found["hours"].min())["lower"].count() == 0
    assert found.filter(pl.col("hours") == found["hours"].max())["lower"].null_count() == 0


def test_what_must_hold_for_any_fleet_holds() -> None:
    assert holds(varied_fleet(0, SEED)) == dict.fromkeys(PROPERTIES, True)


@pytest.fixture(scope="module")
def logged() -> LoggedFleets:
    return logged_fleets(SEED, ("cold_start", "batching"), peers=1)


def test_from_text_too_the_planted_cause_is_the_largest(logged: LoggedFleets) -> None:
    for cause, parts in logged.truth.items():
        bars = costs(logged.fleet(cause), "peer0").bars.filter(deployment="sick")
        row = bars.filter(cause=cause).row(0, named=True)
        assert bars.sort("log_ratio", nulls_last=False)["cause"][-1] == cause
        assert row["lower_ratio"] - 0.1 <= parts[cause] <= row["upper_ratio"] + 0.1
        assert abs(bars.filter(cause="residual")["log_ratio"].item()) < 0.1
    well = costs(logged.fleet(None), "peer0").bars.filter(deployment="sick")
    assert well["log_ratio"].drop_nulls().abs().max() < 0.25  # type: ignore[operator]


def test_intervals_that_are_too_narrow_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def narrow(full: np.ndarray, replicates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return full - 1e-6, full + 1e-6

    monkeypatch.setattr(analysis, "jackknife", narrow)
    null = COUNTED[0]
    found = summarised(table([row for number in range(3) for row in counted_trial(null, "steps", number, SEED)]))
    batching = found.filter(cause="batching")
    assert batching["covered"].item() == 0


@pytest.mark.parametrize(
    ("shift", "half", "met"), [(0.0, 0.1, True), (0.2, 0.1, False), (0.2, 0.3, False)], ids=["true", "far", "biased"]
)
def test_the_lines_are_met_by_what_is_right_alone(shift: float, half: float, met: bool) -> None:
    rng = np.random.default_rng(3)
    found = 0.3 + shift + rng.normal(size=400) * half / 1.96
    made = [
        {
            "scenario": "batching",
            "sight": "steps",
            "fleet": number,
            "hours": 0,
            "cause": "batching",
            "planted": True,
            "truth": 0.3,
            "found": value,
            "lower": value - half,
            "upper": value + half,
            "saves": 0.1,
        }
        for number, value in enumerate(found)
    ]
    lines = acceptance(summarised(table(made)), {})
    assert [line["kind"] for line in lines] == ["bias", "coverage"]
    assert all(line["met"] for line in lines) == met


def test_few_fleets_leave_a_line_open() -> None:
    assert interval(0, 0) == (0.0, 1.0)
    low, high = interval(19, 20)
    assert low < 0.92 < 0.98 < high
    assert interval(380, 400)[0] == pytest.approx(0.924, abs=0.002)


def test_the_whole_suite_is_at_least_four_hundred_fleets_and_was_run() -> None:
    made = tasks(1.0, SEED)
    assert len(made) > 100
    counted = sum(each.fleets * len(each.sights) for each in COUNTED)
    assert counted >= 400
    saved = json.loads(SAVED.read_text(encoding="utf-8"))
    assert saved["fleets"] >= 400
    assert set(saved["versions"]) == {"python", *PACKAGES}
    assert {row["scenario"] for row in saved["summary"]} >= {each.name for each in SCENARIOS}
    again: Callable[[list[Row]], dict[str, object]] = counted_up
    assert set(again([])) <= set(saved)
