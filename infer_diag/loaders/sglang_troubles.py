"""What goes wrong in SGLang beside a start's own lines: a warm-up that fails, steps that the watchdog gives up on."""

from __future__ import annotations

import polars as pl

Frames = dict[str, pl.DataFrame]

WEB_SERVER_UP = "Application startup complete"
"""What the web server prints once it listens, which is before SGLang's own warm-up request."""

WATCHDOG = "atchdog timeout"
GAVE_UP = "watchdog"


def with_watchdog(frames: Frames) -> Frames:
    """The frames with each line of the watchdog as an incident of its own and as the failure of a start under way."""
    rows = frames["observations"]
    gave_up = pl.col("kind") == GAVE_UP
    told = rows.filter(gave_up)
    if told.is_empty():
        return frames
    incidents = told.select("line", "time", "replica", "rank", "kind", "fields")
    if "incidents" in frames:
        incidents = pl.concat([frames["incidents"], incidents], how="diagonal_relaxed")
    failed = rows.with_columns(pl.when(gave_up).then(pl.lit("failed")).otherwise("kind").alias("kind"))
    return frames | {"incidents": incidents, "observations": failed}


def without_failed_warmup(frames: Frames) -> Frames:
    """The frames without the web server's ready lines after which the engine fails while it warms up.

    Only prefill batches of an idle engine count as warm-up; their lines go to the frame `warmup` (`line`), so that they
    do not pass for serving. Anything else between the two (a decode batch, an answer, another start) ends the warm-up.
    """
    turns = pl.concat([_said(frames["observations"]), *_done(frames)]).sort("line", maintain_order=True)
    others = turns.filter(pl.col("turn") != "warmup").with_columns(following=pl.col("turn").shift(-1))
    failing = others.filter((pl.col("turn") == "up") & (pl.col("following") == "failed"))
    if failing.is_empty():
        return frames
    last = others.join_asof(failing.select("line", begun="line"), on="line").filter(turn="failed")["line"].max()
    warm = turns.join_asof(failing.select("line", begun="line"), on="line").filter(pl.col("turn") == "warmup")
    warm = warm.filter(pl.col("begun").is_not_null() & (pl.col("line") < last))
    kept = frames["observations"].filter(~pl.col("line").is_in(failing["line"].implode()) | (pl.col("kind") != "ready"))
    return frames | {"observations": kept, "warmup": warm.select("line")}


def _said(observations: pl.DataFrame) -> pl.DataFrame:
    up = (pl.col("kind") == "ready") & (pl.col("fields") == WEB_SERVER_UP)
    turn = pl.when(up).then(pl.lit("up")).when(pl.col("kind") == "failed").then(pl.lit("failed")).otherwise(pl.lit(""))
    return observations.select("line", turn.alias("turn"))


def _done(frames: Frames) -> list[pl.DataFrame]:
    idle = (pl.col("kind") == "prefill") & (pl.col("running_count") == 0) & (pl.col("waiting_count") == 0)
    told = []
    if "engine_samples" in frames:
        turn = pl.when(idle).then(pl.lit("warmup")).otherwise(pl.lit(""))
        told.append(frames["engine_samples"].select("line", turn.alias("turn")))
    if "incidents" in frames:
        answered = frames["incidents"].filter(pl.col("kind") == "response")
        told.append(answered.select("line", pl.lit("").alias("turn")))
    return told
