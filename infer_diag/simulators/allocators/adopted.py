"""A simulated heap that begins with given blocks instead of empty."""

from __future__ import annotations

import numpy as np
import polars as pl

from infer_diag.simulators.allocators import heap as heaps
from infer_diag.simulators.allocators.allocator import Allocator
from infer_diag.simulators.allocators.blocks import idle
from infer_diag.simulators.allocators.compiled import entry
from infer_diag.simulators.allocators.free_sets import insert
from infer_diag.simulators.allocators.heap import (
    IDLE,
    LARGE_SET,
    LARGE_UNMAPPED_SET,
    LIVE,
    NOTHING,
    SETS_PER_ARENA,
    SMALL_SET,
    SMALL_UNMAPPED_SET,
    UNMAPPED,
    Heap,
    Ints,
    Records,
    book,
    reserve,
    take_node,
)
from infer_diag.simulators.allocators.torch_expandable import LARGE_CHUNK, LARGEST_SPACE, SMALL_CHUNK

_BLOCK = np.dtype(
    [(name, np.int64) for name in ("address", "size", "requested", "state", "arena", "thing", "segment", "chunk")]
    + [("is_small", np.int8)]
)


def adopt(allocator: Allocator, blocks: pl.DataFrame, objects: Ints) -> None:
    """Puts blocks into an allocator that has done nothing yet; `objects` numbers the live ones.

    Frame in: Blocks, in the order of their addresses. Addresses between the pages of an expandable segment and after
    the last of them become room that it can grow into.
    """
    rows = np.zeros(len(blocks), _BLOCK)
    known = {pair: arena for arena, pair in enumerate(zip(allocator.streams, allocator.pools, strict=True))}
    pairs = blocks.select(pl.col("stream").fill_null("0"), "pool").rows()
    small = (blocks["segment_kind"] == "small").fill_null(False).to_numpy()
    expandable = blocks["is_expandable"].fill_null(False).to_numpy()
    rows["address"], rows["size"] = (blocks[name].cast(pl.Int64).to_numpy() for name in ("address_id", "size_bytes"))
    rows["requested"] = blocks["requested_bytes"].cast(pl.Int64).fill_null(0).to_numpy()
    rows["state"] = np.where((blocks["state"] == "inactive").to_numpy(), IDLE, LIVE)
    rows["arena"] = [known[pair] for pair in pairs]
    rows["thing"], rows["is_small"] = objects, small
    rows["segment"] = blocks["segment_id"].cast(pl.Int64).to_numpy()

    rows["chunk"] = np.where(expandable, np.where(small, SMALL_CHUNK, LARGE_CHUNK), 0)
    allocator.heap = heaps.with_capacity(allocator.heap, len(allocator.heap.nodes) + 3 * len(rows) + 64)
    allocator.take_objects(int(objects.max(initial=-1)) + 1)
    _adopt(allocator.heap, rows, allocator.nodes)


@entry
def _adopt(heap: Heap, rows: Records, nodes: Ints) -> None:
    previous = NOTHING
    for place in range(len(rows)):
        row = rows[place]
        begins = place == 0 or rows[place - 1].segment != row.segment
        if begins and previous >= 0:
            previous = _spaced(heap, previous, row)
        node = take_node(heap)
        block = heap.nodes[node]
        block.address, block.size, block.requested, block.state = row.address, row.size, row.requested, row.state
        block.arena, block.chunk, block.owner = row.arena, row.chunk, row.thing
        block.origin = row.segment if previous < 0 else heap.nodes[previous].origin
        block.before, block.after = previous, NOTHING
        block.free_set = heap.sets[SETS_PER_ARENA * row.arena + (SMALL_SET if row.is_small else LARGE_SET)]
        if previous >= 0:
            heap.nodes[previous].after = node
        reserve(heap, row.size)
        if row.state == IDLE:
            idle(heap, node)
        else:
            book(heap, row.size, row.requested)
            nodes[row.thing] = node
        previous = node
    if previous >= 0:
        _space(heap, previous, LARGEST_SPACE)


@entry
def _spaced(heap: Heap, previous: int, row: Records) -> int:
    """The node before the first of the next segment: the room between them where they are of one, else `NOTHING`."""
    last = heap.nodes[previous]
    end = last.address + last.size
    own = SETS_PER_ARENA * row.arena + (SMALL_SET if row.is_small else LARGE_SET)
    node = _space(heap, previous, row.address - end)
    same = last.chunk > 0 and last.chunk == row.chunk and last.arena == row.arena and last.free_set == heap.sets[own]
    return node if same and row.address - end < LARGEST_SPACE else NOTHING


@entry
def _space(heap: Heap, previous: int, size: int) -> int:
    """Room without memory after the last page of an expandable segment; the node itself for another block."""
    last = heap.nodes[previous]
    size = min(size, LARGEST_SPACE) // max(last.chunk, 1) * last.chunk
    if last.chunk == 0 or size == 0:
        return previous
    node = take_node(heap)
    space = heap.nodes[node]
    space.address, space.size, space.state = last.address + last.size, size, UNMAPPED
    space.arena, space.chunk, space.origin = last.arena, last.chunk, last.origin
    space.before, space.after = previous, NOTHING
    last.after = node
    place = SMALL_UNMAPPED_SET if last.chunk == SMALL_CHUNK else LARGE_UNMAPPED_SET
    insert(heap, heap.sets[SETS_PER_ARENA * last.arena + place], node, 0)
    return int(node)
