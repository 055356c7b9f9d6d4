"""One step of a simulated engine: what it computes, how long it takes, and what is over when it ends."""

from __future__ import annotations

from infer_diag.simulators.serving import orca, vllm_v0, vllm_v1
from infer_diag.simulators.serving.compiled import part
from infer_diag.simulators.serving.queueing import finish
from infer_diag.simulators.serving.state import (
    CONTEXT_TOKENS,
    DECODE_COUNT,
    DECODE_TOKENS,
    ORCA,
    PREFILL_COUNT,
    PREFILL_TOKENS,
    ROW_CACHED,
    ROW_EMITTED,
    ROW_FINISHED,
    ROW_NEW,
    ROW_OUTPUTS,
    ROW_PREEMPTED,
    ROW_RECOMPUTED,
    ROW_RUNNING,
    ROW_SWAPPED,
    ROW_USED,
    ROW_WAITING,
    VLLM_V0,
    Engine,
    Floats,
    Limits,
    Places,
    Requests,
)


@part
def schedule(requests: Requests, limits: Limits, engine: Engine, now_s: float) -> float:
    """Let the policy plan the next step; seconds that planning takes on top of it."""
    engine.now[0].carried += engine.now[0].preempted
    engine.now[0].preempted = engine.now[0].planned = engine.now[0].moved = 0
    spent_s = 0.0
    if limits.policy == ORCA:
        spent_s = orca.schedule(requests, limits, engine, now_s)
    elif limits.policy == VLLM_V0:
        vllm_v0.schedule(requests, limits, engine, now_s)
    else:
        vllm_v1.schedule(requests, limits, engine, now_s)
    return float(spent_s + engine.now[0].moved * limits.swap_block_s)


@part
def step_s(step: Floats, prompt_tokens: float, outputs: float, context: float, pairs: float) -> float:
    """`StepTime.seconds` of one step, from its parameters."""
    memory = step[5] + step[3] * context
    if step[6] > 0:
        memory += step[6] * (1.0 - step[7] ** (prompt_tokens + outputs))
    compute = step[1] * prompt_tokens + step[2] * outputs + step[4] * pairs
    if step[8] > 0:
        return float(step[0] + max(memory, compute))
    return float(step[0] + memory + compute)


@part
def apply(requests: Requests, limits: Limits, step: Floats, engine: Engine, row: Places) -> float:
    """Count the plan as computed, fill the step's row, and say how long it takes.

    A preempted request that computes its output again counts as one in its output with many tokens, as vLLM prints it.
    """
    prompt_tokens, outputs, context, pairs = 0.0, 0.0, 0.0, 0.0
    for index in range(engine.now[0].planned):
        request, tokens = engine.seqs[index].planned, engine.seqs[index].planned_tokens
        before = requests[request].computed
        after = before + tokens
        if requests[request].emitted == 0:
            row[PREFILL_COUNT] += 1
            row[PREFILL_TOKENS] += tokens
        else:
            row[DECODE_COUNT] += 1
            row[DECODE_TOKENS] += tokens
        if tokens == 1 and requests[request].emitted > 0:
            outputs += 1
            row[ROW_OUTPUTS] += 1
        else:
            prompt_tokens += tokens
            pairs += tokens * before + 0.5 * tokens * (tokens + 1)
        context += after
        again = min(after, requests[request].furthest) - before
        if again > 0:
            engine.now[0].recomputed += again
        requests[request].furthest = max(requests[request].furthest, after)
        requests[request].computed = after
        if after == requests[request].prompt + requests[request].emitted:
            requests[request].emitted += 1
            row[ROW_EMITTED] += 1
    row[CONTEXT_TOKENS] = int(context)
    row[ROW_PREEMPTED] = engine.now[0].carried + engine.now[0].preempted
    row[ROW_RECOMPUTED], row[ROW_CACHED], row[ROW_NEW] = (
        engine.now[0].recomputed,
        engine.now[0].cached,
        engine.now[0].new,
    )
    engine.now[0].carried = engine.now[0].preempted = engine.now[0].recomputed = engine.now[0].cached = engine.now[
        0
    ].new = 0
    spent_s = step_s(step, prompt_tokens, outputs, context, pairs)
    if len(engine.adapters) > 0:
        spent_s += _adapters_s(requests, limits, engine)
    return spent_s


@part
def _adapters_s(requests: Requests, limits: Limits, engine: Engine) -> float:
    """Seconds that the adapters of a step add: per distinct one, and per token that passes one."""
    distinct, tokens = 0, 0
    for index in range(engine.now[0].planned):
        adapter = requests[engine.seqs[index].planned].adapter
        if adapter < 0:
            continue
        tokens += engine.seqs[index].planned_tokens
        new = True
        for earlier in range(index):
            new = new and requests[engine.seqs[earlier].planned].adapter != adapter
        distinct += new
    return distinct * limits.adapter_step_s + tokens * limits.adapter_token_s


@part
def take_off(requests: Requests, engine: Engine, place: int, row: int) -> None:
    """Keep what the step that begins computes until it ends: its requests and how many outputs each then has."""
    for index in range(engine.now[0].planned):
        request = engine.seqs[index].planned
        engine.flights[place, index].request = request
        engine.flights[place, index].emitted = requests[request].emitted
    engine.flight_size[place] = engine.now[0].planned
    engine.flight_row[place] = row
    engine.now[0].planned = 0


@part
def land(requests: Requests, engine: Engine, place: int, now_s: float, rows: Places) -> None:
    """Take in the results of the step that ends: first tokens, last tokens, and the engine as it is then."""
    finished = 0
    for index in range(engine.flight_size[place]):
        request, emitted = engine.flights[place, index].request, engine.flights[place, index].emitted
        if emitted >= 1 and requests[request].first_s != requests[request].first_s:
            requests[request].first_s = now_s
        if emitted >= requests[request].output:
            finish(requests, engine, request, now_s)
            finished += 1
    row = engine.flight_row[place]
    if row >= 0:
        rows[row, ROW_RUNNING], rows[row, ROW_WAITING] = engine.now[0].running, engine.now[0].waiting
        rows[row, ROW_SWAPPED] = engine.now[0].swapped
        rows[row, ROW_USED] = len(engine.blocks) - engine.now[0].free
        rows[row, ROW_FINISHED] = finished
    engine.flight_size[place], engine.flight_row[place] = 0, -1
