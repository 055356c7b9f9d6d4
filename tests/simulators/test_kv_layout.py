"""Layouts of a KV cache against numpy's own strides, and memory's rules against counts that are known."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infer_diag.charts import kv_layout as charts
from infer_diag.errors import DiagError, UnknownNameError
from infer_diag.probes.obtained import Obtained
from infer_diag.probes.result import ProbeResult, framed
from infer_diag.report.claims_kv_layout import kv_layout_claims, most_tensor_ratio
from infer_diag.simulators.kv_layout import (
    LAYOUTS,
    ORDERS,
    SMS,
    KvShape,
    addresses,
    bank_conflicts,
    conflict_degree,
    l2_hits,
    l2_trace,
    layout_reads,
    most_hits_ratio,
    occupancies,
    occupancy,
    run_bytes,
    shared_array_bytes,
    tile_reads,
    tokens_that_fit,
    touched,
    warp_reads,
    width_reads,
)
from infer_diag.simulators.kv_layout.l2 import line_streams

SMALL = KvShape(sequences=2, tokens=32, kv_heads=4, head_dim=16, block_tokens=8)


def stored(layout: str, shape: KvShape, tensor: str) -> Any:
    """The index of every element [sequence, token, head, dim], laid out by numpy's transposes alone."""
    count = shape.sequences * shape.tokens * shape.kv_heads * shape.head_dim
    logical = np.arange(count).reshape(shape.sequences, shape.tokens, shape.kv_heads, shape.head_dim)
    if layout == "BSHD":
        return logical.ravel()
    if layout == "BHSD":
        return logical.transpose(0, 2, 1, 3).ravel()
    pages = logical.reshape(-1, shape.block_tokens, shape.kv_heads, shape.head_dim)
    pool = np.empty_like(pages)
    pool[shape.block_table().ravel()] = pages
    if layout == "paged NHD":
        return pool.ravel()
    heads_first = pool.transpose(0, 2, 1, 3)
    if layout == "paged HND":
        return heads_first.ravel()
    if tensor == "values":
        return heads_first.transpose(0, 1, 3, 2).ravel()
    x = 16 // shape.value_bytes
    return heads_first.reshape(*heads_first.shape[:3], -1, x).transpose(0, 1, 3, 2, 4).ravel()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tensor", ["keys", "values"])
