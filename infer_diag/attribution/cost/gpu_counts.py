"""How many GPUs one replica runs on."""

from __future__ import annotations

import re

import polars as pl

from infer_diag.attribution.cost.lanes import Lane
from infer_diag.fleet import Facts
from infer_diag.recording import Recording


def gpu_count(recording: Recording, facts: Facts, lane: Lane | None = None) -> int | None:
    """GPUs of one replica: as the facts say, else as the configuration that was printed last says; null if neither.

    Data-parallel engines that the log does not tell apart are one replica, on the GPUs of all of them.
    """
    if facts.gpu_count is not None:
        return facts.gpu_count
    told = recording.deployments.drop_nulls("gpu_count").sort("source_id", "line")
    labels = [stream.replica for stream in lane.streams] if lane is not None else recording.starts["replica"].to_list()
    if lane is not None:
        own = told.filter(pl.col("source_id").is_in([stream.source_id for stream in lane.streams]))
        told = told if own.is_empty() else own
    if told.is_empty():
        return None
    last = told.row(-1, named=True)
    apart = any(re.search(r"\bDP\d+$", label) for label in labels if label is not None)
    return int(last["gpu_count"]) * (1 if apart else int(last["data_parallel_count"] or 1))
