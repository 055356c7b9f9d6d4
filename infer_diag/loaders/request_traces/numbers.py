"""Cells of a table to numbers: null where a cell holds none, never a guess."""

from __future__ import annotations

import polars as pl

_LARGEST = 2**32 - 1


def number(cell: pl.Expr) -> pl.Expr:
    """A finite number, null otherwise."""
    value = cell.cast(pl.Float64, strict=False)
    return pl.when(value.is_finite()).then(value)


def whole(cell: pl.Expr) -> pl.Expr:
    """A whole number from 0 on as UInt32, null otherwise (a count with a fraction is no count)."""
    value = number(cell)
    return (
        pl.when((value >= 0) & (value <= _LARGEST) & (value == value.floor())).then(value).cast(pl.UInt32, strict=False)
    )


def length(cell: pl.Expr) -> pl.Expr:
    """A duration: a finite number from 0 on, null otherwise."""
    value = number(cell)
    return pl.when(value >= 0).then(value)
