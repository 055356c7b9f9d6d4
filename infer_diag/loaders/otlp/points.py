"""Data points of OTLP metrics to the samples and series of Prometheus' scrapes, so that one reader serves both.

A histogram becomes its sum, its count and its cumulative buckets; what counts from one export to the next (delta) is
added up, and began at zero when its first interval did.
"""

from __future__ import annotations

import json
from typing import Any

import polars as pl

from infer_diag.loaders.exposition.families import HISTOGRAM_PARTS, MEANINGS
from infer_diag.loaders.exposition.scrapes import SAMPLES
from infer_diag.loaders.exposition.series import SERIES, series_row

POINTS: dict[str, pl.DataType | type[pl.DataType]] = {
    "line": pl.UInt32,
    "name": pl.String,
    "labels": pl.String,
    "le": pl.String,
    "begin_ns": pl.Int64,
    "ns": pl.Int64,
    "value": pl.Float64,
    "is_delta": pl.Boolean,
}
"""One number of one series; `name` has `_sum`, `_count` or `_bucket` behind a histogram's, `labels` are JSON pairs."""

_PROMETHEUS = frozenset(MEANINGS) | {
    name.removesuffix(part) for name in MEANINGS for part in HISTOGRAM_PARTS if name.endswith(part)
}
_CONVENTIONS = ("request.duration", "time_to_first_token", "time_per_output_token")
WANTED: dict[str, str] = {name: name for name in sorted(_PROMETHEUS)} | {
    f"gen_ai.server.{name}": f"gen_ai_server_{name.replace('.', '_')}_seconds" for name in _CONVENTIONS
}
"""Names of metrics that fill a frame, and the names that scrapes have for them."""

DELTA = ("1", "AGGREGATION_TEMPORALITY_DELTA")
RESOURCE_LABELS = {
    "service.instance.id": "instance",
    "k8s.pod.name": "pod",
    "k8s.node.name": "node",
    "host.name": "Hostname",
}
"""Attributes of a resource and the labels that Prometheus has for them."""
POINT_LABELS = {"gen_ai.request.model": "model_name"}
"""The same of attributes of a point."""


def sampled(points: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """(samples with the columns of SAMPLES, series with those of SERIES) of points with the columns of POINTS.

    Instants are numbered over all points: what has the same time is one scrape.
    """
    key = ("name", "labels", "le")
    named = points.with_columns(
        pl.concat_str([pl.col(each).fill_null("") for each in key], separator="\n").alias("key")
    )
    whole = _accumulated(named).filter(pl.col("ns") > 0).unique(["key", "ns"], keep="last", maintain_order=True)
    samples = whole.select(
        pl.col("ns").rank("dense").cast(pl.Int64).alias("scrape"),
        "line",
        (pl.col("ns") // 1000).alias("us"),
        pl.col("key").alias("series"),
        "value",
    )
    rows = [_series(*row) for row in named.select("key", *key).unique(maintain_order=True).iter_rows()]
    series = pl.DataFrame([row for row in rows if row is not None], schema=SERIES, orient="row")
    return samples.select(pl.col(name).cast(kind) for name, kind in SAMPLES.items()), series


def _accumulated(points: pl.DataFrame) -> pl.DataFrame:
    deltas = points.filter("is_delta")
    if deltas.is_empty():
        return points
    ordered = deltas.sort("ns", maintain_order=True)
    begun = ordered.unique("key", keep="first", maintain_order=True).filter(pl.col("begin_ns") < pl.col("ns"))
    begun = begun.with_columns(pl.col("begin_ns").alias("ns"), pl.lit(0.0).alias("value"))
    summed = ordered.with_columns(pl.col("value").cum_sum().over("key"))
    return pl.concat([points.filter(~pl.col("is_delta")), begun, summed])


def _series(key: str, name: str, labels: str, le: str | None) -> dict[str, Any] | None:
    told = {str(label): str(value) for label, value in json.loads(labels)}
    return series_row(key, name, told if le is None else {**told, "le": le})
