"""How long a simulated deployment's start takes, phase by phase, and when its pods come and go."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infer_diag.simulators.fleet.plan import Plan

IMAGE_BYTES = 9.4e9
_IMAGE_BYTES_PER_S = 1.1e8
_JITTER_SD = 0.06
_GRACE_S = 30.0
"""A pod that has to go takes no more requests for its last seconds, as `terminationGracePeriodSeconds` gives it."""
_BACK_OFF_S = 10.0
"""What passes between a container's end and its next beginning."""
_LEAST_S = 60.0

_ENGINE_S = {
    "vllm": (14.0, 7.5, 38.0, 4.5, 11.0),
    "vllm-v0": (9.0, 0.0, 0.0, 0.0, 19.0),
    "sglang": (12.0, 0.0, 0.0, 0.0, 13.0),
    "tgi": (6.0, 0.0, 0.0, 0.0, 9.0),
    "tensorrt-llm": (17.0, 0.0, 0.0, 0.0, 12.0),
    "llama.cpp": (0.6, 0.0, 0.0, 0.0, 0.4),
    "pipeline": (11.0, 0.0, 0.0, 0.0, 0.0),
}
"""Seconds of imports, bytecode transform, compilation without and with a cache, and graph capture or warm-up."""
_BUILD_S = 95.0
"""A TensorRT engine that is built at the start, where no built one is at hand."""


@dataclass(frozen=True)
class Life:
    """One run of the engine, in seconds since BEGIN: acquired, container begun, ready, last request taken, ended.

    `pod` is its number; `restart` says that the container was started again in a pod that was there. `ends` is
    `taken` (the node), `oom` (a failed allocation) or `open` (still there when the logs end).
    """

    pod: int
    acquired_s: float
    begun_s: float
    import_s: float
    read_s: float
    dynamo_s: float
    compile_s: float
    capture_s: float
    pull_s: float
    ready_s: float
    closes_s: float
    ended_s: float
    ends: str
    restart: bool = False


def first_life(plan: Plan) -> Life:
    """The run that begins with the logs."""
    return _life(plan, 0, 0, 0.0, restart=False)


def next_life(plan: Plan, before: Life, number: int) -> Life | None:
    """The run after `before`, or null where the logs end before it does."""
    if before.ended_s >= plan.span_s - _LEAST_S:
        return None
    restart = before.ends == "oom"
    acquired_s = before.ended_s + (_BACK_OFF_S if restart else 3.0)
    return _life(plan, before.pod + (not restart), number, acquired_s, restart=restart)


def _life(plan: Plan, pod: int, number: int, acquired_s: float, *, restart: bool) -> Life:
    random = np.random.default_rng(plan.seed(f"start {number}"))

    def about(seconds: float) -> float:
        return float(seconds * np.exp(random.normal(0.0, _JITTER_SD)))

    imports, dynamo, compiled, cached, capture = (about(each) for each in _ENGINE_S[plan.engine])
    pull_s = 0.0 if plan.image_cached or restart else about(IMAGE_BYTES / _IMAGE_BYTES_PER_S)
    node_s = 0.0 if restart else about(plan.node_s)
    if plan.engine == "tensorrt-llm" and not plan.compile_cached:
        compiled = about(_BUILD_S)
    compile_s = cached if plan.compile_cached else compiled
    read_s = about(plan.weight_bytes / plan.gpu_count / plan.weights_bytes_per_s)
    begun_s = acquired_s + node_s + pull_s
    ready_s = begun_s + imports + read_s + dynamo + compile_s + capture + about(2.5)
    lives_s = None if plan.pod_life_s is None else float(plan.pod_life_s * random.uniform(0.7, 1.3))
    ended_s = (
        plan.span_s if lives_s is None else min(acquired_s + max(lives_s, ready_s - acquired_s + _LEAST_S), plan.span_s)
    )
    return Life(
        pod,
        acquired_s,
        begun_s,
        imports,
        read_s,
        dynamo,
        compile_s,
        capture,
        pull_s,
        ready_s,
        ended_s - (_GRACE_S if ended_s < plan.span_s else 0.0),
        ended_s,
        "open" if ended_s >= plan.span_s else "taken",
        restart,
    )
