"""Cells that tools print of a device to `gpu_samples`."""

from __future__ import annotations

import polars as pl

from infer_diag.loaders.loader import Options
from infer_diag.loaders.text.clock import FileClock

MIB = 1 << 20
_NUMBER = r"^\s*(-?[0-9]+(?:[.,][0-9]+)?)"


def number(cell: pl.Expr) -> pl.Expr:
    """The number in a cell, with or without its unit; null for `-`, `N/A` and the like."""
    return cell.str.extract(_NUMBER).str.replace(",", ".", literal=True).cast(pl.Float64, strict=False)


def mib(cell: pl.Expr) -> pl.Expr:
    """Bytes of a cell in MiB (which the tools also call MB)."""
    value = number(cell)
    return pl.when(value >= 0).then((value * MIB).round().cast(pl.UInt64, strict=False))


def ratio(cell: pl.Expr) -> pl.Expr:
    """A cell that is a share between 0 and 1; null where it is more, since it must then mean something else."""
    value = number(cell)
    return pl.when(value.is_between(0, 1)).then(value)


def watts(cell: pl.Expr) -> pl.Expr:
    """Watts of a cell."""
    value = number(cell)
    return pl.when(value >= 0).then(value)


def stamped(rows: pl.DataFrame, options: Options) -> tuple[pl.DataFrame, FileClock]:
    """The rows with `time` in place of the raw stamp `inner`, and the clock that read them."""
    clock = FileClock(options.year, options.tz)
    raw = rows.with_columns(pl.lit(None, pl.String).alias("outer"), _dashed(pl.col("inner")).alias("inner"))
    return clock.timed({"": raw})[""], clock


def _dashed(stamp: pl.Expr) -> pl.Expr:
    return stamp.str.replace(r"^([0-9]{4})([0-9]{2})([0-9]{2}) ", "${1}-${2}-${3} ")
