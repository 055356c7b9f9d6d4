"""What to do about each cause of a slow start, in the engine's own flags and settings."""

from __future__ import annotations

_FASTER_LOAD = {
    "vllm": (
        "keep the checkpoint on a local NVMe disk or in the page cache; on network storage start with "
        "`--safetensors-load-strategy=prefetch`, or read it in parallel with `--load-format runai_streamer` or "
        "fastsafetensors"
    ),
    "sglang": (
        "keep the checkpoint on a local NVMe disk or in the page cache; on network storage start with "
        "`--weight-loader-prefetch-checkpoints`, or read it in parallel with `--model-loader-extra-config "
        '\'{"enable_multithread_load": true, "num_threads": 8}\'`'
    ),
    "": "keep the checkpoint on a local NVMe disk or in the page cache, and read its files in parallel",
}

_REMEDIES: dict[str, dict[str, str]] = {
    "schedule": {
        "": (
            "the events of the pod name what it waited for: keep a node with the accelerator warm, lower what the pod "
            "requests, or give it a priority class"
        ),
    },
    "no_gpu_resource": {
        "": (
            "`kubectl describe node` lists the accelerators under Allocatable and Allocated: where they are missing, "
            "install or repair the device plugin (its DaemonSet must run on the node and find the driver); where all "
            "are taken, free one or add a node"
        ),
    },
    "volume_mount": {
        "": (
            "keep the volume where the pod goes: one that is detached from another node first takes minutes, and "
            "`fsGroup` without `fsGroupChangePolicy: OnRootMismatch` walks through all of its files"
        ),
    },
    "image_pull": {
        "": (
            "have the image on the node before the pod comes (a DaemonSet that pulls it, or a node image that holds "
            "it), keep the registry or a mirror close, and leave the weights out of the image"
        ),
    },
    "container_start": {
        "": (
            "look at what the runtime does before the process: mounting volumes, init containers, unpacking a large "
            "image"
        ),
    },
    "clock_set_back": {
        "": "have the server log in UTC, and its clock kept by NTP before the engine starts; then start it once more",
    },
    "weights_load": _FASTER_LOAD,
    "storage_bound": _FASTER_LOAD,
    "weights_fetch": {
        "vllm": "fetch the model once to a volume that outlives the container; `--download-dir` or `HF_HOME` names it",
        "sglang": "fetch the model once to a volume that outlives the container: `--download-dir` or `HF_HOME`",
        "": "fetch the model once to a volume that outlives the container",
    },
    "model_build": {
        "": (
            "build the modules on the meta device (`with torch.device('meta')`; newer `from_pretrained` does so by "
            "itself), so that no weight is filled with numbers that the checkpoint then replaces"
        ),
    },
    "compile": {
        "vllm": (
            "keep `VLLM_CACHE_ROOT` (its torch_compile_cache) on a volume that outlives the container, or copy it into "
            "the image; `--enforce-eager` starts without compiling and serves slower"
        ),
        "sglang": (
            "keep `TORCHINDUCTOR_CACHE_DIR` on a volume that outlives the container, or start without "
            "`--enable-torch-compile`"
        ),
        "": "keep the compiler's cache on a volume that outlives the container",
    },
    "compile_cached": {
        "vllm": (
            "the graphs already come out of the cache; what is left is tracing the model, which the ahead-of-time "
            "artifacts of 0.11.2 and later (`VLLM_USE_AOT_COMPILE=1`) spare"
        ),
        "": "the graphs already come out of the cache; what is left is tracing the model",
    },
    "graph_capture": {
        "vllm": (
            "capture fewer batch sizes with `--compilation-config '{\"cudagraph_capture_sizes\": [1, 2, 4, 8, 16]}'`, "
            "those that the traffic reaches; `--enforce-eager` captures none and serves slower"
        ),
        "sglang": (
            "capture fewer batch sizes with `--cuda-graph-max-bs`, up to what the traffic reaches; "
            "`--disable-cuda-graph` captures none and serves slower"
        ),
        "": "capture graphs only for the batch sizes that the traffic reaches",
    },
    "kv_profile": {
        "": (
            "kernels that are compiled or tuned at their first use do it here: keep their caches (Triton, FlashInfer, "
            "DeepGEMM) on a volume that outlives the container; large multimodal inputs lengthen it as well"
        ),
    },
    "kernel_warmup": {
        "vllm": (
            "keep the autotuner's and compiler's caches (`VLLM_CACHE_ROOT`, `FLASHINFER_WORKSPACE_BASE`) on a volume "
            "that outlives the container"
        ),
        "": "keep the autotuner's and the kernel compiler's caches on a volume that outlives the container",
    },
    "process": {
        "": (
            "the time goes before the engine acts: use a local image and file system for the Python packages, pass the "
            "model as a local path so that no hub is asked, and give the container enough CPU"
        ),
    },
    "device_init": {
        "": (
            "look at what the workers wait for while they join (driver persistence mode off, slow rendezvous, network "
            "checks of NCCL); `NCCL_DEBUG=INFO` prints it"
        ),
    },
    "engine_build": {"": "build the engine once and load it from a volume that outlives the container"},
    "engine_load": {"": "keep the built engine on a local NVMe disk or in the page cache"},
    "straggler": {
        "": (
            "compare the slow worker's node with the others (its disk, its mount, its page cache, its share of the "
            "network): all workers wait for the slowest one"
        ),
    },
    "unlogged": {
        "vllm": (
            "start once with `VLLM_LOGGING_LEVEL=DEBUG`, or with `--otlp-traces-endpoint` (start-up spans since 0.17); "
            "time before the first line is only in the pod's events"
        ),
        "sglang": "start once with `--log-level debug`; time before the first line is only in the pod's events",
        "kubernetes": "read the container's own log beside the events: no event tells what happens inside a container",
        "": "start once with the engine's debug logging; time before the first line is only in the pod's events",
    },
    "unfinished": {"": "read the log again once the start has come to its end; nothing in it says that it failed"},
}


def remedy(cause: str, engine: str) -> str | None:
    """What to do about this cause (`area.cause` without its area) on this engine; null where nothing general helps."""
    known = _REMEDIES.get(cause, {})
    return known.get(engine, known.get(""))
