"""The table of what is read of each engine is the registry's own."""

from __future__ import annotations

import polars as pl

from infer_diag.loaders import LOADERS
from infer_diag.loaders.exposition.families import EXPORTERS, MEANINGS
from infer_diag.observability.compatibility import compatibility, metrics_read
from infer_diag.observability.rules import rule_table


def row(engine: str) -> dict[str, object]:
    return compatibility().row(by_predicate=pl.col("engine") == engine, named=True)


def test_every_engine_with_a_log_or_metrics_has_one_row() -> None:
    engines = compatibility()["engine"].to_list()
    assert len(engines) == len(set(engines))
    assert {"vllm", "sglang", "tgi", "llama.cpp", "ollama", "lmdeploy", "tensorrt-llm", "triton"} <= set(engines)
    assert not {"kubelet", "dcgm-exporter", "kubernetes"} & set(engines)


def test_what_is_told_is_what_the_loaders_declare() -> None:
    vllm = row("vllm")
    assert vllm["versions"] == LOADERS["vllm"].versions
    assert (vllm["start_log"], vllm["request_log"], vllm["iteration_log"]) == (True, True, True)
    assert vllm["otlp_traces"] == "to 0.32" and vllm["alert_count"] == len(rule_table(["vllm"]))
    assert (row("ollama")["metric_count"], row("ollama")["alert_count"]) == (0, 0)
    assert row("sglang")["otlp_traces"] is None and row("sglang")["request_log"] is False
    statistics = row("tensorrt-llm")["versions"]
    assert isinstance(statistics, str) and LOADERS["tensorrt-llm-statistics"].versions in statistics


def test_every_metric_listed_is_one_that_is_read() -> None:
    listed = metrics_read()
    parts = {"histogram": "_sum"}
    assert all(f"{name}{parts.get(kind, '')}" in MEANINGS for name, kind in listed.select("metric", "kind").iter_rows())
    counted = dict(listed.group_by("engine").len().iter_rows())
    assert counted == {exporter.engine: len(exporter.families) for exporter in EXPORTERS}
