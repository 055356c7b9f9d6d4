"""The one place where quantiles are taken: linear between the two neighbours, as numpy does by default."""

from __future__ import annotations

import polars as pl


def quantile(values: pl.Expr, share: float) -> pl.Expr:
    """The value below which `share` (0 to 1) of the values lie, linear between neighbours; null where there is none.

    Polars' own default is "nearest", which moves with the number of rows, so nothing else in infer_diag asks polars.
    """
    return values.quantile(share, interpolation="linear")


def median(values: pl.Expr) -> pl.Expr:
    """The middle value, or the mean of the two in the middle."""
    return quantile(values, 0.5)
