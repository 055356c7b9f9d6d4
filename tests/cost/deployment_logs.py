"""Logs of small deployments as a team would have them, written as text."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

T0 = datetime(2026, 3, 1, 8, 0, 0, tzinfo=UTC)
MODEL = "meta-llama/Llama-2-13b-hf"


def stamp(seconds: float) -> str:
    return (T0 + timedelta(seconds=seconds)).strftime("%m-%d %H:%M:%S")


def engine_log(
    minutes: int = 20, *, running: int = 16, ready_s: int = 60, waiting: int = 0, usage: float = 40.0
) -> str:
    """A vLLM log: a start of `ready_s` seconds, then a statistics line every 10 s."""
    lines = [
        f"INFO {stamp(0)} [api_server.py:1287] vLLM API server version 0.11.0",
        f"INFO {stamp(1)} [utils.py:233] non-default args: {{'model': '{MODEL}', 'tensor_parallel_size': 2}}",
        f"INFO {stamp(20)} [default_loader.py:268] Loading weights took 14.20 seconds",
        f"INFO {stamp(40)} [kv_cache_utils.py:864] GPU KV cache size: 60,000 tokens",
        f"INFO {stamp(ready_s)} [launcher.py:42] Application startup complete.",
    ]
    for number in range(1, 6 * minutes):
        at = ready_s + 10 * number
        busy = number % 12 != 0
        shown = running + number % 5 if busy else 0
        rate = shown / (0.012 + 2e-4 * shown)
        lines.append(
            f"INFO {stamp(at)} [loggers.py:127] Engine 000: Avg prompt throughput: {rate * 1.5:.1f} tokens/s, "
            f"Avg generation throughput: {rate:.1f} tokens/s, Running: {shown} reqs, "
            f"Waiting: {waiting if busy else 0} reqs, "
            f"GPU KV cache usage: {usage if busy else 0.0:.1f}%, Prefix cache hit rate: 0.0%"
        )
    return "\n".join(lines) + "\n"


def pod_events(scheduled_s: int = -90) -> str:
    def event(reason: str, seconds: int, message: str) -> dict[str, object]:
        time = (T0 + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "kind": "Event",
            "reason": reason,
            "message": message,
            "firstTimestamp": time,
            "lastTimestamp": time,
            "count": 1,
            "involvedObject": {"kind": "Pod", "name": "llm-0", "namespace": "prod"},
        }

    events = [
        event("Scheduled", scheduled_s, "Successfully assigned prod/llm-0 to gpu-node-1"),
        event("Pulled", -10, 'Container image "vllm" already present on machine'),
        event("Started", -5, "Started container vllm"),
    ]
    return json.dumps({"kind": "List", "items": events})


def folder(root: Path, name: str, **settings: int) -> Path:
    """One deployment's folder."""
    made = root / name
    made.mkdir(parents=True)
    (made / "server.log").write_text(engine_log(**settings), encoding="utf-8")
    return made
