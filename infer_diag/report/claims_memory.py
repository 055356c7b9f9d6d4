"""The article's figures on memory (its chapter 4) beside ours, each with how it was obtained and its correction."""

from __future__ import annotations

from typing import Any

import polars as pl

from infer_diag.attribution.heap.compaction import Compaction
from infer_diag.report.claims import Claim, Claims
from infer_diag.simulators.memory_studies import mean_shares
from infer_diag.units import format_bytes, format_ratio

KV_PUBLISHED = {"max": 0.204, "pow2": 0.268, "oracle": 0.382, "paged": 0.963}
"""Shares of KV slots that hold tokens in the PagedAttention paper (Kwon et al., SOSP 2023, figure 2)."""


def sampling_claims(peaks: pl.DataFrame, ratio: float | None, beyond: float | None, *, how: str) -> Claims:
    """Section 4.1: the tracker, the sampling, the formula and its bands. Frame in: SampledPeaks of one heap.

    `ratio` is 1 − largest / free at the heap's last state, `beyond` the share of its requests that no hole serves.
    """
    few = peaks.sort("sample_count").row(0, named=True)
    return Claims(
        [
            Claim(
                "the tracker",
                "“CUDA Memory Tracker”",
                None,
                "not_identifiable",
                "no tool has this name; there are CUPTI's memory activity, Nsight Systems, PyTorch's recorder, RMM's "
                "log and CuPy's MemoryHook",
            ),
            Claim(
                "dynamic sampling",
                "every allocation, with a window and a backoff",
                f"{few['sample_count']} samples miss {format_ratio(few['missed_ratio'])} of the peak on average, "
                f"{format_ratio(few['most_missed_ratio'])} at worst",
                how,
                "either every event is taken or there is something to back off from; counters kept at every event lose "
                "no peak, and only the map needs samples",
            ),
            *_ratio_claims(ratio, beyond, how),
        ]
    )


def _ratio_claims(ratio: float | None, beyond: float | None, how: str) -> list[Claim]:
    both = None if ratio is None else f"{ratio:.2f} at the last state"
    harm = None if beyond is None else f"{format_ratio(beyond)} of the requests are larger than any hole that may serve"
    return [
        Claim(
            "1 − largest / total",
            "fragmentation of the device",
            both,
            how if both is not None else "not_identifiable",
            "largest and total must be of one pool: blocks of other segments, streams or pools never join",
        ),
        Claim(
            "bands 0.3 and 0.7",
            "merge, then force a compaction",
            harm,
            how if harm is not None else "not_identifiable",
            "free neighbours are merged at every free already, and no allocator moves live tensors; the band does "
            "not tell whether a request fails",
        ),
    ]


def kv_claims(runs: pl.DataFrame) -> Claims:
    """Section 4.2: averages and peaks of waste, and the paper that they seem to come from.

    Frame in: that of `simulators.kv_placement.kv_placement_table`.
    """
    means = {row["placement"]: row for row in mean_shares(runs).iter_rows(named=True)}
    where = f"{runs['seed_id'].n_unique()} seeds"

    def waste(placement: str) -> str:
        return f"{format_ratio(1 - means[placement]['token_ratio'])} of the slots hold no token"

    return Claims(
        [
            Claim(
                "waste, baseline",
                "38.2 % (peak 61.7 %)",
                waste("oracle"),
                "simulated",
                "38.2 % is in the PagedAttention paper the share that is used, with reservations of the exact length",
                where,
            ),
            Claim(
                "waste, PagedAttention",
                "12.4 % (peak 22.9 %)",
                waste("paged"),
                "simulated",
                "what is lost lies in last pages: (16 − 1)/2 tokens a sequence, and nothing at a length of 8,192",
                where,
            ),
            *_chunk_claims(means, where),
        ]
    )


def _chunk_claims(means: dict[str, dict[str, Any]], where: str) -> list[Claim]:
    paged, chunked = (means[name]["internal_ratio"] for name in ("paged", "paged_chunked"))
    return [
        Claim(
            "waste, chunked prefill",
            "8.7 % (peak 15.3 %)",
            f"internal {format_ratio(chunked)} with chunks, {format_ratio(paged)} without",
            "simulated",
            "chunks do not change how many last pages there are, but when a decode step has to wait",
            where,
        ),
        Claim(
            "both together",
            "22.8 % of the baseline",
            f"{8.7 / 38.2:.1%} is 8.7 / 38.2, the row of chunked prefill alone",
            "modelled",
            "levels of two rows say nothing of both at once; no row of the table has both",
        ),
        Claim(
            "requests at a time, pages over longest length",
            "—",
            f"{means['paged']['batch_count'] / means['max']['batch_count']:.1f} times as many",
            "simulated",
            "the paper has 30.42 over 7.00, 4.3 times",
            where,
        ),
    ]


