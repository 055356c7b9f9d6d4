"""A cluster's account of a pod and the engine's log of the same start, joined into one start on one clock."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import polars as pl

from infer_diag.loaders.kubernetes.accounts import one_per_pod
from infer_diag.recording import Recording, Source, start_id

Row = dict[str, Any]

CLUSTER = "kubernetes"
SKEW = timedelta(seconds=5)
"""Nodes keep their clocks by NTP; an engine that seems to begin longer before its pod was placed has another clock."""

LATE = timedelta(hours=1)
"""An engine that begins so long after its container started is not known to be what the container was started for."""

_OF_STARTS = ("starts", "phases", "progress", "incidents", "deployments")


@dataclasses.dataclass(frozen=True)
class _Match:
    """A pod's start and the engine's first start in it; `refusal` says why the two are not one, where they are not."""

    pod: Row
    engine: Row
    refusal: str | None


def joined(recording: Recording) -> Recording:
    """The recording with each pod's phases and incidents in the start of the engine that ran in it.

    Frames in and out: Starts, Phases, Incidents. The pod is that of the engine's replica or file by name, or the only
    pod there is; it was placed before the engine's first stamp. Only sources with a date and a zone are joined: without
    them two clocks cannot be compared. Of several starts in one pod the first one alone acquires the device
    (`acquire_time`) and has the pod's phases. Where a pod and an engine belong together and yet are not one start
    (clocks that disagree, a container that was started again), both starts stay and the engine's source notes why.
    """
    recording = _named_once(one_per_pod(recording, _known(recording, of_cluster=True)))
    matches = _matches(recording)
    if not matches:
        return recording
    acquired = {match.engine["start_id"]: match.pod["acquire_time"] for match in matches if match.pod["acquire_time"]}
    told = pl.col("start_id").replace_strict(acquired, default=None, return_dtype=pl.Datetime("us", "UTC"))
    recording = recording.replace(starts=recording.starts.with_columns(pl.coalesce("acquire_time", told)))
    whole = [match for match in matches if match.refusal is None]
    return _noted(_merged(recording, whole) if whole else recording, [match for match in matches if match.refusal])


def _named_once(recording: Recording) -> Recording:
    """Pods by name only where there are several: a lone one tells nothing apart."""
    pods = [number for number, source in enumerate(recording.sources) if source.engine == CLUSTER]
    of_pods = pl.col("source_id").is_in(pods)
    frames = {name: getattr(recording, name) for name in ("starts", "phases", "incidents")}
    seen = [frame.filter(of_pods)["replica"].drop_nulls() for frame in frames.values()]
    if pl.concat(seen).n_unique() != 1:
        return recording
    unnamed = pl.when(~of_pods).then("replica").alias("replica")
    return recording.replace(**{name: frame.with_columns(unnamed) for name, frame in frames.items()})


def _matches(recording: Recording) -> list[_Match]:
    pods, engines = _known(recording, of_cluster=True), _known(recording, of_cluster=False)
    found: dict[str, _Match] = {}
    for pod in pods:
        mine = [row for row in engines if _is_in(recording, row, pod, alone=len(pods) == 1)]
        if not mine or (len(pods) == 1 and not _one_replica(mine)):
            continue
        first = min(mine, key=lambda row: (row["first_time"], row["start_id"]))
        before = found.get(first["start_id"])
        if before is None or _placed(pod) > _placed(before.pod):
            found[first["start_id"]] = _Match(pod, first, _refusal(recording, pod, first))
    return list(found.values())


def _known(recording: Recording, *, of_cluster: bool) -> list[Row]:
    """The starts of pods, or of engines, that lie on a clock which can be compared with others."""
    rows = recording.starts.filter(pl.col("first_time").is_not_null()).to_dicts()
    mine = [row for row in rows if _of_cluster(recording, row) == of_cluster]
    return [row for row in mine if _comparable(recording.sources[row["source_id"]])]


def _comparable(source: Source) -> bool:
    return source.dated and any(clock.zone is not None for clock in source.clocks)


def _of_cluster(recording: Recording, row: Row) -> bool:
    return recording.sources[row["source_id"]].engine == CLUSTER


def _placed(pod: Row) -> datetime:
    """When the pod was placed, or first seen where nothing tells of its placing."""
    found: datetime = pod["acquire_time"] or pod["first_time"]
    return found


def _is_in(recording: Recording, engine: Row, pod: Row, *, alone: bool) -> bool:
    """Whether the engine's start may have been in the pod; a replica is named after its pod and container."""
    if engine["first_time"] < _placed(pod) - SKEW:
        return False
    name = pod["replica"]
    if name is None:
        return alone
    if engine["replica"] is not None:
        return str(engine["replica"]).split(" ")[0].split("/")[0] == str(name)
    path = recording.sources[engine["source_id"]].path
    return re.search(rf"(?<![a-z0-9.-]){re.escape(str(name))}(?![a-z0-9-])", path) is not None


