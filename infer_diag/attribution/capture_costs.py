"""What capturing graphs cost a start, and each graph of it, by the engine's own lines."""

from __future__ import annotations

from dataclasses import dataclass

import dataframely as dy
import polars as pl

from infer_diag.attribution.cold_start import start_phases
from infer_diag.recording import Recording

PHASE = "graph_capture"


class CaptureCosts(dy.Schema):
    """One row per start that captured graphs; null where no line tells."""

    start_id = dy.String(primary_key=True)
    graph_count = dy.UInt32(nullable=True, description="sum over the bars of one worker")
    duration_s = dy.Float64(nullable=True, min=0, description="wall clock of all captures")
    size_bytes = dy.Float64(nullable=True, min=0, description="taken on the worker that took most")
    graph_s = dy.Float64(nullable=True, min=0)
    graph_bytes = dy.Float64(nullable=True, min=0)
    source_id = dy.UInt32()
    lines = dy.List(dy.UInt32(), description="evidence")


@dataclass(frozen=True)
class GraphCost:
    """Seconds and bytes of one captured graph, null where no line tells; modelled: all graphs of a start alike."""

    graph_s: float | None
    graph_bytes: float | None


def capture_costs(recording: Recording) -> dy.DataFrame[CaptureCosts]:
    """What each start of the recording spent on its graphs: vLLM's and SGLang's capture lines and progress bars.

    Frames in: Phases, Progress. Frame out: CaptureCosts. One graph's share is the whole divided by the graphs: engines
    capture from the largest to the smallest into one pool and print no single one.
    """
    walls = start_phases(recording).filter((pl.col("phase") == PHASE) & pl.col("rank").is_null() & pl.col("chosen"))
    taken = (
        recording.phases.filter((pl.col("phase") == PHASE) & pl.col("start_id").is_not_null())
        .group_by("start_id", "replica", "rank")
        .agg(pl.col("size_bytes").sum(), told=pl.col("size_bytes").count())
        .filter(pl.col("told") > 0)
        .group_by("start_id")
        .agg(pl.col("size_bytes").max())
    )
    found = (
        walls.select("start_id", "duration_s", "source_id", "lines")
        .join(taken, on="start_id", how="left", maintain_order="left")
        .join(_graphs(recording.progress), on="start_id", how="left", maintain_order="left")
        .with_columns(
            (pl.col("duration_s") / pl.col("graph_count")).alias("graph_s"),
            (pl.col("size_bytes") / pl.col("graph_count")).alias("graph_bytes"),
        )
    )
    return CaptureCosts.validate(found.select(CaptureCosts.column_names()), cast=True)


def graph_cost(costs: pl.DataFrame) -> GraphCost | None:
    """The median start's cost of one graph; null where no start tells it.

    Frame in: CaptureCosts.
    """
    seconds, sizes = costs["graph_s"].median(), costs["graph_bytes"].median()
    if seconds is None and sizes is None:
        return None
    return GraphCost(
        float(seconds) if isinstance(seconds, float) else None, float(sizes) if isinstance(sizes, float) else None
    )


def _graphs(progress: pl.DataFrame) -> pl.DataFrame:
    """Graphs per start: totals of its bars, a new bar where the count falls back or the total changes.

    The first reading of a bar may carry the worker's name and the later ones not, so workers are told apart by name
    only where several are named.
    """
    bars = progress.filter((pl.col("phase") == PHASE) & pl.col("start_id").is_not_null())
    named = pl.any_horizontal(pl.col("replica", "rank").is_not_null())
    worker = pl.when(named).then(pl.concat_str("replica", "rank", separator=" ", ignore_nulls=True))
    first = worker.drop_nulls().first().over("start_id")
    one = bars.filter(worker.is_null() | (worker == first))
    ordered = one.sort("source_id", "line", maintain_order=True)
    done, total = pl.col("done_count").cast(pl.Int64), pl.col("total_count")
    begins = (done.diff() < 0).over("start_id") | (total != total.shift()).over("start_id")
    begun = ordered.with_columns(begins.fill_null(True).alias("begins"))
    return begun.filter("begins").group_by("start_id").agg(pl.col("total_count").sum().alias("graph_count"))
