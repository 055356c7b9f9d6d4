"""A frozen bundle of frames, with where each row came from."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

import polars as pl

from infer_diag import schema

SIMULATED = "simulated:"
"""How a source's note begins that no real system wrote what stands in it."""


@dataclass(frozen=True)
class Clock:
    """One clock of a source: `outer` is a collector's stamp in front of the record, `inner` the engine's own.

    `zone` is null where the stamps name none; `offset_s` is this clock minus the inner one; `year_known` is false where
    the stamps print no year and no other clock supplies it.
    """

    where: str
    example: str
    zone: str | None = None
    offset_s: float | None = None
    spread_s: float | None = None
    year_known: bool = True
    date_known: bool = True


@dataclass(frozen=True)
class Source:
    """One file that was read.

    `doubts`: what the file says that cannot be so, each a clause that tells what was done about it. `places`: where the
    file's lines were put into another order to be read, the physical line of each in that order. `parts`: where several
    files make one series, the path of each, the number that its first line has here, and its size in bytes.
    """

    path: str
    format: str
    engine: str
    engine_version: str | None = None
    lines: int = 0
    unknown_lines: int = 0
    rejected_lines: int = 0
    cut: bool = False
    size_bytes: int = 0
    sha256: str | None = None
    first_time: datetime | None = None
    last_time: datetime | None = None
    clocks: tuple[Clock, ...] = ()
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    places: tuple[int, ...] | None = field(default=None, repr=False)
    parts: tuple[tuple[str, int, int], ...] = field(default=(), repr=False)

    @property
    def is_simulated(self) -> bool:
        """Whether nothing of it was recorded."""
        return any(note.startswith(SIMULATED) for note in self.notes)

    @property
    def dated(self) -> bool:
        """Whether the times of this source carry a real date."""
        return bool(self.clocks) and any(clock.year_known and clock.date_known for clock in self.clocks)


@dataclass(frozen=True)
class Skipped:
    """A file that was named and not read, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class Recording:
    """One observation of one engine: the frames of `infer_diag.schema`, each empty where no source has it."""

    sources: tuple[Source, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    starts: pl.DataFrame = field(default_factory=schema.Starts.create_empty)
    phases: pl.DataFrame = field(default_factory=schema.Phases.create_empty)
    progress: pl.DataFrame = field(default_factory=schema.Progress.create_empty)
    incidents: pl.DataFrame = field(default_factory=schema.Incidents.create_empty)
    start_totals: pl.DataFrame = field(default_factory=schema.StartTotals.create_empty)
    requests: pl.DataFrame = field(default_factory=schema.Requests.create_empty)
    request_timings: pl.DataFrame = field(default_factory=schema.RequestTimings.create_empty)
    request_totals: pl.DataFrame = field(default_factory=schema.RequestTotals.create_empty)
    engine_samples: pl.DataFrame = field(default_factory=schema.EngineSamples.create_empty)
    engine_steps: pl.DataFrame = field(default_factory=schema.EngineSteps.create_empty)
    gpu_samples: pl.DataFrame = field(default_factory=schema.GpuSamples.create_empty)
    allocator_events: pl.DataFrame = field(default_factory=schema.AllocatorEvents.create_empty)
    blocks: pl.DataFrame = field(default_factory=schema.Blocks.create_empty)
    memory_stats: pl.DataFrame = field(default_factory=schema.MemoryStats.create_empty)
    ooms: pl.DataFrame = field(default_factory=schema.Ooms.create_empty)
    components: pl.DataFrame = field(default_factory=schema.Components.create_empty)
    kv_blocks: pl.DataFrame = field(default_factory=schema.KvBlocks.create_empty)
    kernels: pl.DataFrame = field(default_factory=schema.Kernels.create_empty)
    deployments: pl.DataFrame = field(default_factory=schema.Deployments.create_empty)
    rejected: pl.DataFrame = field(default_factory=schema.Rejected.create_empty)

    def replace(self, **changes: object) -> Recording:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def rows(self) -> dict[str, int]:
        """Rows of every frame that has any, in the order of the schema."""
        return {name: len(frame) for name in schema.FRAMES if len(frame := getattr(self, name))}

    @property
    def first_time(self) -> datetime | None:
        """The earliest first stamp, where every source's date is known."""
        times = [source.first_time for source in self.sources if source.dated and source.first_time is not None]
        return min(times) if times and len(times) == len(self.sources) else None

    def evidence(self, source_id: int, line: int) -> str:
        """`path:line` of a row; the line is the physical one."""
        source = self.sources[source_id]
        if source.parts and line:
            path, first, _ = max((part for part in source.parts if part[1] <= line), key=lambda part: part[1])
            return f"{path}:{line - first + 1}"
        if source.places is not None and 1 <= line <= len(source.places):
            line = source.places[line - 1]
        return f"{source.path}:{line}"

    def __repr__(self) -> str:
        files = ", ".join(source.path for source in self.sources[:3]) + (" …" if len(self.sources) > 3 else "")
        counts = ", ".join(f"{name} {count:,}" for name, count in self.rows().items()) or "no rows"
        return f"Recording({files or 'no source'}: {counts})"


def combine(recordings: Iterable[Recording]) -> Recording:
    """One recording out of several: rows in order, `source_id` shifted, start ids made unique by their order.

    Seconds of requests count from the earliest first stamp of the dated sources; where dates are unknown each source
    keeps its own origin, since nothing tells how the sources lie to each other.
    """
    parts = list(recordings)
    if len(parts) == 1:
        return parts[0]
    dated = [part.first_time for part in parts if part.first_time is not None]
    frames: dict[str, list[pl.DataFrame]] = {name: [] for name in schema.FRAMES}
    sources: list[Source] = []
    starts = 0
    for part in parts:
        for name in schema.FRAMES:
            frame: pl.DataFrame = getattr(part, name)
            if frame.is_empty():
                continue
            frame = frame.with_columns(pl.col("source_id") + pl.lit(len(sources), pl.UInt32))
            if "start_id" in frame.columns and starts:
                frame = frame.with_columns(_renumbered(starts))
            if name == "requests" and part.first_time is not None:
                frame = _shifted(frame, (part.first_time - min(dated)).total_seconds())
            frames[name].append(frame)
        sources += part.sources
        starts += len(part.starts)
    whole = {name: pl.concat(found) for name, found in frames.items() if found}
    skipped = tuple(file for part in parts for file in part.skipped)
    return Recording(sources=tuple(sources), skipped=skipped, **whole)


def start_id(number: int) -> str:
    """The name of the start with this 0-based number: `start-1` is the first one."""
    return f"start-{number + 1}"


def _renumbered(shift: int) -> pl.Expr:
    number = pl.col("start_id").str.strip_prefix("start-").cast(pl.Int64) + shift
    return ("start-" + number.cast(pl.String)).alias("start_id")


def _shifted(requests: pl.DataFrame, seconds: float) -> pl.DataFrame:
    moments = [name for name in requests.columns if name.endswith("_s")]
    return requests.with_columns(pl.col(name) + seconds for name in moments)
