"""Fleets with planted causes as windows that logs would give, and the same fleets with causes switched off.

A deployment's randomness is drawn once: a run with a cause switched off differs by it alone. All times are simulated.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from infer_diag.attribution.cost.entries import Entry
from infer_diag.attribution.cost.frames import CostWindows
from infer_diag.attribution.cost.ledger import Observed
from infer_diag.attribution.cost.shapley import game, shapley
from infer_diag.fleet import Facts

Floats = npt.NDArray[np.float64]

HOUR_S = 3600.0
FIXED_S, SEQUENCE_S, PREFILL_S = 0.012, 1e-4, 3e-5
PREFILL_RATIO = 1.5
CONTEXT_TOKENS = 200.0
GAUGE_SD = 0.4
"""How far one reading of the running requests is from the mean of its hour."""


@dataclass(frozen=True)
class Plan:
    """What is true of a deployment; the defaults are those of a healthy one.

    `swing`: how much of the usual up and down of demand there is. `tells_steps`: a log times the engine's steps, and
    counts them; without, step time and stall are one figure and the batch is told by `gauges` readings an hour.
    `tells_arrivals`: requests are logged one by one, so that demand beyond the cap can be worked out.
    """

    seed: int
    hours: int = 336
    starts_per_h: float = 0.12
    hold_s: float = 96.0
    oom_starts_per_h: float = 0.0
    wanted: float = 48.0
    swing: float = 1.0
    cap: float = 90.0
    idle: float = 1.2
    stall: float = 1.03
    throttle: float = 1.0
    price: float = 2.5
    aborted: float = 0.01
    tells_arrivals: bool = True
    tells_idle: bool = True
    tells_steps: bool = True
    gauges: int = 60


HEALTHY: dict[str, dict[str, Any]] = {
    "cold_start": {"starts_per_h": 0.12, "hold_s": 96.0},
    "batching": {"wanted": 48.0, "swing": 1.0, "stall": 1.03},
    "fragmentation": {"oom_starts_per_h": 0.0, "cap": 90.0},
    "idle": {"idle": 1.2},
}


def windows(plan: Plan) -> pl.DataFrame:
    """An hour a row: load with a daily cycle and memory of itself, noise on everything that is counted."""
    rng = np.random.default_rng(plan.seed)
    n = plan.hours
    load = (_wander(rng, n, 0.8, 0.12) + 0.25 * np.sin(2 * np.pi * np.arange(n) / 24)) * plan.swing
    slack = np.exp(_wander(rng, n, 0.6, 0.03))
    jitter = np.exp(rng.normal(size=n) * 0.02)
    draws, ooms = rng.random(n), rng.random(n)
    backlog = rng.exponential(0.3, size=n)
    length = np.exp(rng.normal(size=n) * 0.1)
    prompts = PREFILL_RATIO * np.exp(rng.normal(size=n) * 0.15)
    starts = _poisson(draws, plan.starts_per_h)
    after_oom = _poisson(ooms, plan.oom_starts_per_h)
    hold = np.minimum(plan.hold_s * length, 0.8 * HOUR_S / np.maximum(starts + after_oom, 1))
    cold = (starts + after_oom) * hold
    ready = HOUR_S - cold
    busy = ready / (1 + (plan.idle - 1) * slack)
    wanted = plan.wanted * np.exp(load)
    batch = np.minimum(wanted, plan.cap)
    step_s = busy / plan.stall
    each_s = (FIXED_S + (SEQUENCE_S + prompts * PREFILL_S) * batch) * plan.throttle * jitter
    steps = step_s / each_s
    decode = steps * batch
    asked_s = (FIXED_S + (SEQUENCE_S + prompts * PREFILL_S) * wanted) * plan.throttle * jitter
    bound = wanted > plan.cap
    seen_steps, variance = (steps, np.zeros(n)) if plan.tells_steps else _by_gauges(rng, steps, plan.gauges)
    frame = pl.DataFrame(
        {
            "begin_s": np.arange(n) * HOUR_S,
            "held_gpu_s": np.full(n, HOUR_S),
            "cold_gpu_s": cold,
            "oom_cold_gpu_s": after_oom * hold,
            "start_count": starts + after_oom,
            "oom_start_count": after_oom,
            "idle_gpu_s": ready - busy if plan.tells_idle else None,
            "step_gpu_s": step_s if plan.tells_idle and plan.tells_steps else None,
            "decode_tokens": decode,
            "prefill_tokens": decode * prompts,
            "recomputed_tokens": np.zeros(n),
            "output_tokens": decode * (1 - plan.aborted),
            "undelivered_tokens": decode * plan.aborted,
            "prompt_tokens": decode * prompts * (1 - plan.aborted),
            "cached_tokens": np.zeros(n),
            "offered_tokens": step_s / asked_s * wanted if plan.tells_arrivals else None,
            "step_count": seen_steps,
            "step_variance_count": variance,
            "context_tokens": np.full(n, CONTEXT_TOKENS),
            "running_count": batch,
            "waiting_count": np.where(bound, (wanted - batch) * (1 + backlog), 0.0),
            "bound_ratio": bound.astype(float),
        }
    )
    whole = CostWindows.create_empty().clear(n).with_columns(frame.get_columns())
    return CostWindows.validate(whole.select(CostWindows.column_names()), cast=True)


def _by_gauges(rng: np.random.Generator, steps: Floats, gauges: int) -> tuple[Floats, Floats]:
    """Steps as the mean of 1 / running over the readings of an hour tells them, and the variance that readings show."""
    error = GAUGE_SD * rng.normal(size=len(steps)) / math.sqrt(gauges)
    shown = GAUGE_SD**2 * rng.chisquare(gauges - 1, size=len(steps)) / (gauges - 1) / gauges
    return steps * np.maximum(1 + error, 0.1), steps**2 * shown


def seen(plan: Plan, gpu: str = "H100-SXM") -> Observed:
    """The deployment as the analysis gets it."""
    facts = Facts("Llama-2-13B", gpu, 1, "bfloat16", plan.price)
    ledger = {name: Entry("GPU-s", 1.0, "measured") for name in ("held", "cold", "idle", "delivered_output")}
    return Observed(windows(plan), HOUR_S, ledger, facts, plan.cap * CONTEXT_TOKENS)


def fleet(sick: Plan | None = None, peers: int = 6, first_seed: int = 0, **healthy: Any) -> dict[str, Observed]:
    """Healthy deployments, and `sick` among them."""
    made = {f"peer{k}": seen(Plan(first_seed + k, **healthy)) for k in range(peers)}
    return made if sick is None else {**made, "sick": seen(sick)}


def log_cost(plan: Plan) -> float:
    """ln of held GPU-seconds per delivered token."""
    told = windows(plan)
    return math.log(told["held_gpu_s"].sum()) - math.log(told["output_tokens"].sum())


def truth(
    plan: Plan, causes: tuple[str, ...] = ("cold_start", "batching", "fragmentation", "idle")
) -> dict[str, float]:
    """Shapley parts of the generator's own cost, each cause switched off in turn and together."""

    def value(present: frozenset[str]) -> float:
        off: dict[str, Any] = {}
        for cause in itertools.filterfalse(present.__contains__, causes):
            off |= HEALTHY[cause]
        return log_cost(replace(plan, **off))

    return shapley(game(causes, value))


def _wander(rng: np.random.Generator, n: int, phi: float, sd: float) -> Floats:
    noise = rng.normal(size=n) * sd * math.sqrt(1 - phi**2)
    level = np.empty(n)
    level[0] = rng.normal() * sd
    for k in range(1, n):
        level[k] = phi * level[k - 1] + noise[k]
    return level


def _poisson(uniform: Floats, rate: float) -> Floats:
    """Poisson counts by inversion, so that more of a cause means more of the same starts."""
    count, term, passed = np.zeros(len(uniform)), math.exp(-rate), math.exp(-rate)
    total = np.full(len(uniform), passed)
    for k in range(1, 30):
        count += uniform > total
        term *= rate / k
        total = total + term
    return count
