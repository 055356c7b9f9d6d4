"""KV placement against the figures of the PagedAttention paper, over seeds, and against what must hold of any run."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from infer_diag.errors import DiagError, UnknownNameError
from infer_diag.simulators.kv_placement import kv_placement, kv_placement_table, sharegpt_like

SEEDS = range(10)
PAPER_TOKEN_RATIO = {"max": 0.204, "pow2": 0.268, "oracle": 0.382, "paged": 0.963}


@pytest.fixture(scope="module")
def runs() -> pl.DataFrame:
    return kv_placement_table(SEEDS)


def mean(runs: pl.DataFrame, placement: str, column: str) -> float:
    value = runs.filter(pl.col("placement") == placement)[column].mean()
    assert isinstance(value, float)
    return value


@pytest.mark.parametrize(("placement", "told"), PAPER_TOKEN_RATIO.items())
def test_the_share_of_slots_that_hold_tokens_is_the_papers(runs: pl.DataFrame, placement: str, told: float) -> None:
    assert abs(mean(runs, placement, "token_ratio") - told) <= 0.06


def test_pages_batch_as_many_times_more_as_in_the_paper(runs: pl.DataFrame) -> None:
    batches = {placement: mean(runs, placement, "batch_count") for placement in PAPER_TOKEN_RATIO}
    assert batches["paged"] / batches["max"] == pytest.approx(4.3, abs=0.6)
    assert batches["paged"] / batches["oracle"] == pytest.approx(2.2, abs=0.5)
    assert batches["max"] == 8


def test_the_shares_add_up_and_pages_have_no_external_waste(runs: pl.DataFrame) -> None:
    names = ("token_ratio", "reserved_ratio", "internal_ratio", "external_ratio", "free_ratio")
    assert np.allclose(runs.select(pl.sum_horizontal(names)).to_series(), 1)
    assert runs.select(pl.min_horizontal(names).min()).item() >= -1e-9
    pages = runs.filter(pl.col("placement").is_in(["paged", "paged_chunked"]))
    assert (pages["external_ratio"] == 0).all()
    assert (pages["reserved_ratio"] == 0).all()


def test_chunks_change_no_waste(runs: pl.DataFrame) -> None:
    whole, chunked = (runs.filter(pl.col("placement") == name)["internal_ratio"] for name in ("paged", "paged_chunked"))
    assert abs(whole.mean() - chunked.mean()) < 0.002  # type: ignore[operator]


@pytest.mark.parametrize("block_tokens", [1, 8, 16, 64, 128])
def test_a_sequence_wastes_half_a_page_on_average(block_tokens: int) -> None:
    prompt, output = sharegpt_like(1)
    shares = kv_placement(prompt, output, "paged", block_tokens=block_tokens).shares
    wasted = shares.internal_ratio * 16384 / shares.batch_count
    assert wasted == pytest.approx((block_tokens - 1) / 2, abs=0.08 * block_tokens)


def test_what_the_oracle_reserves_is_all_used() -> None:
    prompt, output = np.full(50, 100, np.int64), np.full(50, 156, np.int64)
    shares = kv_placement(prompt, output, "oracle", slots=1024, max_tokens=512).shares
    assert shares.batch_count == pytest.approx(4)
    assert (shares.external_ratio, shares.internal_ratio) == (pytest.approx(0), 0)


def test_the_blocks_at_the_end_hold_what_the_shares_say() -> None:
    prompt, output = sharegpt_like(2)
    for placement in ("paged", "oracle"):
        blocks = kv_placement(prompt, output, placement).blocks
        active = blocks.filter(pl.col("state") == "active")
        assert active["block_id"].is_unique().all()
        assert 0.2 * 16384 < active["filled_tokens"].sum() <= 16384
    assert len(kv_placement(prompt, output, "paged").blocks) == 1024


def test_the_same_seed_gives_the_same_run(runs: pl.DataFrame) -> None:
    assert kv_placement_table([3]).equals(runs.filter(pl.col("seed_id") == 3))


def test_what_does_not_fit_is_refused() -> None:
    one, long = np.ones(3, np.int64), np.full(3, 5000, np.int64)
    with pytest.raises(DiagError, match="fit into max_tokens"):
        kv_placement(one, long, "paged")
    with pytest.raises(DiagError, match="fit into max_tokens"):
        kv_placement(one[:0], one[:0], "max")
    with pytest.raises(UnknownNameError, match="no placement named 'pages'"):
        kv_placement(one, one, "pages")  # type: ignore[arg-type]
