"""Batches by length hold every item once, and waste what the lengths say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer_diag.errors import DiagError
from infer_diag.simulators.length_batches import (
    article_sampler_faults,
    count_batches,
    grouped_batches,
    padded_to,
    ragged_waste,
    token_budget_batches,
    waste,
)
from infer_diag.simulators.serving import lognormal_tokens

TRACES = Path(__file__).parents[2].parent / "shared" / "corpus" / "requests"
lengths = st.lists(st.integers(1, 5000), min_size=1, max_size=200)


@given(lengths, st.integers(1, 40), st.sampled_from([None, 40, 100]), st.sampled_from([None, 7]))
def test_every_item_is_in_one_batch_of_the_size(
    sample: list[int], size: int, window: int | None, seed: int | None
) -> None:
    for batches in (count_batches(sample, size), grouped_batches(sample, size, window=window, seed=seed)):
        assert sorted(np.concatenate(batches)) == list(range(len(sample)))
        assert max(map(len, batches)) <= size
        assert 0 <= waste(sample, batches).ratio < 1
    assert ragged_waste(sample).ratio == 0


@given(lengths, st.integers(5000, 20_000), st.sampled_from([None, 30]))
def test_no_padded_batch_exceeds_the_token_budget(sample: list[int], budget: int, window: int | None) -> None:
    batches = token_budget_batches(sample, budget, window=window)
    known = np.array(sample)
    assert sorted(np.concatenate(batches)) == list(range(len(sample)))
    assert all(len(batch) * known[batch].max() <= budget for batch in batches)


@given(lengths, st.integers(1, 64))
def test_padding_to_a_multiple_only_ever_adds(sample: list[int], multiple: int) -> None:
    more = padded_to(sample, multiple) - np.array(sample)
    assert more.min() >= 0 and more.max() < multiple
    batches = count_batches(sample, 8)
    assert waste(sample, batches, multiple=multiple).computed_tokens >= waste(sample, batches).computed_tokens


@given(lengths, st.integers(1, 40))
def test_sorting_everything_wastes_no_more_than_the_order_of_arrival(sample: list[int], size: int) -> None:
    # Holds of full batches; where the last one is short, its place among the lengths decides.
    sample = sample * size
    assert (
        waste(sample, grouped_batches(sample, size)).computed_tokens
        <= waste(sample, count_batches(sample, size)).computed_tokens
    )


@given(lengths, st.integers(1, 40))
def test_equal_lengths_waste_nothing(sample: list[int], size: int) -> None:
    same = [sample[0]] * len(sample)
    assert waste(same, count_batches(same, size)).ratio == 0


def test_a_static_batch_of_32_loses_about_38_percent_from_cv_half_to_089() -> None:
    """The article's −38 % is what padding does at this batch, if its "variance" is a coefficient of variation."""

    def useful(cv: float) -> float:
        drawn = lognormal_tokens(64_000, mean=1000, cv=cv, seed=1)
        return 1 - waste(drawn, count_batches(drawn, 32)).ratio

    assert 1 - useful(0.89) / useful(0.5) == pytest.approx(0.377, abs=0.015)
    assert useful(0.89) == pytest.approx(0.256, abs=0.015)


def test_exponential_lengths_waste_what_the_formula_says() -> None:
    drawn = np.maximum(1, np.random.default_rng(0).exponential(10_000, 80_000)).astype(np.int64)
    assert waste(drawn, count_batches(drawn, 8)).ratio == pytest.approx(
        1 - 1 / sum(1 / k for k in range(1, 9)), abs=0.005
    )


@pytest.mark.skipif(not TRACES.exists(), reason="the traces are not beside this checkout")
@pytest.mark.parametrize("name", ["conv", "code"])
def test_real_prompts_waste_seventy_percent_in_order_and_little_in_groups(name: str) -> None:
    prompts = pl.read_csv(TRACES / f"azure_2023_{name}.csv")["ContextTokens"].to_numpy()
    prompts = prompts[prompts > 0]
    assert waste(prompts, count_batches(prompts, 32)).ratio == pytest.approx(0.70, abs=0.06)
    assert waste(prompts, grouped_batches(prompts, 32, window=50 * 32)).ratio < 0.10
    assert ragged_waste(prompts).ratio == 0


def test_the_articles_line_fails_twice() -> None:
    first, second = article_sampler_faults()
    assert "multiple values" in first and "batch_size" in first
    assert "missing" in second and "batch_size" in second


@pytest.mark.parametrize(
    "call",
    [
        lambda: count_batches([], 4),
        lambda: count_batches([3, 0], 4),
        lambda: count_batches([3], 0),
        lambda: token_budget_batches([30], 20),
        lambda: grouped_batches([1, 2, 3], 3, window=2),
        lambda: waste([1, 2, 3], [[0, 1]]),
    ],
)
def test_what_cannot_be_batched_is_refused(call: object) -> None:
    with pytest.raises(DiagError):
        call()  # type: ignore[operator]
