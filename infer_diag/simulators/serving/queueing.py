"""The waiting queue, a linked list by request, and what moves a request between waiting, running and done."""

from __future__ import annotations

import numpy as np

from infer_diag.simulators.serving.compiled import part
from infer_diag.simulators.serving.kv_pool import give_back
from infer_diag.simulators.serving.state import AT_WORK, FINISHED, QUEUED, SWAPPED_OUT, Engine, Limits, Requests


@part
def insert(requests: Requests, engine: Engine, request: int, before: int) -> None:
    """Queue a request in front of another one; in front of -1 is the end."""
    ahead = engine.now[0].tail if before < 0 else requests[before].ahead
    requests[request].ahead, requests[request].behind = ahead, before
    if ahead >= 0:
        requests[ahead].behind = request
    else:
        engine.now[0].head = request
    if before >= 0:
        requests[before].ahead = request
    else:
        engine.now[0].tail = request
    requests[request].stage = QUEUED
    engine.now[0].waiting += 1


@part
def enqueue(requests: Requests, limits: Limits, engine: Engine, request: int) -> None:
    """Queue a request: at the end, or by its key where the queue is ordered."""
    before = -1
    if limits.ordered:
        last = engine.now[0].tail
        while last >= 0 and requests[last].key > requests[request].key:
            before, last = last, requests[last].ahead
    insert(requests, engine, request, before)


@part
def withdraw(requests: Requests, engine: Engine, request: int) -> None:
    """Take a request out of the queue."""
    ahead, behind = requests[request].ahead, requests[request].behind
    if ahead >= 0:
        requests[ahead].behind = behind
    else:
        engine.now[0].head = behind
    if behind >= 0:
        requests[behind].ahead = ahead
    else:
        engine.now[0].tail = ahead
    engine.now[0].waiting -= 1


@part
def take_slot(requests: Requests, engine: Engine, request: int) -> None:
    """Give a request one of the engine's places for running sequences."""
    engine.now[0].slots -= 1
    requests[request].slot = engine.seqs[engine.now[0].slots].free_slot
    if requests[request].adapter >= 0:
        engine.adapters[requests[request].adapter].users += 1


@part
def leave_slot(requests: Requests, engine: Engine, request: int) -> None:
    """Take a request's blocks and its place from it."""
    give_back(requests, engine, request)
    engine.seqs[engine.now[0].slots].free_slot = requests[request].slot
    engine.now[0].slots += 1
    requests[request].slot = -1
    if requests[request].adapter >= 0:
        engine.adapters[requests[request].adapter].users -= 1


@part
def start(requests: Requests, engine: Engine, request: int, now_s: float) -> None:
    """Make a request that holds a place one of the running ones."""
    engine.seqs[engine.now[0].running].running = request
    engine.now[0].running += 1
    requests[request].stage = AT_WORK
    if np.isnan(requests[request].scheduled_s):
        requests[request].scheduled_s = now_s
        engine.now[0].new += 1


@part
def plan(engine: Engine, request: int, tokens: int) -> None:
    """Let the next step compute so many tokens of a request."""
    engine.seqs[engine.now[0].planned].planned = request
    engine.seqs[engine.now[0].planned].planned_tokens = tokens
    engine.now[0].planned += 1


@part
def remove_running(engine: Engine, request: int) -> int:
    """Take a request off the list of running ones, the others keep their order; its index there."""
    running = engine.now[0].running
    index = 0
    while engine.seqs[index].running != request:
        index += 1
    for later in range(index, running - 1):
        engine.seqs[later].running = engine.seqs[later + 1].running
    engine.now[0].running -= 1
    return index


@part
def preempt(requests: Requests, limits: Limits, engine: Engine, request: int) -> None:
    """Take everything from a running request and queue it again, in front unless the queue is ordered.

    One whose last token is under way has nothing left to compute: it only loses its blocks.
    """
    remove_running(engine, request)
    leave_slot(requests, engine, request)
    if requests[request].emitted >= requests[request].output:
        return
    requests[request].computed = 0
    requests[request].preempted += 1
    engine.now[0].preempted += 1
    if limits.ordered:
        enqueue(requests, limits, engine, request)
    else:
        insert(requests, engine, request, engine.now[0].head)


@part
def swap_out(requests: Requests, engine: Engine, request: int) -> int:
    """Move a running request's blocks to host memory; how many they were."""
    blocks = requests[request].held
    remove_running(engine, request)
    leave_slot(requests, engine, request)
    requests[request].stage = SWAPPED_OUT
    requests[request].preempted += 1
    engine.swapped[engine.now[0].swapped] = request
    engine.now[0].swapped += 1
    engine.now[0].preempted += 1
    return int(blocks)


@part
def finish(requests: Requests, engine: Engine, request: int, now_s: float) -> None:
    """Let a request go whose last token has come."""
    requests[request].last_s = now_s
    requests[request].stage = FINISHED
    if requests[request].slot >= 0:
        remove_running(engine, request)
        leave_slot(requests, engine, request)
