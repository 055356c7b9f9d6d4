"""Samples of a device exporter to `gpu_samples` and `incidents`."""

from __future__ import annotations

import polars as pl

COLUMNS = ("used_bytes", "free_bytes", "reserved_bytes", "sm_active_ratio", "dram_active_ratio", "power_w")
_BYTES = COLUMNS[:3]


def device_frames(values: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Frames without `source_id` out of values joined with their series (columns of SAMPLES and SERIES).

    A device is told apart by its partition, its index, and its host or unique id where the index alone does not tell.
    Where a device is exported once per pod that shares it, each series says the same and counts once.
    """
    own = values.filter((pl.col("kind") == "device") & pl.col("value").is_not_null())
    if own.is_empty():
        return {}
    named = own.with_columns(_name(own))
    key = ("scrape", "gpu", "instance")
    readings = named.filter(pl.col("column") != "xid").with_columns((pl.col("value") * pl.col("scale")).alias("value"))
    wide = readings.group_by(key, maintain_order=True).agg(
        pl.col("line").min(),
        pl.col("us").min(),
        *(pl.col("value").filter(pl.col("column") == name).max().alias(name) for name in COLUMNS),
    )
    whole = [pl.col(name).round().cast(pl.UInt64, strict=False) for name in _BYTES]
    time = pl.col("us").cast(pl.Datetime("us", "UTC")).alias("time")
    samples = wide.sort(key).select("line", time, "gpu", "instance", *whole, *COLUMNS[3:])
    return {"gpu_samples": samples, "incidents": _xids(named.filter(pl.col("column") == "xid"))}


def _name(own: pl.DataFrame) -> pl.Expr:
    """The device's index, behind its host where there are several, or its unique id where two share an index."""
    devices = own.select("host", "gpu", "uuid").unique()
    several_hosts = devices["host"].n_unique() > 1
    place = pl.col("host") if several_hosts else pl.lit(None, pl.String)
    label = pl.concat_str([place, "gpu"], separator="/", ignore_nulls=True)
    shared = devices.drop_nulls("uuid").group_by("host", "gpu").agg(pl.col("uuid").n_unique().alias("devices"))
    if shared.filter(pl.col("devices") > 1).is_empty():
        return label.alias("gpu")
    return pl.concat_str([label, pl.lit(" "), "uuid"], ignore_nulls=True).alias("gpu")


def _xids(values: pl.DataFrame) -> pl.DataFrame:
    """An incident where the number of the last error changes to another than 0: the metric keeps it for good."""
    ordered = values.sort("gpu", "instance", "scrape")
    changed = pl.col("value") != pl.col("value").shift(1, fill_value=0.0).over("gpu", "instance")
    told = ordered.filter(changed & (pl.col("value") > 0)).sort("scrape", "gpu")
    number = pl.col("value").cast(pl.Int64, strict=False).cast(pl.String)
    return told.select(
        "line",
        pl.col("us").cast(pl.Datetime("us", "UTC")).alias("time"),
        pl.lit("xid").alias("kind"),
        pl.concat_str([pl.lit("xid="), number, pl.lit(" gpu="), pl.col("gpu")]).alias("fields"),
    )
