"""vLLM V1's scheduler: one token budget a step, running requests first, chunked prompts, preemption by recompute.

Source: vllm/v1/core/sched/scheduler.py and vllm/v1/core/kv_cache_manager.py of vLLM, read at 0.19. Speculative
decoding, encoders, remote KV and structured output are not simulated.
"""

from __future__ import annotations

import numpy as np

from infer_diag.simulators.serving.compiled import part
from infer_diag.simulators.serving.kv_pool import cached_blocks, grow, remember, share
from infer_diag.simulators.serving.queueing import plan, preempt, start, take_slot, withdraw
from infer_diag.simulators.serving.state import PUNICA, Engine, Limits, Requests


@part
def schedule(requests: Requests, limits: Limits, engine: Engine, now_s: float) -> None:
    """Plan the next step: running requests in their order, then waiting ones unless something was preempted."""
    budget = _schedule_running(requests, limits, engine)
    if engine.now[0].preempted == 0 and engine.now[0].waiting > 0:
        _schedule_waiting(requests, limits, engine, now_s, budget)


@part
def _schedule_running(requests: Requests, limits: Limits, engine: Engine) -> int:
    # Calls cost more than what most requests need here, so only those that change blocks are made.
    budget, index, now, block = limits.max_batch_tokens, 0, engine.now, limits.block_tokens
    while index < now[0].running and budget > 0:
        request = engine.seqs[index].running
        if requests[request].emitted >= requests[request].output:
            index += 1  # its last token is under way
            continue
        done = requests[request].computed
        tokens = requests[request].prompt + requests[request].emitted - done
        if 0 < limits.long_prefill_tokens < tokens:
            tokens = limits.long_prefill_tokens
        tokens = min(tokens, budget)
        needed = (done + tokens + block - 1) // block
        if needed > requests[request].held:
            gone, freed, before = _make_room(requests, limits, engine, request, needed)
            budget += freed
            index -= before
            if gone:
                break
            grow(requests, engine, request, needed)
        if limits.caching and done % block + tokens >= block:
            remember(requests, limits, engine, request, tokens)
        engine.seqs[now[0].planned].planned = request
        engine.seqs[now[0].planned].planned_tokens = tokens
        now[0].planned += 1
        budget -= tokens
        index += 1
    return budget


@part
def _make_room(requests: Requests, limits: Limits, engine: Engine, request: int, needed: int) -> tuple[bool, int, int]:
    """(whether the request itself had to go, tokens that the plan had for others that went, how many these were)."""
    budget, planned = 0, 0
    while needed - requests[request].held > engine.now[0].free:
        victim = _victim(requests, limits, engine)
        freed, was_planned = _unplanned(engine, victim)
        budget += freed
        planned += was_planned
        preempt(requests, limits, engine, victim)
        if victim == request:
            return True, budget, planned
    return False, budget, planned


@part
def _victim(requests: Requests, limits: Limits, engine: Engine) -> int:
    """The request to preempt: the last admitted, or the last by key (priority, then arrival) where these count."""
    worst = engine.seqs[engine.now[0].running - 1].running
    if limits.ordered:
        for index in range(engine.now[0].running - 1):
            each = engine.seqs[index].running
            if (requests[each].key, each) > (requests[worst].key, worst):
                worst = each
    return int(worst)


@part
def _unplanned(engine: Engine, request: int) -> tuple[int, int]:
    """(tokens that the plan had for a request, 1 if it was planned); the plan no longer has it."""
    for index in range(engine.now[0].planned):
        if engine.seqs[index].planned == request:
            tokens = engine.seqs[index].planned_tokens
            for later in range(index, engine.now[0].planned - 1):
                engine.seqs[later].planned = engine.seqs[later + 1].planned
                engine.seqs[later].planned_tokens = engine.seqs[later + 1].planned_tokens
            engine.now[0].planned -= 1
            return int(tokens), 1
    return 0, 0


@part
def _schedule_waiting(requests: Requests, limits: Limits, engine: Engine, now_s: float, budget: int) -> None:
    request, prompts = engine.now[0].head, 0
    while request >= 0 and budget > 0 and engine.now[0].running < limits.max_seqs:
        behind = requests[request].behind
        if not _adapter_fits(requests, limits, engine, request, now_s):
            request = behind
            continue
        if limits.policy == PUNICA and prompts > 0:
            break  # Punica computes one prompt a step
        tokens = _admit(requests, limits, engine, request, budget)
        if tokens == 0:
            break
        start(requests, engine, request, now_s)
        plan(engine, request, tokens)
        budget -= tokens
        prompts += 1
        request = behind


@part
def _admit(requests: Requests, limits: Limits, engine: Engine, request: int, budget: int) -> int:
    """Tokens that a waiting request computes in this step, its blocks taken; 0: it has to wait."""
    whole = requests[request].prompt + requests[request].emitted
    hit, idle = cached_blocks(requests, limits, engine, request, whole)
    found = hit * limits.block_tokens
    tokens = whole - found
    if 0 < limits.long_prefill_tokens < tokens:
        tokens = limits.long_prefill_tokens
    if not limits.chunked and tokens > budget:
        return 0
    tokens = min(tokens, budget)
    wanted = whole if limits.whole_prompt_fits else found + tokens
    if -(-wanted // limits.block_tokens) - hit > engine.now[0].free - idle:
        return 0
    withdraw(requests, engine, request)
    take_slot(requests, engine, request)
    share(requests, engine, request, hit)
    grow(requests, engine, request, -(-(found + tokens) // limits.block_tokens))
    requests[request].computed = found
    if found > requests[request].furthest:
        requests[request].cached += found - requests[request].furthest
        engine.now[0].cached += found - requests[request].furthest
        requests[request].furthest = found
    remember(requests, limits, engine, request, tokens)
    return int(tokens)


@part
def _adapter_fits(requests: Requests, limits: Limits, engine: Engine, request: int, now_s: float) -> bool:
    """Whether a request's adapter is loaded, or it has none; one that is not begins to load where there is a place."""
    adapter = requests[request].adapter
    if adapter < 0:
        return True
    if engine.adapters[adapter].users == 0:
        used = 0
        for each in range(len(engine.adapters)):
            used += engine.adapters[each].users > 0
        if used >= limits.max_adapters or (limits.one_adapter and used > 0):
            return False
    if engine.adapters[adapter].ready_s == np.inf and _place_for_adapter(limits, engine, now_s):
        engine.adapters[adapter].ready_s = now_s + limits.adapter_load_s
    return bool(engine.adapters[adapter].ready_s <= now_s)


@part
def _place_for_adapter(limits: Limits, engine: Engine, now_s: float) -> bool:
    """Whether one more adapter may be loaded; the one that was loaded first and has no user leaves for it."""
    loaded, oldest = 0, -1
    for each in range(len(engine.adapters)):
        if engine.adapters[each].ready_s < np.inf:
            loaded += 1
            idle = engine.adapters[each].users == 0 and engine.adapters[each].ready_s <= now_s
            if idle and (oldest < 0 or engine.adapters[each].ready_s < engine.adapters[oldest].ready_s):
                oldest = each
    if loaded < limits.max_adapters:
        return True
    if oldest >= 0:
        engine.adapters[oldest].ready_s = np.inf
    return oldest >= 0
