"""Lines of engines over stretches of time, and scrapes of the same, for folders that tell of hours in several files."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta

from deployment_logs import MODEL, T0, stamp


def start_lines(at_s: float, ready_s: float = 60.0) -> str:
    """A vLLM start that is ready after `ready_s`."""
    lines = [
        f"INFO {stamp(at_s)} [api_server.py:1287] vLLM API server version 0.11.0",
        f"INFO {stamp(at_s + 1)} [utils.py:233] non-default args: {{'model': '{MODEL}', 'tensor_parallel_size': 2}}",
        f"INFO {stamp(at_s + 20)} [default_loader.py:268] Loading weights took 14.20 seconds",
        f"INFO {stamp(at_s + 40)} [kv_cache_utils.py:864] GPU KV cache size: 60,000 tokens",
        f"INFO {stamp(at_s + ready_s)} [launcher.py:42] Application startup complete.",
    ]
    return "\n".join(lines) + "\n"


def served_lines(begin_s: float, end_s: float, running: int = 8, every_s: float = 10.0) -> str:
    """A statistics line of vLLM every `every_s`; with nothing running a line of zeros."""
    lines = []
    for number in range(int((end_s - begin_s) / every_s) + 1):
        rate = 40.0 * running
        lines.append(
            f"INFO {stamp(begin_s + number * every_s)} [loggers.py:127] Engine 000: "
            f"Avg prompt throughput: {2 * rate:.1f} tokens/s, Avg generation throughput: {rate:.1f} tokens/s, "
            f"Running: {running} reqs, Waiting: 0 reqs, GPU KV cache usage: 20.0%, Prefix cache hit rate: 0.0%"
        )
    return "\n".join(lines) + "\n"


def batch_line(at_s: float, kind: str, running: int, new: int = 1) -> str:
    """A batch line of SGLang."""
    time = (T0 + timedelta(seconds=at_s)).strftime("%Y-%m-%d %H:%M:%S")
    if kind == "Prefill":
        return (
            f"[{time}] Prefill batch. #new-seq: {new}, #new-token: 100, #cached-token: 0, token usage: 0.01, "
            f"#running-req: {running}, #queue-req: 0, \n"
        )
    return (
        f"[{time}] Decode batch. #running-req: {running}, #token: 900, token usage: 0.01, cuda graph: True, "
        "gen throughput (token/s): 100.00, #queue-req: 0, \n"
    )


def scraped(begin_s: float, end_s: float, running: Callable[[float], int], every_s: float = 15.0) -> str:
    """What Prometheus answers to a range query for the gauges of one vLLM engine."""
    times = [begin_s + every_s * number for number in range(int((end_s - begin_s) / every_s) + 1)]
    series = []
    for name, value in (("vllm:num_requests_running", running), ("vllm:num_requests_waiting", lambda at: 0)):
        values = [[(T0 + timedelta(seconds=at)).timestamp(), str(value(at))] for at in times]
        metric = {"__name__": name, "model_name": MODEL, "engine": "0"}
        series.append({"metric": metric, "values": values})
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": series}})
