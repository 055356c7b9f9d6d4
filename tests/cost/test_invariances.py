"""What must hold for any two deployments, whatever their numbers."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infer_diag.attribution.cost import CAUSES
from infer_diag.attribution.cost.lmdi import dollars, lmdi, log_mean, sector_dollars
from infer_diag.attribution.cost.mechanisms import Mechanisms, aligned, middle, played
from infer_diag.attribution.cost.shapley import Game, game, grouped, last, orderings, shapley, with_factors
from infer_diag.attribution.cost.step_time import LinearSteps

positive = st.floats(1e-6, 1e6)
loss = st.floats(1.0, 4.0)


@st.composite
def mechanisms(draw: st.DrawFn) -> Mechanisms:
    hold = draw(st.floats(1.0, 400.0))
    wanted = np.array(sorted(draw(st.lists(st.floats(1.0, 256.0), min_size=4, max_size=4))))
    return Mechanisms(
        price_per_gpu_h=draw(st.floats(0.1, 20.0)),
        gpu_count=draw(st.sampled_from([1, 2, 4, 8])),
        start_per_gpu_s=draw(st.floats(0.0, 0.4)) / hold,
        oom_start_per_gpu_s=draw(st.floats(0.0, 0.4)) / hold / 4,
        hold_gpu_s=hold / 4,
        idle_ratio=draw(loss),
        stall_ratio=draw(loss),
        wanted=wanted,
        cap_count=draw(st.one_of(st.just(math.inf), st.floats(1.0, 256.0))),
        curve=LinearSteps(*(draw(st.floats(1e-6, 1e-1)) for _ in range(3)), draw(st.floats(0, 1e-6))),
        context_tokens=draw(st.floats(0.0, 8000.0)),
        prefill_ratio=draw(st.floats(0.0, 20.0)),
        prompt_token_weight=draw(st.floats(0.0, 1.0)),
        padding_ratio=draw(loss),
        recompute_ratio=draw(loss),
        undelivered_ratio=draw(loss),
        hit_ratio=draw(st.floats(0.05, 1.0)),
        mix_ratio=draw(loss),
        residual_ratio=draw(st.floats(0.3, 3.0)),
    )


@settings(max_examples=60, deadline=None)
@given(mechanisms(), mechanisms())
def test_parts_add_up_and_swapping_negates(one: Mechanisms, other: Mechanisms) -> None:
    ratio = one.log_cost() - other.log_cost()
    there = shapley(played(one, other))
    back = shapley(played(other, one))
    assert set(there) == set(CAUSES)
    assert math.isclose(sum(there.values()), ratio, rel_tol=1e-9, abs_tol=1e-12)
    for cause, value in there.items():
        assert math.isclose(value, -back[cause], rel_tol=1e-9, abs_tol=1e-12)
    cost, reference = math.exp(one.log_cost()), math.exp(other.log_cost())
    assert math.isclose(sum(dollars(there, cost, reference).values()), cost - reference, rel_tol=1e-9, abs_tol=1e-12)
    chain = lmdi(one.chain(), other.chain())
    assert math.isclose(sum(chain.values()), ratio, rel_tol=1e-9, abs_tol=1e-12)


@settings(max_examples=30, deadline=None)
@given(mechanisms())
def test_a_deployment_against_itself_is_exactly_nothing(one: Mechanisms) -> None:
    pair = played(one, one)
    assert set(shapley(pair).values()) == {0.0}
    assert set(last(pair).values()) == {0.0}
    assert set(orderings(pair).values()) == {(0.0, 0.0)}


@settings(max_examples=30, deadline=None)
@given(mechanisms(), mechanisms(), st.floats(0.01, 100.0))
def test_price_and_currency_scale_dollars_and_leave_shares(one: Mechanisms, other: Mechanisms, factor: float) -> None:
    before = shapley(played(one, other))
    dearer = [replace(each, price_per_gpu_h=each.price_per_gpu_h * factor) for each in (one, other)]
    after = shapley(played(*dearer))
    money = dollars(before, math.exp(one.log_cost()), math.exp(other.log_cost()))
    more = dollars(after, *(math.exp(each.log_cost()) for each in dearer))
    rounding = 1e-12 * max(sum(map(abs, more.values())), 1.0)
    for cause in CAUSES:
        assert math.isclose(before[cause], after[cause], rel_tol=1e-9, abs_tol=1e-12)
        assert math.isclose(money[cause] * factor, more[cause], rel_tol=1e-8, abs_tol=rounding)


@settings(max_examples=30, deadline=None)
@given(mechanisms(), mechanisms())
def test_causes_of_one_side_only_fall_to_the_residual(one: Mechanisms, other: Mechanisms) -> None:
    blind = replace(one, unknown=frozenset({"cold_start", "idle", "batching"}))
    here, there = aligned(blind, other)
    found = shapley(played(here, there))
    assert math.isclose(sum(found.values()), one.log_cost() - other.log_cost(), rel_tol=1e-9, abs_tol=1e-12)
    assert found["cold_start"] == found["idle"] == 0.0
    assert aligned(one, other) == (one, other)


@settings(max_examples=20, deadline=None)
@given(mechanisms(), mechanisms(), mechanisms())
def test_the_middle_does_not_hang_on_the_order_of_peers(one: Mechanisms, other: Mechanisms, third: Mechanisms) -> None:
    costs = {round(middle(peers).log_cost(), 9) for peers in itertools.permutations([one, other, third])}
    assert len(costs) == 1
    assert math.isclose(middle([one, one, one]).log_cost(), one.log_cost(), rel_tol=1e-9)


def by_definition(played_game: Game) -> dict[str, float]:
    """Mean over all orders of what each cause adds when its turn comes."""
    names, total = played_game.names, dict.fromkeys(played_game.names, 0.0)
    orders = list(itertools.permutations(range(len(names))))
    for order in orders:
        place = 0
        for j in order:
            total[names[j]] += float(played_game.table[place | 1 << j] - played_game.table[place])
            place |= 1 << j
    return {name: value / len(orders) for name, value in total.items()}


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=16, max_size=16))
def test_shapley_is_the_mean_over_orders(values: list[float]) -> None:
    made = Game(("a", "b", "c", "d"), np.array(values))
    expected = by_definition(made)
    found = shapley(made)
    for name in made.names:
        assert math.isclose(found[name], expected[name], rel_tol=1e-9, abs_tol=1e-9)
    both = shapley(grouped(made, {"ab": ["a", "b"], "c": ["c"], "d": ["d"]}))
    assert math.isclose(sum(both.values()), made.total, rel_tol=1e-9, abs_tol=1e-9)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(-3, 3), min_size=5, max_size=5))
def test_without_interaction_shapley_is_lmdi(logs: list[float]) -> None:
    names = [f"factor{k}" for k in range(len(logs))]
    ratios = dict(zip(names, logs, strict=True))
    whole = game(names, lambda chosen: sum(ratios[name] for name in chosen))
    quick = with_factors(
        game(names[:2], lambda chosen: sum(ratios[name] for name in chosen)), dict(list(ratios.items())[2:])
    )
    chain = lmdi({name: math.exp(value) for name, value in ratios.items()}, dict.fromkeys(names, 1.0))
    for name in names:
        assert math.isclose(shapley(whole)[name], chain[name], rel_tol=1e-9, abs_tol=1e-9)
        assert math.isclose(shapley(quick)[name], chain[name], rel_tol=1e-9, abs_tol=1e-9)


@settings(max_examples=60, deadline=None)
@given(positive, positive)
def test_log_mean_lies_between_and_is_symmetric(one: float, other: float) -> None:
    found = log_mean(one, other)
    assert math.isclose(found, log_mean(other, one), rel_tol=1e-9)
    assert min(one, other) * (1 - 1e-9) <= found <= max(one, other) * (1 + 1e-9)
    assert log_mean(one, one) == pytest.approx(one, rel=1e-15)


@settings(max_examples=20, deadline=None)
@given(mechanisms(), mechanisms(), st.floats(0.05, 0.95))
def test_splitting_a_deployment_into_sectors_changes_nothing(one: Mechanisms, other: Mechanisms, share: float) -> None:
    chains = one.chain(), other.chain()
    whole = sector_dollars([chains[0]], [chains[1]])
    parts = [[{"share": weight, **chain} for weight in (share, 1 - share)] for chain in chains]
    split = sector_dollars(*parts)
    assert split.pop("share") == pytest.approx(0.0, abs=1e-9)
    for name, value in whole.items():
        assert math.isclose(split[name], value, rel_tol=1e-8, abs_tol=1e-12)


def test_a_sector_that_appears_takes_its_whole_cost() -> None:
    new = sector_dollars(
        [{"share": 0.4, "price": 5.0}, {"share": 0.6, "price": 2.0}],
        [{"share": 0.0, "price": 5.0}, {"share": 1.0, "price": 2.0}],
    )
    assert sum(new.values()) == pytest.approx(0.4 * 5 + 0.6 * 2 - 2.0, rel=1e-12)
    assert new["price"] == pytest.approx(0.0, abs=1e-12)


def test_what_cannot_be_computed_is_refused() -> None:
    with pytest.raises(ValueError, match="same factors"):
        lmdi({"a": 1.0}, {"b": 1.0})
    with pytest.raises(ValueError, match="positive"):
        lmdi({"a": 0.0}, {"a": 1.0})
    with pytest.raises(ValueError, match="at most 12"):
        game([str(k) for k in range(13)], lambda chosen: 0.0)
    with pytest.raises(ValueError, match="all of the time"):
        Mechanisms(start_per_gpu_s=1.0, hold_gpu_s=2.0).log_cost()
    with pytest.raises(ValueError, match="exactly one group"):
        grouped(game(["a", "b"], lambda chosen: float(len(chosen))), {"a": ["a"]})
