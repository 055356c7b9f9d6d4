"""A complete configuration of the OpenTelemetry Collector for engines, their GPUs and their logs.

`print(collector_yaml(engines=["vllm-0:8000"], dcgm=["node-1:9400"]))`; `collector_faults.faults` finds nothing in it.
The article's configuration, which has no `service.pipelines`, is `ARTICLE_YAML`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from infer_diag import __version__
from infer_diag.errors import DiagError
from infer_diag.observability.yaml_text import to_yaml

ARTICLE_YAML = """\
receivers:
  otlp:
    protocols:
      grpc:
        endpoint: "0.0.0.0:4317"
processors:
  batch:
    timeout: 1s
exporters:
  prometheusremotewrite:
    endpoint: "https://prometheus-remote-write.example.com/api/v1/write"
"""
"""The configuration that the article prints (chapter 5), its line breaks put back."""

SECRETS = (
    r"(?i)bearer\s+[A-Za-z0-9._~+/=-]{16,}",
    r"\bhf_[A-Za-z0-9]{20,}",
    r"\bsk-[A-Za-z0-9_-]{20,}",
    r"\bAKIA[0-9A-Z]{16}\b",
    r"://[^/\s:@]+:[^/\s@]+@",
)
"""Values that are masked, as Go's regular expressions: tokens, keys, and passwords in addresses."""
SECRET_KEYS = (r"(?i).*authorization.*", r"(?i).*api[_-]?key.*", r"(?i).*password.*")
UNBOUNDED = ("order_id", "request_id", "gen_ai.request.id", "user_id")
"""Attributes with a value of their own per request: they stay on spans and logs; as labels each would be a series."""


@dataclass(frozen=True)
class Sites:
    """Where telemetry comes from and goes to.

    `engines`, `dcgm`: `HOST:PORT` of metrics endpoints. `logs`: globs of log files, `are_pod_logs` where a container
    runtime wrote them. `loki`, `remote_write`: addresses, `tempo`: `HOST:PORT`; null leaves one out. `keep`: a folder
    in which everything is also written as OTLP's JSON, of which `infer_diag.load` reads the traces. `listen`: the
    interface that OTLP comes in by. `labels`: attributes put on everything (`tenant_id`). `with_old_names`: for a
    collector before 0.144.
    """

    engines: Sequence[str] = ("localhost:8000",)
    dcgm: Sequence[str] = ("localhost:9400",)
    logs: Sequence[str] = ("/var/log/pods/*/*/*.log",)
    are_pod_logs: bool = True
    loki: str | None = "http://loki:3100/otlp"
    tempo: str | None = "tempo:4317"
    remote_write: str | None = "http://prometheus:9090/api/v1/write"
    keep: str | None = "/var/lib/otelcol/kept"
    listen: str = "0.0.0.0"
    scrape_interval: str = "15s"
    insecure: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    with_old_names: bool = False


def collector_config(sites: Sites | None = None, **changes: Any) -> dict[str, Any]:
    """The configuration with a pipeline for traces, metrics and logs, each where it has somewhere to go.

    Args:
        sites: where telemetry comes from and goes to; `Sites()` where null.
        changes: fields of `Sites` to set, such as `engines=["vllm-0:8000"]`.

    Raises:
        DiagError: nothing is left to receive or to send.
    """
    told = Sites(**{**vars(sites or Sites()), **changes})
    exporters = _exporters(told)
    receivers = _receivers(told)
    pipelines = _pipelines(told, receivers, exporters)
    if not pipelines:
        raise DiagError("nothing would be collected", hint="give one of loki=, tempo=, remote_write= and keep=")
    used = {name for pipeline in pipelines.values() for names in pipeline.values() for name in names}
    extensions: dict[str, Any] = {
        "health_check": {"endpoint": f"{told.listen}:13133"},
        "file_storage": {"directory": "/var/lib/otelcol/storage", "create_directory": True},
    }
    return {
        "extensions": extensions,
        "receivers": {name: body for name, body in receivers.items() if name in used},
        "processors": {name: body for name, body in _processors(told).items() if name in used},
        "exporters": {name: body for name, body in exporters.items() if name in used},
        "service": {"extensions": list(extensions), "pipelines": pipelines},
    }


