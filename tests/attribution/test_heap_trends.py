"""Growth, avalanches and compactions on series whose truth is planted."""

from __future__ import annotations

import math

import numpy as np
import pytest

from infer_diag.attribution.heap.avalanche import avalanche
from infer_diag.attribution.heap.compaction import compaction_effect
from infer_diag.attribution.heap.growth import Spell, growth, zero_failure_upper_per_h
from infer_diag.attribution.heap.series import autocorrelation, chi_square_tail, effective_count, t_quantile


def wander(generator: np.random.Generator, count: int, phi: float, spread: float) -> np.ndarray:
    noise, found = generator.normal(0, spread * math.sqrt(1 - phi**2), count), np.empty(count)
    value = generator.normal(0, spread)
    for place in range(count):
        value = phi * value + noise[place]
        found[place] = value
    return found


def spells(seed: int, curve: str = "line", phi: float = 0.6, spread: float = 0.02, slope: float = 0.005) -> list[Spell]:
    generator = np.random.default_rng(seed)
    hours = np.linspace(0, 72, 289)[1:]
    level = 0.05 + slope * hours if curve == "line" else 0.05 + 0.62 * -np.expm1(-hours / 12)
    return [Spell(hours * 3600, level + wander(generator, len(hours), phi, spread)) for _ in range(3)]


def test_a_planted_line_is_found_with_its_crossing() -> None:
    told = growth(spells(1), threshold=0.3)
    assert told.curve == "line"
    assert told.slope_per_h == pytest.approx(0.005, rel=0.1)
    assert told.lower_per_h is not None and told.upper_per_h is not None
    assert told.lower_per_h < 0.005 < told.upper_per_h
    assert told.reached_s == pytest.approx(50 * 3600, rel=0.1)
    assert told.status == "modelled"
    assert told.lower_s is not None and told.upper_s is not None and told.lower_s < 50 * 3600 < told.upper_s


def test_a_curve_that_levels_off_below_the_threshold_never_reaches_it() -> None:
    told = growth(spells(2, "saturating"), threshold=0.8)
    assert told.curve == "saturating"
    assert told.reached_s == math.inf
    assert told.never_ratio is not None and told.never_ratio > 0.9
    assert (told.status, told.upper_s) == ("bounded", None)
    near = growth(spells(2, "saturating"), threshold=0.5)
    assert near.reached_s == pytest.approx(-12 * math.log1p(-0.45 / 0.62) * 3600, rel=0.15)


def test_nothing_is_said_beyond_the_longest_life() -> None:
    told = growth(spells(3), threshold=0.9)
    assert (told.status, told.reached_s, told.upper_s) == ("bounded", None, None)
    assert told.lower_s == told.longest_s == 72 * 3600


def test_too_few_lives_or_values_are_refused_with_what_would_tell() -> None:
    few = growth(spells(4)[:2], threshold=0.5)
    assert (few.status, few.slope_per_h) == ("not_identifiable", None)
    assert "2" in few.reason and few.missing_source
    # Each life keeps to its own level, so its values repeat one another.
    lives = [Spell(np.arange(12) * 3600.0, np.full(12, level) + 1e-3 * np.arange(12) % 2) for level in (0.2, 0.5, 0.4)]
    sticky = growth(lives, threshold=0.5)
    assert (sticky.status, sticky.lower_per_h) == ("not_identifiable", None)
    assert sticky.effective_count < 10


def test_block_means_cover_where_neighbours_are_alike() -> None:
    """No trend and AR(0.9): the interval holds 0 in about 95 of 100 cases, not in 33 as that of raw points would."""
    held = 0
    for seed in range(40):
        told = growth(spells(seed, phi=0.9, spread=0.05, slope=0.0), threshold=9.0)
        assert told.lower_per_h is not None and told.upper_per_h is not None
        held += told.lower_per_h <= 0 <= told.upper_per_h
    assert held >= 34


