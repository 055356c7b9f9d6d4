"""Each metric's verdict on heaps whose truth is known, and on real snapshots."""

from __future__ import annotations

from pathlib import Path

import dataframely as dy
import numpy as np
import polars as pl
import pytest
from handmade_heap import MIB, Heap
from hypothesis import given
from hypothesis import strategies as st

from infer_diag import units
from infer_diag.attribution.heap import frames, metrics
from infer_diag.attribution.heap.bands import BANDS, band_of
from infer_diag.attribution.heap.curves import heap_curves
from infer_diag.attribution.heap.maps import block_map
from infer_diag.attribution.heap.waste import hole_sizes, memory_waste
from infer_diag.loaders import load
from infer_diag.recording import Recording

CORPUS = Path(__file__).parents[3] / "shared" / "corpus" / "snapshots"
needs_corpus = pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus of real snapshots is not here")
MB, GB = 1e6, 1e9

HEAPS = {
    # holes, request, (LF, u1, u2, x), what it is
    "exhausted, not fragmented; LF says perfect": ([64 * MB], 100 * MB, (0.0, 1, 1, -0.64), "exhausted"),
    "harmless; LF says terrible": ([2 * GB] * 10, 512 * MB, (0.9, 0, 0.0, -1), "fits"),
    "broken up around one large hole": ([1 * GB] + [2 * MB] * 512, 1.5 * GB, (0.5, 1, 1, 0.995), "fragmentation"),
    "broken up throughout": ([2 * MB] * 4000, 64 * MB, (1.0, 1, 1, 0.969), "fragmentation"),
}


@pytest.mark.parametrize("name", HEAPS)
def test_each_metrics_verdict_on_four_constructed_heaps(name: str) -> None:
    holes, request, (largest, unusable, unpackable, index), cause = HEAPS[name]
    assert metrics.external_frag_ratio(holes) == pytest.approx(largest, abs=0.006)
    assert metrics.unusable_ratio(holes, request) == pytest.approx(unusable, abs=1e-9)
    # 2 GB hold three requests of 512 MB and a rest, which the packing counts and the plain index does not.
    assert metrics.unpackable_ratio(holes, request) == pytest.approx(unpackable or 1 - 3 * 0.512 / 2, abs=1e-9)
    assert metrics.failure_index(holes, request) == pytest.approx(index, abs=0.002)
    assert metrics.failure_cause(holes, request) == cause


def test_a_pool_without_holes_has_no_ratio_and_serves_by_the_driver_alone() -> None:
    assert metrics.external_frag_ratio([]) is metrics.unusable_ratio([], 1) is metrics.failure_index([], 1) is None
    assert metrics.failure_cause([], 1) == "exhausted"
    assert metrics.largest_servable_bytes([]) == 0
    assert metrics.largest_servable_bytes([5, 7], 6) == 7
    assert metrics.largest_servable_bytes([5, 7], 60) == 60
    assert metrics.beyond_largest_ratio([], [4, 8], [3, 1]) == 1.0
    assert metrics.beyond_largest_ratio([4], [4, 8], [3, 1]) == 0.25
    assert metrics.beyond_largest_ratio([4], [], []) is None


def test_pieces_that_would_not_do_even_joined_are_no_fragmentation() -> None:
    """Many small holes push the index up although their sum is far below the request."""
    holes, request = [1 * MB] * 100, 200 * MB
    index = metrics.failure_index(holes, request)
    assert index is not None and index > metrics.INDEX_THRESHOLD
    assert metrics.failure_cause(holes, request) == "exhausted"


positive = st.lists(st.integers(1, 1 << 30), min_size=1, max_size=30)


@given(positive, positive)
def test_ratios_are_ratios_and_the_weighted_one_is_a_mean(holes: list[int], asked: list[int]) -> None:
    counts = [1] * len(asked)
    weighted = metrics.weighted_unusable_ratio(holes, asked, counts)
    each = [metrics.unusable_ratio(holes, size) for size in asked]
    assert weighted == pytest.approx(np.average(np.array(each, float), weights=asked), abs=1e-9)
    for size in asked:
        one, other = metrics.unusable_ratio(holes, size), metrics.unpackable_ratio(holes, size)
        assert one is not None and other is not None and 0 <= one <= other + 1e-9 <= 1 + 1e-9
        assert (metrics.failure_cause(holes, size) == "fits") == (max(holes) >= size)


