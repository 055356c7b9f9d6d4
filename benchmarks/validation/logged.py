"""Fleets as raw logs: engines run step by step, their text written and read; each sick one also runs without cause."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import infer_diag
from infer_diag.attribution.cost.ledger import Observed, observed
from infer_diag.fleet import Facts
from infer_diag.simulators.fleet import Plan, Run, deployment_files, run
from infer_diag.simulators.fleet.files import write

PEERS = 4
SPAN_H = 2.0
_SOURCES = frozenset({"log", "events", "prices"})
CAUSES: dict[str, dict[str, Any]] = {
    "cold_start": {
        "pod_life_s": 900.0,
        "image_cached": False,
        "compile_cached": False,
        "weights_bytes_per_s": 3.5e8,
        "node_s": 21.0,
    },
    "batching": {"max_num_seqs": 8},
    "fragmentation": {"memory_utilization": 0.46},
    "idle": {"demand_h": tuple((slot / 12 + 0.03, slot / 12 + 0.075) for slot in range(int(12 * SPAN_H)))},
}
"""What plants each cause: nodes taken away, a limit of 8 sequences, a small KV pool, demand that comes in slots."""


@dataclass(frozen=True, eq=False)
class LoggedFleets:
    """Healthy deployments, and one that is well and sick in turn; `truth`: by planted cause, what each part is."""

    peers: dict[str, Observed]
    well: Observed
    sick: dict[str, Observed]
    truth: dict[str, dict[str, float]] = field(default_factory=dict)

    def fleet(self, cause: str | None) -> dict[str, Observed]:
        """The peers with the one deployment, sick by `cause` or well."""
        return {**self.peers, "sick": self.well if cause is None else self.sick[cause]}


def logged_fleets(seed: int, causes: Iterable[str] = tuple(CAUSES), peers: int = PEERS) -> LoggedFleets:
    """Fleets of one seed, one cause after another; all of it simulated."""
    plan = _plan(f"{seed}-sick")
    healthy = run(plan)
    sick, truth = {}, {}
    for cause in causes:
        ill = run(replace(plan, **CAUSES[cause]))
        sick[cause], truth[cause] = _read(ill), parts(cause, ill, healthy)
    others = {f"peer{k}": _read(run(_plan(f"{seed}-peer{k}"))) for k in range(peers)}
    return LoggedFleets(others, _read(healthy), sick, truth)


def parts(cause: str, ill: Run, healthy: Run) -> dict[str, float]:
    """ln(cost with the cause / cost without it), as the two runs' own books part it.

    What is held before an engine is ready, and ready with nothing to do, is booked as such: Δ ln H/(H − H_cold) and
    Δ ln of the ready over the busy time. All else is at which batch it ran, which is memory's where memory was taken,
    and batching's otherwise: also where pods that go or pauses in demand leave batches half empty.
    """
    ready = [each.held_gpu_s - each.cold_gpu_s for each in (ill, healthy)]
    cold = [math.log(each.held_gpu_s / left) for each, left in zip((ill, healthy), ready, strict=True)]
    idle = [math.log(left / (left - each.idle_gpu_s)) for each, left in zip((ill, healthy), ready, strict=True)]
    found = {"cold_start": cold[0] - cold[1], "idle": idle[0] - idle[1]}
    rest = ill.log_cost - healthy.log_cost - sum(found.values())
    return {**found, "fragmentation" if cause == "fragmentation" else "batching": rest}


def _plan(name: str) -> Plan:
    """A deployment of this name; the hour of the day is the same for all: two hours of logs cannot average it out."""
    plans = (_named(f"{name}-{number}") for number in itertools.count())
    return next(plan for plan in plans if plan.seed("swing") % 24 == 0)


def _named(name: str) -> Plan:
    return Plan(
        name,
        "Llama-2-13B",
        "A100-SXM-80GB",
        "vllm",
        "0.11.0",
        "a chat",
        price_per_gpu_h=1.9,
        span_h=SPAN_H,
        keeps=_SOURCES,
    )


def _read(done: Run) -> Observed:
    plan = done.plan
    facts = Facts(plan.model, plan.gpu, plan.gpu_count, plan.precision, plan.price_per_gpu_h)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), deployment_files(done))
        return observed(infer_diag.load(folder), facts)
