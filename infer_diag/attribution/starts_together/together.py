"""The starts of several recordings beside each other, their parts, and what the caches save."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import dataframely as dy
import polars as pl

from infer_diag.attribution.cold_start import StartFrames, start_frames
from infer_diag.attribution.quantiles import median
from infer_diag.attribution.rank_statistics import middle, shift
from infer_diag.attribution.starts_together.frames import (
    CACHES,
    SPAN,
    UNLOGGED,
    CacheSavings,
    PhaseSpreads,
    StartParts,
    StartsTogether,
    Stragglers,
)
from infer_diag.attribution.starts_together.stragglers import stragglers
from infer_diag.errors import UnknownNameError
from infer_diag.recording import Recording

_CACHE_COLUMNS = ("compile_cache", "engine_cache", "weights_cache")


@dataclass(frozen=True, eq=False)
class Together:
    """The starts of all recordings, their exclusive parts, and the workers that others waited for."""

    starts: dy.DataFrame[StartsTogether]
    parts: dy.DataFrame[StartParts]
    stragglers: dy.DataFrame[Stragglers]

    @property
    def unlogged_ratio(self) -> float | None:
        """Share of all spans that no line explains; null where no span is known."""
        known = self.starts.drop_nulls(["span_s", "unlogged_s"])
        whole = float(known["span_s"].sum())
        return float(known["unlogged_s"].sum()) / whole if whole else None


def starts_together(
    recordings: Mapping[str, Recording],
    *,
    caches: Mapping[str, str] | None = None,
    frames: Mapping[str, StartFrames] | None = None,
) -> Together:
    """Every start of the recordings, by name of the deployment, with its parts and what it cost.

    Args:
        recordings: each under the name of its deployment.
        caches: `cold` or `warm` by name, where the operator knows what the log does not say; else the log's lines about
            compiled artefacts, engines and weights: one miss makes a start cold, hits alone make it warm.
        frames: `start_frames` of a recording, where they are made already.

    Frames out: StartsTogether, StartParts, Stragglers. GPU-seconds are the GPUs times the hold (measured). Where the
    start never became ready they are the GPUs times what is seen after the device was assigned, and where no event
    tells of that, times the span, which begins with the first line (bounded from below); a pod that waited to be
    placed and of which no event tells when it was has none.

    Raises:
        UnknownNameError: `caches` names no recording.
    """
    for name in caches or {}:
        if name not in recordings:
            raise UnknownNameError("deployment", name, recordings)
    made = {name: (frames or {}).get(name) or start_frames(each) for name, each in recordings.items()}
    rows = [_rows(name, each, made[name], (caches or {}).get(name)) for name, each in recordings.items()]
    starts = StartsTogether.validate(pl.concat([StartsTogether.create_empty(), *rows]), cast=True)
    parts = [_parts(name, made[name]) for name in recordings]
    state = starts.select("deployment", "start_id", "caches")
    told = pl.concat([_NO_PARTS, *parts]).join(state, on=["deployment", "start_id"], how="left", maintain_order="left")
    return Together(
        starts,
        StartParts.validate(told.select(StartParts.column_names()), cast=True),
        stragglers({name: each.phases for name, each in made.items()}),
    )


_NO_PARTS = pl.DataFrame(
    schema={"deployment": pl.String, "start_id": pl.String, "part": pl.String, "duration_s": pl.Float64}
)


def phase_spreads(together: Together) -> dy.DataFrame[PhaseSpreads]:
    """The spread of every part, and of the whole span, over the starts that became ready and tell it.

    Frame out: PhaseSpreads. A start that says nothing of a phase does not count for it: unknown is not 0 seconds.
    """
    groups = _values(together).partition_by("deployment", "caches", "part", as_dict=True, maintain_order=True)
    rows = [
        {
            "deployment": deployment,
            "caches": state,
            "part": part,
            **_spread(values["duration_s"].to_list()),
        }
        for (deployment, state, part), values in groups.items()
    ]
    return PhaseSpreads.validate(pl.DataFrame(rows, schema=PhaseSpreads.create_empty().schema), cast=True)


def cache_savings(together: Together) -> dy.DataFrame[CacheSavings]:
    """How much longer each part and the span last with cold caches: the Hodges–Lehmann shift, largest first.

    Frame out: CacheSavings; empty where no configuration has starts of both kinds. Parts that only one kind tells have
    no row.
    """
    rows = []
    parts = _values(together).partition_by("configuration", "part", as_dict=True, maintain_order=True)
    for (configuration, part), values in parts.items():
        cold, warm = (values.filter(pl.col("caches") == state)["duration_s"].to_list() for state in CACHES)
        found = shift(cold, warm)
        if found is not None:
            rows.append(
                {
                    "configuration": configuration,
                    "part": part,
                    "cold_count": len(cold),
                    "warm_count": len(warm),
                    "saved_s": found.value,
                    "low_s": found.low,
                    "high_s": found.high,
                }
            )
    frame = pl.DataFrame(rows, schema=CacheSavings.create_empty().schema)
    return CacheSavings.validate(
        frame.sort("configuration", "saved_s", descending=[False, True], maintain_order=True), cast=True
    )


def _values(together: Together) -> pl.DataFrame:
    """Columns `deployment, configuration, caches, part, duration_s` of the starts that became ready; spans first.

    A start whose lines leave no gap has 0 seconds unlogged; one whose lines bound nothing has none.
    """
    keys = ["deployment", "start_id"]
    ready = together.starts.filter(pl.col("outcome") == "ready")
    spans = ready.drop_nulls("span_s").select(
        *keys, "configuration", "caches", pl.lit(SPAN).alias("part"), pl.col("span_s").alias("duration_s")
    )
    own = ready.select(*keys, "configuration")
    parts = together.parts.join(own, on=keys, how="inner", maintain_order="left")
    gaps = together.parts.filter(pl.col("part") == UNLOGGED)
    whole = ready.filter(pl.col("unlogged_s") == 0).join(gaps, on=keys, how="anti", maintain_order="left")
    none = whole.select(
        *keys, "configuration", "caches", pl.lit(UNLOGGED).alias("part"), pl.lit(0.0).alias("duration_s")
    )
    return pl.concat([spans, parts.select(spans.columns), none])


def _spread(values: list[float]) -> dict[str, float | int | None]:
    found = middle(values)
    series = pl.Series(values)
    return {
        "start_count": len(values),
        "min_s": min(values),
        "p50_s": series.to_frame("v").select(median(pl.col("v"))).item(),
        "max_s": max(values),
        "low_s": found.low if found else None,
        "high_s": found.high if found else None,
    }


def _rows(name: str, recording: Recording, frames: StartFrames, known: str | None) -> pl.DataFrame:
    held = pl.coalesce("hold_s", "seen_s") * pl.col("gpu_count")
    status = pl.when(held.is_null()).then(pl.lit("not_identifiable"))
    whole = (
        frames.summary.join(_configurations(recording), on="start_id", how="left", maintain_order="left")
        .join(_in_cluster(recording, frames), on="start_id", how="left", maintain_order="left")
        .with_columns(
            pl.lit(name).alias("deployment"),
            (_caches() if known is None else pl.lit(known)).alias("caches"),
            pl.when(pl.col("span_s") > 0).then(pl.col("unlogged_s") / pl.col("span_s")).alias("unlogged_ratio"),
            held.alias("gpu_s"),
            status.when(pl.col("hold_s").is_not_null())
            .then(pl.lit("measured"))
            .otherwise(pl.lit("bounded"))
            .alias("gpu_status"),
        )
        .select(StartsTogether.column_names())
    )
    return StartsTogether.cast(whole)


_POD_PHASES = ("schedule", "volume_mount", "image_pull", "container_start")


def _in_cluster(recording: Recording, frames: StartFrames) -> pl.DataFrame:
    """`start_id, seen_s, container_s`: of each span what lies after the device's assignment, and after the container's
    start.

    The first line of an engine alone comes after both. Of a pod's start only its events tell, or nothing does.
    """
    walls = frames.phases.filter(pl.col("rank").is_null() & pl.col("chosen"))
    pods = walls.group_by("start_id").agg(
        pl.col("phase").is_in(_POD_PHASES).any().alias("of_pod"),
        (pl.col("phase") == "schedule").any().alias("placing"),
        pl.col("end_s").filter(pl.col("phase") == "container_start").max().alias("started_s"),
    )
    since = (pl.col("last_time") - pl.col("acquire_time")).dt.total_microseconds() / 1e6
    whole = (
        frames.summary.select("start_id", "span_s", "outcome")
        .join(recording.starts.select("start_id", since.alias("since_s")), on="start_id", how="left")
        .join(pods, on="start_id", how="left", maintain_order="left")
    )
    seen = pl.when(pl.col("span_s").is_not_null()).then(pl.min_horizontal("since_s", "span_s").clip(0.0))
    after = pl.when(pl.col("since_s").is_not_null()).then(seen)
    from_container = pl.when(pl.col("of_pod").fill_null(False)).then(pl.col("span_s") - pl.col("started_s"))
    return whole.select(
        "start_id",
        after.when(~pl.col("placing").fill_null(False)).then("span_s").alias("seen_s"),
        pl.when(pl.col("outcome") == "ready").then(from_container.otherwise("span_s").clip(0.0)).alias("container_s"),
    )


def _caches() -> pl.Expr:
    """`cold` as soon as one cache missed, `warm` where all that the log tells of came out of a cache."""
    columns = [pl.col(column).cast(pl.String) for column in _CACHE_COLUMNS]
    miss = pl.any_horizontal(column == "miss" for column in columns)
    hit = pl.any_horizontal(column == "hit" for column in columns)
    return pl.when(miss).then(pl.lit("cold")).when(hit).then(pl.lit("warm"))


def _configurations(recording: Recording) -> pl.DataFrame:
    """`start_id, configuration, gpu_count, evidence`: as the start's own lines say, else its file's last ones do.

    Lines that name no start hold for all.
    """
    told = recording.deployments.to_dicts()
    own = {row["start_id"]: row for row in told if row["start_id"] is not None}
    rows = []
    for start in recording.starts.select("start_id", "source_id", "line").to_dicts():
        of = {key: value for key, value in own.get(start["start_id"], {}).items() if value is not None}
        beside = [row for row in told if row["start_id"] is None or row["source_id"] == start["source_id"]]
        last = {key: value for row in beside for key, value in row.items() if value is not None}
        model, engine, version, count = (
            of.get(key, last.get(key)) for key in ("model", "engine", "engine_version", "gpu_count")
        )
        engine = engine or recording.sources[start["source_id"]].engine
        words = [str(model or "model unknown"), " ".join(str(each) for each in (engine, version) if each)]
        words += [f"{count} GPU{'s' if count != 1 else ''}"] if count is not None else []
        place = recording.evidence(start["source_id"], start["line"])
        rows.append((start["start_id"], " · ".join(words), count, place))
    columns = {"start_id": pl.String, "configuration": pl.String, "gpu_count": pl.UInt32, "evidence": pl.String}
    return pl.DataFrame(rows, schema=columns, orient="row")


def _parts(name: str, frames: StartFrames) -> pl.DataFrame:
    part = pl.coalesce(pl.col("phase").cast(pl.String), pl.lit(UNLOGGED)).alias("part")
    return (
        frames.slices.group_by("start_id", part, maintain_order=True)
        .agg(pl.col("duration_s").sum())
        .select(pl.lit(name).alias("deployment"), "start_id", "part", "duration_s")
    )
