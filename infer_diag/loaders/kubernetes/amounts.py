"""Durations as Go prints them, ages as kubectl prints them, and RFC 3339 stamps."""

from __future__ import annotations

import polars as pl

SECOND_US = 1_000_000
NOW_US = 946_771_200 * SECOND_US
"""Where ages count from: 2000-01-02T00:00:00Z, plainly not the real moment (`schema`: a log without a date)."""

AGE = r"(?:<unknown>|<invalid>|(?:[0-9]+[ydhms])+)"
GO_DURATION = r"(?:[0-9]+(?:\.[0-9]+)?(?:h|ms|m|µs|us|ns|s))+"

_AGE_S = {"y": 365 * 86_400, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
_GO_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "µs": 1e-6, "us": 1e-6, "ns": 1e-9}


def age_s(text: pl.Expr) -> pl.Expr:
    """Seconds of an age such as `5m31s`; null where it is unknown. The age is cut, not rounded, to its last unit."""
    parts = [text.str.extract(f"([0-9]+){unit}").cast(pl.Int64, strict=False) * each for unit, each in _AGE_S.items()]
    return pl.when(text.str.contains("[0-9]")).then(pl.sum_horizontal(parts))


def age_step_s(text: pl.Expr) -> pl.Expr:
    """Seconds of the smallest unit that an age prints: kubectl leaves the small ones out of a large age."""
    step = pl.coalesce(
        pl.when(text.str.contains(f"[0-9]{unit}")).then(pl.lit(each)) for unit, each in reversed(_AGE_S.items())
    )
    return step.cast(pl.Int64)


def go_duration_s(text: pl.Expr) -> pl.Expr:
    """Seconds of a Go duration such as `4m47.129s`."""
    number = "([0-9]+(?:\\.[0-9]+)?)"
    parts = [
        text.str.extract(f"{number}{unit}(?:[0-9]|$)").cast(pl.Float64, strict=False).fill_null(0.0) * each
        for unit, each in _GO_S.items()
    ]
    return pl.when(text.is_not_null()).then(pl.sum_horizontal(parts))


def go_resolution_s(text: pl.Expr) -> pl.Expr:
    """Half of the last printed digit of a Go duration."""
    decimals = text.str.extract(r"\.([0-9]+)[a-zµ]+$").str.len_chars().fill_null(0).cast(pl.Float64)
    unit = text.str.extract(r"([a-zµ]+)$").replace_strict(_GO_S, default=None, return_dtype=pl.Float64)
    return 0.5 * unit * pl.lit(10.0).pow(-decimals)


def stamp_us(text: pl.Expr) -> pl.Expr:
    """Microseconds since 1970 of an RFC 3339 stamp; null where it is none."""
    return text.str.to_datetime("%+", time_unit="us", time_zone="UTC", strict=False).dt.epoch("us")
