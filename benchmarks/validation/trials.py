"""One fleet made, analysed, and what was found set beside what was planted."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import polars as pl

from infer_diag.attribution.cost import BLAMED
from infer_diag.attribution.cost.analysis import costs
from infer_diag.attribution.cost.ledger import Observed
from validation import counted, logged
from validation.counted import Plan
from validation.scenarios import COUNTED_CAUSES, SCENARIOS, WEAK_HOURS, Scenario, Sight

Row = dict[str, Any]
Made = Mapping[str, Observed]
PEERS = 5
COLUMNS: dict[str, Any] = {
    "scenario": pl.String,
    "sight": pl.String,
    "fleet": pl.Int64,
    "hours": pl.Int64,
    "cause": pl.String,
    "planted": pl.Boolean,
    "truth": pl.Float64,
    "found": pl.Float64,
    "lower": pl.Float64,
    "upper": pl.Float64,
    "saves": pl.Float64,
}
_BY_GAUGES = {"tells_steps": False, "tells_arrivals": False}


def counted_trial(scenario: Scenario, sight: Sight, number: int, seed: int) -> list[Row]:
    """One counted fleet: a row per blamed cause."""
    name = f"{seed} {scenario.name} {sight} {number}"
    sick = Plan(_drawn(f"{name} sick"), **({} if sight == "steps" else _BY_GAUGES), **scenario.planted)
    return _rows(scenario.name, sight, number, _counted(sick, name), _truth(scenario, sick))


def logged_trials(number: int, seed: int) -> list[Row]:
    """The logged fleets of one number: well, and sick by one cause after another."""
    made = logged.logged_fleets(_drawn(f"{seed} logged {number}"))
    rows = _rows("nothing", "logs", number, made.fleet(None), {})
    for cause, parts in made.truth.items():
        rows += _rows(cause, "logs", number, made.fleet(cause), parts)
    return rows


def weak_trial(number: int, seed: int) -> list[Row]:
    """A fleet with all causes, its logs halved again and again; the truth is that of the whole logs."""
    scenario = next(each for each in SCENARIOS if each.name == "several causes")
    name = f"{seed} halved {number}"
    sick = Plan(_drawn(f"{name} sick"), **scenario.planted, **_BY_GAUGES)
    whole, true = _counted(sick, name), _truth(scenario, sick)
    rows = []
    for hours in WEAK_HOURS:
        made = {key: replace(each, windows=each.windows.head(hours)) for key, each in whole.items()}
        rows += _rows("halved", "gauges", number, made, true, hours)
    return rows


def varied_fleet(number: int, seed: int) -> dict[str, Observed]:
    """A fleet whose deployments all differ, for what must hold whatever their numbers."""
    changes: list[dict[str, Any]] = [{}, *COUNTED_CAUSES.values(), {"price": 4.0}, {"throttle": 1.2}]
    return {
        f"d{k}": counted.seen(Plan(_drawn(f"{seed} varied {number} {k}"), **each)) for k, each in enumerate(changes)
    }


def table(rows: list[Row]) -> pl.DataFrame:
    """The rows of trials as a frame."""
    return pl.DataFrame(rows, schema=COLUMNS)


def _rows(scenario: str, sight: str, number: int, made: Made, true: Mapping[str, float], hours: int = 0) -> list[Row]:
    bars = costs(made).bars.filter(pl.col("deployment") == "sick").rows_by_key("cause", named=True, unique=True)
    return [
        {
            "scenario": scenario,
            "sight": sight,
            "fleet": number,
            "hours": hours,
            "cause": cause,
            "planted": cause in true,
            "truth": true.get(cause, 0.0),
            "found": bars[cause]["log_ratio"],
            "lower": bars[cause]["lower_ratio"],
            "upper": bars[cause]["upper_ratio"],
            "saves": bars[cause]["saves_ratio"],
        }
        for cause in BLAMED
        if cause in bars
    ]


def _truth(scenario: Scenario, sick: Plan) -> dict[str, float]:
    """Parts of the generator's own cost; what no cause stands for is the residual's."""
    if "throttle" in scenario.planted:
        return {"residual": counted.log_cost(sick) - counted.log_cost(replace(sick, throttle=1.0))}
    return counted.truth(sick, scenario.causes) if scenario.causes else {}


def _counted(sick: Plan, name: str) -> dict[str, Observed]:
    tells = {key: getattr(sick, key) for key in _BY_GAUGES}
    peers = {f"peer{k}": counted.seen(Plan(_drawn(f"{name} {k}"), **tells)) for k in range(PEERS)}
    return {**peers, "sick": counted.seen(sick)}


def _drawn(name: str) -> int:
    return zlib.crc32(name.encode())