def allocator_claims(exact: pl.DataFrame, jittered: pl.DataFrame) -> Claims:
    """Section 4.3: PyTorch beside an aligned slab. Frames in: AllocatorComparison, exact sizes and varied ones."""

    where = f"{exact['seed_id'].n_unique()} seeds, 1 GiB, {int(exact['request_count'][0]):,} requests"
    ratios = ", ".join(f"{_median(jittered, name, 'external_frag_ratio'):.2f}" for name in ("torch", "slab"))
    return Claims(
        [
            Claim(
                "failed requests, PyTorch and the slab, exact sizes",
                "17 and 0",
                f"{_failed(exact, 'torch')} and {_failed(exact, 'slab')}",
                "simulated",
                "2 + 16 + 2 MiB fill one segment of 20 MiB exactly; which requests fail is a matter of capacity, and "
                "the allocators tie",
                where,
            ),
            Claim(
                "the same, sizes varied by ± 40 %",
                "—",
                f"{_failed(jittered, 'torch')} and {_failed(jittered, 'slab')}",
                "simulated",
                "alignment to 2 and 16 MiB then takes "
                f"{format_ratio(_median(jittered, 'slab', 'rounding_ratio'))} of what it hands out",
                where,
            ),
            Claim(
                "fragmentation, PyTorch and the slab",
                "37.8 % and 12.3 %",
                f"{ratios} as 1 − largest / free, sizes varied",
                "simulated",
                "the ratio is lower for the allocator that fails more: what rounding takes is in no hole",
                where,
            ),
            *_unfounded_claims(),
        ]
    )


def _median(rows: pl.DataFrame, name: str, column: str) -> float:
    return float(rows.filter(allocator=name)[column].median())  # type: ignore[arg-type]


def _failed(rows: pl.DataFrame, name: str) -> str:
    own = rows.filter(allocator=name)["failure_count"]
    return f"{_median(rows, name, 'failure_count'):g} ({min(own)} to {max(own)})"


def _unfounded_claims() -> list[Claim]:
    return [
        Claim(
            "largest contiguous block",
            "8.9 and 48.2 MB",
            None,
            "not_identifiable",
            "one run each at a moment that is not said; 14.3 and 55.0 MB free follow, which differ fourfold",
        ),
        Claim(
            "“Triton Allocator”",
            "slabs and arenas",
            None,
            "not_identifiable",
            "OpenAI's Triton has no allocator, and the Triton server has a pool of fixed size",
        ),
    ]


def compaction_claims(null: Compaction, what_if: pl.DataFrame, answers: pl.DataFrame, where: str) -> Claims:
    """Section 4.4: the avalanche, the system call, and what it saves. Frames in: WhatIf and MadviseAnswers."""
    served = what_if.filter(pl.col("settings").str.starts_with("expandable"), pl.col("refusal").is_null())
    avoided = None if served.is_empty() else f"{int(served['avoided_count'][0] or 0)} of the failures avoided"
    bogus = answers.filter(pl.col("advice").str.starts_with("advice"))["answer"].unique().to_list()
    known = answers.filter(advice="MADV_COLLAPSE", mapping="private")["answer"].to_list()
    asked = None if not known else f"MADV_COLLAPSE: {known[0]}; a number without a name: {bogus[0]}"
    return Claims(
        [
            Claim(
                "madvise(MADV_COMPACT)",
                "since Linux 6.1",
                asked,
                "measured" if asked else "not_identifiable",
                "there is no such advice. 6.1 brought MADV_COLLAPSE, which makes huge pages of host memory; memory of "
                "a GPU is out of reach of madvise and of /proc/sys/vm/compact_memory",
                where if asked else "",
            ),
            Claim(
                "latency of an allocation, P99",
                "128 ms to 23 ms",
                None,
                "not_identifiable",
                "no source; before and after a trigger also falls without any effect, by "
                f"{abs(null.naive or 0):.2f} of the ratio in the simulation above",
            ),
            Claim(
                "failed allocations an hour",
                "7.2 to 0.1 “ms”",
                avoided,
                "simulated" if avoided else "not_identifiable",
                "a count an hour has no unit of time. What can be had on a GPU is expandable segments: pages that are "
                "idle are mapped elsewhere",
                "this heap with expandable segments" if avoided else "",
            ),
        ]
    )


def peak_sentence(row: dict[str, float]) -> str:
    """What one row of SampledPeaks says."""
    seen = f"{format_bytes(row['seen_bytes'])} of {format_bytes(row['peak_bytes'])} seen"
    mean, worst = format_ratio(row["missed_ratio"]), format_ratio(row["most_missed_ratio"])
    return f"{row['sample_count']:>5,} samples: {seen}, {mean} missed on average, {worst} at worst"
