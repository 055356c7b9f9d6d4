"""Numbers in sentences."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from infer_diag.units import format_ratio, format_s


def spread(values: pl.Series, write: Callable[[float | None], str]) -> str:
    """`219 to 247`, or the one value where all are written alike; `unknown` where there is none."""
    known = values.drop_nulls().cast(pl.Float64)
    if known.is_empty():
        return "unknown"
    least, most = write(known.min()), write(known.max())  # type: ignore[arg-type]
    return least if least == most else f"{least} to {most}"


def top(values: pl.Series) -> float | None:
    """The greatest value, null where there is none."""
    return values.cast(pl.Float64).max()  # type: ignore[return-value]


def pool_use(samples: pl.DataFrame) -> str:
    """` and the KV pool is at 3 % to 5 %`; empty where no sample tells."""
    used = samples["kv_usage_ratio"].drop_nulls()
    return "" if used.is_empty() else f" and the KV pool is at {spread(used, format_ratio)}"


def between(rows: pl.DataFrame) -> str:
    """` within 12 s`, from the stamps of the first and the last row; empty where they have none."""
    length_s = seconds_between(rows)
    return "" if length_s is None else f" within {format_s(length_s)}"


def seconds_between(rows: pl.DataFrame) -> float | None:
    """Seconds from the earliest to the latest stamp of the rows, null without stamps."""
    if rows["time"].null_count() == len(rows):
        return None
    return float(rows.select((pl.col("time").max() - pl.col("time").min()).dt.total_microseconds()).item()) / 1e6


def lowered(text: str) -> str:
    """A sentence as the second half of another one."""
    return text[:1].lower() + text[1:]
