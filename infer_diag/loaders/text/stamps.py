"""Raw stamps to microseconds: every shape that engines, runtimes and collectors write."""

from __future__ import annotations

from datetime import UTC, datetime

import polars as pl

from infer_diag.loaders.text.prefixes import ascii_classes

ASSUMED_YEAR = 2000
"""Year of stamps that print none: a leap year, so that 29 February exists, and plainly not the real one."""

_SHAPE = ascii_classes(
    r"^(?:(?:(?P<year>\d{4})[-/])?(?P<month>\d\d)[-/](?P<day>\d\d)[T ]|(?P<name>[A-Z][a-z]{2}) +(?P<mday>\d{1,2}) )?"
    r"(?P<clock>\d\d:\d\d:\d\d)(?:[.,](?P<fraction>\d{1,9}))?\s*(?P<zone>Z|UTC|[+-]\d\d:?\d\d)?$"
)
_UPTIME = ascii_classes(r"^(?P<m>\d+)\.(?P<s>\d\d)\.(?P<ms>\d\d\d)\.(?P<us>\d\d\d)$")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def parsed(raw: pl.Series, year: int | None = None, tz: str | None = None) -> pl.DataFrame:
    """Distinct raw stamps with `us` (microseconds since 1970), `zone`, `has_year`, `has_date`.

    A stamp with a zone becomes UTC; one without is taken at `tz`, and as if it were UTC where that is not given. A
    stamp that has no date counts from 1 January of the assumed year; one that is no stamp gets a null. `has_year` and
    `has_date` say what the stamp itself prints.
    """
    frame = pl.DataFrame({"raw": raw.drop_nulls().unique(maintain_order=True)})
    got = frame.with_columns(_usual(pl.col("raw")).str.extract_groups(_SHAPE).alias("_g")).unnest("_g")
    month = pl.coalesce(
        "month", pl.col("name").replace_strict(dict(zip(_MONTHS, _two_digits(), strict=True)), default=None)
    )
    day = pl.coalesce("day", pl.col("mday").str.zfill(2))
    text = pl.concat_str(
        pl.coalesce("year", pl.lit(str(year or ASSUMED_YEAR))),
        pl.lit("-"),
        month.fill_null("01"),
        pl.lit("-"),
        day.fill_null("01"),
        pl.lit("T"),
        pl.col("clock"),
    )
    fraction = pl.col("fraction").fill_null("0").str.slice(0, 6).str.pad_end(6, "0").cast(pl.Int64)
    naive = text.str.to_datetime("%Y-%m-%dT%H:%M:%S", strict=False, time_unit="us")
    out = got.select(
        "raw",
        naive.alias("naive"),
        fraction.alias("fraction"),
        pl.col("zone").replace("UTC", "Z"),
        pl.col("year").is_not_null().alias("has_year"),
        month.is_not_null().alias("has_date"),
    )
    return _uptimes(_epochs(_zoned(out, tz)))


def _usual(raw: pl.Expr) -> pl.Expr:
    """Stamps with the month first (TensorRT-LLM) or without separators (Triton) in the order of the others."""
    month_first = r"^(\d\d)[/-](\d\d)[/-](\d{4})[- ]"
    letter = r"^[VIWEF](\d\d)(\d\d) "
    return raw.str.replace(ascii_classes(month_first), "${3}-${1}-${2} ").str.replace(
        ascii_classes(letter), "${1}-${2} "
    )


def _two_digits() -> list[str]:
    return [f"{number:02d}" for number in range(1, 13)]


def _zoned(frame: pl.DataFrame, tz: str | None) -> pl.DataFrame:
    offset = pl.col("zone").str.extract_groups(r"^(?P<sign>[+-])(?P<h>\d\d):?(?P<m>\d\d)$")
    minutes = offset.struct.field("h").cast(pl.Int64) * 60 + offset.struct.field("m").cast(pl.Int64)
    shift = pl.when(offset.struct.field("sign") == "-").then(-minutes).otherwise(minutes).fill_null(0) * 60_000_000
    local = pl.col("naive").dt.epoch("us")
    if tz is not None:
        placed = pl.col("naive").dt.replace_time_zone(tz, ambiguous="earliest", non_existent="null").dt.epoch("us")
        local = pl.when(pl.col("zone").is_null()).then(placed).otherwise(local)
        frame = frame.with_columns((local - shift + pl.col("fraction")).alias("us"))
        return frame.with_columns(pl.col("zone").fill_null(tz))
    return frame.with_columns((local - shift + pl.col("fraction")).alias("us"))


def _epochs(frame: pl.DataFrame) -> pl.DataFrame:
    """Numeric stamps (seconds to nanoseconds since 1970), told apart by their size."""
    value = pl.col("raw").str.extract(r"^(\d{9,19}(?:\.\d+)?)$").cast(pl.Float64, strict=False)
    scale = pl.when(value < 1e11).then(1e6).when(value < 1e14).then(1e3).when(value < 1e17).then(1.0).otherwise(1e-3)
    numeric = value.is_not_null()
    return frame.with_columns(
        pl.coalesce("us", (value * scale).round().cast(pl.Int64)).alias("us"),
        pl.when(numeric).then(pl.lit("Z")).otherwise(pl.col("zone")).alias("zone"),
        (pl.col("has_year") | numeric).alias("has_year"),
        (pl.col("has_date") | numeric).alias("has_date"),
    ).select("raw", "us", "zone", "has_year", "has_date")


def _uptimes(frame: pl.DataFrame) -> pl.DataFrame:
    """llama.cpp's minutes, seconds, milliseconds and microseconds of its process, from the assumed year's begin.

    They never turn at midnight, so they count as dated; their year is not known.
    """
    got = frame.with_columns(pl.col("raw").str.extract_groups(_UPTIME).alias("_g"))
    scale = {"m": 60_000_000, "s": 1_000_000, "ms": 1_000, "us": 1}
    parts = [pl.col("_g").struct.field(name).cast(pl.Int64) * factor for name, factor in scale.items()]
    origin = int(datetime(ASSUMED_YEAR, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
    told = pl.col("_g").struct.field("m").is_not_null()
    return got.with_columns(
        pl.coalesce("us", origin + sum(parts[1:], parts[0])).alias("us"),
        pl.when(~told).then("zone").alias("zone"),
        (pl.col("has_date") | told).alias("has_date"),
    ).drop("_g")
