"""How many starts a claim needs."""

from __future__ import annotations

import math

from infer_diag.errors import DiagError

LEAST_TENANTS = 5
LEAST_STARTS = 10
"""Below five levels a variance between them has no useful interval; below ten starts each it is mostly noise."""


def starts_for_quantile(share: float, *, two_sided: bool = False, confidence: float = 0.95) -> int:
    """Starts from which on their longest bounds this quantile: share^n ≤ 1 − confidence, or half of that two-sided.

    The 99th percentile needs 299 (368 two-sided), the 95th 59 (72), the 90th 29 (36).

    Raises:
        DiagError: a share outside (0, 1).
    """
    if not 0 < share < 1:
        raise DiagError(f"{share:g} is no quantile", hint="a quantile lies between 0 and 1, such as 0.99")
    left = (1 - confidence) / (2 if two_sided else 1)
    return math.ceil(math.log(left) / math.log(share))


def share_error(levels: int, starts_each: int, share: float) -> float:
    """Standard error of a tenants' share of the variance: √(2(1 − ρ)²(1 + (n − 1)ρ)² / (n(n − 1)(k − 1))).

    ρ share, k tenants, n starts each. More tenants make it smaller, more starts of each hardly.

    Raises:
        DiagError: fewer than two tenants or two starts each.
    """
    if levels < 2 or starts_each < 2:
        raise DiagError("a share needs two tenants or more, and two starts or more of each")
    n, k = starts_each, levels
    return math.sqrt(2 * (1 - share) ** 2 * (1 + (n - 1) * share) ** 2 / (n * (n - 1) * (k - 1)))
