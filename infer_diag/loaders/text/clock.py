"""The clocks of one file: which to trust, how far apart they stand, and what to do where no date is printed."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from infer_diag.loaders.text import stamps
from infer_diag.recording import Clock

_CONFLICT_S = 5.0
"""Collectors stamp a line within moments of its writing; a larger spread means that they stamp when they flush."""

_DAY_US = 86_400_000_000
_YEAR_US = 366 * _DAY_US
_SECOND_US = 1_000_000
_QUARTER_HOUR_US = 900 * _SECOND_US
_ZONE_TOLERANCE_US = 3 * _SECOND_US


@dataclass
class _Seen:
    example: str | None = None
    zone: str | None = None
    has_year: bool = False
    has_date: bool = False


class FileClock:
    """Turns the raw stamps of a file's batches into one time line, batch after batch in the order of the file."""

    def __init__(self, year: int | None = None, tz: str | None = None) -> None:
        self._year, self._tz = year, tz
        self._outer, self._inner = _Seen(), _Seen()
        self._offset_us: int | None = None
        self._low_us: int | None = None
        self._high_us: int | None = None
        self._trusts_outer: bool | None = None
        self._turns = 0
        self._last_us: int | None = None

    def timed(self, frames: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
        """The frames with a column `time` in place of the raw stamps `outer` and `inner`; null without a stamp."""
        raw = pl.concat([frame.select("line", "outer", "inner") for frame in frames.values()])
        table = self._table(raw)
        both = raw.sort("line", maintain_order=True).unique(["outer", "inner"], maintain_order=True)
        both = both.join(
            table.select(pl.col("raw").alias("outer"), outer_us="us"), on="outer", how="left", maintain_order="left"
        )
        both = both.join(
            table.select(pl.col("raw").alias("inner"), inner_us="us"), on="inner", how="left", maintain_order="left"
        )
        self._compare(both, raw)
        both = self._with_offsets(both).with_columns(self._chosen().alias("us")).select("outer", "inner", "us")
        out = {}
        for name, frame in frames.items():
            timed = frame.join(both, on=["outer", "inner"], how="left", nulls_equal=True, maintain_order="left")
            out[name] = timed.drop("outer", "inner")
        return {name: _as_time(frame) for name, frame in self._rolled(out).items()}

    def clocks(self) -> tuple[Clock, ...]:
        """What was seen, outer first."""
        offset = None if self._offset_us is None else self._offset_us / 1e6
        spread = None if self._low_us is None or self._high_us is None else (self._high_us - self._low_us) / 1e6
        borrowed = self._year is not None
        out = []
        if self._outer.example is not None:
            seen = self._outer
            out.append(
                Clock("outer", seen.example or "", seen.zone, offset, spread, seen.has_year or borrowed, seen.has_date)
            )
        if self._inner.example is not None:
            seen = self._inner
            out.append(
                Clock("inner", seen.example or "", seen.zone, 0.0, None, seen.has_year or borrowed, seen.has_date)
            )
        return tuple(out)

    def _table(self, raw: pl.DataFrame) -> pl.DataFrame:
        stamps_seen = pl.concat([raw["outer"], raw["inner"].alias("outer")])
        table = stamps.parsed(stamps_seen, self._year, self._tz)
        if self._year is None:
            # A dated stamp anywhere in the file tells the year of the undated ones beside it.
            dated = table.filter("has_year")["us"].min()
            undated = not table.filter(~pl.col("has_year") & pl.col("has_date")).is_empty()
            if dated is not None and undated:
                self._year = pl.Series([dated]).cast(pl.Datetime("us")).dt.year().item()
                table = stamps.parsed(stamps_seen, self._year, self._tz)
        for seen, column in ((self._outer, "outer"), (self._inner, "inner")):
            if seen.example is None:
                known = raw.filter(pl.col(column).is_not_null()).head(1).join(table, left_on=column, right_on="raw")
                if not known.is_empty() and known["us"][0] is not None:
                    seen.example = raw[column].drop_nulls()[0][:40]
                    seen.zone, seen.has_year, seen.has_date = known.select("zone", "has_year", "has_date").row(0)
        return table

    def _compare(self, both: pl.DataFrame, raw: pl.DataFrame) -> None:
        gaps = both.select((pl.col("outer_us") - pl.col("inner_us")).alias("gap")).drop_nulls()["gap"]
        if not gaps.is_empty():
            # Undated clocks may be whole years or days apart; only the part within a day is an offset of zones.
            if not (self._inner.has_date and self._outer.has_date):
                gaps = gaps - ((gaps + _DAY_US // 2) // _DAY_US) * _DAY_US
            low, high, middle = int(gaps.min()), int(gaps.max()), int(gaps.median())  # type: ignore[arg-type]
            self._low_us = low if self._low_us is None else min(low, self._low_us)
            self._high_us = high if self._high_us is None else max(high, self._high_us)
            if self._offset_us is None:
                self._offset_us = self._rounded(middle)
        if (
            self._trusts_outer is None
            and raw.select((pl.col("outer").is_not_null() | pl.col("inner").is_not_null()).any()).item()
        ):
            stamped = raw.filter(pl.col("outer").is_not_null() | pl.col("inner").is_not_null())
            share = stamped["outer"].is_not_null().mean()
            steady = _drift_us(gaps) <= _CONFLICT_S * 1e6 or self._inner.example is None
            self._trusts_outer = bool(float(share or 0) >= 0.3 and steady)  # type: ignore[arg-type]

    @staticmethod
    def _rounded(gap_us: int) -> int:
        """The zone difference nearby, if there is one; else whole seconds, in which the inner clock often ticks."""
        zone = round(gap_us / _QUARTER_HOUR_US) * _QUARTER_HOUR_US
        return zone if abs(gap_us - zone) <= _ZONE_TOLERANCE_US else (gap_us // _SECOND_US) * _SECOND_US

    def _with_offsets(self, both: pl.DataFrame) -> pl.DataFrame:
        """Adds `offset_us`, by how much the outer clock is ahead at each line: summer time may begin within a file."""
        gap = pl.col("outer_us") - pl.col("inner_us")
        zone = (gap / _QUARTER_HOUR_US).round().cast(pl.Int64) * _QUARTER_HOUR_US
        near = pl.when((gap - zone).abs() <= _ZONE_TOLERANCE_US).then(zone)
        known = pl.lit(self._offset_us or 0, pl.Int64)
        if not (self._trusts_outer and self._inner.has_date and self._outer.has_date):
            return both.with_columns(known.alias("offset_us"))
        return both.with_columns(near.forward_fill().fill_null(known).alias("offset_us"))

    def _chosen(self) -> pl.Expr:
        if self._trusts_outer:
            return pl.coalesce("outer_us", pl.col("inner_us") + pl.col("offset_us"))
        return pl.coalesce("inner_us", pl.col("outer_us") - pl.col("offset_us"))

    def _rolled(self, frames: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
        """Adds the days or years that the stamps do not print, found where the clock falls back by half its period."""
        seen = self._outer if self._trusts_outer else self._inner
        if seen.has_year:
            return frames
        line = (
            pl.concat([frame.select("line", "us") for frame in frames.values()])
            .drop_nulls()
            .sort("line", maintain_order=True)
        )
        if line.is_empty():
            return frames
        half = (_YEAR_US if seen.has_date else _DAY_US) // 2
        step = pl.col("us") - pl.col("us").shift(
            1, fill_value=self._last_us if self._last_us is not None else line["us"][0]
        )
        turn = pl.when(step < -half).then(1).when(step > half).then(-1).otherwise(0)
        line = line.with_columns((turn.cum_sum() + self._turns).alias("turns"))
        flat = line["turns"].n_unique() == 1 and line["turns"][0] == self._turns
        self._last_us, self._turns = line["us"][-1], line["turns"][-1]
        if flat and not self._turns:
            return frames
        if flat:
            turned = _turned(pl.lit(self._turns), seen.has_date).alias("us")
            return {name: frame.with_columns(turned) for name, frame in frames.items()}
        known = line.select("line", "turns").unique("line", keep="last", maintain_order=True)
        turned = _turned(pl.col("turns").fill_null(0), seen.has_date).alias("us")
        return {
            name: frame.sort("line", maintain_order=True).join_asof(known, on="line").with_columns(turned).drop("turns")
            for name, frame in frames.items()
        }


def _turned(turns: pl.Expr, by_year: bool) -> pl.Expr:
    """The column `us` so many days or years of the calendar later; years differ in length, so they are not added."""
    if not by_year:
        return pl.col("us") + turns * _DAY_US
    later = pl.col("us").cast(pl.Datetime("us")).dt.offset_by(pl.concat_str(turns.cast(pl.String), pl.lit("y")))
    return later.dt.epoch("us")


def _drift_us(gaps: pl.Series) -> int:
    """How far two clocks drift apart, zones aside: a clock that is put forward by an hour still ticks alike."""
    if gaps.is_empty():
        return 0
    beside = gaps - (gaps / _QUARTER_HOUR_US).round().cast(pl.Int64) * _QUARTER_HOUR_US
    return int(min(gaps.max() - gaps.min(), beside.max() - beside.min()))  # type: ignore[operator, arg-type]


def _as_time(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(pl.col("us").cast(pl.Datetime("us", "UTC")).alias("time")).drop("us")
