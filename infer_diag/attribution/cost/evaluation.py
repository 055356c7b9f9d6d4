"""One run of the whole analysis over a choice of windows; the jackknife runs it once per block that it leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from infer_diag.attribution.cost import CAUSES
from infer_diag.attribution.cost.demand import Demand
from infer_diag.attribution.cost.mechanisms import Mechanisms, aligned, played
from infer_diag.attribution.cost.profile import (
    Mask,
    NoCost,
    Profile,
    batch_and_context,
    fit_rows,
    log_measured,
    mechanisms,
)
from infer_diag.attribution.cost.reference import Pair, pairs
from infer_diag.attribution.cost.shapley import Game, last, shapley
from infer_diag.attribution.cost.step_time import LinearSteps, fitted, prompt_token_weight

Floats = npt.NDArray[np.float64]
Masks = Mapping[str, Mask]


@dataclass(frozen=True, eq=False)
class Compared:
    """A deployment beside its reference, both with the same parts known, and the game between them."""

    deployment: Mechanisms
    reference: Mechanisms
    label: str
    comparable: bool
    game: Game

    def vector(self) -> Floats:
        """ln cost, ln ratio, the part of each cause and what fixing it alone saves (as ln): what has an interval."""
        phi, gained = shapley(self.game), last(self.game)
        causes = [phi[cause] for cause in CAUSES] + [gained[cause] for cause in CAUSES]
        return np.array([self.deployment.log_cost(), self.game.total, *causes])


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What one run says: curves by group, ω, games by deployment, and what cannot be compared and why."""

    curves: dict[str, LinearSteps | None]
    weight: float | None
    parts: dict[str, Mechanisms]
    found: dict[str, Compared]
    refused: dict[str, str]


def evaluation(
    told: Mapping[str, Profile],
    keep: Masks,
    groups: Mapping[str, str],
    how: str,
    *,
    best: Mapping[str, str | None] | None = None,
    weight: float | None = None,
    demand: Demand = "point",
) -> Evaluation:
    """Fits, parts, references and games over the windows kept; `weight` (ω) overrides what the fits give."""
    curves = step_curves(told, keep, groups)
    omega = weight if weight is not None else fleet_weight(told, keep, groups, curves)
    parts: dict[str, Mechanisms] = {}
    refused: dict[str, str] = {}
    for name, each in told.items():
        try:
            parts[name] = mechanisms(each, keep[name], curves[groups[name]], omega, demand)
        except (NoCost, ValueError) as error:
            refused[name] = str(error)
    found = {}
    for name, pair in pairs(parts, groups, how, best or {}).items():
        compared = _compared(pair)
        if compared is None:
            refused[name] = pair.label
        else:
            found[name] = compared
    return Evaluation(curves, omega, parts, found, refused)


def _compared(pair: Pair) -> Compared | None:
    if pair.reference is None:
        return None
    here, there = (
        (pair.deployment, pair.reference)
        if pair.deployment is pair.reference
        else aligned(pair.deployment, pair.reference)
    )
    return Compared(here, there, pair.label, pair.comparable, played(here, there))


def step_curves(told: Mapping[str, Profile], keep: Masks, groups: Mapping[str, str]) -> dict[str, LinearSteps | None]:
    """The step curve of every group of deployments, null where their windows cannot tell it."""
    curves: dict[str, LinearSteps | None] = {}
    for group in dict.fromkeys(groups.values()):
        made = [fit_rows(each, keep[name]) for name, each in told.items() if groups[name] == group]
        curves[group] = fitted([each for each in made if len(each.rows)])
    return curves


def fleet_weight(
    told: Mapping[str, Profile], keep: Masks, groups: Mapping[str, str], curves: Mapping[str, LinearSteps | None]
) -> float | None:
    """ω, one for the fleet: the median over its deployments, each at its own batch and context; null without a fit."""
    found = []
    for name, each in told.items():
        curve, middle = curves[groups[name]], batch_and_context(each, keep[name])
        if curve is not None and middle is not None:
            found.append(prompt_token_weight(curve, *middle))
    known = [each for each in found if each is not None]
    return float(np.median(known)) if known else None


def series(told: Profile) -> Floats:
    """How each window pulls the cost per token up or down: H_w/mean H − Y_w/mean Y, the linearised ratio of sums."""
    everything = np.ones(told.count, dtype=bool)
    try:
        log_measured(told, everything)
    except NoCost:
        return np.empty(0)
    held, output = told.columns["held_gpu_s"], told.columns["output_tokens"]
    assert held is not None
    assert output is not None
    pull: Floats = held / held.mean() - output / output.mean()
    return pull
