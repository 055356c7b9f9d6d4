"""What vLLM's start-up lines say, 0.2.7 to 0.32, by message: the files and line numbers in front moved too often."""

from __future__ import annotations

from infer_diag.loaders.observations import BAR, StartRule

_S = r"(?P<seconds>[0-9.]+) ?s(?:ec(?:ond)?s?)?\b"

PHASES = (
    StartRule(
        "Time spent downloading weights for ",
        rf"Time spent downloading weights for .+: {_S}",
        phase="weights_fetch",
        inside="weights_load",
    ),
    StartRule("Loading weights took ", rf"Loading weights took {_S}", phase="weights_read"),
    StartRule(
        "Model loading took ",
        rf"Model loading took (?P<gib>[0-9.]+) Gi?B(?: memory)? and {_S}",
        phase="weights_load",
    ),
    StartRule(
        "Loading model weights took ",
        rf"Loading model weights took (?P<gib>[0-9.]+) Gi?B(?: and {_S})?",
        phase="weights_load",
        edge="end",
    ),
    StartRule("Starting to load model ", phase="weights_load", edge="begin"),
    StartRule("Dynamo bytecode transform time: ", rf"Dynamo bytecode transform time: {_S}", phase="compile_dynamo"),
    StartRule("Compiling a graph for ", rf"Compiling a graph for .+ takes {_S}", phase="compile_graph"),
    StartRule(
        "Directly load the compiled graph",
        rf"Directly load the compiled graph.* from the cache, took {_S}",
        phase="compile_graph",
        strict=False,
    ),
    StartRule(
        "torch.compile take", rf"torch\.compile takes {_S} in total", phase="compile", is_total=True, strict=False
    ),
    StartRule("torch.compile took ", rf"torch\.compile took {_S} in total", phase="compile", is_total=True),
    StartRule(
        "torch.compile and initial profiling/warmup run together took ",
        rf"torch\.compile and initial profiling/warmup run together took {_S} in total",
        phase="kv_profile",
    ),
    # TPU runners print it once per graph, and the first of them printed "in" twice.
    StartRule(
        "Compilation finished in ",
        r"Compilation finished in (?:in )?(?P<seconds>[0-9.]+) \[secs\]",
        phase="compile",
        strict=False,
    ),
    # The CPU runner compiles in a warm-up of its own and prints no duration for it.
    StartRule("Warming up model for the compilation", phase="compile", edge="begin"),
    StartRule("Warming up done", phase="compile", edge="end"),
    StartRule("Initial profiling/warmup run took ", rf"Initial profiling/warmup run took {_S}", phase="kv_profile"),
    StartRule("Memory profiling takes ", rf"Memory profiling takes {_S}", phase="kv_profile"),
    StartRule(
        "[Autotuner]: Autotuning process starts",
        r"\[Autotuner\]: Autotuning process starts",
        phase="kernel_warmup",
        edge="begin",
    ),
    StartRule(
        "[Autotuner]: Autotuning process ends",
        r"\[Autotuner\]: Autotuning process ends",
        phase="kernel_warmup",
        edge="end",
    ),
    StartRule(
        "apturing the model for CUDA graphs",
        r"Capturing the model for CUDA graphs",
        phase="graph_capture",
        edge="begin",
    ),
    StartRule(
        "apturing cudagraphs for decoding", r"Capturing cudagraphs for decoding", phase="graph_capture", edge="begin"
    ),
    StartRule(
        "raph capturing finished in ",
        rf"(?:Encoder g|G)raph capturing finished in {_S}(?:, took (?P<gib>[0-9.]+) GiB)?",
        phase="graph_capture",
    ),
    StartRule(
        "init engine (profile, create kv cache, warmup model) took ",
        rf"init engine \([^)]*\) took {_S}",
        phase="init_engine",
    ),
    StartRule(
        " (compilation: ",
        rf"init engine \([^)]*\) took [0-9.]+ s \(compilation: {_S}",
        phase="compile",
        is_total=True,
    ),
    StartRule(
        "world_size=",
        r"world_size=[0-9]+ rank=(?P<rank>[0-9]+) local_rank=",
        phase="device_init",
        edge="begin",
        strict=False,
    ),
    StartRule(
        "is assigned as DP rank",
        r"rank (?P<rank>[0-9]+) in world size [0-9]+ is assigned",
        phase="device_init",
        edge="end",
    ),
    StartRule(
        "Chat template warmup completed in ", r"Chat template warmup completed in (?P<ms>[0-9.]+) ?ms", phase="warmup"
    ),
    StartRule(
        " files: ",
        rf"Fetching [0-9]+ files:{BAR}",
        phase="weights_fetch",
        inside="weights_load",
        edge="bar",
        strict=False,
    ),
    # The hub's client shows a bar per file, in bytes.
    StartRule(
        ".safetensors: ",
        r"\S+\.safetensors: +(?P<percent>[0-9]+)%\|[^|]*\| \S+/\S+ \[(?P<elapsed>[0-9:]+)<",
        phase="weights_fetch",
        inside="weights_load",
        edge="bar",
        strict=False,
    ),
    StartRule(
        " shards:",
        rf"(?:Loading \S+ checkpoint|Multi-thread(?:ed)? loading) shards:{BAR}",
        phase="weights_read",
        edge="bar",
        strict=False,
    ),
    StartRule(
        "Loading safetensors using ",
        rf"Loading safetensors using [\w ]+:{BAR}",
        phase="weights_read",
        edge="bar",
        strict=False,
    ),
    StartRule(
        "Overall time to stream ",
        rf"Overall time to stream (?P<gib>[0-9.]+) GiB of all files: {_S}",
        phase="weights_read",
        strict=False,
    ),
    StartRule(
        "Capturing ", rf"Capturing (?:CUDA|cuda) ?graphs?.*?:{BAR}", phase="graph_capture", edge="bar", strict=False
    ),
)


