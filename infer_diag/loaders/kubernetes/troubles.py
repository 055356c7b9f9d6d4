"""What went wrong with a pod: refusals, failed probes, kills and evictions, and whether its start failed over them."""

from __future__ import annotations

import re
from typing import Any

Row = dict[str, Any]

KINDS = {
    "FailedScheduling": "unschedulable",
    "NotTriggerScaleUp": "unschedulable",
    "Unhealthy": "probe_failure",
    "Evicted": "eviction",
    "Preempted": "eviction",
    "OOMKilling": "oom_killed",
    "OOMKilled": "oom_killed",
    "restarted": "restart",
}
"""Reason of an event → kind of incident."""

_PROGRESS = ("Pulled", "Started", "running", "Scheduled")
_KILLED_BY_PROBE = re.compile(r"failed (?:startup|liveness) probe")
_STOPS = "Stopping container"
"""What kubelet says of a pod that is taken away; its device is free once the container has ended."""
_KEPT_TEXT = 200


def is_failure(event: Row) -> bool:
    """Whether the event says that something of the start has failed (it may still be tried again)."""
    if event["reason"] in ("Failed", "BackOff", "FailedCreatePodSandBox", "Evicted", "terminated"):
        return True
    if event["reason"] in ("OOMKilling", "OOMKilled"):
        # Without its time a kill may lie before the run that goes on.
        return event["last_us"] is not None
    return event["reason"] == "Killing" and bool(_KILLED_BY_PROBE.search(event["message"]))


def failure_of(events: list[Row]) -> Row | None:
    """The event over which the start failed: the last failure, unless the pod is seen to get on after it."""
    failures = [event for event in events if is_failure(event)]
    if not failures:
        return None
    last = max(failures, key=_last)
    progress = [event for event in events if event["reason"] in _PROGRESS]
    return None if any(_last(event) > _last(last) for event in progress) else last


def _last(event: Row) -> float:
    """When the event was last seen; a state without a stamp is the newest."""
    return event["last_us"] if event["last_us"] is not None else float("inf")


def trouble_rows(events: list[Row], start: str | None, replica: str | None) -> list[Row]:
    """Rows of `incidents` (times in microseconds): troubles, containers started more than once, pods taken away."""
    rows = []
    failed = failure_of(events)
    for event in events:
        kind = "failed" if event is failed and event["reason"] not in KINDS else KINDS.get(event["reason"])
        if event["reason"] == "Started" and event["count"] > 1:
            kind = "restart"
        if event["reason"] == "Killing" and event["message"].startswith(_STOPS):
            kind = "released"
        if kind is not None:
            rows.append(_row(event, kind, start, replica))
    return rows


def _row(event: Row, kind: str, start: str | None, replica: str | None) -> Row:
    times = f"{event['count']} times: " if event["count"] > 1 else ""
    return {
        "line": event["line"],
        "start_id": start,
        "replica": replica,
        "time": event["last_us"],
        "kind": kind,
        "fields": (times + event["message"])[:_KEPT_TEXT],
    }
