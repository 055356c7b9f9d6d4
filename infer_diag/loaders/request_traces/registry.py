"""The formats of requests and traces, for the list of all."""

from __future__ import annotations

from infer_diag.loaders.request_traces import arrival_traces, vllm_runs

LOADERS = (
    arrival_traces.AZURE,
    arrival_traces.BURSTGPT,
    arrival_traces.MOONCAKE,
    vllm_runs.REQUESTS,
    vllm_runs.SERIES,
    vllm_runs.META,
)
