"""Growth of memory: told where its slope is sure and seen long enough, without a cause, never beyond what was seen."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest

from infer_diag import schema
from infer_diag.attribution.memory_growth import memory_growth
from infer_diag.diagnose import diagnose
from infer_diag.diagnose.finding import Finding
from infer_diag.recording import Recording, Source

GIB = float(1 << 30)
BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
STEP_MIN = 10


def remembered(count: int, seed: int, phi: float = 0.9, spread: float = 0.05) -> np.ndarray:
    """An autocorrelated series about 0, in GiB."""
    noise = np.random.default_rng(seed).normal(0, spread, count)
    values = np.empty(count)
    level = 0.0
    for place in range(count):
        level = phi * level + noise[place]
        values[place] = level
    return values


def days(number: float) -> np.ndarray:
    """Hours of samples that span so many days."""
    return np.arange(0, number * 24, STEP_MIN / 60)


def sampled(hours: np.ndarray, used: np.ndarray, size: float | None = 80.0) -> Recording:
    rows = {
        "time": [BEGIN + timedelta(hours=float(hour)) for hour in hours],
        "gpu": ["0"] * len(hours),
        "used_bytes": (used * GIB).astype(np.int64),
        "free_bytes": None if size is None else ((size - used) * GIB).astype(np.int64),
    }
    return recording("gpu_samples", rows)


def recording(name: str, rows: dict[str, Any]) -> Recording:
    columns = schema.FRAMES[name]
    count = len(rows["time"])
    made = {"source_id": [0] * count, "line": list(range(1, count + 1)), **rows}
    whole = {
        column: made.get(column) if made.get(column) is not None else [None] * count
        for column in columns.column_names()
    }
    frame = columns.validate(pl.DataFrame(whole, strict=False), cast=True)
    return Recording(sources=(Source("a.log", "pytorch", "pytorch", lines=99),), **{name: frame})  # type: ignore[arg-type]


def told(subject: Recording) -> Finding | None:
    found = [each for each in diagnose(subject).findings if each.id.startswith("memory.growth")]
    return found[0] if found else None


def test_a_steady_rise_over_days_is_growth_and_names_no_cause() -> None:
    hours = days(3)
    found = told(sampled(hours, 40 + 0.2 * hours + remembered(len(hours), 1)))
    assert found is not None and found.id == "memory.growth"
    assert "MiB per hour (95 % interval" in found.sentence
    assert "one process life of up to" in found.sentence
    assert "do not tell a cache that fills from a leak" in found.sentence


@pytest.mark.parametrize("seed", range(5))
def test_the_planted_slope_lies_in_the_interval(seed: int) -> None:
    hours = days(3)
    (row,) = memory_growth(sampled(hours, 40 + 0.2 * hours + remembered(len(hours), seed))).iter_rows(named=True)
    assert row["lower_bytes_per_s"] * 3600 <= 0.21 * GIB and row["upper_bytes_per_s"] * 3600 >= 0.19 * GIB


def test_memory_without_a_trend_is_not_found_growing() -> None:
    hours = days(3)
    wrong = 0
    for seed in range(20):
        used = 40 + 40 * remembered(len(hours), seed)
        found = told(sampled(hours, np.clip(used, 1, 79)))
        wrong += found is not None and found.id == "memory.growth"
    assert wrong <= 2


@pytest.mark.parametrize("number", [0.2, 0.9])
def test_less_than_a_day_leaves_it_undetermined(number: float) -> None:
    hours = days(number)
    found = told(sampled(hours, 40 + 30 * hours / hours[-1]))
    assert found is not None and found.id == "memory.growth_undetermined"


def test_missing_samples_leave_it_undetermined() -> None:
    hours = days(3)
    there = (hours < 20) | (hours > 60)
    found = told(sampled(hours[there], (40 + 0.3 * hours)[there]))
    assert found is not None and found.id == "memory.growth_undetermined"


def test_a_step_is_no_trend() -> None:
    hours = days(3)
    found = told(sampled(hours, np.where(hours < 40, 30.0, 45.0) + remembered(len(hours), 2, spread=0.01)))
    assert found is None or found.id == "memory.growth_undetermined"


def test_a_level_that_falls_by_half_begins_another_life() -> None:
    hours = days(9)
    used = 30 + 0.3 * (hours % 72) + remembered(len(hours), 3)
    used[hours % 72 < 0.1] = 10
    (row,) = memory_growth(sampled(hours, used)).iter_rows(named=True)
    assert row["spell_count"] == 3
    assert row["longest_s"] < 73 * 3600


def test_full_is_told_within_the_lives_that_were_seen_and_bounded_beyond() -> None:
    hours = days(9)
    used = 30 + 0.65 * (hours % 72) + remembered(len(hours), 4, phi=0.0, spread=0.3)
    used[hours % 72 < 0.1] = 10
    seen = told(sampled(hours, np.minimum(used, 76.0), size=76.0))
    beyond = told(sampled(days(3), 30 + 0.2 * days(3)))
    assert seen is not None and beyond is not None
    assert "reaches the device's 76 GiB 7" in seen.sentence
    assert seen.status == "modelled"
    assert beyond.status == "bounded"
    assert "are not full before 71 h 50 min after a start" in beyond.sentence


def test_a_curve_that_levels_off_is_never_full() -> None:
    hours = days(4)
    found = told(sampled(hours, 30 + 20 * (1 - np.exp(-hours / 50)) + remembered(len(hours), 5, phi=0.3, spread=0.02)))
    assert found is not None and found.id == "memory.growth"
    assert found.severity == "low"
    assert "levels off fits best and never reaches the device's 80 GiB" in found.sentence


def test_without_the_size_nothing_is_said_of_full() -> None:
    found = told(sampled(days(3), 30 + 0.2 * days(3), size=None))
    assert found is not None
    assert "when the device is full is not told" in found.sentence


def test_counters_of_an_allocator_tell_what_grows() -> None:
    hours = days(3)
    rows = {
        "time": [BEGIN + timedelta(hours=float(hour)) for hour in hours],
        "gpu": ["0"] * len(hours),
        "reserved_bytes": (30 + 0.2 * hours) * GIB,
        "allocated_bytes": (28 + remembered(len(hours), 6, phi=0.0)) * GIB,
        "inactive_split_bytes": (1 + 0.2 * hours) * GIB,
    }
    found = told(recording("memory_stats", rows))
    assert found is not None and found.id == "memory.growth"
    assert "Of it idle pieces beside live blocks by" in found.sentence
    assert "live tensors grow" not in found.sentence
