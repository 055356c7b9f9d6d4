"""Recording and alert rules for Prometheus (`rule_files:`), made from the metrics that each engine exports.

`print(rules_yaml(["vllm", "dcgm-exporter"]))`; `promtool check rules` accepts what comes back. `rule_table()` lists the
alerts with their thresholds for a notebook.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import polars as pl

from infer_diag import __version__
from infer_diag.errors import UnknownNameError
from infer_diag.loaders.exposition.families import DCGM, EXPORTERS, KUBELET, Exporter
from infer_diag.observability.alerts import DEVICE_ALERTS, ENGINE_ALERTS, GPU_USED, Alert
from infer_diag.observability.recorded_series import family_of, metric_names, recorded
from infer_diag.observability.yaml_text import to_yaml
from infer_diag.units import format_s

ENGINES = tuple(exporter.engine for exporter in EXPORTERS if exporter is not KUBELET)
"""Exporters that rules can be made for."""
DEFAULT = ("vllm", "sglang", DCGM.engine)
SEVERITIES = {"high": "critical", "medium": "warning", "low": "info", "info": "info"}
"""A finding's severity as Alertmanager's routes usually spell it."""

_DEVICE = ("job", "namespace", "instance", "Hostname", "gpu", "UUID", "GPU_I_ID")


def rules(engines: Iterable[str] = DEFAULT) -> dict[str, Any]:
    """The rules document: per engine a group that records series and a group of alerts on them.

    Every alert names its finding (`labels.finding`, ids as in a diagnosis), its threshold and where that is defined,
    and what to do. An alert whose series an engine does not export is left out.

    Raises:
        UnknownNameError: there is no such engine.
    """
    groups: list[dict[str, Any]] = []
    for engine in dict.fromkeys(engines):
        exporter = _exporter(engine)
        series, alerts = _device_rules() if exporter is DCGM else _engine_rules(exporter)
        if series:
            groups.append({"name": f"infer_diag.{engine}.recorded", "rules": series})
        if alerts:
            groups.append({"name": f"infer_diag.{engine}.alerts", "rules": alerts})
    return {"groups": groups}


def rules_yaml(engines: Iterable[str] = DEFAULT) -> str:
    """`rules` as the text of a rule file.

    Raises:
        UnknownNameError: there is no such engine.
    """
    about = (
        f"Written by infer-diag {__version__}: `infer-diag rules`.\n"
        "Evaluate it in Prometheus (rule_files:) beside the engines' scrapes; thresholds are those of a diagnosis."
    )
    return to_yaml(rules(engines), comment=about)


def rule_table(engines: Iterable[str] = DEFAULT) -> pl.DataFrame:
    """One row of text per alert: `engine`, `alert`, `finding`, `severity`, `threshold`, `source`, `for`, `action`."""
    rows = [
        (engine, alert.name, alert.finding, alert.severity, alert.threshold, alert.source, alert.for_s, alert.action)
        for engine in dict.fromkeys(engines)
        for alert in _alerts(_exporter(engine))
    ]
    told = [(*row[:6], format_s(row[6]), row[7](row[0])) for row in rows]
    columns = ("engine", "alert", "finding", "severity", "threshold", "source", "for", "action")
    return pl.DataFrame(told, schema=dict.fromkeys(columns, pl.String), orient="row")


def _exporter(engine: str) -> Exporter:
    if engine not in ENGINES:
        raise UnknownNameError("engine to make rules for", engine, ENGINES)
    return next(exporter for exporter in EXPORTERS if exporter.engine == engine)


def _alerts(exporter: Exporter) -> tuple[Alert, ...]:
    if exporter is DCGM:
        return DEVICE_ALERTS
    known = recorded(exporter)
    return tuple(alert for alert in ENGINE_ALERTS if set(alert.needs) <= set(known))


def _engine_rules(exporter: Exporter) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    engine, label = exporter.engine, {"engine_name": exporter.engine}
    alerts = _alerts(exporter)
    states = {name: made(engine) for alert in alerts for name, made in alert.states}
    series = [
        {"record": f"infer_diag:{name}", "expr": expr, "labels": label}
        for name, expr in (recorded(exporter) | states).items()
    ]
    return series, [_told(alert, engine) for alert in alerts]


def _device_rules() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    by = f"by ({', '.join(_DEVICE)})"
    used = family_of(DCGM, "used_bytes", "device")
    (name,) = metric_names(DCGM, used)
    series = [{"record": GPU_USED, "expr": f"max {by} ({name}) * {used.scale:.0f}"}]
    return series, [_told(alert, DCGM.engine) for alert in DEVICE_ALERTS]


def _told(alert: Alert, engine: str) -> dict[str, Any]:
    where = "GPU {{ $labels.gpu }} of {{ $labels.instance }}" if engine == DCGM.engine else "{{ $labels.instance }}"
    return {
        "alert": alert.name,
        "expr": alert.condition(engine),
        "for": f"{alert.for_s}s",
        "labels": {"severity": SEVERITIES[alert.severity], "finding": alert.finding, "engine_name": engine},
        "annotations": {
            "summary": f"{where}: {alert.summary}",
            "action": alert.action(engine),
            "threshold": alert.threshold,
            "source": alert.source,
        },
    }
