"""Additive logarithmic mean Divisia index (LMDI-I): dollars per factor of a product, without a remainder.

Source: Ang, "The LMDI approach to decomposition analysis: a practical guide", Energy Policy 33 (2005) 867–871; the
limits at zero after Ang and Liu, Energy Policy 35 (2007) 238–246.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence


def log_mean(one: float, other: float) -> float:
    """L(a, b) = (a − b) / ln(a/b), and a where both are equal; 0 where either is 0.

    Raises:
        ValueError: a negative value.
    """
    if one < 0 or other < 0:
        raise ValueError("a logarithmic mean needs values of 0 or more")
    if one == 0 or other == 0:
        return 0.0
    gap = math.log(one) - math.log(other)
    # Near equality the quotient loses digits that its series keeps.
    if abs(gap) < 1e-4:
        return math.sqrt(one * other) * (1 + gap * gap / 24)
    return (one - other) / gap


def lmdi(deployment: Mapping[str, float], reference: Mapping[str, float]) -> dict[str, float]:
    """ln(r_k) per factor of the chain: the deployment's factor over the reference's; they add up to ln R.

    Raises:
        ValueError: the chains differ in their factors, or a factor is not positive.
    """
    if deployment.keys() != reference.keys():
        raise ValueError("both chains need the same factors")
    if min([*deployment.values(), *reference.values()], default=1.0) <= 0:
        raise ValueError("every factor of the chain has to be positive")
    return {name: math.log(value) - math.log(reference[name]) for name, value in deployment.items()}


def dollars(log_contributions: Mapping[str, float], cost: float, reference_cost: float) -> dict[str, float]:
    """Δ_k = L(c1, c0) · ln(r_k): the contributions in the unit of the cost; they add up to c1 − c0."""
    scale = log_mean(cost, reference_cost)
    return {name: scale * value for name, value in log_contributions.items()}


def sector_dollars(
    deployment: Sequence[Mapping[str, float]], reference: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """Δ_k = Σ_i L(c1_i, c0_i) ln(x1_ki / x0_ki) over sectors whose costs add up, each cost the product of its factors.

    A sector that one side lacks (a factor of 0) gives its whole cost to the factors that are 0, in equal parts: the
    limit, which a tiny number in place of 0 does not reach.

    Raises:
        ValueError: the sides differ in their sectors or factors.
    """
    if len(deployment) != len(reference):
        raise ValueError("both sides need the same sectors")
    totals: dict[str, float] = {}
    for here, there in zip(deployment, reference, strict=True):
        if here.keys() != there.keys():
            raise ValueError("both sides need the same factors in every sector")
        cost, cost0 = math.prod(here.values()), math.prod(there.values())
        if cost > 0 and cost0 > 0:
            found = dollars(lmdi(here, there), cost, cost0)
        else:
            absent = [name for name in here if (here[name] == 0) != (there[name] == 0)]
            found = dict.fromkeys(absent, (cost - cost0) / max(len(absent), 1))
        for name, value in found.items():
            totals[name] = totals.get(name, 0.0) + value
    return totals
