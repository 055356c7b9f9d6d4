"""The formats of requests and traces, for the list of all."""

from __future__ import annotations

from infer_diag.loaders.otlp import reading as otlp
from infer_diag.loaders.request_traces import (
    arrival_traces,
    bench_runs,
    client_exports,
    envoy,
    guidellm,
    own_table,
    traces,
    vllm_runs,
    vllm_startup,
)

LOADERS = (
    arrival_traces.AZURE,
    arrival_traces.BURSTGPT,
    arrival_traces.MOONCAKE,
    vllm_runs.REQUESTS,
    vllm_runs.SERIES,
    vllm_runs.META,
    bench_runs.VLLM,
    bench_runs.SGLANG,
    vllm_startup.LOADER,
    client_exports.PROFILE,
    client_exports.RECORDS,
    client_exports.SUMMARY,
    guidellm.LOADER,
    otlp.LOADER,
    traces.JAEGER,
    envoy.LOADER,
    own_table.LOADER,
)
