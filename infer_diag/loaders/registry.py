"""Every format that `load` reads."""

from __future__ import annotations

from infer_diag.loaders import (
    llama_cpp,
    lmdeploy,
    model_loads,
    ollama,
    pipeline_trace,
    sglang,
    tensorrt_llm,
    tensorrt_llm_statistics,
    tgi,
    torch_oom,
    triton,
    triton_statistics,
    vllm,
)
from infer_diag.loaders.allocator import LOADERS as ALLOCATOR
from infer_diag.loaders.exposition import reading as exposition
from infer_diag.loaders.gpu_tables import monitors, query_csv
from infer_diag.loaders.gpu_traces import LOADERS as GPU_TRACES
from infer_diag.loaders.kubernetes import node_logs
from infer_diag.loaders.kubernetes import reading as kubernetes
from infer_diag.loaders.request_traces.registry import LOADERS as REQUEST_TRACES

LOADERS = {
    loader.name: loader
    for loader in (
        vllm.LOADER,
        sglang.LOADER,
        tgi.LOADER,
        llama_cpp.LOADER,
        ollama.LOADER,
        lmdeploy.LOADER,
        tensorrt_llm.LOADER,
        tensorrt_llm_statistics.LOADER,
        triton.LOADER,
        triton_statistics.LOADER,
        kubernetes.LOADER,
        node_logs.LOADER,
        *exposition.LOADERS,
        monitors.DCGMI,
        monitors.NVIDIA_SMI_MONITOR,
        query_csv.LOADER,
        pipeline_trace.LOADER,
        model_loads.LOADER,
        torch_oom.LOADER,
        *ALLOCATOR,
        *GPU_TRACES,
        *REQUEST_TRACES,
    )
}

FORMATS: dict[str, str] = {name: loader.about for name, loader in LOADERS.items()}
"""Formats that `load` reads, with one line about each."""
