"""Which worker the others wait for at the end of a phase, and whether it is always the same one."""

from __future__ import annotations

import math
from collections.abc import Mapping

import dataframely as dy
import polars as pl

from infer_diag.attribution.occurrences import UNLABELLED
from infer_diag.attribution.quantiles import median
from infer_diag.attribution.starts_together.frames import Stragglers


def stragglers(phases: Mapping[str, pl.DataFrame]) -> dy.DataFrame[Stragglers]:
    """The last worker of every phase over the starts of each deployment, and how far it ended after the median worker.

    Frames in: StartPhases by deployment. Frame out: Stragglers, the most frequent first. Ends are compared where all
    workers have stamps, else lengths (a barrier waits for the longest). Workers that end together name no last one, and
    lines that name no worker are none.
    `chance_ratio`: k workers as likely to be last make one of them so x times of n with at most k · P(Bin(n, 1/k) ≥ x).
    """
    rows = [row for name, frame in phases.items() for row in _last_workers(name, frame)]
    found = pl.DataFrame(rows, schema=_LAST, orient="row")
    if found.is_empty():
        return Stragglers.create_empty()
    of_phase = ["deployment", "phase"]
    counted = found.with_columns(pl.len().over(of_phase).alias("start_count"))
    named = (
        counted.drop_nulls("rank")
        .group_by(*of_phase, "rank", maintain_order=True)
        .agg(
            pl.len().alias("slowest_count"),
            pl.col("start_count").first(),
            median(pl.col("excess_s")).alias("excess_s"),
            pl.col("worker_count").max(),
        )
    )
    chance = [
        _chance(row["slowest_count"], row["start_count"], row["worker_count"]) for row in named.iter_rows(named=True)
    ]
    whole = named.with_columns(pl.Series("chance_ratio", chance, dtype=pl.Float64)).drop("worker_count")
    ordered = whole.sort("deployment", "phase", "slowest_count", descending=[False, False, True], maintain_order=True)
    return Stragglers.validate(ordered, cast=True)


_LAST = {
    "deployment": pl.String,
    "phase": pl.String,
    "rank": pl.String,
    "excess_s": pl.Float64,
    "worker_count": pl.UInt32,
}


def _last_workers(name: str, phases: pl.DataFrame) -> list[tuple[str, str, str | None, float, int]]:
    workers = phases.filter((pl.col("rank") != UNLABELLED) & pl.col("chosen"))
    rows: list[tuple[str, str, str | None, float, int]] = []
    for (_, phase), part in workers.partition_by("start_id", "phase", as_dict=True, maintain_order=True).items():
        at = "end_s" if not part["end_s"].null_count() else "duration_s"
        if len(part) < 2 or part[at].null_count():
            continue
        ends = part.select(pl.col(at).max().alias("last"), median(pl.col(at)).alias("middle")).row(0)
        last = part.filter(pl.col(at) == ends[0])["rank"].to_list()
        rows.append((name, str(phase), last[0] if len(last) == 1 else None, ends[0] - ends[1], len(part)))
    return rows


def _chance(last: int, starts: int, workers: int) -> float:
    share = 1 / workers
    tail = math.fsum(math.comb(starts, x) * share**x * (1 - share) ** (starts - x) for x in range(last, starts + 1))
    return min(workers * tail, 1.0)
