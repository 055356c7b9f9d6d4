"""vLLM V0's scheduler: a step computes prompts or outputs, not both; preemption swaps to host memory or recomputes.

Source: vllm/core/scheduler.py of vLLM 0.6 (`_schedule_default`), and Kwon et al., "Efficient Memory Management for
Large Language Model Serving with PagedAttention", SOSP 2023. No chunked prompts, no prefix cache.
"""

from __future__ import annotations

from infer_diag.simulators.serving.compiled import part
from infer_diag.simulators.serving.kv_pool import grow
from infer_diag.simulators.serving.queueing import plan, preempt, start, swap_out, take_slot, withdraw
from infer_diag.simulators.serving.state import Engine, Limits, Requests


@part
def schedule(requests: Requests, limits: Limits, engine: Engine, now_s: float) -> None:
    """Plan the next step: waiting prompts while nothing is swapped out, else one token of each running request."""
    if engine.now[0].swapped == 0:
        _schedule_prompts(requests, limits, engine, now_s)
    if engine.now[0].planned == 0:
        _schedule_outputs(requests, limits, engine)
        if engine.now[0].preempted == 0:
            _swap_in(requests, limits, engine, now_s)


@part
def _schedule_prompts(requests: Requests, limits: Limits, engine: Engine, now_s: float) -> None:
    budget, request = limits.max_batch_tokens, engine.now[0].head
    while request >= 0 and engine.now[0].running < limits.max_seqs:
        tokens = requests[request].prompt + requests[request].emitted
        needed = -(-tokens // limits.block_tokens)
        if tokens > budget or needed > engine.now[0].free - limits.watermark_blocks:
            break
        behind = requests[request].behind
        withdraw(requests, engine, request)
        take_slot(requests, engine, request)
        grow(requests, engine, request, needed)
        start(requests, engine, request, now_s)
        plan(engine, request, tokens)
        budget -= tokens
        request = behind


@part
def _schedule_outputs(requests: Requests, limits: Limits, engine: Engine) -> None:
    index = 0
    while index < engine.now[0].running:
        request = engine.seqs[index].running
        needed = -(-(requests[request].computed + 1) // limits.block_tokens)
        gone = False
        while needed - requests[request].held > engine.now[0].free and not gone:
            victim = engine.seqs[engine.now[0].running - 1].running
            gone = victim == request
            _preempt(requests, limits, engine, victim)
        if gone:
            break
        grow(requests, engine, request, needed)
        plan(engine, request, 1)
        index += 1


@part
def _preempt(requests: Requests, limits: Limits, engine: Engine, victim: int) -> None:
    held = 0
    for index in range(engine.now[0].swapped):
        held += _blocks_of(requests, limits, engine.swapped[index])
    if limits.swap and held + requests[victim].held <= limits.swap_blocks:
        engine.now[0].moved += swap_out(requests, engine, victim)
    else:
        preempt(requests, limits, engine, victim)


@part
def _swap_in(requests: Requests, limits: Limits, engine: Engine, now_s: float) -> None:
    while engine.now[0].swapped > 0 and engine.now[0].running < limits.max_seqs:
        request = engine.swapped[0]
        blocks = -(-(requests[request].computed + 1) // limits.block_tokens)
        if blocks > engine.now[0].free - limits.watermark_blocks:
            break
        for index in range(engine.now[0].swapped - 1):
            engine.swapped[index] = engine.swapped[index + 1]
        engine.now[0].swapped -= 1
        engine.now[0].moved += _blocks_of(requests, limits, request)
        take_slot(requests, engine, request)
        grow(requests, engine, request, blocks)
        start(requests, engine, request, now_s)
        plan(engine, request, 1)


@part
def _blocks_of(requests: Requests, limits: Limits, request: int) -> int:
    return int(-(-requests[request].computed // limits.block_tokens))
