"""Engine logs that the tests write themselves: the records as the engine prints them, and what others wrap around."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta

BEGIN = datetime(2026, 3, 14, 9, 26, 53)

VLLM_START: tuple[tuple[float, str, str], ...] = (
    (0, "APIServer pid=11", "vLLM API server version 0.11.2"),
    (4, "EngineCore_DP0 pid=42", "Initializing a V1 LLM engine (v0.11.2) with config: model='org/some-8b', dtype=bf16"),
    (9, "Worker_TP0 pid=71", "Starting to load model org/some-8b..."),
    (21, "Worker_TP0 pid=71", "Loading weights took 10.25 seconds"),
    (22, "Worker_TP0 pid=71", "Model loading took 14.99 GiB memory and 12.750000 seconds"),
    (24, "Worker_TP1 pid=72", "Model loading took 14.99 GiB memory and 14.500000 seconds"),
    (31, "Worker_TP0 pid=71", "Dynamo bytecode transform time: 6.50 s"),
    (56, "Worker_TP0 pid=71", "Compiling a graph for dynamic shape takes 24.53 s"),
    (56, "Worker_TP0 pid=71", "torch.compile takes 31.03 s in total"),
    (58, "EngineCore_DP0 pid=42", "GPU KV cache size: 446,368 tokens"),
    (76, "Worker_TP0 pid=71", "Graph capturing finished in 17 secs, took 0.52 GiB"),
    (77, "EngineCore_DP0 pid=42", "init engine (profile, create kv cache, warmup model) took 52.40 seconds"),
)
VLLM_SERVING: tuple[tuple[float, str, str], ...] = (
    (90, "APIServer pid=11", "Engine 000: Avg prompt throughput: 120.5 tokens/s, Avg generation throughput: 410.0 tokens/s, "
     "Running: 12 reqs, Waiting: 3 reqs, GPU KV cache usage: 41.5%, Prefix cache hit rate: 10.0%"),
    (100, "APIServer pid=11", "Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 388.2 tokens/s, "
     "Running: 9 reqs, Waiting: 0 reqs, Preemptions: 2, GPU KV cache usage: 33.0%, Prefix cache hit rate: 10.0%"),
    (100.2, "EngineCore_DP0 pid=42", "Iteration(7): 1 context requests, 512 context tokens, 9 generation requests, "
     "9 generation tokens, iteration elapsed time: 41.75 ms"),
)  # fmt: skip
VLLM = VLLM_START + VLLM_SERVING

Wrapper = Callable[[datetime, str], str]


def vllm_lines(records: tuple[tuple[float, str, str], ...] = VLLM, wrap: Wrapper | None = None) -> list[str]:
    """The records as vLLM 0.11 prints them, each wrapped."""
    lines = []
    for second, process, message in records:
        at = BEGIN + timedelta(seconds=second)
        line = f"({process}) INFO {at:%m-%d %H:%M:%S} [core.py:77] {message}"
        lines.append(wrap(at, line) if wrap else line)
    return lines


def utc(at: datetime, zone_hours: int = 0) -> str:
    """A container runtime's stamp, seven hours behind the engine's wall clock if `zone_hours` says so."""
    return f"{at - timedelta(hours=zone_hours):%Y-%m-%dT%H:%M:%S}.123456789Z"


def coloured(_: datetime, line: str) -> str:
    """Colour codes around the process, the level and the place."""
    process, rest = line.split(") ", 1)
    level, rest = rest.split(" ", 1)
    return f"\x1b[0;36m{process})\x1b[0;0m \x1b[32m{level}\x1b[0m {rest}"


WRAPPERS: dict[str, Wrapper] = {
    "plain": lambda at, line: line,
    "crlf": lambda at, line: line + "\r",
    "colour": coloured,
    "colour lost by a paste": lambda at, line: coloured(at, line).replace("\x1b", ""),
    "docker logs --timestamps": lambda at, line: f"{utc(at)} {line}",
    "containerd": lambda at, line: f"{utc(at)} stdout F {line}",
    "containerd in another zone": lambda at, line: f"{utc(at, 7)} stderr F {line}",
    "kubectl --prefix": lambda at, line: f"[pod/vllm-7d9c/server] {line}",
    "kubectl --prefix --timestamps": lambda at, line: f"[pod/vllm-7d9c/server] {utc(at)} {line}",
    "compose": lambda at, line: f"vllm-1  | {line}",
    "systemd": lambda at, line: f"{at:%b %d %H:%M:%S} node7 vllm[812]: {line}",
    "CI runner": lambda at, line: f"{at:%Y-%m-%dT%H:%M:%S}.1234567Z {line}",
    "Jenkins": lambda at, line: f"[{at:%Y-%m-%dT%H:%M:%S}.123Z] {line}",
    "Ray": lambda at, line: f"(ServeReplica:llm pid=5) {line}",
    "Ray worker": lambda at, line: f"(pid=812, ip=192.0.2.7) {line}",
    "TorchServe": lambda at, line: f"{at:%Y-%m-%dT%H:%M:%S},123 [INFO ] W-9000-llm_1.0-stdout MODEL_LOG - {line}",
    "TorchServe of 2020": lambda at, line: (
        f"{at:%Y-%m-%d %H:%M:%S},123 [WARN ] W-9000-llm_1.0-stderr org.pytorch.serve.wlm.WorkerLifeCycle - {line}"
    ),
    "terminal border": lambda at, line: f"│ {line:<220} │",
    "docker json-file": lambda at, line: json.dumps({"log": line + "\n", "stream": "stderr", "time": utc(at)}),
    "Loki": lambda at, line: json.dumps({"labels": {"app": "vllm"}, "line": line, "timestamp": utc(at)}),
    "own prefix": lambda at, line: line.replace("INFO", "prod-eu>INFO", 1),
}
"""What stands around an engine's lines in the field, by name."""

