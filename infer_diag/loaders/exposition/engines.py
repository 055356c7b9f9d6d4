"""Samples of an engine's own metrics to `engine_samples`, `request_totals` and `incidents`."""

from __future__ import annotations

import polars as pl

GAUGES = ("running_count", "waiting_count", "swapped_count", "kv_usage_ratio", "prefix_hit_ratio")
_KEY = ("scrape", "replica")


def engine_frames(values: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Frames without `source_id` out of values joined with their series (columns of SAMPLES and SERIES).

    Rates are the increase of a counter since the scrape before, divided by the time between; they are null over a
    restart, and where no time is told. What a counter added over a restart is its value after it: a lower bound.
    """
    own = preferred(values.filter(pl.col("kind") != "device"))
    if own.is_empty():
        return {}
    grown = growth(own.filter(pl.col("kind") != "gauge"))
    samples = _samples(own, grown)
    return {
        "engine_samples": samples,
        "request_totals": totals(grown),
        "incidents": _restarts(grown),
    }


def preferred(values: pl.DataFrame) -> pl.DataFrame:
    """One name per family and place: a version that exports a metric under an old and a new name counts once."""
    family = ("engine", "place", "replica", "column", "kind", "part")
    return values.filter(pl.col("rank") == pl.col("rank").min().over(family)).with_columns(_label(values))


def _label(values: pl.DataFrame) -> pl.Expr:
    """The replica's name where there are several: what tells them apart, and no more."""
    places = pl.col("place") if values["place"].n_unique() > 1 else pl.lit(None, pl.String)
    engines = pl.col("replica") if values["replica"].n_unique() > 1 else pl.lit(None, pl.String)
    name = pl.concat_str([places, engines], separator=" ", ignore_nulls=True)
    return pl.when(name != "").then(name).alias("replica")


def growth(values: pl.DataFrame) -> pl.DataFrame:
    """Counters and parts of histograms with `grown` since the series' scrape before, `reset`, and the time between.

    A series that first shows up after the first scrape of its place began at zero. Where there is but one scrape, what
    it says has grown since the engine began.
    """
    ordered = values.sort(pl.col("series").to_physical(), "scrape")
    before = pl.col("value").shift(1).over("series")
    first = pl.col("scrape").min().over("engine", "place")
    alone = pl.col("scrape").max().over("engine", "place") == first
    since = pl.when(before.is_not_null()).then(before).when(alone | (pl.col("scrape") > first)).then(0.0)
    reset = pl.col("value") < since
    return ordered.with_columns(
        pl.when(reset).then("value").otherwise(pl.col("value") - since).alias("grown"),
        reset.fill_null(False).alias("reset"),
        before.alias("before"),
        ((pl.col("us") - pl.col("us").shift(1).over("series")) / 1e6).alias("span_s"),
    )


def _samples(own: pl.DataFrame, grown: pl.DataFrame) -> pl.DataFrame:
    """One row per scrape and replica."""
    gauges = own.filter(pl.col("kind") == "gauge")
    counters = grown.filter(pl.col("kind") == "counter")
    rate = pl.when(~pl.col("reset") & (pl.col("span_s") > 0)).then(pl.col("grown") / pl.col("span_s"))
    counters = counters.with_columns(rate.alias("rate"))
    wide = own.filter(pl.col("kind").is_in(["gauge", "counter"])).group_by(_KEY, maintain_order=True)
    frame = wide.agg(pl.col("line").min(), pl.col("us").min())
    for column in GAUGES:
        frame = _with(frame, gauges, column, "value", column)
    frame = _with(frame, counters, "preemption_count", "grown", "preemption_count")
    for column in ("prompt_tokens", "output_tokens"):
        frame = _with(frame, counters, column, "rate", f"{column}_per_s")
    for column in ("prefix_queries", "prefix_hits"):
        frame = _with(frame, counters, column, "grown", column)
    hit = pl.when(pl.col("prefix_queries") > 0).then(pl.col("prefix_hits") / pl.col("prefix_queries"))
    counts = [pl.col(name).cast(pl.UInt32, strict=False) for name in (*GAUGES[:3], "preemption_count")]
    frame = frame.with_columns(*counts, pl.coalesce("prefix_hit_ratio", hit).alias("prefix_hit_ratio"))
    return frame.sort("scrape", "replica").select(
        "line",
        pl.col("us").cast(pl.Datetime("us", "UTC")).alias("time"),
        "replica",
        pl.lit("scrape").alias("kind"),
        *GAUGES,
        "prompt_tokens_per_s",
        "output_tokens_per_s",
        "preemption_count",
    )


def _with(frame: pl.DataFrame, rows: pl.DataFrame, column: str, value: str, name: str) -> pl.DataFrame:
    """The frame with one more column: the series of a replica put together, null where none has a value."""
    mine = rows.filter((pl.col("column") == column) & pl.col(value).is_not_null())
    whole = pl.when(pl.col("across").first() == "max").then(pl.col(value).max()).otherwise(pl.col(value).sum())
    joined = frame.join(mine.group_by(_KEY).agg(whole.alias(name)), on=_KEY, how="left", nulls_equal=True)
    return joined.with_columns(pl.col(name).cast(pl.Float64))


def totals(grown: pl.DataFrame) -> pl.DataFrame:
    """Per model and measure the number of requests, their mean and their buckets, over all scrapes.

    The mean is exact: the increase of the sum divided by that of the count. Buckets hold the requests up to their
    bound and above the bound before it; quantiles are known only to lie within one.
    """
    key = ("model", "column")
    parts = grown.filter((pl.col("kind") == "histogram") & pl.col("grown").is_not_null())
    sums = _summed(parts, "sum", key).rename({"grown": "sum"})
    counts = _summed(parts, "count", key).rename({"grown": "count"})
    bounds = _summed(parts, "bucket", (*key, "le")).filter(pl.col("le").is_not_null()).sort("le")
    single = pl.col("grown") - pl.col("grown").shift(1, fill_value=0.0).over(key, order_by="le")
    buckets = bounds.with_columns(single.clip(0.0).round().cast(pl.UInt64, strict=False).alias("held"))
    listed = buckets.group_by(key, maintain_order=True).agg(
        pl.when(pl.col("le").is_finite()).then("le").alias("bucket_max"), pl.col("held").alias("bucket_counts")
    )
    whole = pl.concat([_told(sums, counts, key), _of_counters(grown)], how="diagonal_relaxed")
    return (
        whole.join(listed, on=key, how="left", nulls_equal=True, maintain_order="left")
        .rename({"column": "measure"})
        .select("line", "model", "measure", "request_count", "mean", "bucket_max", "bucket_counts")
    )


def _summed(parts: pl.DataFrame, part: str, key: tuple[str, ...]) -> pl.DataFrame:
    mine = parts.filter(pl.col("part") == part)
    return mine.group_by(key, maintain_order=True).agg(pl.col("grown").sum(), pl.col("line").max())


def _told(sums: pl.DataFrame, counts: pl.DataFrame, key: tuple[str, ...]) -> pl.DataFrame:
    both = sums.join(counts.drop("line"), on=key, how="inner", nulls_equal=True, maintain_order="left")
    return both.filter((pl.col("count") > 0) & (pl.col("sum") >= 0)).select(
        "line",
        *key,
        pl.col("count").round().cast(pl.UInt64, strict=False).alias("request_count"),
        (pl.col("sum") / pl.col("count")).alias("mean"),
    )


def _of_counters(grown: pl.DataFrame) -> pl.DataFrame:
    """Sums over requests that an engine exports as plain counters beside the number of requests (Triton)."""
    key = ("model", "column")
    mine = grown.filter((pl.col("kind") == "counter") & pl.col("grown").is_not_null())
    counts = (
        mine.filter(pl.col("column") == "request_count").group_by("model").agg(pl.col("grown").sum().alias("count"))
    )
    durations = mine.filter(pl.col("column").is_in(["e2e_s", "queue_s"]))
    scaled = (pl.col("grown") * pl.col("scale")).sum().alias("sum")
    sums = durations.group_by(key, maintain_order=True).agg(scaled, pl.col("line").max())
    counted = sums.select(key).join(counts, on="model", how="left", nulls_equal=True).drop_nulls("count")
    return _told(sums, counted.with_columns(pl.lit(0).alias("line")), key)


def _restarts(grown: pl.DataFrame) -> pl.DataFrame:
    """One incident per scrape and replica at which counters begin again."""
    mine = grown.filter("reset")
    told = mine.group_by("scrape", "replica", maintain_order=True).agg(
        pl.col("line").min(), pl.col("us").min(), pl.len().alias("counters"), pl.col("name").first()
    )
    return told.sort("scrape", "replica").select(
        "line",
        pl.col("us").cast(pl.Datetime("us", "UTC")).alias("time"),
        "replica",
        pl.lit("restart").alias("kind"),
        pl.format("{} counters begin again, {} among them", "counters", "name").alias("fields"),
    )
