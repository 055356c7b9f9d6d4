"""What a warp's loads touch: sectors of 32 bytes, lines of 128, and how much of them is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from infer_diag.simulators.kv_layout.shape import CHUNK_BYTES, Ints, KvShape, Layout, Tensor, addresses

SECTOR_BYTES, LINE_BYTES, WARP = 32, 128, 32

Reader = Literal["along head_dim", "a token per lane", "as stored"]
READERS: tuple[Reader, ...] = get_args(Reader)


@dataclass(frozen=True)
class Touched:
    """One load instruction of a warp, on average: sectors and lines touched, and used bytes over 32 · sectors."""

    sector_count: float
    line_count: float
    efficiency_ratio: float


def touched(starts: Ints, load_bytes: int) -> Touched:
    """What loads touch: `starts` has one row per instruction and one byte address per lane.

    Lanes that read the same bytes count once.
    """
    used = sectors = lines = 0
    for row in starts:
        spread = (np.unique(row)[:, None] + np.arange(load_bytes)).ravel()
        spread = np.unique(spread)
        used += len(spread)
        sectors += len(np.unique(spread // SECTOR_BYTES))
        lines += len(np.unique(spread // LINE_BYTES))
    count = len(starts)
    return Touched(sectors / count, lines / count, used / (SECTOR_BYTES * sectors))


def warp_reads(
    layout: Layout, shape: KvShape, *, tensor: Tensor = "keys", reader: Reader = "as stored", load_bytes: int = 16
) -> Ints | None:
    """(instruction, lane) → byte address, for a warp that reads one head of one sequence; null where it cannot.

    `along head_dim`: neighbouring lanes take neighbouring elements of a token, then of the next token. `a token per
    lane`: each lane takes the same part of another token, part after part. `as stored`: the lanes follow the memory.
    A load wider than an element needs its elements side by side and its address a multiple of its width. Whole
    instructions only, at most 64 of them.
    """
    per_load = load_bytes // shape.value_bytes
    if per_load < 1 or load_bytes > CHUNK_BYTES or shape.head_dim % per_load:
        return None
    units = _units(layout, shape, tensor, per_load)
    if reader == "along head_dim":
        order = units.reshape(-1, per_load)
    elif reader == "a token per lane":
        lanes = units[: len(units) // WARP * WARP].reshape(-1, WARP, units.shape[1], per_load)
        order = lanes.transpose(0, 2, 1, 3).reshape(-1, per_load)
    else:
        order = np.sort(units.reshape(-1)).reshape(-1, per_load)
    starts = order[: len(order) // WARP * WARP, 0].reshape(-1, WARP)[:64]
    steps = np.diff(order, axis=1)
    if not len(starts) or (steps != shape.value_bytes).any() or (order[:, 0] % load_bytes).any():
        return None
    return starts


def run_bytes(layout: Layout, shape: KvShape, tensor: Tensor = "keys") -> int:
    """Bytes of one head of one sequence that lie side by side; the shortest run, blocks of a pool drawn at random."""
    every = np.sort(_units(layout, shape, tensor, 1).reshape(-1))
    breaks = np.flatnonzero(np.diff(every) != shape.value_bytes)
    ends = np.append(breaks, len(every) - 1)
    return int(np.diff(ends, prepend=-1).min()) * shape.value_bytes


def _units(layout: Layout, shape: KvShape, tensor: Tensor, per_load: int) -> Ints:
    """(token, load of it, element of the load) → byte address, of the first sequence's middle head."""
    token = np.arange(shape.tokens)[:, None]
    dim = np.arange(shape.head_dim)[None, :]
    found = addresses(layout, shape, 0, token, shape.kv_heads // 2, dim, tensor=tensor)
    return found.reshape(shape.tokens, -1, per_load)
