"""What the generator itself knows of a deployment: its cost, and its cost with every set of its causes switched off."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

from infer_diag.simulators.fleet.plan import Plan
from infer_diag.simulators.fleet.run import Run, run

Sets = dict[frozenset[str], float]


def planted_run(plan: Plan) -> Run:
    """The deployment with all of its causes at work. Simulated."""
    return run(plan.planted())


def truth(plan: Plan, whole: Run) -> dict[str, Any]:
    """The ledger that the generator kept, and each cause's part of ln(cost / cost without causes).

    A part is the exact Shapley value over runs with each set of causes; `fixing_alone_saves` is 1 − cost without this
    cause / cost. No estimator takes part in any of it.
    """
    causes = sorted(plan.causes)
    logs: Sets = {frozenset(causes): whole.log_cost}
    for size in range(len(causes)):
        for chosen in combinations(causes, size):
            logs[frozenset(chosen)] = run(plan.planted(chosen)).log_cost
    everything = frozenset(causes)
    return {
        "ledger": _ledger(whole),
        "log_ratio_to_no_cause": round(logs[everything] - logs[frozenset()], 6),
        "causes": {
            cause: {
                "log_ratio": round(_shapley(cause, causes, logs), 6),
                "fixing_alone_saves": round(1 - math.exp(logs[everything - {cause}] - logs[everything]), 6),
            }
            for cause in causes
        },
    }


def _ledger(whole: Run) -> dict[str, Any]:
    requests = [part.requests for part in whole.parts]
    done = [each.filter("done") for each in requests]
    return {
        "span_s": whole.plan.span_s,
        "starts": len(whole.parts),
        "starts_after_oom": sum(part.life.restart for part in whole.parts),
        "held_gpu_s": round(whole.held_gpu_s, 3),
        "cold_gpu_s": round(whole.cold_gpu_s, 3),
        "idle_gpu_s": round(whole.idle_gpu_s, 3),
        "requests": sum(len(each) for each in requests),
        "delivered_requests": sum(len(each) for each in done),
        "delivered_output_tokens": whole.output_tokens,
        "delivered_prompt_tokens": sum(int(each["prompt_tokens"].sum()) for each in done),
        "cached_prompt_tokens": sum(int(each["cached_tokens"].sum()) for each in done),
        "preemptions": sum(int(part.steps["preempted_count"].sum()) for part in whole.parts),
        "price_per_gpu_h": whole.plan.price_per_gpu_h,
        "dollars_per_million_output_tokens": round(math.exp(whole.log_cost), 6),
    }


def _shapley(cause: str, causes: list[str], logs: Sets) -> float:
    others = [each for each in causes if each != cause]
    count, part = len(causes), 0.0
    for size in range(count):
        weight = math.factorial(size) * math.factorial(count - size - 1) / math.factorial(count)
        for chosen in combinations(others, size):
            part += weight * (logs[frozenset(chosen) | {cause}] - logs[frozenset(chosen)])
    return part
