"""What chapter 4's notebooks stand on: samples of a peak, planted series, claims, charts, and what a kernel answers."""

from __future__ import annotations

import sys

import pytest

from infer_diag.attribution.heap.avalanche import avalanche
from infer_diag.attribution.heap.compaction import compaction_effect
from infer_diag.attribution.heap.sampling import sampled_peaks
from infer_diag.attribution.what_if import what_if
from infer_diag.charts.memory_studies import (
    allocator_comparison_chart,
    compaction_chart,
    kv_shares_chart,
    sampling_chart,
)
from infer_diag.loaders import load
from infer_diag.probes.memory.madvise import declared_advice, kernel, madvise_answers
from infer_diag.report.claims_memory import (
    KV_PUBLISHED,
    allocator_claims,
    compaction_claims,
    kv_claims,
    peak_sentence,
    sampling_claims,
)
from infer_diag.samples import path
from infer_diag.simulators.allocators.comparison import allocator_comparison
from infer_diag.simulators.kv_placement import kv_placement_table
from infer_diag.simulators.memory_series import (
    TRIGGER_RATIO,
    WASHOUT,
    WINDOW,
    failure_counts,
    triggered_compactions,
)

HEAP = load(path("simulated/growing_caches") / "snapshot.pickle")


def effect(planted: float, seed: int = 0) -> object:
    series, treated = triggered_compactions(planted, seed=seed)
    return compaction_effect(series, treated, threshold=TRIGGER_RATIO, window=WINDOW, washout=WASHOUT)


def test_more_samples_miss_less_and_all_events_miss_nothing() -> None:
    peaks = sampled_peaks(HEAP, [5, 50, 500, 10**6])
    missed = peaks["missed_ratio"].to_list()
    assert missed == sorted(missed, reverse=True)
    assert missed[0] > 0.1 and missed[-1] == 0
    assert (peaks["most_missed_ratio"] >= peaks["missed_ratio"]).all()


def test_the_peak_is_that_of_the_events_themselves() -> None:
    level = peak = 0
    sizes: dict[int, int] = {}
    for action, address, size in HEAP.allocator_events.select("action", "address_id", "requested_bytes").iter_rows():
        if action == "alloc":
            sizes[address] = -(-size // 512) * 512
            level += sizes[address]
        elif action == "free":
            level -= sizes.pop(address)
        peak = max(peak, level)
    # The rest of a large block of up to a MiB stays with it, so a peak of rounded sizes is the least that it can be.
    assert peak <= sampled_peaks(HEAP, [1])["peak_bytes"][0] <= peak + len(sizes) * (1 << 20) + (8 << 20)


@pytest.mark.parametrize("planted", [0.0, -0.15])
def test_only_matched_crossings_find_what_was_planted(planted: float) -> None:
    found = effect(planted)
    assert found.lower <= planted <= found.upper  # type: ignore[attr-defined]
    assert found.naive < planted - 0.05  # type: ignore[attr-defined]


def test_failures_cluster_where_they_were_made_to() -> None:
    seeds = range(6)
    chance = [avalanche(failure_counts(0.0, seed=seed, per_window=0.2)).is_clustered for seed in seeds]
    chain = [avalanche(failure_counts(0.6, seed=seed, per_window=0.2)).is_clustered for seed in seeds]
    assert sum(map(bool, chance)) <= 1 and sum(map(bool, chain)) >= 5


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux is asked")
def test_no_kernel_knows_a_number_without_a_name() -> None:
    answers = madvise_answers()
    assert set(answers.filter(advice="advice 99")["answer"]) == {"EINVAL"}
    assert "MADV_COMPACT" not in declared_advice()[1]
    assert kernel().startswith("Linux ")


def test_every_claim_says_how_its_figure_was_obtained() -> None:
    peaks = sampled_peaks(HEAP, [10, 100])
    runs = allocator_comparison(range(2), cycle_count=60)
    placed = kv_placement_table(range(2), steps=300, warm_up_steps=100)
    claims = [
        *sampling_claims(peaks, 0.6, 0.05, how="simulated"),
        *sampling_claims(peaks, None, None, how="simulated"),
        *allocator_claims(runs, runs),
        *kv_claims(placed),
        *compaction_claims(effect(0.0), what_if(HEAP, "expandable_segments"), madvise_answers(), "here"),  # type: ignore[arg-type]
    ]
    assert {claim.how for claim in claims} <= {"simulated", "modelled", "measured", "not_identifiable"}
    assert all(claim.correction for claim in claims)
    assert "missed on average" in peak_sentence(peaks.row(0, named=True))


def test_the_charts_say_that_their_figures_are_simulated() -> None:
    figures = [
        sampling_chart(sampled_peaks(HEAP, [10, 100]), status="simulated"),
        allocator_comparison_chart(allocator_comparison(range(2), cycle_count=60)),
        kv_shares_chart(kv_placement_table(range(2), steps=300, warm_up_steps=100), KV_PUBLISHED),
        compaction_chart({"planted 0": effect(0.0)}),  # type: ignore[dict-item]
    ]
    for figure in figures:
        assert "simulated" in figure.layout.title.subtitle.text
        assert len(figure.data) >= 2
