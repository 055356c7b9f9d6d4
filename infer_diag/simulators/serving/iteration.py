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
    memory, read = step[5], step[3] * context
    if step[6] > 0:
        memory += step[6] * (1.0 - step[7] ** (prompt_tokens + outputs))
    compute, attended = step[1] * prompt_tokens + step[2] * outputs, step[4] * pairs
    if step[8] > 0 and step[9] > 0:
        return float(step[0] + max(memory, compute) + read + attended)
    if step[8] > 0:
        return float(step[0] + max(memory + read, compute + attended))
    return float(step[0] + memory + read + compute + attended)


@part
def begin(
    requests: Requests, limits: Limits, step: Floats, engine: Engine, place: int, number: int, row: Places
) -> float:
    """Count the plan as computed, keep it until its step ends, fill the step's row, and say how long it takes.

    A preempted request that computes its output again counts as one in its output with many tokens, as vLLM prints it.
    """
    now, prefills, prefill_tokens, decode_tokens, outputs, emitted = engine.now, 0, 0, 0, 0, 0
    context, again, pairs = 0, 0, 0.0
    for index in range(now[0].planned):
        request, tokens = engine.seqs[index].planned, engine.seqs[index].planned_tokens
        done = requests[request].computed
        after = done + tokens
        if requests[request].emitted == 0:
            prefills += 1
            prefill_tokens += tokens
        else:
            decode_tokens += tokens
        if tokens == 1 and requests[request].emitted > 0:
            outputs += 1
        else:
            pairs += float(tokens) * done + 0.5 * tokens * (tokens + 1)
        context += after
        again += max(0, min(after, requests[request].furthest) - done)
        requests[request].furthest = max(requests[request].furthest, after)
        requests[request].computed = after
        if after == requests[request].prompt + requests[request].emitted:
            requests[request].emitted += 1
            emitted += 1
        engine.flights[place, index].request = request
        engine.flights[place, index].emitted = requests[request].emitted
    row[PREFILL_COUNT], row[DECODE_COUNT] = prefills, now[0].planned - prefills
    row[PREFILL_TOKENS], row[DECODE_TOKENS] = prefill_tokens, decode_tokens
    row[CONTEXT_TOKENS], row[ROW_OUTPUTS], row[ROW_EMITTED] = context, outputs, emitted
    row[ROW_PREEMPTED], row[ROW_RECOMPUTED] = now[0].carried + now[0].preempted, again
    row[ROW_CACHED], row[ROW_NEW] = now[0].cached, now[0].new
    spent_s = step_s(step, prefill_tokens + decode_tokens - outputs, outputs, context, pairs)
    return spent_s + _took_off(requests, limits, engine, place, number)


@part
def _took_off(requests: Requests, limits: Limits, engine: Engine, place: int, number: int) -> float:
    """Clear the plan for the next step; seconds that adapters add to this one."""
    adapters_s = _adapters_s(requests, limits, engine) if len(engine.adapters) > 0 else 0.0
    engine.flight_size[place], engine.flight_row[place] = engine.now[0].planned, number
    now = engine.now
    now[0].planned = now[0].carried = now[0].preempted = now[0].cached = now[0].new = 0
    return adapters_s


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
