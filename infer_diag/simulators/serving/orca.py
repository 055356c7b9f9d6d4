"""Orca's scheduler: iteration by iteration in order of arrival, room for a whole request reserved at its admission.

Source: Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models", OSDI 2022, algorithm 1;
one batch in flight. Its variant sorts the first few waiting requests by their deadline when the load is high, and pays
for every one that it looks at: no published system does so, the article describes it.
"""

from __future__ import annotations

from infer_diag.simulators.serving.compiled import part
from infer_diag.simulators.serving.kv_pool import grow
from infer_diag.simulators.serving.queueing import insert, plan, start, take_slot, withdraw
from infer_diag.simulators.serving.state import Engine, Limits, Requests


@part
def schedule(requests: Requests, limits: Limits, engine: Engine, now_s: float) -> float:
    """Plan the next step; seconds that sorting takes on top of it.

    Running requests compute one token each; waiting ones are admitted in the order of the queue, up to the first that
    finds no room for its prompt and its longest output, and compute their whole prompt at once.
    """
    spent_s = _resort(requests, limits, engine)
    for index in range(engine.now[0].running):
        plan(engine, engine.seqs[index].running, 1)
    request = engine.now[0].head
    while request >= 0 and engine.now[0].running < limits.max_seqs:
        needed = -(-(requests[request].prompt + requests[request].reserved) // limits.block_tokens)
        if needed > engine.now[0].free:
            break
        behind = requests[request].behind
        withdraw(requests, engine, request)
        take_slot(requests, engine, request)
        grow(requests, engine, request, needed)
        start(requests, engine, request, now_s)
        plan(engine, request, requests[request].prompt)
        request = behind
    return spent_s


@part
def _resort(requests: Requests, limits: Limits, engine: Engine) -> float:
    """Sort the first `resort_count` of the queue by key, if the pool is so full; seconds that it takes."""
    blocks = len(engine.blocks)
    if limits.resort_count == 0 or engine.now[0].waiting == 0:
        return 0.0
    if blocks - engine.now[0].free <= limits.resort_load_ratio * blocks:
        return 0.0
    heads = min(limits.resort_count, engine.now[0].waiting)
    for done in range(1, heads):
        request, place = engine.now[0].head, engine.now[0].head
        for _ in range(done):
            request = requests[request].behind
        while place != request and requests[place].key <= requests[request].key:
            place = requests[place].behind
        if place != request:
            withdraw(requests, engine, request)
            insert(requests, engine, request, place)
    return float(heads * limits.resort_s)
