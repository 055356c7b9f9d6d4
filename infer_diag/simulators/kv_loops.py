"""The compiled loops of `kv_placement`: a step gives every running request a token, then the queue is served."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from infer_diag.simulators.allocators.compiled import compiled, entry

Ints = NDArray[np.int64]

_MOST_RUNNING = 4096


class Totals(NamedTuple):
    """Sums over the measured steps: slots by what they hold, running requests; and preemptions in all."""

    steps: int
    tokens: int
    reserved: int
    internal: int
    running: int
    preemptions: int


@entry
def contiguous(prompt: Ints, output: Ints, reserve: Ints, slots: int, measured: Ints) -> tuple[Totals, Ints, Ints]:
    """Totals, and the first slot and the tokens of each reservation at the end.

    `reserve`: slots for each request; a buddy allocator hands them out at the lowest address. `measured`: steps that
    count, and steps before them.
    """
    free = _whole(slots)
    running, begin, held = np.zeros((3, _MOST_RUNNING), np.int64)
    count, following = 0, 0
    steps = tokens = reserved = internal = in_flight = 0
    for step in range(measured[0] + measured[1]):
        kept = 0
        for place in range(count):
            request = running[place]
            held[place] += 1
            if held[place] >= prompt[request] + output[request]:
                _release(free, begin[place], _order(reserve[request]))
                continue
            running[kept], begin[kept], held[kept] = request, begin[place], held[place]
            kept += 1
        count = kept
        while count < _MOST_RUNNING:
            request = following % len(prompt)
            at = _take(free, _order(reserve[request]))
            if at < 0:
                break
            running[count], begin[count], held[count] = request, at, prompt[request]
            count, following = count + 1, following + 1
        if step < measured[1]:
            continue
        steps, in_flight = steps + 1, in_flight + count
        for place in range(count):
            request = running[place]
            total = prompt[request] + output[request]
            tokens += held[place]
            reserved += total - held[place]
            internal += reserve[request] - total
    return Totals(steps, tokens, reserved, internal, in_flight, 0), begin[:count], held[:count]


@compiled
def _order(size: int) -> int:
    """The exponent of the smallest power of two that is not below `size`."""
    order = 0
    while (1 << order) < size:
        order += 1
    return order


@compiled
def _whole(slots: int) -> NDArray[np.int64]:
    """For each order which blocks are free: at first the largest ones that tile the slots."""
    orders = _order(slots + 1)
    free = np.zeros((orders + 1, slots + 1), np.int64)
    at = 0
    for order in range(orders, -1, -1):
        if slots & (1 << order):
            free[order, at >> order] = 1
            at += 1 << order
    return free


@compiled
def _take(free: NDArray[np.int64], order: int) -> int:
    """The first slot of the lowest free block of the least order that serves, halved as needed; -1 without one."""
    for each in range(order, len(free)):
        for index in range(free.shape[1] >> each):
            if free[each, index]:
                free[each, index] = 0
                begin = index << each
                for half in range(each - 1, order - 1, -1):
                    free[half, (begin >> half) + 1] = 1
                return begin
    return -1


@compiled
def _release(free: NDArray[np.int64], begin: int, order: int) -> None:
    """Frees a block and joins it with its buddy as long as that one is free."""
    index = begin >> order
    while order + 1 < len(free) and free[order, index ^ 1]:
        free[order, index ^ 1] = 0
        index, order = index >> 1, order + 1
    free[order, index] = 1


REQUEST, COMPUTED, GENERATED, PAGES = range(4)
"""Rows of the table of requests: which one, tokens computed, output tokens, pages held."""


@entry
def paged(
    prompt: Ints, output: Ints, blocks: int, block_tokens: int, chunk: int, measured: Ints
) -> tuple[Totals, Ints, Ints]:
    """Totals, and the pages and the tokens of each running request at the end; `chunk` 0 computes whole prompts."""
    running, back = np.zeros((4, _MOST_RUNNING), np.int64), np.zeros((4, _MOST_RUNNING), np.int64)
    count, waiting, following, free = 0, 0, 0, blocks
    steps = tokens = internal = in_flight = preemptions = 0
    for step in range(measured[0] + measured[1]):
        budget = chunk if chunk > 0 else 1 << 60
        before = count
        count, free, budget = _advance(prompt, running, back, waiting, count, free, block_tokens, budget)
        waiting, preemptions = waiting + before - count, preemptions + before - count
        count, free = _finish(output, running, count, free)
        while count < _MOST_RUNNING and budget > 0:
            request = back[REQUEST, waiting - 1] if waiting else following % len(prompt)
            done = back[GENERATED, waiting - 1] if waiting else 0
            length = prompt[request] + done
            need = _blocks(min(length, budget) if chunk > 0 else length + 1, block_tokens)
            if need > free:
                break
            running[REQUEST, count], running[GENERATED, count] = request, done
            running[COMPUTED, count], running[PAGES, count] = min(length, budget), need
            budget, free, count = budget - min(length, budget), free - need, count + 1
            waiting, following = (waiting - 1, following) if waiting else (0, following + 1)
        if step < measured[1]:
            continue
        steps, in_flight = steps + 1, in_flight + count
        tokens += running[COMPUTED, :count].sum()
        internal += running[PAGES, :count].sum() * block_tokens - running[COMPUTED, :count].sum()
    totals = Totals(steps, tokens, 0, internal, in_flight, preemptions)
    return totals, running[PAGES, :count], running[COMPUTED, :count]


@compiled
def _advance(
    prompt: Ints,
    running: NDArray[np.int64],
    back: NDArray[np.int64],
    waiting: int,
    count: int,
    free: int,
    block_tokens: int,
    budget: int,
) -> tuple[int, int, int]:
    """Computes a token or a chunk of every running request; (requests left, free pages, budget left).

    Where no page is free the newest request gives its pages up and goes to the end of `back`.
    """
    place = 0
    while place < count:
        rest = prompt[running[REQUEST, place]] + running[GENERATED, place] - running[COMPUTED, place]
        added = 1 if rest <= 0 else min(rest, budget)
        need = _blocks(running[COMPUTED, place] + added, block_tokens) - running[PAGES, place]
        if need > free and count > 1:
            count -= 1
            back[:, waiting] = running[:, count]
            waiting += 1
            free += running[PAGES, count]
            continue
        free -= need
        running[PAGES, place] += need
        running[COMPUTED, place] += added
        budget -= added if rest > 0 else 0
        if rest <= added:
            running[GENERATED, place] += 1
        place += 1
    return count, free, budget


@compiled
def _blocks(tokens: int, block_tokens: int) -> int:
    return (tokens + block_tokens - 1) // block_tokens


@compiled
def _finish(output: Ints, running: NDArray[np.int64], count: int, free: int) -> tuple[int, int]:
    """(running requests, free pages) after those that have all their tokens left."""
    kept = 0
    for place in range(count):
        if running[GENERATED, place] >= output[running[REQUEST, place]]:
            free += running[PAGES, place]
        else:
            running[:, kept] = running[:, place]
            kept += 1
    return kept, free