def test_small_numbers_of_statistics() -> None:
    assert [t_quantile(freedom) for freedom in (4, 6, 10, 30)] == pytest.approx([2.776, 2.447, 2.228, 2.042], abs=2e-3)
    assert chi_square_tail(18.307, 10) == pytest.approx(0.05, abs=1e-3)
    assert chi_square_tail(29.588, 10) == pytest.approx(0.001, rel=0.1)
    assert effective_count(288, 0.9) == pytest.approx(15.16, abs=0.01)
    assert autocorrelation(np.array([1.0, 1.0])) == 0.0
    assert autocorrelation(np.array([1.0, 1.0, -1.0, -1.0]), np.array([2, 4])) == pytest.approx(0.5)
    assert zero_failure_upper_per_h(72) == pytest.approx(0.0417, abs=1e-4)
    assert zero_failure_upper_per_h(0) is None


def test_independent_failures_are_no_avalanche_and_clusters_are() -> None:
    generator = np.random.default_rng(7)
    independent = avalanche(generator.poisson(0.7, 288))
    assert independent.is_clustered is False
    clustered = np.zeros(288)
    for begin in (20, 90, 200):
        clustered[begin : begin + 3] = (6, 7, 4)
    told = avalanche(clustered)
    assert told.is_clustered is True
    assert (told.status, told.fano_ratio is not None and told.fano_ratio > 3) == ("association", True)
    assert told.branching_ratio is not None and 0.4 < told.branching_ratio < 0.8


def test_bursts_of_load_are_no_avalanche_once_the_load_is_known() -> None:
    generator = np.random.default_rng(8)
    load = np.where(np.arange(288) % 48 < 6, 10.0, 0.2)
    counts = generator.poisson(load * 0.4)
    assert avalanche(counts).is_clustered is True
    told = avalanche(counts, load)
    assert (told.status, told.is_clustered) == ("modelled", False)


def test_few_failures_are_not_identifiable() -> None:
    told = avalanche([0] * 50 + [19])
    assert (told.status, told.is_clustered, told.fano_ratio) == ("not_identifiable", None, None)
    assert avalanche([1] * 20, [0.0] + [1.0] * 19).status == "not_identifiable"


def compacted(effect: float, treat: float, seed: int = 3) -> tuple[list[np.ndarray], list[tuple[int, int]]]:
    """Series that wander about 0.6; the first crossing of 0.72 is treated in a share of them, which lowers the rest."""
    generator = np.random.default_rng(seed)
    series, treated = [], []
    for which in range(300):
        values = 0.6 + wander(generator, 160, 0.9, 0.13)
        crossings = [at for at in range(20, 120) if values[at] >= 0.72 > values[at - 1]]
        if crossings and generator.random() < treat:
            treated.append((which, crossings[0]))
            values[crossings[0] + 1 :] += effect
        series.append(values)
    return series, treated


@pytest.mark.parametrize("effect", [0.0, -0.15])
def test_matched_crossings_take_the_fall_that_comes_by_itself_away(effect: float) -> None:
    series, treated = compacted(effect, treat=0.5)
    told = compaction_effect(series, treated, threshold=0.72, window=3, washout=20)
    assert told.status == "modelled" and not told.is_provisional
    assert told.naive is not None and told.naive < effect - 0.02
    assert told.lower is not None and told.upper is not None
    assert told.lower <= effect <= told.upper
    assert told.upper - told.lower < 0.1


def test_without_controls_nothing_is_causal_and_few_treatments_are_refused() -> None:
    series, treated = compacted(0.0, treat=1.0)
    told = compaction_effect(series, treated, threshold=2.0, window=3, washout=20)
    assert (told.status, told.effect) == ("association", None)
    assert "not causal" in told.reason
    few = compaction_effect(series, treated[:3], threshold=0.72, window=3, washout=20)
    assert (few.status, few.naive) == ("not_identifiable", None)
