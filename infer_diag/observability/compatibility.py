"""What each engine exposes and infer_diag reads of it, computed from the formats and metrics that the loaders declare.

`compatibility()` is the table, `metrics_read()` the names of the metrics behind its counts.
"""

from __future__ import annotations

import re
from datetime import date

import polars as pl

from infer_diag.loaders.exposition.families import DCGM, EXPORTERS, KUBELET, Exporter
from infer_diag.loaders.loader import Loader
from infer_diag.loaders.registry import LOADERS
from infer_diag.observability.rules import rule_table

AS_OF = date(2026, 11, 30)
"""When the formats were last held against the engines' releases."""

_START = {"starts", "phases"}
_REQUESTS = {"requests", "request_timings"}
_ITERATIONS = {"engine_samples", "engine_steps"}
_SCHEMA = {
    "engine": pl.String,
    "versions": pl.String,
    "start_log": pl.Boolean,
    "request_log": pl.Boolean,
    "iteration_log": pl.Boolean,
    "metric_count": pl.UInt32,
    "otlp_traces": pl.String,
    "alert_count": pl.UInt32,
    "as_of": pl.Date,
}


def compatibility() -> pl.DataFrame:
    """One row per engine: what can be read of it, in which versions, as of when.

    `versions`: of the engine's own log, null where none is read. `start_log`, `request_log`, `iteration_log`: whether
    its files tell of starts, of single requests, of steps or samples. `metric_count`: metrics that are read of its
    endpoint. `otlp_traces`: the versions whose spans are read, null where none are. `alert_count`: alerts that
    `infer_diag.observability.rules` makes of its metrics.
    """
    exporters = {each.engine: each for each in EXPORTERS if each not in (KUBELET, DCGM)}
    own_logs = [name for name, loader in LOADERS.items() if {"starts", "deployments"} <= set(loader.frames)]
    rows = [_row(engine, exporters.get(engine)) for engine in dict.fromkeys((*own_logs, *exporters))]
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row")


def metrics_read() -> pl.DataFrame:
    """One row per metric that is read: `engine`, `metric` (the newest name), `fills` (a column or measure), `kind`."""
    rows = [
        (exporter.engine, f"{exporter.prefixes[0]}{family.names[0]}", family.column, family.kind)
        for exporter in EXPORTERS
        for family in exporter.families
    ]
    return pl.DataFrame(rows, schema=["engine", "metric", "fills", "kind"], orient="row")


def _row(engine: str, exporter: Exporter | None) -> tuple[object, ...]:
    files = [loader for name, loader in LOADERS.items() if name == engine or name == f"{engine}-statistics"]
    frames = {frame for loader in files for frame in loader.frames}
    return (
        engine,
        "; ".join(loader.versions for loader in files) or None,
        bool(frames & _START),
        bool(frames & _REQUESTS),
        bool(frames & _ITERATIONS),
        0 if exporter is None else len(exporter.families),
        _spans(engine, LOADERS["otlp"]),
        0 if exporter is None else len(rule_table([engine])),
        AS_OF,
    )


def _spans(engine: str, traces: Loader) -> str | None:
    """The versions of an engine's spans as the loader of traces states them."""
    found = re.search(rf"(?i)\b{re.escape(engine)}'s spans (?P<versions>[^;,]+)", traces.versions)
    return found["versions"].strip() if found else None
