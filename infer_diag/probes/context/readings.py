"""Medians of the steps, and whether a flag changes what a context costs."""

from __future__ import annotations

import random
import statistics
from typing import Any

import polars as pl

from infer_diag.probes.result import framed
from infer_diag.probes.spread import spread
from infer_diag.units import format_s

ARTICLE_S = {
    "discovery": ("discovery", 8.2e-3, 5.1e-3),
    "context creation": ("context", 147.6e-3, 92.3e-3),
    "mapping": ("map_host", 63.4e-3, 38.7e-3),
}
"""Seconds of the article's stages on A100 and H100, and the step of ours that comes nearest."""

ARTICLE_FLAG_S = 12e-3
"""What the article says that `CU_CTX_MAP_HOST` costs on an A100."""

_RESAMPLES = 2000
_FEWEST_PAIRS = 6


def step_stats(steps: pl.DataFrame) -> pl.DataFrame:
    """`frames.ContextStepStats`: median and quartiles of each step's seconds, median of its bytes."""
    rows = []
    for (name,), part in steps.group_by("step", maintain_order=True):
        told = spread(part["duration_s"].drop_nulls().to_list())
        if told is None:
            continue
        taken = spread(part["taken_bytes"].drop_nulls().to_list())
        rows.append(
            {
                "step": name,
                "run_count": told.count,
                "p50_s": told.p50,
                "q1_s": told.q1,
                "q3_s": told.q3,
                "p50_bytes": taken.p50 if taken else None,
                "is_wide": told.is_wide,
            }
        )
    return framed("context_step_stats", rows)


def article_rows(stats: pl.DataFrame) -> list[dict[str, Any]]:
    """Rows of `frames.ContextArticle`: the article's table beside ours; its stages are not defined, so ours differ."""
    ours = dict(stats.select("step", "p50_s").iter_rows())
    return [
        {
            "stage": stage,
            "a100_s": a100,
            "h100_s": h100,
            "a100_over_h100_ratio": a100 / h100,
            "step": step,
            "p50_s": ours.get(step),
        }
        for stage, (step, a100, h100) in ARTICLE_S.items()
    ]


def flag_effect(pairs: pl.DataFrame) -> pl.DataFrame:
    """`frames.FlagEffect`: median difference of the pairs and its percentile bootstrap; no row for fewer than six."""
    differences = (pairs["with_flag_s"] - pairs["without_flag_s"]).to_list()
    if len(differences) < _FEWEST_PAIRS:
        return framed("flag_effect", [])
    draws = random.Random(0)
    medians = [statistics.median(draws.choices(differences, k=len(differences))) for _ in range(_RESAMPLES)]
    ends = statistics.quantiles(medians, n=40, method="inclusive")
    return framed(
        "flag_effect",
        [
            {
                "pair_count": len(differences),
                "difference_s": statistics.median(differences),
                "lower_s": ends[0],
                "upper_s": ends[-1],
                "without_flag_p50_s": statistics.median(pairs["without_flag_s"]),
                "article_s": ARTICLE_FLAG_S,
            }
        ],
    )


def sentences(stats: pl.DataFrame, effect: pl.DataFrame) -> tuple[str, ...]:
    """What a process pays before its first kernel, what the flag does, and what is odd about the article's table."""
    said = []
    first = stats.filter(pl.col("step") != "second_kernel")
    if len(first):
        whole, fewest = sum(first["p50_s"]), min(first["run_count"])
        dear = first.sort("p50_s", descending=True).row(0, named=True)
        said.append(
            f"A fresh process pays {format_s(whole)} up to its {_reached(first['step'].to_list())} (sum of medians, "
            f"{fewest} processes), most of it for {dear['step'].replace('_', ' ')} "
            f"({format_s(dear['p50_s'])})."
        )
    wide = stats.filter("is_wide")["step"].to_list()
    if wide:
        said.append(f"The processes do not agree on {', '.join(wide).replace('_', ' ')}: quote their quartiles.")
    for row in effect.to_dicts():
        null = row["lower_s"] <= 0 <= row["upper_s"]
        verdict = "no effect" if null else "an effect"
        article = "" if row["lower_s"] <= row["article_s"] <= row["upper_s"] else ", which excludes the article's 12 ms"
        said.append(
            f"CU_CTX_MAP_HOST shows {verdict}: {_signed(row['difference_s'])} in {row['pair_count']} alternating "
            f"pairs, 95 % interval {_signed(row['lower_s'])} to {_signed(row['upper_s'])}{article}."
        )
    said.append(
        "The article's A100 and H100 columns differ by one factor (1.61, 1.60, 1.64), as if one were computed from the "
        "other."
    )
    return tuple(said)


def _reached(steps: list[str]) -> str:
    """How far the processes came: cuBLAS may be absent, and a driver may refuse what comes before it."""
    if "first_kernel" not in steps:
        return f"step {steps[-1].replace('_', ' ')}, where they ended"
    return "first kernel and library handle" if "cublas_handle" in steps else "first kernel, without a library handle"


def _signed(seconds: float) -> str:
    return ("+" if seconds > 0 else "") + format_s(seconds)
