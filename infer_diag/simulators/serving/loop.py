"""The event loop: arrivals go to an engine's queue, a policy plans steps, their ends free what is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from infer_diag.simulators.serving.compiled import loop, part, sources_digest
from infer_diag.simulators.serving.iteration import begin, land, schedule
from infer_diag.simulators.serving.queueing import enqueue
from infer_diag.simulators.serving.state import (
    DECODE_TOKENS,
    DURATION_S,
    END_S,
    PREFILL_TOKENS,
    REPLICA,
    ROW_COUNTS,
    ROW_OUTPUTS,
    Engine,
    Floats,
    Limits,
    Places,
    Requests,
)
from infer_diag.simulators.serving.step_time import SHORTEST_RATIO

Scatter = tuple[Floats, Floats, Floats]
"""Seconds that pure decode steps scatter by, those of steps with prompts, and how many of both kinds there were."""
Rows = tuple[Floats, Places]
"""Times and counts of steps, a row each."""
_FIRST_ROWS = 4096


@part
def _one(engines: Engine, each: int) -> Engine:
    """One of the engines that lie side by side."""
    return Engine(
        engines.now[each],
        engines.seqs[each],
        engines.table[each],
        engines.blocks[each],
        engines.place[each],
        engines.swapped[each],
        engines.adapters[each],
        engines.flights[each],
        engines.flight_size[each],
        engines.flight_row[each],
    )


@part
def _send(requests: Requests, limits: Limits, engines: Sequence[Engine], sent: int, now_s: float) -> int:
    """Queue what has arrived at the engine with the least 4 · waiting + running, as vLLM's front end does."""
    while sent < len(requests) and requests[sent].arrival_s <= now_s:
        best = 0
        for each in range(1, len(engines)):
            mine = 4 * engines[each].now[0].waiting + engines[each].now[0].running
            if mine < 4 * engines[best].now[0].waiting + engines[best].now[0].running:
                best = each
        requests[sent].queued_s = now_s
        requests[sent].replica = best
        enqueue(requests, limits, engines[best], sent)
        sent += 1
    return sent


@part
def _next_s(requests: Requests, engines: Sequence[Engine], sent: int, now_s: float) -> float:
    """When something happens to engines that have nothing to do: an arrival, or an adapter that is loaded."""
    next_s = requests[sent].arrival_s if sent < len(requests) else np.inf
    for engine in engines:
        if engine.now[0].waiting > 0:
            for each in range(len(engine.adapters)):
                if engine.adapters[each].ready_s > now_s:
                    next_s = min(next_s, engine.adapters[each].ready_s)
    return float(next_s)


@part
def _plan(requests: Requests, limits: Limits, engines: Sequence[Engine], now_s: float) -> tuple[int, int, float]:
    """(requests that all engines' next steps compute, preemptions, seconds that planning takes)."""
    planned, preempted, planning_s = 0, 0, 0.0
    for engine in engines:
        planning_s = max(planning_s, schedule(requests, limits, engine, now_s))
        planned += engine.now[0].planned
        preempted += engine.now[0].preempted
    return planned, preempted, planning_s


@part
def _has_prompts(rows: Places, first: int, end: int) -> bool:
    """Whether a step of these rows computes prompts, or preempted requests again."""
    for row in range(first, end):
        if rows[row, PREFILL_TOKENS] > 0 or rows[row, DECODE_TOKENS] > rows[row, ROW_OUTPUTS]:
            return True
    return False


@part
def _begin(
    requests: Requests,
    limits: Limits,
    step: Floats,
    engines: Sequence[Engine],
    planning_s: float,
    place: int,
    row: int,
    rows: Places,
    scatter: Scatter,
) -> tuple[float, int]:
    """(seconds of the step that all engines take together, next free row): the slowest engine sets the pace."""
    slowest_s, first = 0.0, row
    for each in range(len(engines)):
        if engines[each].now[0].planned == 0:
            continue
        rows[row, :] = 0
        rows[row, REPLICA] = each
        slowest_s = max(slowest_s, begin(requests, limits, step, engines[each], place, row, rows[row]))
        row += 1
    kind = 1 if _has_prompts(rows, first, row) else 0
    more_s = scatter[kind][int(scatter[2][kind]) % len(scatter[kind])]
    scatter[2][kind] += 1
    return planning_s + max(slowest_s + more_s, SHORTEST_RATIO * slowest_s), row


@part
def _grown(times: Floats, rows: Places, used: int) -> tuple[Floats, Places]:
    """The same rows with room for twice as many."""
    more_times = np.empty((2 * len(times), times.shape[1]), times.dtype)
    more_rows = np.empty((2 * len(rows), rows.shape[1]), rows.dtype)
    more_times[:used], more_rows[:used] = times[:used], rows[:used]
    return more_times, more_rows


@cache
def simulation_loop() -> Callable[..., Rows]:
    """The compiled loop; compiling takes some seconds once, later runs read it from disk."""
    digest = sources_digest()

    def run(requests: Requests, limits: Limits, step: Floats, stacked: Engine, scatter: Scatter) -> Rows:
        assert len(digest) > 0
        engines = [_one(stacked, each) for each in range(len(stacked.now))]
        times, rows = np.empty((_FIRST_ROWS, 2)), np.empty((_FIRST_ROWS, ROW_COUNTS), np.int32)
        sent, used, first, flights, now_s, busy_s = 0, 0, 0, 0, 0.0, 0.0
        ends_s = np.zeros(limits.depth)
        while True:
            if sent < len(requests) and requests[sent].arrival_s <= now_s:
                sent = _send(requests, limits, engines, sent, now_s)
            if flights < limits.depth:
                planned, preempted, planning_s = _plan(requests, limits, engines, now_s)
                if planned > 0:
                    if used + len(engines) > len(times):
                        times, rows = _grown(times, rows, used)
                    place, begun = (first + flights) % limits.depth, used
                    spent_s, used = _begin(requests, limits, step, engines, planning_s, place, used, rows, scatter)
                    busy_s = max(now_s, busy_s) + spent_s
                    times[begun:used, END_S], times[begun:used, DURATION_S] = busy_s, spent_s
                    ends_s[place] = busy_s
                    flights += 1
                    continue
                if preempted > 0:
                    continue
            if flights > 0:
                now_s = ends_s[first]
                for engine in engines:
                    land(requests, engine, first, now_s, rows)
                first, flights = (first + 1) % limits.depth, flights - 1
                continue
            next_s = _next_s(requests, engines, sent, now_s)
            if next_s == np.inf:
                break
            now_s = next_s
        return times[:used].copy(), rows[:used].copy()

    return loop(run)
