"""Which logs tell of the same replica: those that follow each other in one file's series, or in the only pod there is.

Two logs that overlap in time are two replicas. Two that do not overlap, and whose names and pods say nothing, may be
one replica that was restarted or two: each is then counted for the time that it covers, which is a lower bound.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import polars as pl

from infer_diag.loaders.log_files import LogFileName, log_file_name
from infer_diag.recording import Recording, Source

CLUSTER = "kubernetes"
SLACK = timedelta(seconds=5)
"""Collectors and rotation may put a line into either of two files."""
_SPANS = ("otlp", "jaeger")
_FRONTS = ("triton", "ollama")
"""Servers that run another engine inside, whose own log may lie beside theirs."""
_TRACED_START = "pipeline-start"

Key = tuple[int, str | None]


@dataclass(frozen=True)
class Stream:
    """What one replica wrote into one file."""

    source_id: int
    replica: str | None
    first: datetime
    last: datetime
    name: LogFileName

    @property
    def key(self) -> Key:
        """Source and replica."""
        return self.source_id, self.replica


@dataclass(frozen=True)
class Lane:
    """One replica: its streams in the order of time, and the gaps between them in which a file is or may be missing."""

    streams: tuple[Stream, ...]
    gaps: tuple[tuple[datetime, datetime], ...] = ()

    @property
    def first(self) -> datetime:
        """The first stamp of its logs."""
        return min(stream.first for stream in self.streams)

    @property
    def last(self) -> datetime:
        """The last stamp of its logs."""
        return max(stream.last for stream in self.streams)

    @property
    def keys(self) -> frozenset[Key]:
        """Source and replica of each stream."""
        return frozenset(stream.key for stream in self.streams)


@dataclass(frozen=True)
class Lanes:
    """The replicas that engine logs tell of; `notes` says what the names of files could not."""

    found: tuple[Lane, ...]
    notes: tuple[str, ...] = ()

    def of(self, source_id: int, replica: str | None) -> list[int]:
        """The lanes that this stream tells of: the one that wrote it.

        What a front end prints without a name is of every replica that its file tells apart.
        """
        own = [number for number, lane in enumerate(self.found) if (source_id, replica) in lane.keys]
        if own or replica is not None:
            return own
        return [number for number, lane in enumerate(self.found) if any(key[0] == source_id for key in lane.keys)]


def lanes(recording: Recording) -> Lanes:
    """The replicas of a recording by its engines' own logs, spans of starts among them.

    Frames in: Starts, EngineSamples, EngineSteps, RequestTimings. Where several formats tell of one engine, the one
    that tells the most replicas apart counts; different engines are different replicas.
    """
    streams = _streams(recording)
    pods = _pod_count(recording)
    kinds = {recording.sources[stream.source_id].engine for stream in streams} - set(_FRONTS)
    by_engine: dict[str, dict[str, list[Stream]]] = {}
    for stream in streams:
        source = recording.sources[stream.source_id]
        engine = next(iter(kinds)) if source.engine in _FRONTS and len(kinds) == 1 else source.engine
        by_engine.setdefault(engine, {}).setdefault(source.format, []).append(stream)
    found: list[Lane] = []
    notes: list[str] = []
    for formats in by_engine.values():
        chained = {name: _chained(recording, mine, pods) for name, mine in formats.items()}
        best = max(chained, key=lambda name: (len(chained[name]), name not in _SPANS, _told(recording, formats[name])))
        found += chained[best]
        notes += _doubts(recording, chained[best])
    return Lanes(tuple(sorted(found, key=lambda lane: (lane.first, lane.streams[0].key[0]))), tuple(notes))


def _streams(recording: Recording) -> list[Stream]:
    """Every replica of every source that an engine itself wrote, with the time that it covers."""
    samples = recording.engine_samples.filter(pl.col("kind") != "scrape")
    requests = recording.request_timings.filter(~pl.col("source_id").is_in(_spans(recording)))
    # A name as a category is compared as a number, of which there may be millions.
    replica = pl.col("replica").cast(pl.Categorical)
    parts = [frame.select("source_id", replica, "time") for frame in (samples, recording.engine_steps, requests)]
    starts = recording.starts.filter(~pl.col("source_id").is_in(_of_cluster(recording)))
    parts += [starts.select("source_id", replica, time=name) for name in ("first_time", "last_time")]
    spans = (
        pl.concat(parts)
        .drop_nulls("time")
        .group_by("source_id", "replica")
        .agg(first=pl.col("time").min(), last=pl.col("time").max(), apart=pl.len())
        .sort("source_id", "replica")
    )
    alone = spans["source_id"].value_counts()
    single = set(alone.filter(pl.col("count") == 1)["source_id"])
    found = []
    several = set(spans.drop_nulls("replica")["source_id"])
    for row in spans.iter_rows(named=True):
        if row["replica"] is None and row["source_id"] in several:
            continue
        source = recording.sources[row["source_id"]]
        first, last = row["first"], row["last"]
        if row["source_id"] in single and source.first_time is not None and source.last_time is not None:
            first, last = min(first, source.first_time), max(last, source.last_time)
        found.append(Stream(row["source_id"], row["replica"], first, last, log_file_name(source.path)))
    return found


def _spans(recording: Recording) -> list[int]:
    return [number for number, source in enumerate(recording.sources) if source.format in _SPANS]


def _of_cluster(recording: Recording) -> list[int]:
    return [number for number, source in enumerate(recording.sources) if source.engine == CLUSTER]


def _told(recording: Recording, streams: Iterable[Stream]) -> int:
    """Starts that these streams tell of."""
    return len(recording.starts.filter(pl.col("source_id").is_in([stream.source_id for stream in streams])))


def _pod_count(recording: Recording) -> int:
    """Pods that the cluster tells of: those joined with an engine's start, and those left alone."""
    joined = set(recording.starts.filter(~_in_cluster(recording))["acquire_time"].drop_nulls())
    return len(joined) + len(pods_alone(recording))