def test_curves_carry_the_metrics_of_the_map_at_the_same_event() -> None:
    heap = Heap()
    kept = [heap.alloc(size) for size in (3 * MIB, 700, 5 * MIB, 9000, 2 * MIB + 5, 30 * MIB, 800_000, 11 * MIB)]
    for place in (0, 3, 5):
        heap.free(kept[place])
    recording = heap.recording()
    for number in (9, len(heap.events) - 1):
        blocks = block_map(recording, event=number).with_columns(pl.col("segment_kind").cast(pl.String))
        holes = {
            kind: blocks.filter(state="inactive", segment_kind=kind)["size_bytes"].to_numpy()
            for kind in ("small", "large")
        }
        asked = [each["requested_bytes"] for each in heap.events if each["action"] == "alloc"]
        rounded = np.array([-(-size // 512) * 512 for size in asked])
        curves = heap_curves(recording).filter(pl.col("event_id") == number)
        for kind in ("small", "large"):
            own = rounded[(rounded <= MIB) == (kind == "small")]
            row = curves.filter(pl.col("segment_kind") == kind).row(0, named=True)
            weighted = metrics.weighted_unusable_ratio(holes[kind], own, np.ones(len(own)))
            assert row["weighted_unusable_ratio"] == pytest.approx(weighted)
            assert row["external_frag_ratio"] == pytest.approx(metrics.external_frag_ratio(holes[kind]))
            beyond = metrics.beyond_largest_ratio(holes[kind], own, np.ones(len(own)))
            assert row["beyond_largest_ratio"] == pytest.approx(beyond)
        device = curves.filter(scope="device").row(0, named=True)
        idle = sum(part.sum() for part in holes.values())
        usable = sum(
            size * part[part >= size].sum()
            for size in rounded
            for kind, part in holes.items()
            if (size <= MIB) == (kind == "small")
        )
        assert device["weighted_unusable_ratio"] == pytest.approx(1 - usable / idle / rounded.sum())


def test_waste_adds_up_to_what_is_reserved() -> None:
    heap = Heap()
    kept = [heap.alloc(size) for size in (3 * MIB, 700, 9 * MIB, 40 * MIB)]
    heap.free(kept[3])
    heap.request_free(kept[1])
    device, *pools = memory_waste(heap.recording()).iter_rows(named=True)
    parts = ("requested", "internal", "awaiting", "stuck", "cached", "unnamed")
    for row in (device, *pools):
        assert sum(row[f"{part}_bytes"] for part in parts) == row["reserved_bytes"]
    assert (device["scope"], device["cached_bytes"], device["awaiting_bytes"]) == ("device", 40 * MIB, 1024)
    assert device["stuck_bytes"] == 8 * MIB + 2 * MIB - 1024
    assert {pool["segment_kind"] for pool in pools} == {"small", "large"}
    assert memory_waste(Recording()).is_empty()


def test_holes_stand_beside_the_requests_that_their_segments_serve() -> None:
    heap = Heap()
    heap.alloc(3 * MIB)
    heap.alloc(600)
    rows = hole_sizes(heap.recording()).select("segment_kind", "size_bytes", "hole_count", "request_count")
    assert {row[0]: row[1:] for row in rows.iter_rows()} == {"large": (16 * MIB, 1, 0), "small": (MIB, 1, 0)}
    assert hole_sizes(Recording()).is_empty()


def test_bands_cover_every_ratio_and_say_what_their_action_does() -> None:
    assert [band_of(ratio) for ratio in (0.0, 0.29, 0.3, 0.69, 0.7, 1.0)] == [
        BANDS[each] for each in (0, 0, 1, 1, 2, 2)
    ]
    assert band_of(None) is None
    assert all(band.effect for band in BANDS)


@needs_corpus
def test_a_pool_at_its_end_is_full_and_not_fragmented() -> None:
    """11.03 GiB reserved, of which 4.3 MiB idle in three holes: whatever failed, broken-up memory was not why."""
    recording = load(str(CORPUS / "llminf__oom_snapshot.pickle"))
    device, large, small = memory_waste(recording).iter_rows(named=True)
    assert (device["reserved_bytes"], device["requested_bytes"]) == (11_844_714_496, 11_840_159_744)
    assert (device["internal_bytes"], device["stuck_bytes"], device["cached_bytes"]) == (0, 4_554_752, 0)
    assert (large["hole_count"], large["largest_free_bytes"], small["hole_count"]) == (2, 2_080_768, 1)
    idle = recording.blocks.filter(pl.col("state") == "inactive", pl.col("segment_kind") == "large")["size_bytes"]
    for asked in (4 * MIB, 32 * MIB, 384 * MIB):
        assert metrics.failure_cause(idle, asked) == "exhausted"
    # By the article's measure alone the same pool would call for a merge.
    assert band_of(device["external_frag_ratio"]) == BANDS[1]


@needs_corpus
def test_internal_and_external_waste_of_a_real_inference_snapshot() -> None:
    device = memory_waste(load(str(CORPUS / "llminf__1.3b_snapshot.pickle"))).row(0, named=True)
    assert (device["reserved_bytes"], device["requested_bytes"]) == (7_608_467_456, 5_683_449_864)
    assert (device["internal_bytes"], device["stuck_bytes"], device["cached_bytes"]) == (
        1016,
        423_455_744,
        1_501_560_832,
    )
    assert device["stuck_ratio"] == pytest.approx(0.0557, abs=1e-4)
    assert device["cached_ratio"] == pytest.approx(0.1974, abs=1e-4)
    assert device["external_frag_ratio"] == pytest.approx(0.8921, abs=1e-4)


def test_every_column_of_the_frames_names_its_unit() -> None:
    kinds = [each for each in vars(frames).values() if isinstance(each, type) and issubclass(each, dy.Schema)]
    mine = [each for each in kinds if each is not dy.Schema]
    assert len(mine) >= 5
    for each in mine:
        numeric = {name for name, column in each.columns().items() if column.dtype.is_numeric()}
        assert not {name for name in numeric - {"line"} if not name.endswith(tuple(units.SUFFIXES))}