def test_an_address_is_where_numpy_puts_the_element(layout: str, tensor: Any) -> None:
    b, t, h, d = np.ix_(*map(np.arange, (SMALL.sequences, SMALL.tokens, SMALL.kv_heads, SMALL.head_dim)))
    found = addresses(layout, SMALL, b, t, h, d, tensor=tensor)
    assert sorted(found.ravel().tolist()) == list(range(0, SMALL.tensor_bytes, SMALL.value_bytes))
    there = stored(layout, SMALL, tensor)[found // SMALL.value_bytes]
    assert np.array_equal(there.ravel(), np.arange(there.size))


def test_sectors_and_lines_of_known_loads() -> None:
    lanes = np.arange(32)
    assert vars(touched(lanes[None, :] * 4, 4)) == {"sector_count": 4, "line_count": 1, "efficiency_ratio": 1}
    assert vars(touched(lanes[None, :] * 16, 16)) == {"sector_count": 16, "line_count": 4, "efficiency_ratio": 1}
    assert touched(lanes[None, :] * 256, 2).efficiency_ratio == 2 / 32
    assert touched(lanes[None, :] * 4 + 16, 4).sector_count == 5
    assert touched(0 * lanes[None, :], 4).sector_count == 1


@given(st.lists(st.integers(0, 4000), min_size=32, max_size=32), st.sampled_from([2, 4, 8, 16]))
@settings(max_examples=60, deadline=None)
def test_sectors_are_those_of_the_bytes(places: list[int], load_bytes: int) -> None:
    starts = np.array([places]) * load_bytes
    every = {start + byte for start in starts[0].tolist() for byte in range(load_bytes)}
    found = touched(starts, load_bytes)
    assert found.sector_count == len({byte // 32 for byte in every})
    assert found.line_count == len({byte // 128 for byte in every})
    assert found.efficiency_ratio == pytest.approx(len(every) / (32 * found.sector_count))


def test_every_layout_is_read_without_waste_by_lanes_that_follow_it() -> None:
    reads = layout_reads(KvShape(tokens=64, kv_heads=8))
    assert reads.filter(reader="as stored")["efficiency_ratio"].to_list() == [1.0] * 20
    rows = {(row["layout"], row["tensor"], row["reader"], row["load_bytes"]): row for row in reads.to_dicts()}
    for layout in ("BSHD", "BHSD", "paged NHD", "paged HND"):
        assert rows[layout, "keys", "along head_dim", 16]["efficiency_ratio"] == 1
        assert rows[layout, "keys", "a token per lane", 16]["efficiency_ratio"] == 0.5
        assert rows[layout, "keys", "a token per lane", 2]["efficiency_ratio"] == 2 / 32
    assert rows["vLLM split", "keys", "a token per lane", 16]["efficiency_ratio"] == 1
    assert rows["vLLM split", "values", "along head_dim", 16]["efficiency_ratio"] is None


def test_runs_of_a_head_are_what_the_layouts_are_named_for() -> None:
    shape = KvShape(tokens=128, kv_heads=8)
    found = {layout: run_bytes(layout, shape) for layout in LAYOUTS}
    assert found == {"BSHD": 256, "BHSD": 32768, "paged NHD": 256, "paged HND": 4096, "vLLM split": 4096}


def test_a_head_dim_off_the_sectors_costs_only_where_heads_lie_between_tokens() -> None:
    rows = {(r["layout"], r["head_dim_count"]): r for r in width_reads([60, 64, 72, 80, 128]).to_dicts()}
    for layout in ("BSHD", "paged NHD"):
        assert [rows[layout, width]["efficiency_ratio"] for width in (64, 80, 128)] == [1, 1, 1]
        assert rows[layout, 72]["efficiency_ratio"] < 0.9
    assert rows["BHSD", 72]["efficiency_ratio"] == 1
    assert [rows["BSHD", width]["load_bytes"] for width in (60, 72)] == [8, 16]
    assert ("vLLM split", 60) not in rows


def test_a_load_needs_its_elements_side_by_side_and_aligned() -> None:
    shape = KvShape(tokens=64, kv_heads=3, head_dim=20)
    assert warp_reads("BSHD", shape, reader="along head_dim", load_bytes=16) is None
    assert warp_reads("BSHD", shape, reader="along head_dim", load_bytes=8) is not None
    assert warp_reads("vLLM split", KvShape(tokens=64), tensor="values", reader="along head_dim", load_bytes=4) is None


def test_known_bank_conflicts() -> None:
    assert conflict_degree(tile_reads(128, access="column", load_bytes=4), 4) == 32
    assert conflict_degree(tile_reads(128, access="column", load_bytes=16), 16) == 8
    assert conflict_degree(tile_reads(128, access="row", load_bytes=4), 4) == 1
    assert conflict_degree(np.zeros(32, dtype=np.int64), 4) == 1
    assert conflict_degree(np.arange(32) * 8, 4) == 2
    assert conflict_degree(np.arange(32) * 2, 2) == 1


def test_padding_and_swizzling_take_the_conflicts_out() -> None:
    rows = {(r["row_bytes"], r["arrangement"], r["access"]): r["conflict_count"] for r in bank_conflicts().to_dicts()}
    for width in (64, 128, 256):
        assert rows[width, "plain", "column"] > 1
        assert rows[width, "padded by 16 B", "column"] == 1
        assert rows[width, "XOR-swizzled", "column"] == rows[width, "XOR-swizzled", "row"] == 1
    assert rows[192, "XOR-swizzled", "column"] is None


@pytest.mark.parametrize("width", [32, 64, 128, 256, 512])
def test_a_swizzle_moves_every_chunk_to_a_place_of_its_own(width: int) -> None:
    rows = [tile_reads(width, arrangement="XOR-swizzled", access=access) for access in ("row", "column")]
    assert all(len(set(each.tolist())) == 32 for each in rows)
    assert (rows[1] // width == np.arange(32)).all()


def test_occupancy_by_hand() -> None:
    h100, a100 = SMS["H100"], SMS["A100"]
    assert vars(occupancy(h100, threads=128, registers=32)) == {
        "block_count": 16,
        "occupancy_ratio": 1.0,
        "limited_by": "warps",
    }
    assert occupancy(h100, threads=128, registers=168).limited_by == "registers"
    assert occupancy(h100, threads=128, registers=168).block_count == 65536 // (168 * 32) // 4
    assert occupancy(a100, threads=128, registers=64, shared_bytes=64 << 10).block_count == 2
    assert occupancy(h100, threads=32, registers=32).limited_by == "blocks"
    with pytest.raises(DiagError, match="1 to 1024 threads"):
        occupancy(h100, threads=2048, registers=32)


def test_more_of_anything_never_raises_the_occupancy() -> None:
    rows = occupancies(SMS["H100"])
    for column, other in (("register_count", "shared_bytes"), ("shared_bytes", "register_count")):
        for _, part in rows.sort(column).group_by(other):
            assert (np.diff(part["occupancy_ratio"].to_numpy()) <= 0).all()
    assert rows["occupancy_ratio"].max() == 1 and rows["occupancy_ratio"].min() > 0


def test_the_articles_shared_array_fits_no_block() -> None:
    size = shared_array_bytes(1, 2048, 32, 64)
    assert size == 8 << 20
    assert all(occupancy(sm, threads=128, registers=64, shared_bytes=size).block_count == 0 for sm in SMS.values())
    fitting = {name: tokens_that_fit(sm.block_shared_bytes, 32, 64) for name, sm in SMS.items()}
    assert fitting == {"A100": 40, "H100": 56, "H200": 56}
    assert shared_array_bytes(1, fitting["H100"], 32, 64) <= SMS["H100"].block_shared_bytes


def replayed(shape: KvShape, layout: Any, order: str, sets: int, resident: int, turn: int) -> tuple[int, int]:
    """The trace through ordered dictionaries, one a set."""
    streams = [[line for line in row if line >= 0] for row in line_streams(layout, shape).tolist()]
    numbers = list(range(len(streams)))
    if order == ORDERS[0]:
        numbers = [number for number in numbers for _ in range(shape.group)]
    elif order == ORDERS[1]:
        numbers = numbers * shape.group
    waiting = [iter(streams[number]) for number in numbers]
    running, waiting = waiting[:resident], waiting[resident:]
    cache: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(sets)]
    hits = accesses = 0
    slots: list[Any] = list(running)
    while any(slot is not None for slot in slots):
        for place, slot in enumerate(slots):
            if slot is None:
                continue
            for _ in range(turn):
                line = next(slot, None)
                if line is None:
                    slots[place] = waiting.pop(0) if waiting else None
                    break
                held = cache[line % sets]
                accesses += 1
                hits += line in held
                held.pop(line, None)
                held[line] = None
                if len(held) > 16:
                    held.popitem(last=False)
    return accesses, hits


@given(
    layout=st.sampled_from(LAYOUTS),
    order=st.sampled_from(ORDERS),
    sets=st.integers(1, 12),
    resident=st.integers(1, 20),
    turn=st.integers(1, 9),
    head_dim=st.sampled_from([8, 16, 24, 64]),
)
@settings(max_examples=40, deadline=None)
def test_the_trace_is_that_of_a_plain_lru(
    layout: Any, order: Any, sets: int, resident: int, turn: int, head_dim: int
) -> None:
    shape = KvShape(sequences=2, tokens=32, kv_heads=2, head_dim=head_dim, block_tokens=8, query_heads=6)
    found = l2_trace(
        layout, shape, order=order, cache_bytes=sets * 16 * 128, resident_blocks=resident, lines_a_turn=turn
    )
    assert (found.access_count, found.hit_count) == replayed(shape, layout, order, sets, resident, turn)


def test_hits_come_from_query_heads_that_read_the_same_lines_and_from_nothing_else() -> None:
    shape = KvShape(sequences=8, tokens=256, kv_heads=2, query_heads=14)
    half = shape.tensor_bytes  # Keys and values together are twice this.
    rows = {
        (row["layout"], row["order"]): row
        for row in l2_hits(shape, cache_bytes=half // 2, resident_blocks=8, layouts=("BSHD", "paged HND")).to_dicts()
    }
    for layout in ("BSHD", "paged HND"):
        side, apart, packed = (rows[layout, order] for order in ORDERS)
        assert side["hit_ratio"] == pytest.approx(most_hits_ratio(7), abs=0.02)
        assert apart["hit_ratio"] < 0.1
        assert packed["hit_ratio"] == 0
        assert packed["memory_bytes"] == 2 * half <= side["memory_bytes"]
        assert packed["access_bytes"] * 7 == side["access_bytes"]
    alone = KvShape(sequences=4, tokens=256, kv_heads=2)
    for order in ORDERS:
        assert l2_trace("BHSD", alone, order=order, cache_bytes=50 << 20, resident_blocks=8).hit_count == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_order_exceeds_the_bound(layout: Any) -> None:
    shape = KvShape(sequences=2, tokens=128, kv_heads=2, query_heads=8)
    for order in ORDERS:
        found = l2_trace(layout, shape, order=order, cache_bytes=1 << 22, resident_blocks=4)
        assert found.hit_ratio <= most_hits_ratio(4)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(DiagError, match="do not fill blocks"):
        KvShape(tokens=33)
    with pytest.raises(DiagError, match="do not share"):
        KvShape(kv_heads=4, query_heads=6)
    with pytest.raises(UnknownNameError, match="did you mean BHSD"):
        addresses("BHSDD", SMALL, 0, 0, 0, 0)
    with pytest.raises(DiagError, match="no power of two"):
        tile_reads(192, arrangement="XOR-swizzled")
    with pytest.raises(DiagError, match="a set at least"):
        l2_trace("BSHD", SMALL, order=ORDERS[0], cache_bytes=100, resident_blocks=1)


NO_GPU = Obtained(None, "not_identifiable", "", "no GPU")
RATES = [
    {"layout": name, "launch_count": 3, "p50_bytes_per_s": rate, "of_copy_ratio": rate / 2e12}
    for name, rate in (("copy", 2e12), ("BSHD", 1.9e12))
]
"""By hand, and not measured."""


def test_the_charts_show_the_frames() -> None:
    reads, widths, banks = layout_reads(KvShape(tokens=64)), width_reads([64, 72]), bank_conflicts()
    maps = charts.layout_reads_chart(reads)
    assert [trace.visible for trace in maps.data] == [True, False, False, False]
    assert len(maps.data[0].z) == len(LAYOUTS) and len(maps.data[0].z[0]) == 3
    assert {trace.name for trace in charts.width_chart(widths).data} == set(LAYOUTS)
    columns = banks.filter(access="column", arrangement="plain")["conflict_count"].to_list()
    assert list(charts.bank_chart(banks).data[0].y) == columns
    occupied = occupancies(SMS["A100"], registers=(32, 64), shared_kib=(0, 48))
    assert charts.occupancy_chart(occupied).data[0].z[0][0] == occupied["occupancy_ratio"][0]
    hits = l2_hits(SMALL, cache_bytes=1 << 16, resident_blocks=4, layouts=("BSHD",))
    assert list(charts.l2_chart(hits).data[1].y) == hits["memory_bytes"].to_list()
    rates = framed("kv_layout_rates", RATES)
    drawn = charts.layout_rates_chart(rates, basis="measured", place="<GPU>")
    assert list(drawn.data[0].y) == [2e12, 1.9e12]
    assert "&lt;GPU&gt;" in drawn.layout.title.subtitle.text


def test_counters_are_not_guessed_and_rates_are_only_what_was_measured() -> None:
    shape = KvShape(sequences=2, tokens=64, kv_heads=2, query_heads=14)
    frames = layout_reads(KvShape(tokens=64)), l2_hits(shape, cache_bytes=1 << 16, resident_blocks=4)
    without = {claim.subject: claim for claim in kv_layout_claims(NO_GPU, *frames)}
    assert without["the article's hit rates themselves"].how == "not_identifiable"
    assert without["what the layouts read per second"].ours is None
    assert without["hit rate of the L2"].ours == "at most 85.7 % (1 − 1/7)"
    assert without["the array in shared memory"].ours == "8 MiB for 1 × 2048 × 32 × 64"
    tile = without["tiles of QKᵀ with the next keys and values fetched meanwhile"]
    assert (tile.ours or "").startswith("10.9 % of the tile's rows")
    result = ProbeResult("kv_layout", "measured", {}, {"kv_layout_rates": framed("kv_layout_rates", RATES)})
    measured = kv_layout_claims(Obtained(result, "measured", "a GPU", "measured"), *frames)
    assert list(measured)[-1].ours == "BSHD 1.73 TiB/s" and list(measured)[-1].obtained == "measured, on a GPU"
    assert most_tensor_ratio(7, "H100-SXM") == pytest.approx(7 / 295, rel=0.01)