def _verdict(claim: str, pattern: str = "") -> StartRule:
    """A line that is printed only where a start fails; `fields` is what it says of the cause, if anything."""
    return StartRule(claim, pattern, kind="failed", edge="verdict", strict=False)


INCIDENTS = (
    StartRule(
        "vllm serve ",
        r"(?:[#$>%]\s*|\S+[$#]\s*)?vllm serve (?P<fields>.*)",
        kind="engine_begin",
        edge="mark",
        strict=False,
    ),
    StartRule("vLLM API server version ", r"vLLM API server version (?P<fields>\S+)", kind="engine_begin", edge="mark"),
    StartRule(
        "  version ", r"[^A-Za-z0-9]+version (?P<fields>[0-9]\S*)", kind="engine_begin", edge="mark", strict=False
    ),
    StartRule(
        "Initializing a",
        r"Initializing an? (?:V[01] )?LLM engine(?: \(v(?P<fields>[^)]+)\))?",
        kind="engine_begin",
        edge="mark",
    ),
    StartRule("Automatically detected platform ", kind="process_begin", edge="mark"),
    StartRule("Application startup complete.", kind="ready", edge="mark"),
    StartRule(
        "Using cache directory: ",
        r"Using cache directory: .*torch_compile_cache",
        kind="compile_cache_used",
        edge="mark",
        strict=False,
    ),
    StartRule(
        "Directly l",
        r"Directly (?:lookup the graph|load the compiled graph|load AOT compilation)",
        kind="compile_cache_hit",
        edge="mark",
    ),
    StartRule(
        "Compiling a graph for ",
        r"Compiling a graph for .+ takes ",
        kind="compile_cache_miss",
        edge="mark",
        strict=False,
    ),
    StartRule("Cache the graph ", kind="compile_cache_miss", edge="mark"),
    StartRule("saved AOT compiled function to ", kind="compile_cache_miss", edge="mark"),
    StartRule("Compiling model again due to a load failure", kind="compile_cache_miss", edge="mark"),
    StartRule("KV cache size: ", r"[\w ]*KV cache size: [0-9,]+ tokens", kind="kv_pool", edge="mark", strict=False),
    StartRule(" blocks: ", r"(?:# )?\w+ blocks: [0-9]+", kind="kv_pool", edge="mark", strict=False),
    StartRule("Enforce eager set", kind="compile_off", edge="mark"),
    StartRule("Skipping CUDA graph capture", kind="graphs_off", edge="mark"),
    _verdict("ngine core initialization failed", r".*?[Ee]ngine core initialization failed"),
    _verdict("EngineCore failed to start"),
    _verdict("Engine process failed to start", r".*?Engine process failed to start"),
    _verdict("WorkerProc failed to start", r".*?WorkerProc failed to start"),
    _verdict("WorkerProc initialization failed", r".*?WorkerProc initialization failed"),
    _verdict("Free memory on device", r"(?P<fields>.*?Free memory on device.* on startup is less.*)"),
    _verdict("No available memory for the cache blocks", r"(?P<fields>.*No available memory for the cache blocks.*)"),
    _verdict("To serve at least one request with", r"(?P<fields>.*To serve at least one request with.*)"),
    _verdict(
        "is larger than the maximum number of tokens that can be stored in KV cache",
        r"(?P<fields>.*is larger than the maximum number of tokens that can be stored in KV cache.*)",
    ),
    _verdict("out of memory occurred when", r"(?P<fields>.*out of memory occurred when warming up.*)"),
    StartRule("hit an exception", r"(?:EngineCore|WorkerProc) hit an exception", kind="failed", edge="mark"),
    _verdict("Timed out waiting for engine", r"(?P<fields>.*Timed out waiting for engine.*)"),
    _verdict("Application startup failed"),
    StartRule(
        "out of memory. Tried to allocate",
        r"(?P<fields>.*(?:CUDA|HIP) out of memory\. Tried to allocate.*)",
        kind="oom",
        edge="mark",
    ),
    StartRule("hutting down", r"(?:Shutting down|\[shutdown\])", kind="shutdown", edge="mark", strict=False),
    StartRule("[shutdown]", r"\[shutdown\]", kind="shutdown", edge="mark", strict=False),
    StartRule("Application shutdown complete", kind="shutdown", edge="mark"),
    StartRule("Waiting for application shutdown", kind="shutdown", edge="mark"),
    StartRule("Parent process exited", kind="shutdown", edge="mark", strict=False),
    StartRule("WorkerProc was terminated", kind="shutdown", edge="mark", strict=False),
)

RULES = (*PHASES, *INCIDENTS)
