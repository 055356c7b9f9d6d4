"""Components of the OpenTelemetry Collector that serve an LLM deployment: what each is called, takes and carries.

Read off the components' documentation (opentelemetry-collector and -contrib) in November 2026. Since 0.144 the OTLP
exporters are called `otlp_grpc` and `otlp_http`, since 0.149 the log receiver `file_log`; the names before still work
and are warned about.
"""

from __future__ import annotations

from dataclasses import dataclass

CHECKED = "2026-11-30"
"""When the documentation was read."""
SIGNALS = ("traces", "metrics", "logs")
KINDS = ("receivers", "processors", "exporters", "connectors", "extensions")


@dataclass(frozen=True)
class Component:
    """One type of component; `fields` are its settings (of the first level), `required` those that have no default.

    `signals` are those of the pipelines that it may stand in; of a connector those that it takes in.
    """

    kind: str
    name: str
    fields: frozenset[str]
    signals: tuple[str, ...] = SIGNALS
    required: tuple[str, ...] = ()
    alias: str | None = None


def _fields(*texts: str) -> frozenset[str]:
    return frozenset(" ".join(texts).split())


_SENDING = "timeout sending_queue retry_on_failure"
_HTTP_CLIENT = (
    "endpoint tls headers compression compression_params auth proxy_url read_buffer_size write_buffer_size cookies "
    "max_idle_conns max_idle_conns_per_host max_conns_per_host idle_conn_timeout disable_keep_alives "
    "http2_read_idle_timeout http2_ping_timeout force_attempt_http2 middlewares"
)
_GRPC_CLIENT = (
    "endpoint tls headers compression auth keepalive read_buffer_size write_buffer_size wait_for_ready balancer_name "
    "authority middlewares"
)
_FILE_LOG = (
    "include exclude exclude_older_than start_at multiline force_flush_period encoding preserve_leading_whitespaces "
    "preserve_trailing_whitespaces include_file_name include_file_path include_file_name_resolved "
    "include_file_path_resolved include_file_owner_name include_file_owner_group_name include_file_record_number "
    "include_file_record_offset poll_interval fingerprint_size initial_buffer_size max_log_size max_concurrent_files "
    "max_batches delete_after_read acquire_fs_lock attributes resource operators storage header retry_on_failure "
    "ordering_criteria compression polls_to_archive"
)

COMPONENTS = (
    Component("receivers", "otlp", _fields("protocols"), required=("protocols",)),
    Component(
        "receivers",
        "prometheus",
        _fields("config trim_metric_suffixes use_start_time_metric start_time_metric_regex report_extra_metrics"),
        ("metrics",),
    ),
    Component("receivers", "file_log", _fields(_FILE_LOG), ("logs",), ("include",), "filelog"),
    Component(
        "receivers",
        "hostmetrics",
        _fields("collection_interval initial_delay timeout scrapers root_path"),
        ("metrics",),
    ),
    Component(
        "processors",
        "memory_limiter",
        _fields("check_interval limit_mib spike_limit_mib limit_percentage spike_limit_percentage"),
        required=("check_interval",),
    ),
    Component(
        "processors",
        "batch",
        _fields("timeout send_batch_size send_batch_max_size metadata_keys metadata_cardinality_limit"),
    ),
    Component(
        "processors",
        "redaction",
        _fields(
            "allow_all_keys allowed_keys ignored_keys ignored_key_patterns redact_all_types blocked_values "
            "blocked_key_patterns allowed_values summary hash_function url_sanitizer db_sanitizer"
        ),
    ),
    Component("processors", "attributes", _fields("actions include exclude"), required=("actions",)),
    Component("processors", "resource", _fields("attributes"), required=("attributes",)),
    Component("processors", "filter", _fields("error_mode traces metrics logs spans")),
    Component(
        "processors",
        "transform",
        _fields("error_mode trace_statements metric_statements log_statements flatten_data"),
    ),
    Component(
        "processors",
        "tail_sampling",
        _fields("decision_wait num_traces expected_new_traces_per_sec policies decision_cache"),
        ("traces",),
        ("policies",),
    ),
    Component("exporters", "otlp_grpc", _fields(_SENDING, _GRPC_CLIENT), required=("endpoint",), alias="otlp"),
    Component(
        "exporters",
        "otlp_http",
        _fields(_SENDING, _HTTP_CLIENT, "traces_endpoint metrics_endpoint logs_endpoint profiles_endpoint encoding"),
        alias="otlphttp",
    ),
    Component(
        "exporters",
        "prometheusremotewrite",
        _fields(
            "timeout retry_on_failure namespace remote_write_queue external_labels resource_to_telemetry_conversion "
            "wal target_info add_metric_suffixes translation_strategy send_metadata max_batch_size_bytes "
            "max_batch_request_parallelism protobuf_message export_created_metric",
            _HTTP_CLIENT,
        ),
        ("metrics",),
        ("endpoint",),
    ),
    Component(
        "exporters",
        "file",
        _fields("path rotation format encoding append compression flush_interval group_by"),
        required=("path",),
    ),
    Component("exporters", "debug", _fields("verbosity sampling_initial sampling_thereafter use_internal_logger")),
    Component(
        "connectors",
        "spanmetrics",
        _fields(
            "histogram dimensions exclude_dimensions dimensions_cache_size aggregation_temporality exemplars events "
            "metrics_flush_interval metrics_expiration namespace resource_metrics_key_attributes "
            "aggregation_cardinality_limit"
        ),
        ("traces",),
    ),
    Component("connectors", "routing", _fields("table default_pipelines error_mode"), required=("table",)),
    Component("connectors", "forward", _fields("")),
    Component(
        "extensions",
        "health_check",
        _fields("endpoint path response_body check_collector_pipeline tls auth cors response_headers"),
    ),
    Component(
        "extensions",
        "file_storage",
        _fields("directory timeout compaction fsync create_directory directory_permissions recreate"),
    ),
)


def component(kind: str, identifier: str) -> Component | None:
    """The component that an identifier (`otlp_http/loki`) names; null where it is none that is known here."""
    name = identifier.partition("/")[0]
    return next((each for each in COMPONENTS if each.kind == kind and name in (each.name, each.alias)), None)
