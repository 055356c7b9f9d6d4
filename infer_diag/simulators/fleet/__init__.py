"""A fleet of 27 simulated deployments as raw logs, in the text that each engine prints, with causes planted in it.

`python -m infer_diag.simulators.fleet OUT` writes them, the inventory, and `truth.json`. What is simulated: traffic
after published figures, each engine's scheduler and KV cache step by step, step times by the roofline of published
constants, starts phase by phase, and PyTorch's allocator. Nothing in it was measured.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

from infer_diag.simulators.fleet.deployments import PLANS, plan_named
from infer_diag.simulators.fleet.files import deployment_files, inventory, write
from infer_diag.simulators.fleet.plan import Plan
from infer_diag.simulators.fleet.run import Run, run
from infer_diag.simulators.fleet.truth import planted_run, truth

__all__ = ["PLANS", "Plan", "Run", "deployment_files", "generate", "plan_named", "planted_run", "run", "truth"]

META = {"shows": "27 simulated deployments as raw logs, beside what the generator knows of each", "simulated": True}


def generate(out: Path, names: Iterable[str] = (), told: Callable[[str], None] = lambda _: None) -> None:
    """Writes the fleet below `out`: a folder per deployment, `deployments.csv`, `truth.json`. Simulated.

    With `names` only those deployments' folders are written. The same version writes the same bytes again.

    Raises:
        UnknownNameError: the fleet has no deployment of such a name.
    """
    chosen = [plan_named(name) for name in names]
    runs, known = [], {}
    for plan in chosen or PLANS.values():
        whole = planted_run(plan)
        write(out / plan.name, deployment_files(whole))
        told(plan.name)
        if not chosen:
            runs.append(whole)
            known[plan.name] = truth(plan, whole)
    if not chosen:
        (out / "deployments.csv").write_bytes(inventory(runs))
        (out / "truth.json").write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        (out / "meta.json").write_text(json.dumps(META, indent=1) + "\n", encoding="utf-8")
