"""What TensorRT-LLM's and Triton's start-up lines say, by message, 0.5 to 1.3 and 2.30 to 2.64."""

from __future__ import annotations

from infer_diag.loaders.observations import StartRule

_S = r"(?P<seconds>[0-9.]+) ?s(?:ec(?:ond)?s?)?\b"
_BAR = r"\s*[0-9]+%[^0-9\[]*(?P<done>[0-9]+)/(?P<total>[0-9]+) \[(?P<elapsed>[0-9:]+)<"
_RANK = r"(?:[0-9]+: )?"
"""A launcher's number of the process in front of what a process prints without its logger."""

PHASES = (
    StartRule(
        "Total time of building all engines: ",
        r"Total time of building all engines: (?P<elapsed>[0-9]+:[0-9]{2}:[0-9]{2})",
        phase="engine_build",
    ),
    StartRule("Engine load time ", r"Engine load time (?P<ms>[0-9.]+) ms", phase="engine_load"),
    StartRule("Model init total -- ", rf"{_RANK}Model init total -- {_S}", phase="weights_load"),
    StartRule(
        "Loading weights", rf"{_RANK}Loading weights[a-z ]*:{_BAR}", phase="weights_read", edge="bar", strict=False
    ),
    StartRule(
        "Loading safetensors weights in parallel:",
        rf"{_RANK}Loading safetensors weights in parallel:{_BAR}",
        phase="weights_read",
        edge="bar",
        strict=False,
    ),
    StartRule(
        "Autotuning process starts",
        r"(?:\[Autotuner\]:? )?Autotuning process starts",
        phase="kernel_warmup",
        edge="begin",
    ),
    StartRule(
        "Autotuning process ends", r"(?:\[Autotuner\]:? )?Autotuning process ends", phase="kernel_warmup", edge="end"
    ),
)

INCIDENTS = (
    StartRule(
        "LLM version: ", r"TensorRT[- ]LLM version: (?P<fields>\S+)", kind="engine_begin", edge="mark", strict=False
    ),
    StartRule("Application startup complete.", kind="ready", edge="mark"),
    StartRule(
        "xecutor creation failed",
        r".*?(?P<fields>Executor creation failed.*)",
        kind="failed",
        edge="mark",
    ),
    StartRule(
        "Failed to initialize executor",
        r".*?(?P<fields>Failed to initialize executor.*)",
        kind="failed",
        edge="mark",
    ),
    StartRule("Application shutdown complete", kind="shutdown", edge="mark"),
    StartRule(
        "out of memory. Tried to allocate",
        r"(?P<fields>.*(?:CUDA|HIP) out of memory\. Tried to allocate.*)",
        kind="oom",
        edge="mark",
    ),
)

RULES = (*PHASES, *INCIDENTS)

TRITON_RULES = (
    StartRule("loading: ", r"loading: (?P<rank>[^:\s]+):[0-9]+", phase="engine_load", edge="begin", strict=False),
    StartRule(
        "successfully loaded '", r"successfully loaded '(?P<rank>[^']+)'", phase="engine_load", edge="end", strict=False
    ),
    *(rule for rule in PHASES if rule.phase not in ("engine_load", "engine_build")),
    StartRule("Pinned memory pool is created", kind="engine_begin", edge="mark"),
    StartRule("Started HTTPService at ", kind="ready", edge="mark"),
    StartRule("Started GRPCInferenceService at ", kind="ready", edge="mark"),
    StartRule("failed to load '", r"(?P<fields>failed to load '.*)", kind="failed", edge="mark"),
    StartRule("creating server: ", r"(?:error: )?(?P<fields>creating server: .*)", kind="failed", edge="mark"),
    StartRule("Signal (", r"Signal \([0-9]+\) received", kind="shutdown", edge="mark", strict=False),
    *(rule for rule in INCIDENTS if rule.kind in ("failed", "oom")),
)
"""Triton loads models side by side, so each model is told apart like a worker."""

CONFIGURATION = (
    "TRTGptModel max",
    "tokens in paged KV cache",
    "KV cache (",
    "LLM version: ",
    "Triton Server Version ",
    "server_version",
    "MPI size: ",
    "tensor_parallel_size",
)
"""Literals of lines that tell how the engine is configured."""