def pods_alone(recording: Recording) -> list[dict[str, Any]]:
    """Starts of pods that no engine's start is known to have been in. Frame in: Starts."""
    joined = recording.starts.filter(~_in_cluster(recording))["acquire_time"].drop_nulls()
    pods = recording.starts.filter(_in_cluster(recording))
    known = pl.col("acquire_time").is_in(joined.implode()).fill_null(False)
    return pods.filter(~known & pl.any_horizontal(pl.col("acquire_time", "first_time").is_not_null())).to_dicts()


def _in_cluster(recording: Recording) -> pl.Expr:
    return pl.col("source_id").is_in(_of_cluster(recording))


def _chained(recording: Recording, streams: list[Stream], pods: int) -> list[Lane]:
    """Streams of one format as lanes: one per pod named, per series of rotated files, or per file."""
    series: dict[Any, list[Stream]] = {}
    for stream in sorted(streams, key=lambda stream: (stream.first, stream.last, stream.source_id)):
        series.setdefault(_series(recording, stream), []).append(stream)
    found = [lane for mine in series.values() for lane in _in_turn(recording, mine)]
    whole = sorted(found, key=lambda lane: lane.first)
    if pods == 1 and len(whole) > 1 and _follow(whole) and _comparable(recording, streams):
        return [_joined([stream for lane in whole for stream in lane.streams])]
    return whole


def _series(recording: Recording, stream: Stream) -> Any:
    """What streams of one replica share. A pod has one name in every file; a data-parallel engine has only a number."""
    source = recording.sources[stream.source_id]
    place = (stream.replica or "").split(" ")[0]
    if place and not (place[:2] == "DP" and place[2:].isdigit()):
        return ("place", stream.replica)
    if source.format == _TRACED_START:
        # A trace ends with the start, so that starts one after another are those of one replica at the least.
        return ("starts", stream.name.series[0], stream.replica)
    return ("files", stream.name.series, stream.replica)


def _in_turn(recording: Recording, streams: list[Stream]) -> list[Lane]:
    """The lanes of one series: files of one rotation are one; starts that overlap are several."""
    if len(streams) == 1:
        return [Lane(tuple(streams))]
    if not _comparable(recording, streams):
        return [Lane((stream,)) for stream in streams]
    rotated = not any(recording.sources[stream.source_id].format == _TRACED_START for stream in streams)
    if rotated:
        return [_joined(streams)]
    chains: list[list[Stream]] = []
    for stream in streams:
        free = [chain for chain in chains if chain[-1].last <= stream.first + SLACK]
        if free:
            max(free, key=lambda chain: chain[-1].last).append(stream)
        else:
            chains.append([stream])
    return [_joined(chain) for chain in chains]


def _joined(streams: list[Stream]) -> Lane:
    ordered = sorted(streams, key=lambda stream: (stream.first, stream.source_id))
    gaps = [
        (before.last, after.first)
        for before, after in itertools.pairwise(ordered)
        if before.last < after.first and not before.name.adjoins(after.name, after.first)
    ]
    return Lane(tuple(ordered), tuple(gaps))


def _follow(found: list[Lane]) -> bool:
    return all(before.last <= after.first + SLACK for before, after in itertools.pairwise(found))


def _comparable(recording: Recording, streams: Iterable[Stream]) -> bool:
    """Whether the stamps of all streams lie on one calendar: dates in each, a year in all or in none, zones alike."""
    sources = {stream.source_id: recording.sources[stream.source_id] for stream in streams}
    return len({_calendar(source) for source in sources.values()}) == 1 and all(
        clock.date_known for source in sources.values() for clock in source.clocks
    )


def _calendar(source: Source) -> tuple[bool, bool]:
    return source.dated, any(clock.zone is not None for clock in source.clocks)


def _doubts(recording: Recording, found: list[Lane]) -> list[str]:
    """What stands in doubt where nothing but the time of several logs says how many replicas they are."""
    unnamed = [lane for lane in found if all(stream.replica is None for stream in lane.streams)]
    if len(unnamed) < 2:
        return []
    shown = ", ".join(recording.sources[lane.streams[0].source_id].path for lane in unnamed[:3])
    if not _comparable(recording, [stream for lane in unnamed for stream in lane.streams]):
        return [f"the stamps of {len(unnamed)} logs ({shown}) cannot be compared: each is counted as a replica"]
    apart = [
        (one, other)
        for one, other in itertools.combinations(unnamed, 2)
        if one.last <= other.first + SLACK or other.last <= one.first + SLACK
    ]
    if not apart:
        return []
    return [
        f"{len(unnamed)} logs ({shown}) do not all overlap in time and nothing names their pods: each is counted for "
        "the time that it covers, though a replica may have been held between"
    ]
