"""The size of a batch as a control problem: one server, one queue, a controller, and what no controller can do."""

from infer_diag.simulators.batch_control.comparison import ORACLE, compare, plant_rates, run_oracle, steps, summary
from infer_diag.simulators.batch_control.controllers import POLICIES, Policy, article_batch, corrected_batch
from infer_diag.simulators.batch_control.plant import Plant, affine, article_plant, of_step_time
from infer_diag.simulators.batch_control.scenarios import Scenario, gamma, poisson, replayed, step
from infer_diag.simulators.batch_control.server import Run, run_policy

__all__ = [
    "ORACLE",
    "POLICIES",
    "Plant",
    "Policy",
    "Run",
    "Scenario",
    "affine",
    "article_batch",
    "article_plant",
    "compare",
    "corrected_batch",
    "gamma",
    "of_step_time",
    "plant_rates",
    "poisson",
    "replayed",
    "run_oracle",
    "run_policy",
    "step",
    "steps",
    "summary",
]