SGLANG = (
    "[2026-03-14 09:26:50] server_args=ServerArgs(model_path='org/some-8b', tp_size=2, quantization='fp8')",
    "[2026-03-14 09:26:53 TP0] Init torch distributed begin.",
    "[2026-03-14 09:26:55 TP0] Init torch distributed ends. mem usage=0.12 GB",
    "[2026-03-14 09:26:55 TP0] Load weight begin. avail mem=78.50 GB",
    "[2026-03-14 09:26:55 TP1] Load weight begin. avail mem=78.50 GB",
    "[2026-03-14 09:27:15 TP0] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=63.40 GB, mem usage=15.10 GB.",
    "[2026-03-14 09:27:19 TP1] Load weight end. elapsed=23.90 s, type=LlamaForCausalLM, avail mem=63.40 GB, mem usage=15.10 GB.",
    "[2026-03-14 09:27:20 TP0] Memory pool end. avail mem=7.90 GB",
    "[2026-03-14 09:27:20 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=7.50 GB",
    "[2026-03-14 09:27:33 TP0] Capture cuda graph end. Time elapsed: 12.34 s. mem usage=1.20 GB. avail mem=6.30 GB.",
    "[2026-03-14 09:27:33 TP0] max_total_num_tokens=446368, chunked_prefill_size=8192, max_running_requests=2048, context_len=8192",
    "[2026-03-14 09:27:35] The server is fired up and ready to roll!",
    "[2026-03-14 09:27:40 TP0] Prefill batch. #new-seq: 2, #new-token: 64, #cached-token: 8, token usage: 0.01, #running-req: 3, #queue-req: 1, ",
    "[2026-03-14 09:27:44 TP0] Decode batch. #running-req: 5, #token: 900, token usage: 0.02, cuda graph: True, gen throughput (token/s): 123.45, #queue-req: 0, ",
    "[2026-03-14 09:27:45 TP0] Decode batch, #running-req: 5, #token: 940, token usage: 0.03, accept len: 2.10, gen throughput (token/s): 130.00, #queue-req: 0",
    "[2026-03-14 09:27:46 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_token_ratio: 0.1000 -> 0.3000",
)  # fmt: skip
