"""OTLP's JSON to data points of the metrics that fill a frame."""

from __future__ import annotations

from typing import Any

import polars as pl

from infer_diag.loaders.otlp.points import DELTA, POINT_LABELS, POINTS, RESOURCE_LABELS, WANTED
from infer_diag.loaders.otlp.shapes import ATTRIBUTES, RESOURCE, exports, pairs

NEEDLE = '"resourceMetrics"'

_TIMES: dict[str, Any] = {"attributes": ATTRIBUTES, "startTimeUnixNano": pl.String, "timeUnixNano": pl.String}
_NUMBERS = pl.List(pl.Struct({**_TIMES, "asDouble": pl.String, "asInt": pl.String}))
_HISTOGRAMS = pl.List(
    pl.Struct(
        {
            **_TIMES,
            "count": pl.String,
            "sum": pl.String,
            "bucketCounts": pl.List(pl.String),
            "explicitBounds": pl.List(pl.String),
        }
    )
)
_METRIC = pl.Struct(
    {
        "name": pl.String,
        "gauge": pl.Struct({"dataPoints": _NUMBERS}),
        "sum": pl.Struct({"dataPoints": _NUMBERS, "aggregationTemporality": pl.String}),
        "histogram": pl.Struct({"dataPoints": _HISTOGRAMS, "aggregationTemporality": pl.String}),
    }
)
_EXPORT = pl.Struct(
    {
        "resourceMetrics": pl.List(
            pl.Struct({"resource": RESOURCE, "scopeMetrics": pl.List(pl.Struct({"metrics": pl.List(_METRIC)}))})
        )
    }
)


def decoded(lines: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """(points with the columns of POINTS, lines that are no export) of `line` and `text`."""
    good, broken = exports(lines, _EXPORT)
    resources = good.select("line", pl.col("export").struct.field("resourceMetrics").alias("one")).explode("one")
    resources = resources.drop_nulls("one").with_row_index("resource")
    one = pl.col("one").struct
    scopes = resources.select("line", "resource", one.field("scopeMetrics").alias("scope")).explode("scope")
    metrics = scopes.select("line", "resource", pl.col("scope").struct.field("metrics").alias("m")).explode("m")
    wanted = metrics.drop_nulls("m").unnest("m").filter(pl.col("name").is_in(list(WANTED)))
    wanted = wanted.with_columns(pl.col("name").replace(WANTED))
    around = resources.select("resource", one.field("resource").struct.field("attributes"))
    found = [_numbers(wanted, "gauge"), _numbers(wanted, "sum"), *_histograms(wanted)]
    points = pl.concat([pl.DataFrame(schema=POINTS | {"resource": pl.UInt32, "attributes": ATTRIBUTES}), *found])
    return _labelled(points, around).select(*POINTS), broken


def _numbers(metrics: pl.DataFrame, kind: str) -> pl.DataFrame:
    told = _exploded(metrics, kind)
    return told.select(
        "line",
        "name",
        pl.lit(None, pl.String).alias("labels"),
        pl.lit(None, pl.String).alias("le"),
        *_moments(),
        _float(pl.coalesce("asDouble", "asInt")).alias("value"),
        "is_delta",
        "resource",
        "attributes",
    )


def _histograms(metrics: pl.DataFrame) -> list[pl.DataFrame]:
    told = _exploded(metrics, "histogram")
    shared = ["line", "name", "labels", "le", "begin_ns", "ns", "value", "is_delta", "resource", "attributes"]
    base = told.with_columns(*_moments(), pl.lit(None, pl.String).alias("labels"), pl.lit(None, pl.String).alias("le"))
    parts = [
        base.with_columns((pl.col("name") + f"_{part}").alias("name"), _float(pl.col(part)).alias("value"))
        for part in ("sum", "count")
    ]
    fits = pl.col("bucketCounts").list.len() == pl.col("explicitBounds").list.len() + 1
    cumulative = pl.col("bucketCounts").list.eval(_float(pl.element()).cum_sum())
    bounds = pl.concat_list("explicitBounds", pl.lit("+Inf"))
    buckets = base.filter(fits).with_columns(cumulative.alias("value"), bounds.alias("le")).explode("value", "le")
    parts.append(buckets.with_columns((pl.col("name") + "_bucket").alias("name")))
    return [part.select(shared) for part in parts]


def _exploded(metrics: pl.DataFrame, kind: str) -> pl.DataFrame:
    inner = pl.col(kind).struct
    delta = inner.field("aggregationTemporality").is_in(list(DELTA)) if kind != "gauge" else pl.lit(False)
    told = metrics.select(
        "line", "resource", "name", delta.fill_null(False).alias("is_delta"), inner.field("dataPoints").alias("point")
    )
    return told.explode("point").drop_nulls("point").unnest("point")


def _moments() -> list[pl.Expr]:
    return [
        pl.col(name).cast(pl.Int64, strict=False).alias(column)
        for name, column in (("startTimeUnixNano", "begin_ns"), ("timeUnixNano", "ns"))
    ]


def _float(text: pl.Expr) -> pl.Expr:
    return text.cast(pl.Float64, strict=False)


def _labelled(points: pl.DataFrame, resources: pl.DataFrame) -> pl.DataFrame:
    """The points with their attributes, and those of their resource that tell places apart, as JSON pairs."""
    rows = points.drop("labels").with_row_index("row")
    own = pairs(rows, "row").with_columns(pl.col("name").replace(POINT_LABELS))
    around = pairs(resources, "resource").filter(pl.col("name").is_in(list(RESOURCE_LABELS)))
    around = around.with_columns(pl.col("name").replace(RESOURCE_LABELS))
    given = rows.select("row", "resource").join(around, on="resource").select("row", "name", "text")
    both = pl.concat([own.select("row", "name", "text"), given]).unique(["row", "name"], keep="first")
    listed = pl.concat_list("name", "text")
    labels = both.sort("row", "name").group_by("row", maintain_order=True).agg(listed.alias("pairs"))
    written = labels.select("row", pl.struct(pl.col("pairs").alias("p")).struct.json_encode().alias("labels"))
    texts = written.with_columns(pl.col("labels").str.strip_prefix('{"p":').str.strip_suffix("}"))
    return rows.join(texts, on="row", how="left", maintain_order="left").with_columns(pl.col("labels").fill_null("[]"))
