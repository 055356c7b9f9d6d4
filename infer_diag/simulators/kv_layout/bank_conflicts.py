"""Bank conflicts of a tile in shared memory: 32 banks of 4 bytes, each serving one word at a time."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from infer_diag.errors import DiagError
from infer_diag.simulators.kv_layout.shape import CHUNK_BYTES, Ints

BANKS, WORD_BYTES, WARP = 32, 4, 32
Arrangement = Literal["plain", "padded by 16 B", "XOR-swizzled"]
ARRANGEMENTS: tuple[Arrangement, ...] = get_args(Arrangement)
Access = Literal["row", "column"]
ACCESSES: tuple[Access, ...] = get_args(Access)


def conflict_degree(starts: Ints, load_bytes: int) -> int:
    """How many times as long as a conflict-free one a warp's load takes: 1 is none, 32 the worst.

    `starts`: one byte address per lane. Loads of 8 bytes are served by half a warp, of 16 by a quarter, narrower ones
    by the whole: within each such phase, the most different words that fall on one bank; the worst phase counts. Lanes
    that read one word are served together.
    """
    lanes = max(WARP * WORD_BYTES // max(load_bytes, WORD_BYTES), 1)
    worst = 1
    for begin in range(0, len(starts), lanes):
        reach = np.arange(0, max(load_bytes, 1), WORD_BYTES)
        words = np.unique((starts[begin : begin + lanes, None] + reach) // WORD_BYTES)
        worst = max(worst, int(np.bincount(words % BANKS).max()))
    return worst


def tile_reads(
    row_bytes: int, *, arrangement: Arrangement = "plain", access: Access = "column", load_bytes: int = 16
) -> Ints:
    """Byte addresses of a warp that reads a tile [tokens][row]: along a row, or the same place of 32 rows.

    Raises:
        DiagError: the loads do not divide the row, or a swizzled row is no power of two of chunks of 16 bytes.
    """
    if load_bytes not in (2, 4, 8, 16) or row_bytes % load_bytes:
        raise DiagError(f"a row of {row_bytes} bytes is not read by loads of {load_bytes}")
    chunks = row_bytes // CHUNK_BYTES
    if arrangement == "XOR-swizzled" and (row_bytes % CHUNK_BYTES or chunks & (chunks - 1)):
        raise DiagError(f"a row of {row_bytes} bytes is no power of two of {CHUNK_BYTES}-byte chunks")
    lane = np.arange(WARP, dtype=np.int64)
    inside = lane * load_bytes
    row, byte = (lane, 0 * lane) if access == "column" else (inside // row_bytes, inside % row_bytes)
    if arrangement == "padded by 16 B":
        return np.asarray(row * (row_bytes + CHUNK_BYTES) + byte)
    if arrangement == "XOR-swizzled":
        # Rows shorter than all banks together share a sweep of them, so the pattern moves on once per sweep.
        turn = row // max(BANKS * WORD_BYTES // row_bytes, 1) & min(chunks, 8) - 1
        byte = ((byte // CHUNK_BYTES) ^ turn) * CHUNK_BYTES + byte % CHUNK_BYTES
    return np.asarray(row * row_bytes + byte)
