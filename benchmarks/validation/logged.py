"""Fleets as raw logs: engines run step by step, their text written and read; each sick one also runs without cause."""

from __future__ import annotations

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
    "idle": {"demand_h": tuple((slot / 3 + 0.05, slot / 3 + 0.19) for slot in range(int(3 * SPAN_H)))},
}
"""What plants each cause: nodes taken away, a limit of 8 sequences, a small KV pool, demand that comes in slots."""


@dataclass(frozen=True, eq=False)
class LoggedFleets:
    """Healthy deployments, and one that is each of sick and healthy in turn, with ln of the cost that it had."""

    peers: dict[str, Observed]
    well: Observed
    sick: dict[str, Observed]
    truth: dict[str, float] = field(default_factory=dict)

    def fleet(self, cause: str | None) -> dict[str, Observed]:
        """The peers with the one deployment, sick by `cause` or well."""
        return {**self.peers, "sick": self.well if cause is None else self.sick[cause]}


def logged_fleets(seed: int, causes: Iterable[str] = tuple(CAUSES), peers: int = PEERS) -> LoggedFleets:
    """Fleets of one seed; `truth` is ln(cost with the cause / cost without it), of the simulated runs themselves."""
    plan = _plan(f"{seed}-sick")
    healthy = run(plan)
    sick, truth = {}, {}
    for cause in causes:
        ill = run(replace(plan, **CAUSES[cause]))
        sick[cause], truth[cause] = _read(ill), ill.log_cost - healthy.log_cost
    others = {f"peer{k}": _read(run(_plan(f"{seed}-peer{k}"))) for k in range(peers)}
    return LoggedFleets(others, _read(healthy), sick, truth)


def _plan(name: str) -> Plan:
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
