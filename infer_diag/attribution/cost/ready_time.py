"""Which stretch tells of which replica's ready time: its own log first, and what else there is where that is silent."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from infer_diag.attribution.cost.holds import Hold
from infer_diag.attribution.cost.lanes import Lanes
from infer_diag.attribution.cost.life import beside
from infer_diag.attribution.cost.spread import disjoint, overlaps, uncovered
from infer_diag.attribution.cost.stretches import INTERVAL, stretches
from infer_diag.recording import Recording

_SUMMED = ("running_count", "waiting_count", "prompt_tokens_per_s", "output_tokens_per_s", "preemption_count")
_READY: dict[str, pl.DataType | type[pl.DataType]] = {**INTERVAL, "gpu_count": pl.Int64, "lane": pl.Int64}


def ready_intervals(found: Sequence[Hold]) -> pl.DataFrame:
    """`begin`, `end`, `gpu_count` and `lane` of every hold that came up ready."""
    rows = [(hold.ready, hold.end, hold.gpu_count, hold.lane) for hold in found if hold.ready is not None]
    return pl.DataFrame(rows, schema=_READY, orient="row")


def told_stretches(recording: Recording, told: Lanes, found: Sequence[Hold]) -> pl.DataFrame:
    """Stretches cut to the ready time of the replica that they tell of, no time of a replica told twice.

    Frames in: EngineSamples. Out: columns of `stretches`, `gpu_count`, `lane`, `lane_count` (replicas that a row's
    counts are of) and `rated` (its rates count here). A replica's own log comes first; then logs that name no replica;
    then scrapes, which so tell of the time that the log is silent about.
    """
    ready = ready_intervals(found)
    together = _together(ready)
    layers = [
        rows.sort("begin").join_asof(
            together, left_on="begin", right_on="at", strategy="backward", check_sortedness=False
        )
        for rows in _layers(recording, told, ready)
    ]
    pieces = []
    for (lane,), runs in ready.partition_by("lane", as_dict=True).items():
        # Where a clock was set back, runs of one replica seem to overlap, and every sample would tell of all of them.
        free = mine = disjoint(runs)
        for number, rows in enumerate(layers):
            own = rows.filter(pl.col("lane").is_null() | (pl.col("lane") == lane)).drop("lane")
            got = overlaps(own.with_columns(whole_end="end", stamp="begin"), free.with_columns(free_begin="begin"))
            # A batch after the gap tells of the gap where the same run of the engine printed it.
            got = got.filter(~pl.col("silent") | pl.col("asleep") | (pl.col("end") == pl.col("whole_end")))
            got = got.filter(pl.col("running_count").is_not_null() | pl.col("silent"))
            pieces.append(_rated(got, number, mine["begin"]))
            left = uncovered(free, got)
            free = overlaps(left, mine.select("begin", "end", "gpu_count", "lane"))
    if not pieces:
        return pl.DataFrame()
    return pl.concat(pieces, how="diagonal_relaxed")


def _rated(got: pl.DataFrame, layer: int, begins: pl.Series) -> pl.DataFrame:
    """A row's rates count once, where its stamp lies; of time before it that another layer told nothing counts."""
    shared = (
        pl.when(pl.col("lane_count").is_null() | (layer == 0)).then(1).otherwise(pl.max_horizontal("lane_count", 1))
    )
    since_s = (pl.col("stamp") - pl.col("free_begin")).dt.total_microseconds() / 1e6
    partly = pl.lit(layer > 0) & ~pl.col("free_begin").is_in(begins.implode())
    return got.with_columns(
        lane_count=shared,
        rated=~pl.col("silent") & (pl.col("begin") == pl.col("stamp")),
        rate_s=pl.when(partly).then(pl.min_horizontal("rate_s", since_s)).otherwise("rate_s"),
    ).drop("stamp", "whole_end", "free_begin")


