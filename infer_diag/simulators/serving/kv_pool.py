"""A paged KV pool with prefix caching: blocks are taken from the least recently freed, and found again by content.

A freed block keeps what it holds until it is taken again, as in vLLM V1. Two requests that compute the same block at
the same time both keep theirs; only the first is found by others.
"""

from __future__ import annotations

from infer_diag.simulators.serving.compiled import part
from infer_diag.simulators.serving.state import Engine, Limits, Requests


@part
def content_of(requests: Requests, request: int, index: int) -> int:
    """The content of a request's block: shared by all requests with the same prefix, or its own."""
    if index < requests[request].shared_blocks:
        return int(requests[request].shared_content + index)
    return int(requests[request].own_content + index - requests[request].shared_blocks)


@part
def _unlink(engine: Engine, block: int) -> None:
    before, after = engine.blocks[block].before, engine.blocks[block].after
    if before >= 0:
        engine.blocks[before].after = after
    else:
        engine.now[0].first_free = after
    if after >= 0:
        engine.blocks[after].before = before
    else:
        engine.now[0].last_free = before
    engine.now[0].free -= 1


@part
def _append(engine: Engine, block: int) -> None:
    last = engine.now[0].last_free
    engine.blocks[block].before, engine.blocks[block].after = last, -1
    if last >= 0:
        engine.blocks[last].after = block
    else:
        engine.now[0].first_free = block
    engine.now[0].last_free = block
    engine.now[0].free += 1


@part
def cached_blocks(requests: Requests, limits: Limits, engine: Engine, request: int, tokens: int) -> tuple[int, int]:
    """(leading full blocks of a request with so many tokens that the pool holds, how many of them nobody uses).

    The last token is always computed, since its result is wanted.
    """
    found, idle = 0, 0
    if limits.caching:
        for index in range((tokens - 1) // limits.block_tokens):
            block = engine.place[content_of(requests, request, index)]
            if block < 0:
                break
            found += 1
            idle += engine.blocks[block].users == 0
    return found, idle


@part
def share(requests: Requests, engine: Engine, request: int, blocks: int) -> None:
    """Let a request that holds nothing use so many leading blocks of the cache."""
    row = engine.table[requests[request].slot]
    for index in range(blocks):
        block = engine.place[content_of(requests, request, index)]
        if engine.blocks[block].users == 0:
            _unlink(engine, block)
        engine.blocks[block].users += 1
        row[index] = block
    requests[request].held = blocks


@part
def grow(requests: Requests, engine: Engine, request: int, blocks: int) -> None:
    """Give a request blocks until it holds so many; the caller has seen that they are free."""
    row = engine.table[requests[request].slot]
    for index in range(requests[request].held, blocks):
        block = engine.now[0].first_free
        _unlink(engine, block)
        if engine.blocks[block].content >= 0:
            engine.place[engine.blocks[block].content] = -1
            engine.blocks[block].content = -1
        engine.blocks[block].users = 1
        row[index] = block
    requests[request].held = max(blocks, requests[request].held)


@part
def remember(requests: Requests, limits: Limits, engine: Engine, request: int, tokens: int) -> None:
    """Make the blocks that are filled by `tokens` more computed tokens findable."""
    if not limits.caching:
        return
    row = engine.table[requests[request].slot]
    full = requests[request].computed // limits.block_tokens
    for index in range(full, (requests[request].computed + tokens) // limits.block_tokens):
        content = content_of(requests, request, index)
        if engine.place[content] < 0:
            engine.place[content] = row[index]
            engine.blocks[row[index]].content = content


@part
def give_back(requests: Requests, engine: Engine, request: int) -> None:
    """Free a request's blocks, its last one first, so that its beginning is found longest."""
    row = engine.table[requests[request].slot]
    for index in range(requests[request].held - 1, -1, -1):
        engine.blocks[row[index]].users -= 1
        if engine.blocks[row[index]].users == 0:
            _append(engine, row[index])
    requests[request].held = 0
