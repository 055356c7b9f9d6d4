"""The worked example of the method: one deployment against one reference, to the printed digits."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from infer_diag.attribution.cost.lmdi import dollars, lmdi, log_mean
from infer_diag.attribution.cost.mechanisms import Mechanisms, played
from infer_diag.attribution.cost.shapley import (
    alone,
    grouped,
    interactions,
    last,
    orderings,
    saves_ratio,
    shapley,
)
from infer_diag.attribution.cost.step_time import LinearSteps

HELD_GPU_S = 2 * 168 * 3600.0
CURVE = LinearSteps(fixed_s=0.012, sequence_s=0.0001)
REFERENCE = Mechanisms(
    price_per_gpu_h=2.5,
    start_per_gpu_s=60 / HELD_GPU_S,
    hold_gpu_s=96.0,
    wanted=np.array([48.0]),
    cap_count=60.0,
    curve=CURVE,
    idle_ratio=1.20,
    stall_ratio=1.03,
    padding_ratio=1.01,
    recompute_ratio=1.01,
    mix_ratio=1.4,
)
_BARE = Mechanisms(
    price_per_gpu_h=2.5,
    start_per_gpu_s=420 / HELD_GPU_S,
    oom_start_per_gpu_s=120 / HELD_GPU_S,
    hold_gpu_s=312.0,
    wanted=np.array([34.0]),
    cap_count=30.0,
    curve=CURVE,
    idle_ratio=1.28,
    stall_ratio=1.05,
    padding_ratio=1.06,
    recompute_ratio=1.05,
    mix_ratio=1.4,
)
DEPLOYMENT = _BARE.closed(REFERENCE.log_cost() + math.log(2.3))
GROUPS = {
    "cold": ["cold_start"],
    "batching": ["batching", "idle"],
    "fragmentation": ["fragmentation"],
    "residual": ["residual"],
    "rest": ["hardware", "mix", "undelivered", "prefix_cache", "price"],
}


def test_costs_and_ratio() -> None:
    cost, reference = math.exp(DEPLOYMENT.log_cost()), math.exp(REFERENCE.log_cost())
    assert round(reference, 5) == 0.43109
    assert round(cost, 5) == 0.99151
    assert cost / reference == pytest.approx(2.3, rel=1e-12)
    assert round(math.log(cost / reference), 5) == 0.83291
    assert round(log_mean(cost, reference), 5) == 0.67284
    assert round(DEPLOYMENT.residual_ratio, 4) == 1.1736


@pytest.mark.parametrize(
    ("factor", "here", "there", "log_ratio", "share", "money"),
    [
        ("cold_start", 1.161826, 1.004785, 0.1452, 17.4, 0.0977),
        ("idle", 1.28, 1.20, 0.0645, 7.7, 0.0434),
        ("stall", 1.05, 1.03, 0.0192, 2.3, 0.0129),
        ("step_time", 0.50e-3, 0.35e-3, 0.3567, 42.8, 0.2400),
        ("padding", 1.06, 1.01, 0.0483, 5.8, 0.0325),
        ("recompute", 1.05, 1.01, 0.0388, 4.7, 0.0261),
        ("mix", 1.4, 1.4, 0.0, 0.0, 0.0),
        ("residual", 1.1736, 1.0, 0.1601, 19.2, 0.1077),
    ],
)
def test_measured_chain(factor: str, here: float, there: float, log_ratio: float, share: float, money: float) -> None:
    chain, chain0 = DEPLOYMENT.chain(), REFERENCE.chain()
    assert chain[factor] == pytest.approx(here, abs=5e-5 if factor == "residual" else 5e-7)
    assert chain0[factor] == pytest.approx(there, abs=5e-7)
    found = lmdi(chain, chain0)
    total = sum(found.values())
    cost, reference = math.exp(DEPLOYMENT.log_cost()), math.exp(REFERENCE.log_cost())
    in_dollars = dollars(found, cost, reference)
    assert found[factor] == pytest.approx(log_ratio, abs=5.1e-5)
    assert 100 * found[factor] / total == pytest.approx(share, abs=0.051)
    assert in_dollars[factor] == pytest.approx(money, abs=5.1e-5)
    assert math.prod(chain.values()) == pytest.approx(cost, rel=1e-12)
    assert sum(in_dollars.values()) == pytest.approx(cost - reference, rel=1e-12)
    assert round(cost - reference, 4) == 0.5604


@pytest.mark.parametrize(
    ("cause", "phi", "factor", "share", "money", "least", "most", "by_itself", "saves"),
    [
        ("cold", 0.1227, 1.131, 14.7, 0.0826, 13.2, 16.3, 1.116, 12.7),
        ("batching", 0.2610, 1.298, 31.3, 0.1756, 15.9, 46.8, 1.477, 12.4),
        ("fragmentation", 0.2891, 1.335, 34.7, 0.1945, 17.7, 51.7, 1.499, 15.9),
        ("residual", 0.1601, 1.174, 19.2, 0.1077, 19.2, 19.2, 1.174, 14.8),
    ],
)
def test_shapley_on_the_logarithm(
    cause: str,
    phi: float,
    factor: float,
    share: float,
    money: float,
    least: float,
    most: float,
    by_itself: float,
    saves: float,
) -> None:
    pair = grouped(played(DEPLOYMENT, REFERENCE), GROUPS)
    found = shapley(pair)
    cost, reference = math.exp(DEPLOYMENT.log_cost()), math.exp(REFERENCE.log_cost())
    low, high = orderings(pair)[cause]
    assert found[cause] == pytest.approx(phi, abs=5.1e-5)
    assert math.exp(found[cause]) == pytest.approx(factor, abs=5.1e-4)
    assert 100 * found[cause] / pair.total == pytest.approx(share, abs=0.051)
    assert dollars(found, cost, reference)[cause] == pytest.approx(money, abs=5.1e-5)
    assert 100 * low / pair.total == pytest.approx(least, abs=0.051)
    assert 100 * high / pair.total == pytest.approx(most, abs=0.051)
    assert math.exp(alone(pair)[cause]) == pytest.approx(by_itself, abs=5.1e-4)
    assert 100 * saves_ratio(last(pair)[cause]) == pytest.approx(saves, abs=0.051)


def test_sum_interactions_and_reconciliation() -> None:
    pair = grouped(played(DEPLOYMENT, REFERENCE), GROUPS)
    found = shapley(pair)
    assert sum(found.values()) == pytest.approx(0.8329, abs=5e-5)
    assert found["rest"] == 0.0
    between = interactions(pair)
    assert between["cold", "fragmentation"] == pytest.approx(0.026, abs=5.1e-4)
    assert between["batching", "fragmentation"] == pytest.approx(-0.258, abs=5.1e-4)
    moved = lmdi(DEPLOYMENT.chain(), REFERENCE.chain())["cold_start"] - found["cold"]
    assert moved == pytest.approx(0.0225, abs=5.1e-5)


def test_two_redundant_limits_share_the_blame_and_neither_alone_would_help() -> None:
    limited = replace(REFERENCE, wanted=np.array([30.0]), cap_count=30.0)
    pair = played(limited, REFERENCE)
    found, gained = shapley(pair), last(pair)
    assert found["batching"] == pytest.approx(found["fragmentation"], rel=1e-9)
    assert found["batching"] > 0.1
    assert gained["batching"] == pytest.approx(0.0, abs=1e-12)
    assert gained["fragmentation"] == pytest.approx(0.0, abs=1e-12)