def _layers(recording: Recording, told: Lanes, ready: pl.DataFrame) -> list[pl.DataFrame]:
    """Stretches by who tells: the replicas' own logs, every other log by itself, and every source of scrapes."""
    keys = [(*key, number) for number, lane in enumerate(told.found) for key in lane.keys]
    table = pl.DataFrame(keys, schema={"source_id": pl.UInt32, "replica": pl.String, "lane": pl.Int64}, orient="row")
    table = table.filter(pl.col("lane").is_in(ready["lane"].implode()))
    samples = recording.engine_samples.join(table, on=["source_id", "replica"], how="left", nulls_equal=True)
    logged = samples.filter(pl.col("kind") != "scrape")
    own = _once(logged.filter(pl.col("lane").is_not_null()))
    found = [_without_gaps(stretches(recording, own, ("lane",)), told)]
    for part in logged.filter(pl.col("lane").is_null()).partition_by("source_id", "replica"):
        found.append(stretches(recording, part))
    near = beside(recording, frozenset(source_id for source_id, _, _ in keys))
    scrapes = samples.filter((pl.col("kind") == "scrape") & pl.col("time").is_not_null())
    # Scrapes on another clock than the log's would tell of its hours what happened in others.
    scrapes = scrapes.filter(pl.col("source_id").is_in(list(near))) if keys else scrapes
    for part in scrapes.partition_by("source_id"):
        found.append(stretches(recording, _by_lane(part.sort("time"), told, ready), ("source_id", "replica", "lane")))
    return found


def _once(own: pl.DataFrame) -> pl.DataFrame:
    """Lines of one replica that two files hold, as copies do, once."""
    said = [name for name in own.columns if name not in ("source_id", "line")]
    numbered = own.with_columns(again=pl.int_range(pl.len()).over("source_id", *said))
    return numbered.unique([*said, "again"], keep="first", maintain_order=True).drop("again")


def _without_gaps(rows: pl.DataFrame, told: Lanes) -> pl.DataFrame:
    """Without silence that lies over the end of one file and the begin of another which does not adjoin it."""
    gaps = [(number, *gap) for number, lane in enumerate(told.found) for gap in lane.gaps]
    if not gaps or rows.is_empty():
        return rows
    table = pl.DataFrame(
        gaps, schema={"lane": pl.Int64, "gap_begin": INTERVAL["begin"], "gap_end": INTERVAL["end"]}, orient="row"
    )
    numbered = rows.with_row_index("place")
    over = (
        numbered.filter("silent")
        .join(table, on="lane")
        .filter((pl.col("begin") < pl.col("gap_end")) & (pl.col("gap_begin") < pl.col("end")))
    )
    return numbered.join(over, on="place", how="anti", maintain_order="left").drop("place")


def _by_lane(scrapes: pl.DataFrame, told: Lanes, ready: pl.DataFrame) -> pl.DataFrame:
    """The scrapes of one source with the replica that each is of; null where they are of all together.

    A replica is known by its name. As many series as there are replicas are taken to be one each, since which is which
    changes no sum; more series at one time are added up.
    """
    numbers = ready["lane"].unique().sort().to_list()
    names = {
        label: number
        for number in numbers
        if number < len(told.found)
        for label in {stream.replica for stream in told.found[number].streams if stream.replica is not None}
    }
    series = scrapes["replica"].unique().sort().to_list()
    if any(label in names for label in series):
        known = {label: names.get(label) for label in series}
    elif len(series) == len(numbers):
        known = dict(zip(series, numbers, strict=True))
    else:
        return _summed(scrapes) if len(series) > len(numbers) else scrapes
    lane = pl.col("replica").replace_strict(
        pl.Series(list(known), dtype=pl.String), pl.Series(list(known.values()), dtype=pl.Int64), default=None
    )
    return scrapes.with_columns(lane=lane.cast(pl.Int64))


def _summed(scrapes: pl.DataFrame) -> pl.DataFrame:
    """One row per time: counts and rates of all series added up, the rest as the first has it."""
    rest = [name for name in scrapes.columns if name not in (*_SUMMED, "time", "kv_usage_ratio", "replica")]
    return (
        scrapes.group_by("time", maintain_order=True)
        .agg(
            *(pl.col(name).sum() for name in _SUMMED),
            pl.col("kv_usage_ratio").max(),
            *(pl.col(name).first() for name in rest),
        )
        .with_columns(replica=pl.lit(None, pl.String))
        .select(scrapes.columns)
    )


def _together(ready: pl.DataFrame) -> pl.DataFrame:
    """`lane_count` from `at` on: the replicas that are ready at the same time."""
    edges = pl.concat([ready.select(at="begin", step=pl.lit(1)), ready.select(at="end", step=pl.lit(-1))])
    return edges.group_by("at").agg(pl.col("step").sum()).sort("at").select("at", lane_count=pl.col("step").cum_sum())
