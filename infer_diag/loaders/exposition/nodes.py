"""What a node's kubelet counts of starts (device plugins, sandboxes, images, pods) to `start_totals`."""

from __future__ import annotations

import polars as pl

from infer_diag.loaders.exposition.engines import growth, preferred, totals

OPERATIONS = {
    "pull_image": "image_pull",
    "create_container": "container_create",
    "start_container": "container_start",
}
"""Operations of the container runtime that belong to a start, by kubelet's name; all others are left out."""


def node_frames(values: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """`start_totals` without `source_id` out of values joined with their series; sums count as those of engines do."""
    named = values.with_columns(
        pl.when(pl.col("column") == "operation")
        .then(pl.col("model").replace_strict(OPERATIONS, default=None, return_dtype=pl.String))
        .otherwise("column")
        .alias("column"),
        pl.when(pl.col("column") != "operation").then("model").alias("model"),
    ).drop_nulls("column")
    own = preferred(named)
    if own.is_empty():
        return {}
    grown = growth(own)
    timed = totals(grown).rename(
        {"measure": "step", "model": "resource", "request_count": "event_count", "mean": "mean_s"}
    )
    counters = grown.filter((pl.col("kind") == "counter") & pl.col("grown").is_not_null())
    counted = counters.group_by("column", "model", maintain_order=True).agg(
        pl.col("line").max(), pl.col("grown").sum().round().cast(pl.UInt64, strict=False).alias("event_count")
    )
    counted = counted.rename({"column": "step", "model": "resource"})
    told = pl.concat([timed.rename({"bucket_max": "bucket_max_s"}), counted], how="diagonal_relaxed")
    return {"start_totals": told.filter(pl.col("event_count") > 0).sort("step", "resource", nulls_last=False)}
