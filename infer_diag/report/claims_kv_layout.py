"""The article's figures on the layout of a KV cache (its section 3.2) beside ours."""

from __future__ import annotations

import polars as pl

from infer_diag.probes.kv_layout import kernels
from infer_diag.probes.kv_layout.compiling import ARCHITECTURE, complaint
from infer_diag.probes.obtained import Obtained
from infer_diag.report.claims import Claim, Claims
from infer_diag.simulators.kv_layout import (
    SMS,
    conflict_degree,
    most_hits_ratio,
    occupancy,
    shared_array_bytes,
    tile_reads,
    tokens_that_fit,
)
from infer_diag.simulators.kv_layout.bank_conflicts import ARRANGEMENTS
from infer_diag.simulators.kv_layout.occupancy import STATIC_SHARED_BYTES
from infer_diag.simulators.serving.hardware import GPUS
from infer_diag.units import format_bytes, format_ratio

ARTICLE_SEQUENCES, ARTICLE_TOKENS, ARTICLE_HEADS, ARTICLE_DIM = 1, 2048, 32, 64
ARTICLE_SM = (0.42, 0.79)
ARTICLE_L2 = (0.58, 0.86)
"""Before and after, as the article has them."""
ARTICLE_TILE = (64, 32)
"""Queries and keys of the article's QKᵀ tile."""


def most_tensor_ratio(group: int, gpu: str) -> float:
    """The most of a GPU's tensor throughput that decode attention can use: g operations a byte over the ridge.

    4 · head_dim · g operations on a token's 4 · head_dim bytes of keys and values (two bytes a value), and the GPU does
    peak / bandwidth operations in the time of a byte.
    """
    found = GPUS[gpu]
    return group / (found.flop_per_s / found.memory_bytes_per_s)


def compiler_says() -> dict[str, str]:
    """What NVRTC says of the article's array, by what was compiled; empty without NVRTC."""
    half = kernels.article_source()
    texts = {
        "with float16_t": half.replace("__shared__ unsigned short", "__shared__ float16_t"),
        "with a type of two bytes": half,
        "cut to 12 tokens": kernels.article_source(12),
    }
    said = {name: complaint(text) for name, text in texts.items()}
    return {name: text or "compiles" for name, text in said.items() if text is not None}


def kv_layout_claims(got: Obtained, reads: pl.DataFrame, hits: pl.DataFrame) -> Claims:
    """Every figure of the article's section 3.2 beside ours.

    Frames in: `simulators.kv_layout.frames.LayoutReads`, `L2Hits`.
    """
    return Claims([*_alignment_claims(reads), *_array_claims(), *_counter_claims(hits), *_measured_claims(got)])


def _alignment_claims(reads: pl.DataFrame) -> list[Claim]:
    row = ARTICLE_DIM * 2
    wide = reads.filter((pl.col("load_bytes") == 16) & (pl.col("reader") == "as stored"))
    lanes = reads.filter((pl.col("load_bytes") == 16) & (pl.col("reader") == "a token per lane"))
    bshd = lanes.filter(layout="BSHD", tensor="keys")["efficiency_ratio"][0]
    degrees = {name: conflict_degree(tile_reads(row, arrangement=name), 16) for name in ARRANGEMENTS}
    return [
        Claim(
            "what the cache has to be aligned to",
            "head_dim × 128 bytes, so 128 B for head_dim 64",
            f"64 × 128 = {ARTICLE_DIM * 128:,} B; a row of 64 bf16 is {row} B",
            "modelled",
            "loads of 16 bytes need addresses that are multiples of 16, and whole sectors of 32 bytes waste nothing: "
            "head_dim a multiple of 16 at two bytes",
            "arithmetic",
        ),
        Claim(
            "the layout makes loads coalesced",
            "batch, tokens, heads, head_dim",
            f"all five layouts {format_ratio(min(wide['efficiency_ratio']))}; a token per lane over BSHD "
            f"{format_ratio(bshd)}",
            "modelled",
            "it is the layout and the way the lanes walk together: each layout is read without waste by lanes that "
            "follow it, and what it changes is the run of one head, 256 B (BSHD, NHD) to a whole sequence (BHSD)",
            "share of each sector used",
        ),
        Claim(
            "it avoids bank conflicts",
            "by alignment",
            ", ".join(f"{name} {degree}×" for name, degree in degrees.items()),
            "modelled",
            "banks are of shared memory, not of the cache in device memory; rows of 128 B aligned as asked are the "
            "worst case there, and padding or an XOR of the column takes it out",
            f"one place of 32 rows of {row} B",
        ),
    ]