def _one_replica(engines: list[Row]) -> bool:
    """Whether the starts follow one another in one engine: several side by side cannot all be in one pod."""
    if len({row["replica"] for row in engines}) > 1:
        return False
    ordered = sorted(engines, key=lambda row: row["first_time"])
    return all(
        one["source_id"] == other["source_id"] or one["last_time"] <= other["first_time"]
        for one, other in itertools.pairwise(ordered)
    )


def _refusal(recording: Recording, pod: Row, engine: Row) -> str | None:
    """Why the engine's start is not the pod's own, or not known to be; null where it is."""
    of_pod = pl.col("start_id") == pod["start_id"]
    if not recording.incidents.filter(of_pod, pl.col("kind") == "restart").is_empty():
        return "its container was started more than once, and nothing tells which start this one is"
    started: datetime | None = recording.phases.filter(of_pod, pl.col("phase") == "container_start")["end"].max()  # type: ignore[assignment]
    what, last = ("its container started", started) if started is not None else ("its pod was placed", _placed(pod))
    apart = (engine["first_time"] - last).total_seconds()
    if engine["first_time"] < last - SKEW:
        return f"the engine's first stamp lies {-apart:.0f} s before {what}: the clocks disagree"
    if engine["first_time"] > last + LATE:
        return f"{what} {apart:.0f} s before the engine's first stamp: nothing tells what ran between"
    if pod["failed_line"] is not None and not any(engine[name] for name in ("failed_line", "ready_line", "served")):
        return "its pod failed, and the engine's log does not say so"
    return None


def _merged(recording: Recording, matches: Iterable[_Match]) -> Recording:
    into = {match.pod["start_id"]: match.engine for match in matches}
    moved = pl.col("start_id").is_in(list(into))
    ids = pl.col("start_id").replace({pod: engine["start_id"] for pod, engine in into.items()})
    named = {pod: engine["replica"] for pod, engine in into.items()}
    of_engine = pl.col("start_id").replace_strict(named, default=None, return_dtype=pl.String)
    replicas = pl.when(moved).then(of_engine).otherwise("replica").alias("replica")
    frames = {name: getattr(recording, name).with_columns(replicas, ids) for name in ("phases", "incidents")}
    begins = {match.engine["start_id"]: match.pod["first_time"] for match in matches}
    earlier = pl.col("start_id").replace_strict(begins, default=None, return_dtype=pl.Datetime("us", "UTC"))
    starts = recording.starts.filter(~moved)
    starts = starts.with_columns(pl.min_horizontal("first_time", earlier).alias("first_time"))
    return _renumbered(recording.replace(starts=starts, **frames))


def _renumbered(recording: Recording) -> Recording:
    """Ids in the order of appearance again, since others count on there being as many as there are starts."""
    names = {old: start_id(number) for number, old in enumerate(recording.starts["start_id"])}
    mended = pl.col("start_id").replace(names)
    return recording.replace(**{name: getattr(recording, name).with_columns(mended) for name in _OF_STARTS})


def _noted(recording: Recording, refused: Iterable[_Match]) -> Recording:
    sources = list(recording.sources)
    for match in refused:
        number = match.engine["source_id"]
        pod = match.pod["replica"] or recording.sources[match.pod["source_id"]].path
        note = f"not joined with the start that the cluster tells of ({pod}): {match.refusal}"
        sources[number] = dataclasses.replace(sources[number], notes=(*sources[number].notes, note))
    return recording.replace(sources=tuple(sources))
