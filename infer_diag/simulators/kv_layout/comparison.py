"""The layouts beside each other: loads, head widths, bank conflicts, and the L2 under a decode step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dataframely as dy
import polars as pl

from infer_diag.errors import DiagError
from infer_diag.simulators.kv_layout.bank_conflicts import ACCESSES, ARRANGEMENTS, conflict_degree, tile_reads
from infer_diag.simulators.kv_layout.coalescing import LINE_BYTES, READERS, run_bytes, touched, warp_reads
from infer_diag.simulators.kv_layout.frames import BankConflicts, L2Hits, LayoutReads, Occupancies, WidthReads
from infer_diag.simulators.kv_layout.l2 import ORDERS, Order, l2_trace, line_streams, most_hits_ratio
from infer_diag.simulators.kv_layout.occupancy import KIB, Sm, occupancy
from infer_diag.simulators.kv_layout.shape import LAYOUTS, KvShape, Layout, Tensor

_WIDTHS = (16, 8, 4, 2)
_TENSORS: tuple[Tensor, ...] = ("keys", "values")


def layout_reads(shape: KvShape, *, widths: Sequence[int] = (16, 2)) -> pl.DataFrame:
    """`frames.LayoutReads`: what each reader's loads touch in each layout."""
    rows: list[dict[str, Any]] = []
    for layout in LAYOUTS:
        for tensor in _TENSORS:
            run = run_bytes(layout, shape, tensor)
            for reader in READERS:
                for width in widths:
                    starts = warp_reads(layout, shape, tensor=tensor, reader=reader, load_bytes=width)
                    found = None if starts is None else touched(starts, width)
                    told = {"layout": layout, "tensor": tensor, "reader": reader, "load_bytes": width, "run_bytes": run}
                    rows.append(told | (vars(found) if found else {}))
    return _framed(LayoutReads, rows)


def width_reads(head_dims: Sequence[int], *, kv_heads: int = 8, block_tokens: int = 16) -> pl.DataFrame:
    """`frames.WidthReads`: whether a head of so many elements of two bytes is read without waste."""
    rows = []
    for layout in LAYOUTS:
        for width in head_dims:
            shape = KvShape(tokens=64, kv_heads=kv_heads, head_dim=width, block_tokens=block_tokens)
            for load_bytes in _WIDTHS:
                reader = READERS[2] if layout == "vLLM split" else READERS[0]
                starts = (
                    None
                    if _is_unsplit(layout, width)
                    else warp_reads(layout, shape, reader=reader, load_bytes=load_bytes)
                )
                if starts is not None:
                    efficiency = touched(starts, load_bytes).efficiency_ratio
                    told = {"layout": layout, "head_dim_count": width, "load_bytes": load_bytes}
                    rows.append(told | {"efficiency_ratio": efficiency})
                    break
    return _framed(WidthReads, rows)


def bank_conflicts(row_widths: Sequence[int] = (64, 128, 192, 256), *, load_bytes: int = 16) -> pl.DataFrame:
    """`frames.BankConflicts`: how a tile of rows of so many bytes is read from shared memory."""
    rows = []
    for row_bytes in row_widths:
        for arrangement in ARRANGEMENTS:
            for access in ACCESSES:
                told = {"row_bytes": row_bytes, "arrangement": arrangement, "access": access, "load_bytes": load_bytes}
                try:
                    starts = tile_reads(row_bytes, arrangement=arrangement, access=access, load_bytes=load_bytes)
                except DiagError:
                    rows.append(told)
                    continue
                rows.append(told | {"conflict_count": conflict_degree(starts, load_bytes)})
    return _framed(BankConflicts, rows)


def l2_hits(
    shape: KvShape,
    *,
    cache_bytes: int,
    resident_blocks: int,
    layouts: Sequence[Layout] = LAYOUTS,
    orders: Sequence[Order] = ORDERS,
) -> pl.DataFrame:
    """`frames.L2Hits`: a decode step of one layer under every layout and order of thread blocks."""
    rows = []
    for layout in layouts:
        streams = line_streams(layout, shape)
        for order in orders:
            trace = l2_trace(
                layout,
                shape,
                order=order,
                cache_bytes=cache_bytes,
                resident_blocks=resident_blocks,
                streams=streams,
            )
            rows.append(
                {
                    "layout": layout,
                    "order": order,
                    "group_count": shape.group,
                    "access_bytes": trace.access_count * LINE_BYTES,
                    "memory_bytes": trace.miss_bytes,
                    "hit_ratio": trace.hit_ratio,
                    "most_hits_ratio": most_hits_ratio(shape.group),
                }
            )
    return _framed(L2Hits, rows)


def occupancies(
    sm: Sm,
    *,
    threads: int = 128,
    registers: Sequence[int] = (32, 40, 48, 64, 80, 96, 128, 168, 255),
    shared_kib: Sequence[int] = (0, 8, 16, 32, 48, 64, 96, 128, 163, 227),
) -> pl.DataFrame:
    """`frames.Occupancies`: blocks and warps on an SM by registers and shared memory; layouts have no part in it."""
    rows = []
    for register in registers:
        for size in shared_kib:
            found = occupancy(sm, threads=threads, registers=register, shared_bytes=size * KIB)
            told = {"sm": sm.name, "thread_count": threads, "register_count": register, "shared_bytes": size * KIB}
            rows.append(told | vars(found))
    return _framed(Occupancies, rows)


def _is_unsplit(layout: str, head_dim: int) -> bool:
    """vLLM's split needs whole chunks of 16 bytes."""
    return layout == "vLLM split" and head_dim * 2 % 16 != 0


def _framed(frame: type[dy.Schema], rows: list[dict[str, Any]]) -> pl.DataFrame:
    return frame.validate(pl.DataFrame(rows, schema=frame.create_empty().schema), cast=True)
