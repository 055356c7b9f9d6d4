"""Series with memory: how many independent values they are worth, and intervals that hold for them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

Z = 1.959964
"""Two-sided 95 % of the normal distribution."""


def autocorrelation(residuals: Floats, ends: NDArray[np.int64] | None = None) -> float:
    """Correlation of neighbours about 0, between 0 and 0.999; 0 for fewer than three values or none but zeros.

    `ends` of the series that stand one behind the other; the last value of one and the first of the next are no
    neighbours. Residuals of one fit to all are not centred, so that what sets a series apart counts as memory.
    """
    whole = float((residuals**2).sum())
    if len(residuals) < 3 or whole == 0:
        return 0.0
    products = residuals[1:] * residuals[:-1]
    if ends is not None:
        products = np.delete(products, ends[:-1] - 1)
    return float(np.clip(products.sum() / whole, 0.0, 0.999))


def effective_count(count: int, phi: float) -> float:
    """n (1 − φ) / (1 + φ): so many independent values tell as much about a mean."""
    return count * (1 - phi) / (1 + phi)


def t_quantile(freedom: float) -> float:
    """Two-sided 95 % of Student's t with so many degrees of freedom (four or more), to three digits.

    Cornish–Fisher's expansion about the normal quantile (Abramowitz and Stegun 26.7.5).
    """
    terms = (
        (Z**3 + Z) / 4,
        (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96,
        (3 * Z**7 + 19 * Z**5 + 17 * Z**3 - 15 * Z) / 384,
        (79 * Z**9 + 776 * Z**7 + 1482 * Z**5 - 1920 * Z**3 - 945 * Z) / 92160,
    )
    return Z + sum(term / freedom**power for power, term in enumerate(terms, start=1))


def chi_square_tail(value: float, freedom: float) -> float:
    """The probability of at least this χ² with so many degrees of freedom (Wilson and Hilferty's transform)."""
    if freedom <= 0:
        return 1.0
    spread = 2 / (9 * freedom)
    z = ((value / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return 0.5 * math.erfc(z / math.sqrt(2))
