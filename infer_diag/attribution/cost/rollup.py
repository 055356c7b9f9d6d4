"""From deployments to the fleet: dollars that add up, what could be recovered, and in how many a cause shows."""

from __future__ import annotations

import dataframely as dy
import polars as pl

from infer_diag.attribution.cost import CAUSES
from infer_diag.attribution.cost.analysis import Costs
from infer_diag.attribution.cost.frames import FleetRollup
from infer_diag.attribution.quantiles import median


def rollup(analysed: Costs) -> dy.DataFrame[FleetRollup]:
    """One row per cause, in the order of the causes.

    Frames in: CostBars, DeploymentCosts. Excess Σ_d $_{d,j} · Y_d / 10⁶ adds up over causes, since each deployment's
    bars do. Recoverable Σ_d max(0, 1 − e^(−last_{d,j})) · c_d · Y_d / 10⁶ does not: causes overlap. Shares are not
    averaged: their denominators differ.
    """
    volume = analysed.deployments.select(
        "deployment",
        millions=pl.col("delivered_tokens") / 1e6,
        spent=pl.col("delivered_tokens") / 1e6 * pl.col("dollars_per_million_tokens"),
    )
    bars = analysed.bars.join(volume, on="deployment", how="left")
    told = bars.filter(pl.col("log_ratio").is_not_null())
    excludes = (pl.col("lower_ratio") > 0) | (pl.col("upper_ratio") < 0)
    priced = pl.col("dollars_per_million_tokens").count() > 0
    excess = (pl.col("dollars_per_million_tokens") * pl.col("millions")).sum()
    recoverable = (pl.col("saves_ratio").clip(0.0, None) * pl.col("spent")).fill_null(0.0).sum()
    rows = told.group_by("cause").agg(
        pl.col("blamed").first(),
        excess_dollars_count=pl.when(priced).then(excess),
        recoverable_dollars_count=pl.when(priced).then(recoverable),
        excludes_zero_count=excludes.fill_null(False).sum(),
        discovered_count=(pl.col("discovered") & excludes.fill_null(False)).sum(),
        deployment_count=pl.len(),
        median_log_ratio=median(pl.col("log_ratio")),
    )
    order = pl.col("cause").replace_strict(CAUSES, range(len(CAUSES)))
    return FleetRollup.validate(rows.sort(order), cast=True)
