"""The collector's configuration: what is written has no fault, and what is wrong with another is said, all of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from infer_diag.cli import app
from infer_diag.errors import DiagError, LogFormatError
from infer_diag.observability.collector import ARTICLE_YAML, SECRETS, collector_config, collector_yaml
from infer_diag.observability.collector_faults import faults

Change = Callable[[dict[str, Any]], object]


def told(config: str | dict[str, Any]) -> list[str]:
    return [str(fault) for fault in faults(config)]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"labels": {"tenant_id": "a"}},
        {"engines": ["vllm-0:8000", "vllm-1:8000"], "dcgm": []},
        {"logs": ["/srv/*.log"], "are_pod_logs": False},
        {"listen": "127.0.0.1", "insecure": False},
        {"keep": None},
    ],
    ids=str,
)
def test_what_is_written_has_no_fault_and_a_pipeline_for_each_signal(changes: dict[str, Any]) -> None:
    text = collector_yaml(**changes)
    assert told(text) == []
    assert set(yaml.safe_load(text)["service"]["pipelines"]) == {"traces", "metrics", "logs"}
    assert yaml.safe_load(text) == collector_config(**changes)


def test_where_logs_go_nowhere_there_is_no_pipeline_for_them() -> None:
    config = collector_config(loki=None, keep=None)
    assert set(config["service"]["pipelines"]) == {"traces", "metrics"}
    assert "file_log" not in config["receivers"]
    assert [fault.weight for fault in faults(config)] == ["warning"]
    with pytest.raises(DiagError, match="nothing would be collected"):
        collector_config(loki=None, keep=None, tempo=None, remote_write=None)


def test_the_old_names_are_those_of_older_collectors() -> None:
    found = faults(collector_yaml(with_old_names=True))
    assert {fault.what for fault in found} == {
        "filelog is the old name of file_log",
        "otlp is the old name of otlp_grpc",
        "otlphttp is the old name of otlp_http",
    }
    assert {fault.weight for fault in found} == {"warning"}


def test_the_article_s_configuration_does_not_start_because_it_has_no_pipelines() -> None:
    first, *rest = told(ARTICLE_YAML)
    assert first.startswith("error: service.pipelines: is missing")
    assert [each.split(": ")[1] for each in rest] == [
        "receivers.otlp",
        "processors.batch",
        "exporters.prometheusremotewrite",
    ]


def test_the_article_s_exporter_has_no_traces() -> None:
    """With the pipelines that its text speaks of, traces and logs still have no exporter."""
    config = yaml.safe_load(ARTICLE_YAML)
    ends = {"receivers": ["otlp"], "processors": ["batch"], "exporters": ["prometheusremotewrite"]}
    config["service"] = {"pipelines": dict.fromkeys(("traces", "metrics", "logs"), ends)}
    errors = [str(fault) for fault in faults(config) if fault.weight == "error"]
    assert errors == [
        "error: service.pipelines.traces: prometheusremotewrite takes metrics and no traces",
        "error: service.pipelines.logs: prometheusremotewrite takes metrics and no logs",
    ]


def put(*keys: str, value: object) -> Change:
    def change(config: dict[str, Any]) -> None:
        for key in keys[:-1]:
            config = config[key]
        config[keys[-1]] = value

    return change


def drop(*keys: str) -> Change:
    def change(config: dict[str, Any]) -> None:
        for key in keys[:-1]:
            config = config[key]
        del config[keys[-1]]

    return change


TRACES = ("service", "pipelines", "traces")
BROKEN: list[tuple[Change, str]] = [
    (drop("service"), "error: service.pipelines: is missing"),
    (drop(*TRACES), "warning: service.pipelines: there is none for traces"),
    (drop("exporters", "otlp_grpc/tempo"), "exporters name otlp_grpc/tempo, which is not declared"),
    (put("exporters", "debug", value=None), "exporters.debug: is declared and stands in no pipeline"),
    (put(*TRACES, "receivers", value=[]), "traces: has no receivers"),
    (put(*TRACES, "exporters", value=["file/traces", "file/traces"]), "exporters name file/traces twice"),
    (put(*TRACES, "receivers", value=["prometheus"]), "prometheus takes metrics and no traces"),
    (put(*TRACES, "processors", value=["batch"]), "traces: has no memory_limiter"),
    (put(*TRACES, "processors", value=["batch", "memory_limiter"]), "memory_limiter is not the first"),
    (put(*TRACES, "senders", value=["x"]), "senders is no part of a pipeline"),
    (put("service", "pipelines", "spans", value={"receivers": ["otlp"]}), "spans is no signal"),
    (put("service", "extensions", value=["health_check"]), "storage file_storage is not listed"),
    (put("service", "extensions", value=["pprof"]), "names pprof, which is not declared"),
    (drop("exporters", "prometheusremotewrite", "endpoint"), "endpoint is not set"),
    (put("exporters", "otlp_http/loki", "endpoint", value=""), "endpoint is not set"),
    (put("receivers", "prometheus", "config", value={}), "names nothing to scrape"),
    (put("processors", "memory_limiter", value={"check_interval": "1s"}), "neither limit_mib nor"),
    (put("processors", "batch", "size", value=1), "size is no setting known here"),
    (put("receivers", "carrier", value={}), "carrier: is no component known here"),
    (put("pipelines", value={}), "error: pipelines: the collector knows no such section"),
    (put("connectors", value={"spanmetrics": {}}), "spanmetrics: is declared and stands in no pipeline"),
    (put("receivers", "otlp", value=["grpc"]), "receivers.otlp: is no mapping"),
]


@pytest.mark.parametrize(("change", "expected"), BROKEN, ids=[expected for _, expected in BROKEN])
def test_each_fault_is_said(change: Change, expected: str) -> None:
    config = copy.deepcopy(collector_config())
    change(config)
    assert any(expected in each for each in told(config)), told(config)


@pytest.mark.parametrize(
    ("ends", "begins", "expected"),
    [
        (["traces"], ["metrics"], None),
        (["traces"], [], "error: connectors.spanmetrics: ends traces and begins no pipeline as a receiver"),
        ([], ["metrics"], "error: connectors.spanmetrics: begins metrics and ends no pipeline as an exporter"),
        (["traces"], ["traces"], "error: connectors.spanmetrics: ends and begins traces: a circle"),
        (["logs"], ["metrics"], "error: service.pipelines.logs: spanmetrics takes traces and no logs"),
    ],
)
def test_a_connector_has_two_ends(ends: list[str], begins: list[str], expected: str | None) -> None:
    config = copy.deepcopy(collector_config())
    config["connectors"] = {"spanmetrics": {}}
    for signal in ends:
        config["service"]["pipelines"][signal]["exporters"].append("spanmetrics")
    for signal in begins:
        config["service"]["pipelines"][signal]["receivers"].append("spanmetrics")
    assert told(config) == ([] if expected is None else [expected])


@pytest.mark.parametrize("text", ["[1, 2]", "a: b: c", "a: [", "", "x: !!python/object:os.system {}", "a: \x00"])
def test_what_is_no_mapping_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(LogFormatError, match="no YAML"):
        faults(text)


TREE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)
PLACES = [
    ("service",),
    ("service", "pipelines"),
    ("receivers",),
    ("exporters", "file/logs"),
    ("service", "extensions"),
    (*TRACES, "receivers"),
]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.sampled_from(PLACES), value=TREE)
def test_any_value_anywhere_gives_faults_and_no_traceback(place: tuple[str, ...], value: object) -> None:
    config = copy.deepcopy(collector_config())
    put(*place, value=value)(config)
    assert all(fault.weight in ("error", "warning") and fault.what for fault in faults(config))


@pytest.mark.parametrize(
    ("value", "hidden"),
    [
        ("Authorization: Bearer abcdefghijklmnop.qrst", True),
        ("hf_" + "a" * 30, True),
        ("sk-" + "b1" * 15, True),
        ("AKIA" + "Q" * 16, True),
        ("https://user:word@host/x", True),
        ("vllm:num_requests_running", False),
        ("http://10.0.0.1:8000/v1/chat/completions", False),
        ("task-20260314T090000-disk-0001", False),
    ],
)
def test_secrets_are_masked_and_names_are_not(value: str, hidden: bool) -> None:
    """The collector matches in linear time as the engine of these columns does, by the same syntax."""
    found = (
        pl.Series([value]).to_frame("value").select(pl.any_horizontal(pl.col("value").str.contains(p) for p in SECRETS))
    )
    assert found.item() is hidden


def test_the_command_writes_and_checks(tmp_path: Path) -> None:
    written, runner = tmp_path / "otelcol.yaml", CliRunner()
    done = runner.invoke(app, ["collector-config", "--engine", "vllm-7:8000", "--out", str(written)])
    assert done.exit_code == 0 and "vllm-7:8000" in written.read_text()
    done = runner.invoke(app, ["collector-config", "--check", str(written)])
    assert (done.exit_code, done.stdout) == (0, "no fault found\n")
    written.write_text(ARTICLE_YAML)
    done = runner.invoke(app, ["collector-config", "--check", str(written)])
    assert done.exit_code == 1 and done.stdout.startswith("error: service.pipelines")


def test_the_command_writes_rules() -> None:
    done = CliRunner().invoke(app, ["rules", "--engine", "sglang"])
    assert done.exit_code == 0
    assert [group["name"] for group in yaml.safe_load(done.stdout)["groups"]] == [
        "infer_diag.sglang.recorded",
        "infer_diag.sglang.alerts",
    ]
