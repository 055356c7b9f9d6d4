"""Trials counted: bias, coverage and refusals by scenario and cause, and the acceptance lines held against them."""

from __future__ import annotations

from typing import Any

import polars as pl
import scipy.stats

Row = dict[str, Any]
BIAS_LOG = 0.05
COVERS = (0.92, 0.98)
RESIDUAL_SHARE = 0.9
ALONE_LOG = 0.02
"""Below this (ln and share of the cost) a part counts as about nothing, and two parts as equal."""


def interval(hits: int, count: int) -> tuple[float, float]:
    """95 % interval of a share by counting, Clopper and Pearson's; the whole range where nothing was counted."""
    if not count:
        return 0.0, 1.0
    found = scipy.stats.binomtest(hits, count).proportion_ci(0.95)
    return float(found.low), float(found.high)


def summarised(trials: pl.DataFrame) -> pl.DataFrame:
    """One row per scenario, sight, length and cause.

    `truth` is the mean over the fleets, which is what an interval has to hold; `bias` is found − truth with the half
    width of its own 95 % interval; `covered_ratio` and `holds_zero_ratio` are of those given one.
    """
    key = ["scenario", "sight", "hours", "cause"]
    told = trials.with_columns(mean=pl.col("truth").mean().over(key))
    inside, zero = (
        (pl.col("lower") <= value + 1e-12) & (pl.col("upper") >= value - 1e-12)
        for value in (pl.col("mean"), pl.lit(0.0))
    )
    rows = told.group_by(key, maintain_order=True).agg(
        planted=pl.col("planted").first(),
        fleets=pl.len(),
        truth=pl.col("truth").mean(),
        found=pl.col("found").mean(),
        sd=pl.col("found").std(),
        bias=(pl.col("found") - pl.col("mean")).mean(),
        bias_half=1.96 * pl.col("found").std() / pl.col("found").count().sqrt(),
        with_interval=pl.col("lower").count(),
        covered=inside.sum(),
        holds_zero=zero.sum(),
        width=(pl.col("upper") - pl.col("lower")).mean(),
        saves=pl.col("saves").mean(),
        largest_saves=pl.col("saves").abs().max(),
    )
    shares = [
        {
            "covered_ratio": row["covered"] / row["with_interval"] if row["with_interval"] else None,
            "covered_lower": interval(row["covered"], row["with_interval"])[0],
            "covered_upper": interval(row["covered"], row["with_interval"])[1],
            "holds_zero_ratio": row["holds_zero"] / row["with_interval"] if row["with_interval"] else None,
        }
        for row in rows.iter_rows(named=True)
    ]
    return rows.hstack(pl.DataFrame(shares))


def acceptance(summary: pl.DataFrame, properties: dict[str, tuple[int, int]]) -> list[Row]:
    """Every line of the method's acceptance: aim, what was found, and `met` (null: cannot be told by so few fleets)."""
    lines = []
    whole = summary.filter(pl.col("hours") == 0)
    for row in whole.iter_rows(named=True):
        what = f"{row['scenario']}, {row['sight']}: {row['cause'].replace('_', ' ')}"
        if row["scenario"] == "demand and memory alike":
            continue
        if row["planted"]:
            lines.append(_bias(what, row))
        lines.append(_coverage(what, row))
    lines += _residual(whole) + _alike(whole) + _weak(summary.filter(pl.col("hours") > 0))
    for name, (held, count) in properties.items():
        lines.append(_line("whatever the numbers", name, "always", f"{held} of {count}", held == count))
    return lines


def _line(kind: str, what: str, aim: str, found: str, met: bool | None) -> Row:
    return {"kind": kind, "what": what, "aim": aim, "found": found, "met": met}


def _bias(what: str, row: Row) -> Row:
    if row["found"] is None:
        return _line("bias", what, f"under {BIAS_LOG} ln", "refused in every fleet", None)
    size, half = abs(row["bias"]), row["bias_half"] or 0.0
    met = None if size - half < BIAS_LOG <= size + half else size < BIAS_LOG
    return _line("bias", what, f"under {BIAS_LOG} ln", f"{row['bias']:+.3f} ± {half:.3f}", met)


def _coverage(what: str, row: Row) -> Row:
    kind = "coverage" if row["planted"] else "holds 0"
    aim = f"{COVERS[0]:.0%} to {COVERS[1]:.0%}"
    if not row["with_interval"]:
        return _line(kind, what, aim, "refused in every fleet", None)
    low, high = row["covered_lower"], row["covered_upper"]
    found = f"{row['covered_ratio']:.1%} ({low:.0%} to {high:.0%}) of {row['with_interval']}"
    if high < COVERS[0] or low > COVERS[1]:
        met: bool | None = False
    else:
        met = True if COVERS[0] <= row["covered_ratio"] <= COVERS[1] else None
    return _line(kind, what, aim, found, met)


def _residual(summary: pl.DataFrame) -> list[Row]:
    rows = summary.filter((pl.col("scenario") == "throttled GPU") & (pl.col("cause") == "residual"))
    return [
        _line(
            "unmodelled cause",
            f"throttled GPU, {row['sight']}: the residual takes",
            f"{RESIDUAL_SHARE:.0%} or more",
            f"{row['found'] / row['truth']:.1%}",
            row["found"] / row["truth"] >= RESIDUAL_SHARE,
        )
        for row in rows.iter_rows(named=True)
    ]


def _alike(summary: pl.DataFrame) -> list[Row]:
    rows = {
        row["cause"]: row
        for row in summary.filter(pl.col("scenario") == "demand and memory alike").iter_rows(named=True)
    }
    if not rows:
        return []
    one, other = rows["batching"], rows["fragmentation"]
    gap = abs(one["found"] - other["found"])
    most = max(one["largest_saves"], other["largest_saves"])
    return [
        _line("two limits", "batching and fragmentation share equally", f"apart by under {ALONE_LOG} ln",
              f"{one['found']:.3f} and {other['found']:.3f}", gap < ALONE_LOG),
        _line("two limits", "fixing one of them alone saves about nothing", f"under {ALONE_LOG:.0%}",
              f"{most:.1%} at most", most < ALONE_LOG),
    ]  # fmt: skip


def _weak(summary: pl.DataFrame) -> list[Row]:
    """Wrong: an interval, and the truth outside it. Refused: none."""
    if summary.is_empty():
        return []
    lines = []
    for (hours,), part in summary.partition_by("hours", as_dict=True, maintain_order=True).items():
        given, covered = int(part["with_interval"].sum()), int(part["covered"].sum())
        high = interval(covered, given)[1]
        count = int(part["fleets"].sum())
        shown = f"{covered / given:.1%} of {given} intervals hold the truth" if given else "no interval"
        met = True if not given else (False if high < COVERS[0] else (True if covered / given >= COVERS[0] else None))
        lines.append(
            _line("halved logs", f"{hours} hours", "no confident wrong answer",
                  f"{shown}, {1 - given / count:.0%} refused", met)
        )  # fmt: skip
    last = summary.filter(pl.col("hours") == summary["hours"].min())
    refused = not len(last) or int(last["with_interval"].sum()) == 0
    return (
        [*lines, _line("halved logs", "ends in refusal", "all", "yes" if refused else "no", refused)] if lines else []
    )
