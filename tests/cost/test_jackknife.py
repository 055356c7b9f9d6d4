"""The intervals cover what they promise, and short logs get none."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from infer_diag.attribution.cost.batch_sampling import step_variance
from infer_diag.attribution.cost.jackknife import (
    Interval,
    block_jackknife,
    block_of,
    blocks_of_days,
    discovered,
    effective_count,
    mean_interval,
    p_value,
    verdict,
)
from infer_diag.attribution.cost.step_time import LinearSteps, Sampled, fitted, prompt_token_weight, terms


def ratios_of(rng: np.random.Generator, hours: int, phi: float) -> tuple[np.ndarray, np.ndarray]:
    """Held and delivered per hour: a log ratio that wanders as an AR(1) series around 0."""
    noise = rng.normal(size=hours) * 0.3 * math.sqrt(1 - phi**2)
    level = np.empty(hours)
    level[0] = rng.normal() * 0.3
    for hour in range(1, hours):
        level[hour] = phi * level[hour - 1] + noise[hour]
    delivered = np.exp(rng.normal(size=hours) * 0.2)
    return delivered * np.exp(level - 0.045), delivered


def test_the_block_jackknife_covers_and_independent_sampling_would_not() -> None:
    rng = np.random.default_rng(7)
    inside = narrow = 0
    runs = 300
    for _ in range(runs):
        held, delivered = ratios_of(rng, 168, 0.8)

        def log_ratio(keep: np.ndarray) -> np.ndarray:
            return np.array([math.log(held[keep].sum() / delivered[keep].sum())])  # noqa: B023

        value, lower, upper = block_jackknife(log_ratio, 168)
        inside += bool(lower[0] <= 0 <= upper[0])
        plain = 1.96 * (np.log(held / delivered)).std() / math.sqrt(168)
        narrow += bool(abs(value[0]) <= plain)
    assert 0.88 <= inside / runs <= 0.98
    assert narrow / runs < 0.75


def test_blocks_are_contiguous_and_of_whole_days() -> None:
    assert block_of(16).tolist() == sorted(list(range(8)) * 2)
    assert np.bincount(block_of(13, 6)).tolist() == [2, 2, 2, 2, 2, 3]
    assert [blocks_of_days(days * 86_400.0) for days in (3, 7, 8, 14, 30)] == [None, 7, 8, 7, 6]


def test_a_wandering_series_counts_less_than_its_length() -> None:
    rng = np.random.default_rng(1)
    white = rng.normal(size=400)
    slow = np.convolve(rng.normal(size=460), np.ones(60) / 60, mode="valid")
    assert effective_count(white) > 250
    assert effective_count(slow) < 20
    assert effective_count(np.ones(50)) == 50.0
    assert effective_count(np.ones(2)) == 0.0
    assert [verdict(n) for n in (9.9, 10.0, 29.9, 30.0)] == ["refused", "provisional", "provisional", "normal"]


def test_false_discoveries_are_held_down_over_a_fleet() -> None:
    rng = np.random.default_rng(3)
    nothing = rng.uniform(size=81).tolist()
    assert sum(discovered(nothing)) <= 2
    assert discovered([*nothing, 1e-9, 1e-8])[-2:] == [True, True]
    assert discovered([]) == []
    assert p_value(0.3, 0.1, 0.5, 8) < 0.05 < p_value(0.1, -0.1, 0.3, 8)
    assert p_value(0.0, 0.0, 0.0, 8) == 1.0


def test_few_deployments_have_a_mean_and_no_interval() -> None:
    few, many = mean_interval([1.0, 2.0, 3.0, 4.0]), mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert few == Interval(2.5)
    assert not few.excludes_zero
    assert many.value == 3.0
    assert many.excludes_zero


def windows_of(rng: np.random.Generator, speed: float, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    batch = rng.uniform(low, high, size=150)
    steps = rng.uniform(1000, 4000, size=150)
    decode, context = steps * batch, rng.uniform(500, 1500, size=150)
    prefill = decode * rng.uniform(0.5, 3.0, size=150)
    true_s = steps * 0.012 + prefill * 4e-5 + decode * (8e-5 + 3e-8 * context)
    return terms(true_s * speed * np.exp(rng.normal(size=150) * 0.02), decode, prefill, batch, context), batch


def test_the_step_curve_is_found_again_and_a_throttled_deployment_does_not_bend_it() -> None:
    rng = np.random.default_rng(11)
    made = [
        windows_of(rng, speed, low, high) for speed, low, high in [(1, 20, 60), (1, 10, 40), (1.35, 5, 30), (1, 15, 50)]
    ]
    curve = fitted([Sampled(rows, batch) for rows, batch in made])
    assert curve is not None
    for batch in (8.0, 20.0, 50.0):
        truth = 0.012 + batch * (8e-5 + 3e-8 * 1000)
        assert float(curve.step_s(np.array([batch]), 1000.0)[0]) == pytest.approx(truth, rel=0.06)
    assert curve.prefill_token_s == pytest.approx(4e-5, rel=0.1)
    weight = prompt_token_weight(curve, 32.0, 1000.0)
    assert weight == pytest.approx(4e-5 / (0.012 / 32 + 11e-5), rel=0.1)
    demand = np.array([20 / float(curve.step_s(np.array([20.0]), 1000.0)[0])])
    assert curve.batch_for(demand, 1000.0)[0] == pytest.approx(20.0, rel=1e-9)
    assert np.isinf(curve.batch_for(np.array([1e9]), 1000.0)[0])


def test_a_batch_that_a_gauge_samples_does_not_draw_the_fixed_part_of_a_step_to_nothing() -> None:
    rng = np.random.default_rng(23)
    made = []
    for low, high in [(6, 16), (10, 40), (8, 24)]:
        rows, batch = windows_of(rng, 1.0, low, high)
        error = 0.25 * rows[:, 0].mean()
        made.append(Sampled(rows, batch, len(rows) * error**2))
        made[-1].rows[:, 0] += error * rng.normal(size=len(rows))
    plain, curve = fitted([replace(each, noise=0.0) for each in made]), fitted(made)
    assert plain is not None
    assert curve is not None
    assert plain.fixed_s < 0.9 * 0.012
    assert curve.fixed_s == pytest.approx(0.012, rel=0.06)
    assert fitted([replace(each, noise=10 * each.noise) for each in made]) is None
    blind = replace(made[0], noise=4 * float((made[0].rows[:, 0] ** 2).sum()))
    assert fitted([*made, blind]) == curve


def test_the_error_of_a_gauge_is_what_tokens_and_prompts_do_not_tell() -> None:
    rng = np.random.default_rng(7)
    tokens, prompts = rng.uniform(800, 3000, size=500), rng.uniform(2000, 9000, size=500)
    steps = (10 - 3e-5 * prompts - 8e-4 * tokens) / 0.012
    lines = pl.DataFrame({"steps": steps, "tokens": tokens, "prompts": prompts, "stream": 0})
    exact = step_variance(lines)
    assert exact[0] is None
    assert exact[1:].max() < 1e-9  # type: ignore[operator]
    blurred = step_variance(lines.with_columns(steps=pl.col("steps") + 20 * pl.Series(rng.normal(size=500))))
    assert float(blurred.mean()) == pytest.approx(400, rel=0.25)  # type: ignore[arg-type]
    assert step_variance(lines.clear()).is_empty()


def test_batches_too_alike_give_no_curve() -> None:
    rng = np.random.default_rng(5)
    rows, batch = windows_of(rng, 1.0, 30.0, 33.0)
    assert fitted([Sampled(rows, batch)]) is None
    assert fitted([]) is None
    assert prompt_token_weight(LinearSteps(0.01), 8.0, 100.0) is None