def collector_yaml(sites: Sites | None = None, **changes: Any) -> str:
    """`collector_config` as YAML text.

    Raises:
        DiagError: nothing is left to receive or to send.
    """
    about = (
        f"Written by infer-diag {__version__}: `infer-diag collector-config`, for the contrib distribution.\n"
        "Loki needs allow_structured_metadata (on by default since 3.0), Prometheus --web.enable-remote-write-receiver."
    )
    return to_yaml(collector_config(sites, **changes), comment=about)


def _receivers(told: Sites) -> dict[str, Any]:
    protocols = {"grpc": {"endpoint": f"{told.listen}:4317"}, "http": {"endpoint": f"{told.listen}:4318"}}
    scrapes = [
        {"job_name": job, "scrape_interval": told.scrape_interval, "static_configs": [{"targets": list(targets)}]}
        for job, targets in (("engine", told.engines), ("dcgm", told.dcgm))
        if targets
    ]
    files: dict[str, Any] = {
        "include": list(told.logs),
        "start_at": "end",
        "include_file_path": True,
        "storage": "file_storage",
    }
    if told.are_pod_logs:
        files["operators"] = [{"type": "container"}]
    receivers: dict[str, Any] = {"otlp": {"protocols": protocols}}
    if scrapes:
        receivers["prometheus"] = {"config": {"scrape_configs": scrapes}}
    if told.logs:
        receivers["filelog" if told.with_old_names else "file_log"] = files
    return receivers


def _processors(told: Sites) -> dict[str, Any]:
    return {
        "memory_limiter": {"check_interval": "1s", "limit_percentage": 75, "spike_limit_percentage": 20},
        "redaction": {
            "allow_all_keys": True,
            "blocked_key_patterns": list(SECRET_KEYS),
            "blocked_values": list(SECRETS),
            "summary": "silent",
        },
        "resource": {
            "attributes": [{"key": key, "value": value, "action": "upsert"} for key, value in told.labels.items()]
        },
        "attributes/bounded": {"actions": [{"key": key, "action": "delete"} for key in UNBOUNDED]},
        "batch": {"timeout": "1s", "send_batch_size": 8192, "send_batch_max_size": 16384},
    }


def _exporters(told: Sites) -> dict[str, Any]:
    grpc, http = ("otlp", "otlphttp") if told.with_old_names else ("otlp_grpc", "otlp_http")
    queue = {"storage": "file_storage"}
    tls = {"insecure": told.insecure}
    made: dict[str, Any] = {}
    if told.tempo is not None:
        made[f"{grpc}/tempo"] = {"endpoint": told.tempo, "tls": tls, "sending_queue": queue}
    if told.loki is not None:
        made[f"{http}/loki"] = {"endpoint": told.loki, "tls": tls, "sending_queue": queue}
    if told.remote_write is not None:
        made["prometheusremotewrite"] = {
            "endpoint": told.remote_write,
            "tls": tls,
            # The engines' names stay as they are, so that rules written for scrapes hold.
            "add_metric_suffixes": False,
        }
    if told.keep is not None:
        rotation = {"max_megabytes": 256, "max_backups": 8}
        made |= {
            f"file/{signal}": {"path": f"{told.keep}/{signal}.jsonl", "rotation": rotation}
            for signal in ("traces", "metrics", "logs")
        }
    return made


def _pipelines(told: Sites, receivers: Mapping[str, Any], exporters: Mapping[str, Any]) -> dict[str, Any]:
    """Per signal what stands in its pipeline; the memory limiter first, batches last, as their documentation asks."""
    sources = {"traces": ("otlp",), "metrics": ("otlp", "prometheus"), "logs": ("otlp", "file_log", "filelog")}
    sinks = {"traces": "tempo", "metrics": "prometheusremotewrite", "logs": "loki"}
    pipelines = {}
    for signal, names in sources.items():
        ends = [name for name in exporters if name.endswith((sinks[signal], f"file/{signal}"))]
        own = ["attributes/bounded"] if signal == "metrics" else []
        labels = ["resource"] if told.labels else []
        if ends:
            pipelines[signal] = {
                "receivers": [name for name in names if name in receivers],
                "processors": ["memory_limiter", "redaction", *labels, *own, "batch"],
                "exporters": ends,
            }
    return pipelines
