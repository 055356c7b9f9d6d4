"""Durations as Go prints them: `5.257673085s`, `6.2826ms`, `28.205µs`, `8m44s`, `1h2m3s`."""

from __future__ import annotations

import polars as pl

GO_DURATION = r"(?:(?P<h>[0-9]+)h)?(?:(?P<m>[0-9]+)m)?(?P<n>[0-9.]+)(?P<u>[^0-9. |]*s)"
"""A pattern with the groups that `go_seconds` reads."""

_UNITS = {"ns": 1e-9, "µs": 1e-6, "μs": 1e-6, "us": 1e-6, "ms": 1e-3, "s": 1.0}


def go_seconds(groups: pl.Expr) -> pl.Expr:
    """Seconds out of a struct with the groups of `GO_DURATION`, null where they do not fit.

    An encoding that spoilt the micro sign leaves something else before the s.
    """
    part = {name: groups.struct.field(name).cast(pl.Float64, strict=False) for name in "hmn"}
    scale = groups.struct.field("u").replace_strict(_UNITS, default=1e-6, return_dtype=pl.Float64)
    return 3600 * part["h"].fill_null(0.0) + 60 * part["m"].fill_null(0.0) + part["n"] * scale
