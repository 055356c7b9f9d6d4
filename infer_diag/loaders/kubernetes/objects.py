"""Objects of the Kubernetes API as JSON, as the same events that tables hold: a pod's own stamps are events too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import polars as pl

from infer_diag.loaders.kubernetes.amounts import SECOND_US, stamp_us
from infer_diag.loaders.kubernetes.nodes import NODE, node_object
from infer_diag.loaders.kubernetes.tables import EVENT

Object = dict[str, Any]
LineOf = Callable[[str], int]

STUCK = ("CrashLoopBackOff", "ErrImagePull", "ImagePullBackOff", "CreateContainerError", "RunContainerError")
"""Reasons of a container that waits because it failed."""

_RAW: dict[str, pl.DataType | type[pl.DataType]] = {
    "line": pl.UInt32,
    "pod": pl.String,
    "reason": pl.String,
    "message": pl.String,
    "count": pl.Int64,
    "first": pl.String,
    "last": pl.String,
}


def object_frames(document: object, line_of: LineOf) -> tuple[pl.DataFrame, pl.DataFrame]:
    """(events, nodes) of a list of objects or of a single one; other kinds of objects are left alone."""
    rows: list[Object] = []
    nodes: list[Object] = []
    for item in _items(document):
        line = line_of(str(_meta(item).get("uid") or _meta(item).get("name") or ""))
        kind = item.get("kind")
        if kind == "Event":
            rows += _event(item, line)
        elif kind == "Pod":
            rows += _pod(item, line)
        elif kind == "Node" and (row := node_object(item, line)) is not None:
            nodes.append(row)
    events = pl.DataFrame(rows, schema=_RAW, orient="row").select(
        "line",
        "pod",
        "reason",
        "message",
        "count",
        stamp_us(pl.col("first")).alias("first_us"),
        stamp_us(pl.col("last")).alias("last_us"),
        pl.lit(SECOND_US).alias("step_us"),
        pl.lit(None).alias("age_s"),
        pl.lit(0).alias("place"),
    )
    return events.cast(EVENT), pl.DataFrame(nodes, schema=NODE, orient="row")


def _items(document: object) -> Iterator[Object]:
    """The objects in the document; the items of a typed list (`PodList`) have no kind of their own."""
    if not isinstance(document, dict):
        return
    items = document.get("items")
    if not isinstance(items, list):
        yield document
        return
    of_list = str(document.get("kind") or "").removesuffix("List")
    for item in items:
        if isinstance(item, dict):
            yield {"kind": of_list, **item}


def _meta(item: Object) -> Object:
    return _object(item.get("metadata"))


def _object(value: object) -> Object:
    return value if isinstance(value, dict) else {}


def _objects(value: object) -> list[Object]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _event(item: Object, line: int) -> list[Object]:
    about = _object(item.get("involvedObject") or item.get("regarding"))
    if about.get("kind") != "Pod" or not about.get("name"):
        return []
    series = _object(item.get("series"))
    begun = item.get("eventTime") or item.get("firstTimestamp") or item.get("deprecatedFirstTimestamp")
    first = begun or _meta(item).get("creationTimestamp")
    last = series.get("lastObservedTime") or item.get("lastTimestamp") or item.get("deprecatedLastTimestamp") or first
    count = series.get("count") or item.get("count") or item.get("deprecatedCount")
    message = item.get("message") or item.get("note") or ""
    return [_row(line, about["name"], item.get("reason"), message, first, last, count)]


def _row(
    line: int, pod: object, reason: object, message: object, first: object, last: object, count: object = 1
) -> Object:
    return {
        "line": line,
        "pod": str(pod),
        "reason": str(reason),
        "message": str(message),
        "count": count if isinstance(count, int) and count > 0 else 1,
        "first": str(first) if first is not None else None,
        "last": str(last or first) if last or first else None,
    }


def _pod(item: Object, line: int) -> list[Object]:
    """A pod's stamps as events; the reasons that the API does not have are written in lower case."""
    meta, status = _meta(item), _object(item.get("status"))
    pod = meta.get("name")
    if not pod:
        return []
    created = meta.get("creationTimestamp")
    rows = [_row(line, pod, "created", "", created, created)]
    restarted = False
    for container in _objects(status.get("containerStatuses")):
        found = _container(container, line, pod)
        restarted = restarted or any(row["reason"] in ("restarted", "terminated", "OOMKilled") for row in found)
        rows += found
    for condition in _objects(status.get("conditions")):
        rows += _condition(condition, line, pod, restarted)
    if status.get("reason") == "Evicted":
        rows.append(_row(line, pod, "Evicted", status.get("message") or "", None, None))
    return rows


def _condition(condition: Object, line: int, pod: object, restarted: bool) -> list[Object]:
    stamp, holds = condition.get("lastTransitionTime"), condition.get("status") == "True"
    message = condition.get("message") or condition.get("reason") or ""
    if condition.get("type") == "PodScheduled":
        return [_row(line, pod, "Scheduled" if holds else "FailedScheduling", message, stamp, stamp)]
    if condition.get("type") == "Ready" and holds and not restarted:
        return [_row(line, pod, "ready", message, stamp, stamp)]
    return []


def _container(container: Object, line: int, pod: object) -> list[Object]:
    """Stamps of one container: the last flip of a state is kept, so after a restart the first start is not told."""
    rows = []
    name, restarts = container.get("name"), container.get("restartCount")
    running = _object(_object(container.get("state")).get("running")).get("startedAt")
    if running and not restarts:
        rows.append(_row(line, pod, "running", f"Started container {name}", running, running))
    if isinstance(restarts, int) and restarts > 0:
        rows.append(_row(line, pod, "restarted", f"container {name} restarted", running, running, restarts))
    waiting = _object(_object(container.get("state")).get("waiting"))
    if waiting.get("reason") in STUCK:
        rows.append(_row(line, pod, "BackOff", f"{waiting['reason']}: {waiting.get('message') or ''}", None, None))
    for state, reason in (("state", "terminated"), ("lastState", "restarted")):
        ended = _object(_object(container.get(state)).get("terminated"))
        if ended and ended.get("exitCode") != 0:
            told = f"container {name} ended: {ended.get('reason')}, exit code {ended.get('exitCode')}"
            killed = ended.get("reason") == "OOMKilled"
            rows.append(_row(line, pod, "OOMKilled" if killed else reason, told, ended.get("finishedAt"), None))
    return rows
