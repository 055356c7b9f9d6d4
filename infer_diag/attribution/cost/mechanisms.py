"""What a deployment's cost is made of, and its cost with each cause as in a reference instead.

ln c = ln p + ln A + ln I + ln S + ln τ + ln W + ln X + ln M + ln E + ln(10⁶/3600), in $ per 1M delivered output tokens:
A cold start, I idle, S stall, τ step time per token at the batch run, W padding, recomputation and undelivered work,
X prefix hits, M prompt tokens, and E what the model leaves unexplained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from infer_diag.attribution.cost.shapley import Game, game, with_factors
from infer_diag.attribution.cost.step_time import LinearSteps, StepCurve

Floats = npt.NDArray[np.float64]

_INTERACTING = ("cold_start", "batching", "fragmentation", "hardware", "mix")
PER_MILLION = math.log(1e6 / 3600)
POINTS = 64
"""Quantiles by which the batch that traffic asks for is told."""

UNKNOWN: dict[str, dict[str, Any]] = {
    "cold_start": {"start_per_gpu_s": 0.0, "oom_start_per_gpu_s": 0.0, "hold_gpu_s": 0.0},
    "idle": {"idle_ratio": 1.0},
    "batching": {"wanted": None, "cap_count": math.inf, "curve": None},
    "stall": {"stall_ratio": 1.0},
    "recompute": {"recompute_ratio": 1.0},
    "undelivered": {"undelivered_ratio": 1.0},
    "mix": {"mix_ratio": 1.0, "prefill_ratio": 0.0, "prompt_token_weight": 0.0, "hit_ratio": 1.0},
    "prefix_cache": {"hit_ratio": 1.0},
    "price": {"price_per_gpu_h": 1.0},
}
"""What is set equal on both sides where one side cannot tell: its effect then stands in the residual."""


@dataclass(frozen=True, eq=False)
class Mechanisms:
    """The parts of one deployment's cost. Ratios are factors of the identity, 1 where there is no loss.

    `wanted`: quantiles of the batch that traffic and settings ask for, weighted by tokens; `cap_count`: the batch that
    KV memory allows. `prefill_ratio`: prefill tokens computed per decode token. `unknown`: keys of UNKNOWN. Starts
    count per held GPU-second, or per ready one where `per_ready`.
    """

    price_per_gpu_h: float = 1.0
    gpu_count: float = 1.0
    start_per_gpu_s: float = 0.0
    oom_start_per_gpu_s: float = 0.0
    hold_gpu_s: float = 0.0
    idle_ratio: float = 1.0
    stall_ratio: float = 1.0
    wanted: Floats | None = None
    cap_count: float = math.inf
    curve: StepCurve | None = None
    context_tokens: float = 0.0
    prefill_ratio: float = 0.0
    prompt_token_weight: float = 0.0
    padding_ratio: float = 1.0
    recompute_ratio: float = 1.0
    undelivered_ratio: float = 1.0
    hit_ratio: float = 1.0
    mix_ratio: float = 1.0
    residual_ratio: float = 1.0
    unknown: frozenset[str] = field(default_factory=frozenset)
    per_ready: bool = False

    def log_cost(self) -> float:
        """ln of $ per 1M delivered output tokens."""
        return log_cost(lambda cause: self)

    def chain(self) -> dict[str, float]:
        """The factors of the identity by name; their product is the cost in $ per 1M output tokens."""
        return {
            "price": self.price_per_gpu_h * 1e6 / 3600,
            "cold_start": cold_ratio(self, self),
            "idle": self.idle_ratio,
            "stall": self.stall_ratio,
            "step_time": token_s(self, self, self, self),
            "padding": self.padding_ratio,
            "recompute": self.recompute_ratio,
            "undelivered": self.undelivered_ratio,
            "prefix_cache": self.hit_ratio,
            "mix": self.mix_ratio,
            "residual": self.residual_ratio,
        }

    def closed(self, measured: float) -> Mechanisms:
        """The same with the residual that makes the cost the measured ln(cost)."""
        bare = replace(self, residual_ratio=1.0)
        return replace(self, residual_ratio=math.exp(measured - bare.log_cost()))


def cold_ratio(cold: Mechanisms, memory: Mechanisms) -> float:
    """A = H/(H − H_cold) = 1/(1 − r·h), r starts (and starts after an OOM) per held GPU-second of h GPU-seconds each.

    With starts counted per ready GPU-second, A = 1 + r·h: the same for one deployment.

    Raises:
        ValueError: the starts would take all of the time held.
    """
    lost = (cold.start_per_gpu_s + memory.oom_start_per_gpu_s) * cold.hold_gpu_s
    if cold.per_ready:
        return 1 + lost
    if lost >= 1:
        raise ValueError("the starts take all of the time held")
    return 1 / (1 - lost)


def token_s(bought: Mechanisms, batching: Mechanisms, memory: Mechanisms, asked: Mechanisms) -> float:
    """τ: GPU-seconds per computed token (prefill tokens weighted by ω) at the batch min(wanted, cap).

    τ = g · [mean s(b)/b + π·a1] / (1 + ω·π), the mean over tokens, π prefill tokens per decode token. 1 where the
    batch or the curve is unknown.
    """
    if bought.curve is None or batching.wanted is None:
        return 1.0
    batch = np.minimum(batching.wanted, memory.cap_count)
    decode = float((bought.curve.step_s(batch, asked.context_tokens) / batch).mean())
    prefill = asked.prefill_ratio * bought.curve.prefill_token_s
    return bought.gpu_count * (decode + prefill) / (1 + asked.prompt_token_weight * asked.prefill_ratio)


def log_cost(pick: Callable[[str], Mechanisms]) -> float:
    """ln of $ per 1M output tokens with each cause taken from the deployment that `pick` names."""
    batching, memory, asked = pick("batching"), pick("fragmentation"), pick("mix")
    parts = (
        pick("price").price_per_gpu_h,
        cold_ratio(pick("cold_start"), memory),
        pick("idle").idle_ratio,
        batching.stall_ratio,
        token_s(pick("hardware"), batching, memory, asked),
        batching.padding_ratio,
        memory.recompute_ratio,
        pick("undelivered").undelivered_ratio,
        pick("prefix_cache").hit_ratio,
        asked.mix_ratio,
        pick("residual").residual_ratio,
    )
    return PER_MILLION + sum(math.log(part) for part in parts)


def played(deployment: Mechanisms, reference: Mechanisms) -> Game:
    """The game over CAUSES: the cost of every set of causes as in the deployment, the others as in the reference.

    Causes that only multiply are added without asking the model again, which changes nothing and saves the time.
    """
    deployment, reference = _with_bounded_starts(deployment, reference)
    core = game(_INTERACTING, lambda chosen: log_cost(lambda cause: deployment if cause in chosen else reference))
    ratios = {
        "idle": "idle_ratio",
        "undelivered": "undelivered_ratio",
        "prefix_cache": "hit_ratio",
        "price": "price_per_gpu_h",
        "residual": "residual_ratio",
    }
    factors = {
        cause: math.log(getattr(deployment, name)) - math.log(getattr(reference, name))
        for cause, name in ratios.items()
    }
    return with_factors(core, factors)


def _with_bounded_starts(one: Mechanisms, other: Mechanisms) -> tuple[Mechanisms, Mechanisms]:
    """Both as they are, or by starts per ready time where one's starts at the other's length would fill all time."""
    pairs = [(cold, memory) for cold in (one, other) for memory in (one, other)]
    lost = max((cold.start_per_gpu_s + memory.oom_start_per_gpu_s) * cold.hold_gpu_s for cold, memory in pairs)
    if lost < 1 or one.per_ready:
        return one, other
    scaled = []
    for each in (one, other):
        ratio = cold_ratio(each, each)
        starts, ooms = each.start_per_gpu_s * ratio, each.oom_start_per_gpu_s * ratio
        scaled.append(replace(each, start_per_gpu_s=starts, oom_start_per_gpu_s=ooms, per_ready=True))
    return scaled[0], scaled[1]


def aligned(deployment: Mechanisms, reference: Mechanisms) -> tuple[Mechanisms, Mechanisms]:
    """Both with whatever either cannot tell set equal, and the residuals that keep both costs what they are."""
    unknown = deployment.unknown | reference.unknown
    if not unknown:
        return deployment, reference
    costs = [deployment.log_cost(), reference.log_cost()]
    changes: dict[str, Any] = {}
    for key in sorted(unknown):
        changes |= UNKNOWN[key]
    if "price" in unknown:
        costs = [c - math.log(m.price_per_gpu_h) for c, m in zip(costs, (deployment, reference), strict=True)]
    both = [
        replace(each, **changes, unknown=unknown).closed(cost)
        for each, cost in zip((deployment, reference), costs, strict=True)
    ]
    return both[0], both[1]


def middle(peers: Iterable[Mechanisms]) -> Mechanisms:
    """The deployment whose every part is the median of its peers' (ratios by their logarithm, demand by quantile).

    A part that most peers cannot tell is unknown.
    """
    known = list(peers)
    votes = [key for each in known for key in each.unknown]
    unknown = frozenset(key for key in votes if 2 * votes.count(key) > len(known))
    values: dict[str, Any] = {"unknown": unknown}
    for each in fields(Mechanisms):
        told = [peer for peer in known if not any(each.name in UNKNOWN[key] for key in peer.unknown)] or known
        column = [getattr(peer, each.name) for peer in told]
        if each.name == "wanted":
            demand = [value for value in column if value is not None]
            values["wanted"] = np.exp(np.median(np.log(np.stack(demand)), axis=0)) if demand else None
        elif each.name == "curve":
            values["curve"] = _middle_curve(column)
        elif each.name.endswith("_ratio") and each.name != "prefill_ratio":
            values[each.name] = math.exp(float(np.median(np.log(column))))
        elif each.name not in ("unknown", "per_ready"):
            values[each.name] = float(np.median(column))
    return Mechanisms(**values)


def _middle_curve(curves: list[StepCurve | None]) -> StepCurve | None:
    linear = [curve for curve in curves if isinstance(curve, LinearSteps)]
    if not linear:
        return next((curve for curve in curves if curve is not None), None)
    names = ("fixed_s", "prefill_token_s", "sequence_s", "context_token_s")
    fixed, prefill, sequence, context = (float(np.median([getattr(curve, name) for curve in linear])) for name in names)
    return LinearSteps(
        fixed, prefill, sequence, context, levels=max(c.levels for c in linear), spread=max(c.spread for c in linear)
    )