def _array_claims() -> list[Claim]:
    size = shared_array_bytes(ARTICLE_SEQUENCES, ARTICLE_TOKENS, ARTICLE_HEADS, ARTICLE_DIM)
    fit = {name: tokens_that_fit(SMS[name].block_shared_bytes, ARTICLE_HEADS, ARTICLE_DIM) for name in ("A100", "H100")}
    free = occupancy(SMS["H100"], threads=128, registers=128)
    return [
        Claim(
            "the array in shared memory",
            "kv_cache[BS][MAX_SEQ][NUM_HEADS][HEAD_DIM]",
            f"{format_bytes(size)} for 1 × 2048 × 32 × 64",
            "modelled",
            f"a block has 163 KiB on A100 and 227 KiB on H100, which hold {fit['A100']} and {fit['H100']} tokens of "
            f"all heads, and {format_bytes(STATIC_SHARED_BYTES)} as a plain array. float16_t is no CUDA type. Kernels "
            f"keep tiles there and the cache in device memory{_verdict()}",
            "arithmetic",
        ),
        Claim(
            "the layout raises occupancy",
            "by removing branches of the mask",
            f"{format_ratio(free.occupancy_ratio)} at 128 registers, whatever the layout",
            "modelled",
            f"occupancy is registers, shared memory and block size (here {free.limited_by}); masks are bounds of "
            "the last tile",
            "H100, 128 threads a block",
        ),
    ]


def _verdict() -> str:
    said = compiler_says().get("with a type of two bytes")
    return "" if said is None else f"; NVRTC for {ARCHITECTURE} says: {said}"


def _counter_claims(hits: pl.DataFrame) -> list[Claim]:
    group = int(hits["group_count"][0])
    told = ", ".join(
        f"{order} {format_ratio(max(hits.filter(order=order)['hit_ratio']))}"
        for order in hits["order"].unique(maintain_order=True)
    )
    moved = hits.group_by("order").agg(pl.col("access_bytes").max()).to_dict(as_series=False)
    asked = dict(zip(moved["order"], moved["access_bytes"], strict=True))
    fewer = asked["heads of a group side by side"] / asked["one block per KV head"]
    return [
        Claim(
            "hit rate of the L2",
            _change(ARTICLE_L2),
            f"at most {format_ratio(most_hits_ratio(group))} (1 − 1/{group})",
            "bounded",
            "decode reads each key and value once per query head that shares it; nothing else hits. 86 % is the bound "
            "for the 7 query heads per KV head of Qwen2-7B, rounded, and says nothing of a layout",
            f"{group} query heads per KV head",
        ),
        Claim(
            "what moves the hit rate",
            "the layout",
            told,
            "simulated",
            "the order of the thread blocks moves it, layouts hardly do. One block per KV head has the lowest rate and "
            f"the least traffic: it asks the L2 for {fewer:.0f} times less, and memory for no more",
            "LRU of 16 ways; the highest of the layouts",
        ),
        *_utilisation_claims(group),
        Claim(
            "tiles of QKᵀ with the next keys and values fetched meanwhile",
            f"({ARTICLE_TILE[0]}, {ARTICLE_TILE[1]})",
            f"{format_ratio(min(1.0, group / ARTICLE_TILE[0]))} of the tile's rows hold a query in decode",
            "modelled",
            "fetching ahead is what kernels do; a tile of 64 queries is for prompts. A decoding sequence has one query "
            "per head, and splitting its keys over thread blocks matters more",
            f"{group} query heads per KV head in one tile",
        ),
    ]


def _change(published: tuple[float, float]) -> str:
    return " → ".join(map(format_ratio, published))


def _utilisation_claims(group: int) -> list[Claim]:
    return [
        Claim(
            "the article's hit rates themselves",
            _change(ARTICLE_L2),
            None,
            "not_identifiable",
            "no model, GPU, kernel or counter is named; measuring it needs hardware counters (Nsight Compute: "
            "lts__t_sector_hit_rate), which CuPy does not read",
            "without counters",
        ),
        Claim(
            "SM utilisation",
            _change(ARTICLE_SM),
            f"decode uses {format_ratio(most_tensor_ratio(group, 'H100-SXM'))} of an H100's tensor throughput at most",
            "bounded",
            "decode attention does g operations per byte where the GPU needs 295 to be busy: it waits for memory. If "
            "utilisation is the time in which any warp is resident, it is high in either case and no merit",
            f"g = {group}, from datasheets",
        ),
    ]


def _measured_claims(got: Obtained) -> list[Claim]:
    if got.result is None:
        return [
            Claim(
                "what the layouts read per second",
                "not given",
                None,
                "not_identifiable",
                "infer-diag probe kv_layout measures it where a GPU is",
                "without a GPU",
            )
        ]
    rates = got.result.frames["kv_layout_rates"].filter(pl.col("layout") != "copy")
    ours = ", ".join(f"{row['layout']} {format_bytes(row['p50_bytes_per_s'])}/s" for row in rates.to_dicts())
    return [
        Claim(
            "what the layouts read per second",
            "not given",
            ours or "no layout in the time allowed",
            got.how,
            "each kernel follows its layout and is checked against numpy before its time counts",
            f"on {got.where}",
        )
    ]
