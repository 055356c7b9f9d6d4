"""The bars of one deployment set end to end: from the reference's cost to its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dataframely as dy
import polars as pl

from infer_diag.attribution.cost.frames import CostSteps
from infer_diag.attribution.cost.lmdi import log_mean

if TYPE_CHECKING:
    from infer_diag.attribution.cost.analysis import Costs

DOLLARS, GPU_SECONDS = "$ per 1M output tokens", "GPU-s per 1M output tokens"


def waterfall(analysed: Costs, name: str) -> dy.DataFrame[CostSteps]:
    """The steps from reference to deployment, blamed causes first and the largest of them first.

    Frames in: DeploymentCosts, CostBars. A step is L(c1, c0) · φ; without a price in GPU-seconds. Empty where the
    deployment has no comparison or its log is too short for one. A cause that the logs cannot tell is a step of 0.
    """
    row = analysed.deployments.row(by_predicate=pl.col("deployment") == name, named=True)
    bars = analysed.bars.filter(pl.col("deployment") == name)
    if bars.is_empty() or row["verdict"] == "refused":
        return CostSteps.create_empty()
    priced = bars.filter(pl.col("cause") == "price")["dollars_per_million_tokens"].count() > 0
    cost = row["dollars_per_million_tokens"] if priced else row["gpu_s_per_million_tokens"]
    reference = cost / row["cost_ratio"]
    scale = log_mean(cost, reference)
    ordered = bars.sort("blamed", "log_ratio", descending=[True, True], nulls_last=True, maintain_order=True)
    part = pl.col("log_ratio").fill_null(0.0) * scale
    begin = reference + part.cum_sum() - part
    steps = ordered.select(
        "deployment",
        label=pl.col("cause").str.replace_all("_", " "),
        cause="cause",
        begin_count=begin,
        end_count=begin + part,
        lower_count=begin + pl.col("lower_ratio") * scale,
        upper_count=begin + pl.col("upper_ratio") * scale,
        saves_ratio="saves_ratio",
        blamed="blamed",
        status=pl.col("status").cast(pl.String),
        missing="missing",
    )
    whole = pl.concat([_end(name, "reference", reference), steps, _end(name, name, cost)], how="diagonal_relaxed")
    unit = DOLLARS if priced else GPU_SECONDS
    return CostSteps.validate(whole.with_columns(unit=pl.lit(unit)).select(CostSteps.column_names()), cast=True)


def _end(name: str, label: str, cost: float) -> pl.DataFrame:
    return pl.DataFrame(
        {"deployment": [name], "label": [label], "begin_count": [0.0], "end_count": [cost], "blamed": [False]}
    ).with_columns(status=pl.lit("measured"))
