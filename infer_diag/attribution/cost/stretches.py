"""The stretch of time that each statistics line or scrape stands for, and what the silence between them means.

An engine that prints while it works is silent while it is idle, and a log that lost lines is silent too. Which of the
two it is shows at the edges: before idle time nothing runs, or after it the first batch begins with nothing running.
"""

from __future__ import annotations

from datetime import timedelta

import polars as pl

from infer_diag.attribution.cost.spread import SPACINGS
from infer_diag.attribution.quantiles import median
from infer_diag.attribution.streams import counted_once
from infer_diag.recording import Recording

INTERVAL: dict[str, pl.DataType | type[pl.DataType]] = {
    "begin": pl.Datetime("us", "UTC"),
    "end": pl.Datetime("us", "UTC"),
}
_ADDED = {**INTERVAL, "rate_s": pl.Float64, "silent": pl.Boolean, "asleep": pl.Boolean}
_SECOND = timedelta(seconds=1)
_STREAM = ("source_id", "replica")


def sample_intervals(recording: Recording) -> pl.DataFrame:
    """The stretch that each statistics line or scrape stands for: from its stamp to the next one's.

    Frame in: EngineSamples; those of an engine whose log covers the same time are left out. Out: as of `stretches`.
    """
    return stretches(recording, counted_once(recording)).drop("asleep")


def stretches(recording: Recording, samples: pl.DataFrame, stream: tuple[str, ...] = _STREAM) -> pl.DataFrame:
    """Samples as stretches of time, stream by stream.

    Frame in: EngineSamples. Out: its columns, `begin`, `end`, `rate_s` (the stretch before, which its rates are of),
    `silent` (a stretch of more than 3 usual spacings that a log left out because nothing ran) and `asleep` (nothing ran
    when it began; otherwise the batch at its end alone shows that nothing had run). Silence that neither edge explains,
    in which text was cut out, or of an engine that prints while it is idle, is no stretch: it is not known what ran.
    A scrape that is missing tells nothing. Where an engine prints its batches, a rate is of the time since the batch
    of its kind before, and the spacing that counts is that of decode batches, which come every so many steps.
    """
    told = samples.drop_nulls("time").sort(*stream, "time", "source_id", "line")
    if told.is_empty():
        return pl.DataFrame(schema={**told.schema, **_ADDED})
    timed = _edges(_spaced(told, stream), stream)
    usual, kind = pl.col("usual"), pl.col("kind").cast(pl.String)
    long = pl.col("gap") > SPACINGS * usual
    held = pl.when(pl.col("gap").is_null() | long).then(usual).otherwise(pl.col("gap"))
    before = (pl.col("time") - pl.col("time").shift(1)).over(stream)
    scraped = kind == "scrape"
    before = pl.when(~scraped & (before > SPACINGS * usual)).then(usual).otherwise(before)
    before = pl.when(kind.is_in(["prefill", "decode"])).then("since_like").otherwise(before)
    lines = timed.with_columns(
        begin="time",
        end=pl.col("time") + held,
        rate_s=before.dt.total_microseconds() / 1e6,
        silent=pl.lit(False),
        asleep=pl.lit(False),
    )
    explained = (pl.col("asleep") | pl.col("woken")) & ~pl.col("prints_idle")
    gaps = timed.filter(long & ~scraped & explained).with_columns(
        begin=pl.col("time") + usual, end=pl.col("time") + pl.col("gap"), rate_s=pl.lit(0.0), silent=pl.lit(True)
    )
    whole = pl.concat([lines.select(gaps.columns), _without_cuts(recording, gaps)])
    return whole.drop("gap", "usual", "since_like", "woken", "prints_idle", "next_line")


def _spaced(told: pl.DataFrame, stream: tuple[str, ...]) -> pl.DataFrame:
    """Samples with `gap` to the next, `since_like` since the one of its kind before, and the `usual` spacing."""
    kind = pl.col("kind").cast(pl.String)
    gap = (pl.col("time").shift(-1) - pl.col("time")).over(stream)
    since_like = (pl.col("time") - pl.col("time").shift(1)).over([*stream, "kind"])
    timed = told.with_columns(gap=gap, since_like=since_like)
    decodes = median(pl.when(kind == "decode").then("since_like").cast(pl.Int64)).over(stream)
    every = median(pl.col("gap").cast(pl.Int64)).over(stream)
    # Lines that come faster than stamps tell apart are no sign that the engine stops between two stamps.
    coarse = ((pl.col("time").cast(pl.Int64) % 1_000_000) == 0).all().over(stream)
    least = pl.when(coarse).then(pl.lit(_SECOND)).otherwise(pl.lit(timedelta(0)))
    usual = pl.coalesce(decodes, every).cast(pl.Int64).cast(pl.Duration("us")).fill_null(timedelta(0))
    return timed.with_columns(usual=pl.max_horizontal(usual, least))


def _edges(timed: pl.DataFrame, stream: tuple[str, ...]) -> pl.DataFrame:
    """What the samples on both sides of a gap tell of it."""
    kind = pl.col("kind").cast(pl.String)
    empty = (pl.col("running_count") == 0) & (pl.col("waiting_count").fill_null(0) == 0)
    # A prefill batch counts what runs beside its own sequences; an iteration counts them too.
    admitted = (pl.col("new_count") >= pl.col("running_count")) & (pl.col("running_count") > 0)
    fresh = pl.when(kind == "prefill").then(pl.col("running_count") == 0).otherwise(admitted)
    still = (
        empty & (pl.col("output_tokens_per_s").fill_null(0) == 0) & (pl.col("prompt_tokens_per_s").fill_null(0) == 0)
    )
    timed = timed.with_columns(still=(still & (kind == "interval")).fill_null(False))
    twice = pl.col("still") & pl.col("still").shift(-1).over(stream) & (pl.col("gap") <= SPACINGS * pl.col("usual"))
    return timed.with_columns(
        asleep=(empty & (kind != "prefill")).fill_null(False),
        woken=fresh.shift(-1).over(stream).fill_null(False),
        prints_idle=twice.fill_null(False).any().over(stream),
        next_line=pl.when(pl.col("source_id") == pl.col("source_id").shift(-1).over(stream)).then(
            pl.col("line").shift(-1).over(stream)
        ),
    ).drop("still")


def _without_cuts(recording: Recording, gaps: pl.DataFrame) -> pl.DataFrame:
    """Gaps in which no text was left out, as far as the file marks it."""
    cuts = recording.incidents.filter(pl.col("kind") == "cut").select("source_id", cut_line="line")
    if cuts.is_empty() or gaps.is_empty():
        return gaps
    numbered = gaps.with_row_index("place")
    inside = numbered.join(cuts, on="source_id").filter(
        (pl.col("cut_line") >= pl.col("line")) & (pl.col("cut_line") <= pl.col("next_line"))
    )
    return numbered.join(inside, on="place", how="anti", maintain_order="left").drop("place")
