"""Events to starts: one per pod, with its placing, its image pull and its container's start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import polars as pl

from infer_diag.loaders.kubernetes.amounts import GO_DURATION, SECOND_US, go_duration_s, go_resolution_s
from infer_diag.loaders.kubernetes.troubles import failure_of, trouble_rows
from infer_diag.recording import start_id

Row = dict[str, Any]

ORDER = (
    "created",
    "FailedScheduling",
    "NotTriggerScaleUp",
    "TriggeredScaleUp",
    "Scheduled",
    "mounting",
    "SuccessfulAttachVolume",
    "mounted",
    "sandbox",
    "Pulling",
    "Pulled",
    "Created",
    "Started",
    "running",
    "ready",
)
"""Reasons of a start in the order in which they happen; pods' own stamps and nodes' logs give those in lower case."""

BEGINNINGS = frozenset(ORDER)
"""A pod of which none of these is told has no start in the log."""

KEPT_SPAN = 5
"""Two ages tell a span only where it is this many times the unit that they print."""

_PULLED = (
    rf"^Successfully pulled image .* in (?P<pull>{GO_DURATION})(?: \((?P<whole>{GO_DURATION}) including waiting\))?"
)
_IMAGE_BYTES = r"Image size: ([0-9]+) bytes"
_IMAGE = r'image "([^"]*)"'


@dataclass
class PodStart:
    """The events of one pod in the order of time, and the rows that they become."""

    number: int
    pod: str
    replica: str | None
    events: list[Row]
    phases: list[Row] = field(default_factory=list)

    def first(self, *reasons: str) -> Row | None:
        """The first event with one of these reasons."""
        return next((event for event in self.events if event["reason"] in reasons), None)

    def all(self, *reasons: str) -> list[Row]:
        """The events with one of these reasons."""
        return [event for event in self.events if event["reason"] in reasons]

    def add(self, phase: str, event: Row, **values: object) -> None:
        """One row of `phases` that this event tells of."""
        measured = values.get("duration_s") is not None or {"begin_us", "end_us"} <= values.keys()
        row = {"line": event["line"], "start_id": start_id(self.number), "replica": self.replica, "phase": phase}
        self.phases.append({**row, "status": "measured" if measured else "not_identifiable", **values})


def pod_frames(events: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """`starts`, `phases` and `incidents` of the events (columns of `tables.EVENT`), without `source_id`."""
    pods = _pods(_parsed(events))
    starts, phases, incidents = [], [], []
    number = 0
    for pod, rows in pods:
        begins = any(row["reason"] in BEGINNINGS for row in rows)
        start = PodStart(number, pod, pod, rows)
        incidents += trouble_rows(rows, start_id(number) if begins else None, start.replica)
        if not begins:
            continue
        number += 1
        _placing(start)
        _mounting(start)
        _pulling(start)
        _starting(start)
        starts.append(_start(start))
        phases += start.phases
    return {
        "starts": _frame(starts, _STARTS),
        "phases": _frame(phases, _PHASES),
        "incidents": _frame(incidents, _INCIDENTS),
    }


def _parsed(events: pl.DataFrame) -> pl.DataFrame:
    pulled = pl.col("message").str.extract_groups(_PULLED)
    pull, whole = pulled.struct.field("pull"), pulled.struct.field("whole")
    return events.with_columns(
        go_duration_s(pull).alias("pull_s"),
        go_duration_s(whole).alias("whole_s"),
        go_resolution_s(pull).alias("resolution_s"),
        pl.col("message").str.extract(_IMAGE_BYTES).cast(pl.Float64, strict=False).alias("size_bytes"),
        pl.col("message").str.extract(_IMAGE).alias("image"),
        pl.col("reason").replace_strict({name: at for at, name in enumerate(ORDER)}, default=len(ORDER)).alias("order"),
    )


def _pods(events: pl.DataFrame) -> list[tuple[str, list[Row]]]:
    """Pods in order of appearance; a listing in no order of time is put in the order in which things happen."""
    by_appearance = events.sort("line", maintain_order=True)
    names = by_appearance["pod"].unique(maintain_order=True).to_list()
    ordered = by_appearance.sort("first_us", "place", "order", "line", nulls_last=True, maintain_order=True)
    parts = ordered.partition_by("pod", as_dict=True, maintain_order=True)
    return [(name, parts[(name,)].to_dicts()) for name in names]


def _placing(start: PodStart) -> None:
    asked = start.first("created", "FailedScheduling")
    placed = start.first("Scheduled")
    later = start.first("Pulling", "Pulled", "Created", "Started", "running", "ready")
    if placed is None and asked is None:
        return
    if asked is None or (placed is not None and asked["first_us"] is None):
        event = placed if placed is not None else start.events[0]
        start.add("schedule", event, end_us=_exact(event))
    elif placed is None:
        refusal = start.first("FailedScheduling")
        if refusal is None and later is None:
            return
        # An age counts to the moment of the listing, which shows that the pod has no place yet.
        lower = asked["age_s"] if later is None else None
        start.add("schedule", refusal or asked, begin_us=asked["first_us"], lower_s=lower)
    else:
        _between(start, "schedule", asked, placed)


def _mounting(start: PodStart) -> None:
    """Volumes: from the first that is asked for (by events: from the pod's place) to the last before anything runs."""
    runs = start.first("sandbox", "Pulling", "Pulled", "Started", "running")
    limit = runs["first_us"] if runs is not None else None
    ready = [
        event
        for event in start.all("mounted", "SuccessfulAttachVolume")
        if event["first_us"] is not None and (limit is None or event["first_us"] <= limit)
    ]
    begin = start.first("mounting") or start.first("Scheduled")
    if ready and begin is not None:
        _between(start, "volume_mount", begin, ready[-1])


def _pulling(start: PodStart) -> None:
    done = start.all("Pulled")
    images = {event["image"] for event in done if event["pull_s"] is not None}
    for begin in start.all("Pulling"):
        pulled = next((event for event in done if event["image"] == begin["image"] and _is_pull(event)), None)
        if pulled is not None and begin["image"] not in images:
            images.add(begin["image"])
            _between(start, "image_pull", begin, pulled)
    for event in done:
        if event["pull_s"] is None:
            continue
        end = _exact(event)
        printed = {"resolution_s": event["resolution_s"], "size_bytes": event["size_bytes"]}
        start.add("image_pull", event, end_us=end, duration_s=event["pull_s"], **printed)
        waited = (event["whole_s"] or 0.0) - event["pull_s"]
        if event["whole_s"] is not None and waited > 2 * event["resolution_s"]:
            begun = end - round(event["pull_s"] * SECOND_US) if end is not None else None
            queued = {"duration_s": round(waited, 9), "resolution_s": event["resolution_s"]}
            start.add("image_pull_queue", event, end_us=begun, **queued)
    for event in start.all("Pulling"):
        if event["image"] not in images:
            lower = event["age_s"] if start.events[-1] is event else None
            start.add("image_pull", event, begin_us=event["first_us"], lower_s=lower)


def _is_pull(event: Row) -> bool:
    return str(event["message"]).startswith("Successfully pulled")


def _starting(start: PodStart) -> None:
    """From an image at hand to a running container; a pod's containers follow one another."""
    at_hand: Row | None = None
    for event in start.all("Pulled", "Started", "running"):
        if event["reason"] == "Pulled":
            at_hand = event
        elif at_hand is not None:
            _between(start, "container_start", at_hand, event)
            at_hand = None
        elif event["reason"] == "Started":
            start.add("container_start", event, end_us=_exact(event))


def _between(start: PodStart, phase: str, begin: Row, end: Row) -> None:
    """A phase between two events; where ages are coarse, only that it lasted at least so long."""
    first, last = begin["first_us"], end["first_us"]
    if first is None or last is None or last < first:
        start.add(phase, end)
        return
    error_us = max(begin["step_us"], end["step_us"])
    if error_us <= SECOND_US:
        start.add(phase, end, begin_us=first, end_us=last)
        return
    least, most = (last - first - error_us) / SECOND_US, (last - first + error_us) / SECOND_US
    start.add(phase, end, lower_s=max(least, 0.0), upper_s=most, status="bounded")


def _exact(event: Row) -> int | None:
    """The event's time where it is known to the second."""
    return event["first_us"] if event["step_us"] is not None and event["step_us"] <= SECOND_US else None


def _start(start: PodStart) -> Row:
    lines = [event["line"] for event in start.events]
    seen = [event for event in start.events if event["first_us"] is not None]
    first = min((event["first_us"] for event in seen), default=None)
    last = max((event["last_us"] or event["first_us"] for event in seen), default=None)
    coarse_us = max((event["step_us"] for event in seen), default=0)
    if first is None or last is None or (coarse_us > SECOND_US and last - first < KEPT_SPAN * coarse_us):
        first = last = None
    placed, ready = start.first("Scheduled"), start.first("ready")
    failed = failure_of(start.events)
    return {
        "line": min(lines),
        "start_id": start_id(start.number),
        "replica": start.replica,
        "last_line": max(lines),
        "first_time": first,
        "last_time": last,
        "acquire_time": _exact(placed) if placed is not None else None,
        "ready_time": ready["first_us"] if ready is not None else None,
        "ready_line": ready["line"] if ready is not None else None,
        "failed_line": failed["line"] if failed is not None and ready is None else None,
        "served": False,
    }


_TIME = pl.Datetime("us", "UTC")
_WHERE: dict[str, pl.DataType | type[pl.DataType]] = {"line": pl.UInt32, "start_id": pl.String, "replica": pl.String}
_STARTS = _WHERE | {
    "last_line": pl.UInt32,
    "first_time": pl.Int64,
    "last_time": pl.Int64,
    "acquire_time": pl.Int64,
    "ready_time": pl.Int64,
    "ready_line": pl.UInt32,
    "failed_line": pl.UInt32,
    "served": pl.Boolean,
}
_PHASES = _WHERE | {
    "phase": pl.String,
    "begin_us": pl.Int64,
    "end_us": pl.Int64,
    "duration_s": pl.Float64,
    "lower_s": pl.Float64,
    "upper_s": pl.Float64,
    "resolution_s": pl.Float64,
    "status": pl.String,
    "size_bytes": pl.Float64,
}
_INCIDENTS = _WHERE | {"time": pl.Int64, "kind": pl.String, "fields": pl.String}


def _frame(rows: list[Row], columns: dict[str, pl.DataType | type[pl.DataType]]) -> pl.DataFrame:
    frame = pl.DataFrame(rows, schema=columns, orient="row")
    times = [name for name in frame.columns if name.endswith(("_us", "time"))]
    frame = frame.with_columns(pl.col(times).cast(_TIME)).rename({"begin_us": "begin", "end_us": "end"}, strict=False)
    return frame.with_columns(pl.lit(False).alias("is_total")) if "phase" in columns else frame
