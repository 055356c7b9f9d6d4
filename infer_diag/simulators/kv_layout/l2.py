"""The L2 cache under decode attention: who reads a line again, by a bound and by a trace through an LRU cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from infer_diag.errors import DiagError
from infer_diag.simulators.kv_layout.coalescing import LINE_BYTES
from infer_diag.simulators.kv_layout.shape import CHUNK_BYTES, Ints, KvShape, Layout, Tensor, addresses
from infer_diag.simulators.serving.compiled import loop

WAYS = 16
Order = Literal["heads of a group side by side", "heads of a group apart", "one block per KV head"]
ORDERS: tuple[Order, ...] = get_args(Order)


@dataclass(frozen=True)
class L2Trace:
    """Lines that were asked of the L2 in one layer's decode step, and how many it held."""

    access_count: int
    hit_count: int

    @property
    def hit_ratio(self) -> float:
        """Hits over accesses."""
        return self.hit_count / self.access_count

    @property
    def miss_bytes(self) -> int:
        """Bytes from device memory."""
        return (self.access_count - self.hit_count) * LINE_BYTES


def most_hits_ratio(group: int) -> float:
    """1 − 1/g: each line has to come from memory once, and is asked for by g query heads at the most."""
    return 1.0 - 1.0 / group


def l2_trace(
    layout: Layout,
    shape: KvShape,
    *,
    order: Order,
    cache_bytes: int,
    resident_blocks: int,
    lines_a_turn: int = 8,
    streams: Ints | None = None,
) -> L2Trace:
    """A decode step's reads of keys and values through a set-associative LRU cache: 16 ways, lines of 128 bytes.

    A thread block reads one head of one sequence once, keys then values of each page. `resident_blocks` of them run at
    a time and take turns of `lines_a_turn` lines; when one ends, the next in `order` takes its place. Query heads of a
    KV head (`shape.group`) read the same lines; `one block per KV head` reads them once for all. Writes, other kernels,
    the two partitions of the cache and its hash of addresses are left out. `streams` are those of `line_streams`, where
    they are at hand. Simulated.

    Raises:
        DiagError: the cache has no whole set, or no block is resident.
    """
    sets = cache_bytes // (LINE_BYTES * WAYS)
    if sets < 1 or resident_blocks < 1 or lines_a_turn < 1:
        raise DiagError("a cache has a set at least, and a GPU runs a block at least")
    read = line_streams(layout, shape) if streams is None else streams
    hits, accesses = _run(read, _grid(shape, order), sets, resident_blocks, lines_a_turn)
    return L2Trace(int(accesses), int(hits))


def _grid(shape: KvShape, order: Order) -> Ints:
    """The stream (sequence · KV heads + head) that each thread block reads, in the order of their start."""
    streams = np.arange(shape.sequences * shape.kv_heads, dtype=np.int64)
    if order == "one block per KV head":
        return streams
    spread = np.repeat if order == "heads of a group side by side" else np.tile
    return np.asarray(spread(streams, shape.group), dtype=np.int64)


def line_streams(layout: Layout, shape: KvShape) -> Ints:
    """(stream, place) → line: keys of a page, then its values, in the order of the memory; -1 fills short streams.

    A stream is one head of one sequence, the heads of a sequence side by side.
    """
    pages = shape.tokens // shape.block_tokens
    table = shape.block_table()
    tensors: Sequence[Tensor] = ("keys", "values")
    rows = []
    for sequence, head in np.ndindex(shape.sequences, shape.kv_heads):
        parts = []
        for place, tensor in enumerate(tensors):
            token, dim = _pieces(layout, shape, tensor)
            found = addresses(layout, shape, sequence, token, head, dim, tensor=tensor, table=table)
            lines = (found + place * shape.tensor_bytes) // LINE_BYTES
            parts.append(np.sort(lines.reshape(pages, -1), axis=1))
        rows.append(_without_repeats(np.concatenate(parts, axis=1).reshape(-1)))
    longest = max(map(len, rows))
    return np.stack([np.pad(row, (0, longest - len(row)), constant_values=-1) for row in rows])


def _pieces(layout: Layout, shape: KvShape, tensor: Tensor) -> tuple[Ints, Ints]:
    """Tokens and dims of one element in every aligned piece of 16 bytes, or of all elements where pieces do not fit."""
    each = CHUNK_BYTES // shape.value_bytes
    along_tokens = layout == "vLLM split" and tensor == "values"
    side = shape.block_tokens if along_tokens else shape.head_dim
    step = each if each and side % each == 0 else 1
    token = np.arange(0, shape.tokens, step if along_tokens else 1)[:, None]
    return token, np.arange(0, shape.head_dim, 1 if along_tokens else step)[None, :]


def _without_repeats(lines: Ints) -> Ints:
    """Neighbouring equal lines once: what a thread block loads within a page it holds in registers."""
    return np.asarray(lines[np.append(True, np.diff(lines) != 0)], dtype=np.int64)


@loop
def _run(streams: Ints, grid: Ints, sets: int, resident: int, turn: int) -> tuple[int, int]:
    tags = np.full((sets, WAYS), -1, dtype=np.int64)  # The most recent first.
    slots = min(resident, len(grid))
    stream = grid[:slots].copy()
    place = np.zeros(slots, dtype=np.int64)
    following, running = slots, slots
    hits = accesses = 0
    while running:
        running = 0
        for slot in range(slots):
            if stream[slot] < 0:
                continue
            running += 1
            for _ in range(turn):
                line = streams[stream[slot], place[slot]] if place[slot] < streams.shape[1] else -1
                if line < 0:
                    stream[slot] = grid[following] if following < len(grid) else -1
                    following += 1
                    place[slot] = 0
                    break
                accesses += 1
                ways = tags[line % sets]
                found = 0
                while found < WAYS - 1 and ways[found] != line:
                    found += 1
                hits += ways[found] == line
                for way in range(found, 0, -1):
                    ways[way] = ways[way - 1]
                ways[0] = line
                place[slot] += 1
    return hits, accesses
