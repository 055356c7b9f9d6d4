"""Kubernetes' events of a deployment's pods, as `kubectl get events -o json` prints what an exporter has kept."""

from __future__ import annotations

import json
import zlib
from typing import Any

from infer_diag.simulators.fleet.pod_log import moment, pod_name, rfc3339
from infer_diag.simulators.fleet.run import Part, Run
from infer_diag.simulators.fleet.starts import IMAGE_BYTES, Life

IMAGES = {
    "vllm": "vllm/vllm-openai:v{version}",
    "vllm-v0": "vllm/vllm-openai:v{version}",
    "sglang": "lmsysorg/sglang:v{version}",
    "tgi": "ghcr.io/huggingface/text-generation-inference:{version}",
    "tensorrt-llm": "nvcr.io/nvidia/tensorrt-llm/release:{version}",
    "llama.cpp": "ghcr.io/ggml-org/llama.cpp:server-cuda-{version}",
    "pipeline": "registry.internal/chat/pipeline:{version}",
}
CONTAINERS = {
    "vllm": "vllm",
    "vllm-v0": "vllm",
    "sglang": "sglang",
    "tgi": "tgi",
    "tensorrt-llm": "trtllm",
    "llama.cpp": "llama",
    "pipeline": "app",
}
_NAMESPACE = "serving"
_PROBE_S = 10.0
_PROBED_AFTER_S = 20.0

Event = dict[str, Any]


def pod_events(run: Run) -> str:
    """The events of all pods in the order of their names."""
    items = [event for part in run.parts for event in _of_life(run, part)]
    items.sort(key=lambda event: str(event["metadata"]["name"]))
    return json.dumps(
        {"apiVersion": "v1", "items": items, "kind": "List", "metadata": {"resourceVersion": ""}}, indent=1
    )


def _of_life(run: Run, part: Part) -> list[Event]:
    life, plan = part.life, run.plan
    pod, container = pod_name(plan, life.pod), CONTAINERS[plan.engine]
    image = IMAGES[plan.engine].format(version=plan.version)
    told: list[tuple[float, str, str, str, int]] = []
    if not life.restart:
        node = f"gpu-{zlib.crc32(pod.encode()) % 40:02d}"
        told.append((life.acquired_s, "Normal", "Scheduled", f"Successfully assigned {_NAMESPACE}/{pod} to {node}", 1))
    told += _pulled(life, image)
    told += [
        (life.begun_s - 0.4, "Normal", "Created", f"Created container: {container}", 1),
        (life.begun_s, "Normal", "Started", f"Started container {container}", 1),
    ]
    probes = int((life.ready_s - life.begun_s - _PROBED_AFTER_S) // _PROBE_S)
    if probes > 0:
        refused = (
            'Startup probe failed: Get "http://10.42.3.17:8000/health": dial tcp 10.42.3.17:8000: connect: refused'
        )
        told.append((life.begun_s + _PROBED_AFTER_S, "Warning", "Unhealthy", refused, probes))
    if life.ends == "taken":
        told.append((life.closes_s, "Normal", "Killing", f"Stopping container {container}", 1))
    if life.ends == "oom":
        back_off = f"Back-off restarting failed container {container} in pod {pod}_{_NAMESPACE}"
        told.append((life.ended_s + 1.0, "Warning", "BackOff", back_off, 1))
    return [_event(pod, container, number, *each) for number, each in enumerate(told)]


def _pulled(life: Life, image: str) -> list[tuple[float, str, str, str, int]]:
    if not life.pull_s:
        return [(life.begun_s - 0.6, "Normal", "Pulled", f'Container image "{image}" already present on machine', 1)]
    begin = life.begun_s - life.pull_s
    took = f"{life.pull_s:.3f}s"
    if life.pull_s >= 60:
        took = f"{int(life.pull_s // 60)}m{life.pull_s % 60:.3f}s"
    whole = f"in {took} ({took} including waiting). Image size: {IMAGE_BYTES:.0f} bytes."
    return [
        (begin, "Normal", "Pulling", f'Pulling image "{image}"', 1),
        (life.begun_s - 0.5, "Normal", "Pulled", f'Successfully pulled image "{image}" {whole}', 1),
    ]


def _event(
    pod: str, container: str, number: int, at_s: float, kind: str, reason: str, message: str, count: int
) -> Event:
    placed = reason == "Scheduled"
    first = None if placed else rfc3339(at_s)
    last = None if placed else rfc3339(at_s + (count - 1) * _PROBE_S)
    about: Event = {"apiVersion": "v1", "kind": "Pod", "name": pod, "namespace": _NAMESPACE}
    if not placed:
        about["fieldPath"] = f"spec.containers{{{container}}}"
    name = f"{pod}.{zlib.crc32(f'{pod} {number} {at_s:.3f}'.encode()):016x}"
    return {
        "apiVersion": "v1",
        "count": None if placed else count,
        "eventTime": f"{moment(at_s):%Y-%m-%dT%H:%M:%S.%fZ}" if placed else None,
        "firstTimestamp": first,
        "involvedObject": about,
        "kind": "Event",
        "lastTimestamp": last,
        "message": message,
        "metadata": {"creationTimestamp": rfc3339(at_s), "name": name, "namespace": _NAMESPACE},
        "reason": reason,
        "reportingComponent": "default-scheduler" if placed else "kubelet",
        "type": kind,
    }
