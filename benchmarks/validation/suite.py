"""Every fleet of the validation over all cores, and the table of results."""

from __future__ import annotations

import os
import platform
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from typing import Any

from validation.changes import holds
from validation.scenarios import CHANGED_FLEETS, SCENARIOS, WEAK_FLEETS, Sight, fleets
from validation.summary import acceptance, summarised
from validation.trials import Row, counted_trial, logged_trials, table, varied_fleet, weak_trial

Task = Callable[[], list[Row]]
PACKAGES = ("infer-diag", "numpy", "scipy", "polars", "numba")
_CHUNK = 5


def tasks(scale: float, seed: int) -> list[Task]:
    """Every fleet as a call that another process may make, the slow ones first."""
    logged = max(each.fleets for each in SCENARIOS if each.sights == ("logs",))
    made: list[Task] = [partial(logged_trials, number, seed) for number in range(fleets(scale, logged))]
    made += [partial(weak_fleets, chunk, seed) for chunk in _chunks(fleets(scale, WEAK_FLEETS))]
    made += [partial(changed_fleets, chunk, seed) for chunk in _chunks(fleets(scale, CHANGED_FLEETS))]
    for place, scenario in enumerate(SCENARIOS):
        for sight in scenario.sights:
            chunks = _chunks(fleets(scale, scenario.fleets)) if sight != "logs" else []
            made += [partial(counted_fleets, place, sight, chunk, seed) for chunk in chunks]
    return made


def weak_fleets(numbers: range, seed: int) -> list[Row]:
    """Some fleets whose logs are halved."""
    return [row for number in numbers for row in weak_trial(number, seed)]


def counted_fleets(place: int, sight: Sight, numbers: range, seed: int) -> list[Row]:
    """Some counted fleets of one scenario."""
    return [row for number in numbers for row in counted_trial(SCENARIOS[place], sight, number, seed)]


def changed_fleets(numbers: range, seed: int) -> list[Row]:
    """Some fleets and what holds for them whatever their numbers."""
    found = [holds(varied_fleet(number, seed)) for number in numbers]
    return [{"property": name, "holds": held} for each in found for name, held in each.items()]


def results(scale: float, seed: int, workers: int, told: Callable[[str], None]) -> dict[str, Any]:
    """All of it, as the table that the notebook reads."""
    began, made = time.perf_counter(), tasks(scale, seed)
    rows: list[Row] = []
    # One thread a process: as many processes as cores would otherwise each take them all.
    os.environ["POLARS_MAX_THREADS"] = "1"
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(each) for each in made]
        for done, each in enumerate(as_completed(waiting), 1):
            rows += each.result()
            told(f"\r{done} of {len(made)} parts, {time.perf_counter() - began:.0f} s")
    return {
        "seed": seed,
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        **counted_up(rows),
    }


def counted_up(rows: list[Row]) -> dict[str, Any]:
    """`fleets`, `acceptance` and `summary` of the rows of all trials."""
    checks = [row for row in rows if "property" in row]
    trials = table([row for row in rows if "property" not in row])
    trials = trials.sort("scenario", "sight", "hours", "fleet", maintain_order=True)
    summary = summarised(trials)
    count = Counter(str(row["property"]) for row in checks)
    held = Counter(str(row["property"]) for row in checks if row["holds"])
    return {
        "fleets": trials.select("scenario", "sight", "fleet").n_unique() + max(count.values(), default=0),
        "acceptance": acceptance(summary, {name: (held[name], count[name]) for name in sorted(count)}),
        "summary": [{name: _rounded(value) for name, value in row.items()} for row in summary.iter_rows(named=True)],
    }


def _chunks(count: int) -> list[range]:
    return [range(begin, min(begin + _CHUNK, count)) for begin in range(0, count, _CHUNK)]


def _rounded(value: Any) -> Any:
    return round(value, 5) if isinstance(value, float) else value
