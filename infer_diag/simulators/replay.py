"""A recorded trace replayed by a simulated allocator, under the recorded settings or others.

Under the recorded settings every address is held against the recorded one, which tells how far the model can be
trusted. Under others the figures are what the model says and no more: simulated.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace as changed
from functools import partial
from typing import Literal

import numpy as np
import polars as pl

from infer_diag.errors import DiagError
from infer_diag.recording import Recording
from infer_diag.simulators.allocators import Allocator, Counters, CupySettings, RmmPoolSettings, Settings, TorchSettings
from infer_diag.simulators.allocators.adopted import adopt
from infer_diag.simulators.allocators.heap import Ints, Records
from infer_diag.simulators.allocators.kinds import ALLOC
from infer_diag.simulators.allocators.loop import STEP
from infer_diag.simulators.allocators.trace import Trace, trace
from infer_diag.simulators.initial_state import InitialState, initial_state
from infer_diag.simulators.replay_reasons import reasons

_FIRST_IMPOSSIBLE = 1 << 60

Begin = Literal["empty", "reconstructed", "packed"]
"""How the heap begins: with nothing, as it was in the recording, or with what lived then allocated anew by address."""


@dataclass(frozen=True)
class Device:
    """One device of one source of a recording: its events, the blocks at its end and the limit, if one is known.

    `limit_bytes` is null where no failed allocation tells how much the device had free.
    """

    source_id: int
    gpu: str | None
    engine: str
    events: pl.DataFrame
    blocks: pl.DataFrame
    limit_bytes: int | None
    doubts: tuple[str, ...] = ()

    def steps(self) -> Trace:
        """What the program did."""
        return trace(self.events, self.blocks, limit_bytes=self.limit_bytes)


@dataclass(frozen=True)
class Replay:
    """What became of a trace under some settings; every figure is simulated.

    `placements`: one row per recorded request (row of the event, time, requested_bytes, recorded_address_id,
    simulated_address_id, reason), the reason null where both addresses are the same or none was recorded.
    `placed_ratio`: the share of the recorded addresses that were met; null where addresses cannot be compared.
    """

    settings: Settings
    begin: Begin
    limit_bytes: int | None
    counters: Counters
    placements: pl.DataFrame
    placed_ratio: float | None
    avoided_count: int
    new_failure_count: int
    allocator: Allocator
    times: pl.Series
    doubts: tuple[str, ...]

    def recording(self) -> Recording:
        """The run as a recording that the same functions read as a real one."""
        return self.allocator.recording(self.times)


def devices(recording: Recording) -> tuple[Device, ...]:
    """Every source and device of a recording that has allocator events, in order."""
    events = recording.allocator_events
    keys = events.select("source_id", pl.col("gpu").cast(pl.String)).unique(maintain_order=True)
    found = []
    for source_id, gpu in keys.rows():
        told, mine = _of(events, source_id, gpu), _of(recording.blocks, source_id, gpu)
        here, last = _possible(told), _possible(mine.filter(pl.col("snapshot") == pl.col("snapshot").last()))
        if not here["action"].is_in(["alloc", "free"]).any():
            continue
        lost = len(told) - len(here)
        doubts = (f"{lost:,} events have an address that no device has and are left out",) if lost else ()
        engine = recording.sources[source_id].engine if source_id < len(recording.sources) else "pytorch"
        limit = _limit(recording, source_id, gpu, here, last)
        found.append(Device(source_id, gpu, engine, here, last, limit, doubts))
    return tuple(found)


def _of(frame: pl.DataFrame, source_id: int, gpu: str | None) -> pl.DataFrame:
    is_gpu = pl.col("gpu").cast(pl.String).eq_missing(pl.lit(gpu, pl.String))
    return frame.filter((pl.col("source_id") == source_id) & is_gpu)


def _possible(frame: pl.DataFrame) -> pl.DataFrame:
    """Without rows whose address no device has: those are damaged."""
    return frame.filter((pl.col("address_id") < _FIRST_IMPOSSIBLE).fill_null(True))


def recorded_settings(device: Device) -> Settings:
    """The settings that the recording shows: which allocator it was, and whether its segments are expandable.

    What it does not show (the largest block that is cut, rounding, collection) is taken to be as by default.
    """
    if device.engine == "cupy":
        return CupySettings()
    if device.engine == "rmm":
        return RmmPoolSettings()
    mapped = device.events["action"].is_in(["segment_map", "segment_unmap"]).any()
    return TorchSettings(expandable_segments=bool(mapped or device.blocks["is_expandable"].any()))


def replay(
    device: Device,
    settings: Settings | None = None,
    *,
    limit_bytes: int | None = None,
    begin: Begin | None = None,
    keeps_log: bool = True,
    explains: bool = True,
) -> Replay:
    """A device's trace under `settings`, by default the recorded ones, on a device of `limit_bytes`.

    Without `begin` the heap begins as it was where settings allow that (the same kind of segments of PyTorch's
    allocator), else packed. A request that failed in the recording is freed at once where it is served, since nothing
    tells how long it would have lived.

    Raises:
        DiagError: the settings need a limit that is not known, or the heap of another kind of allocator is to go on.
    """
    told = recorded_settings(device)
    settings = told if settings is None else settings
    limit_bytes = device.limit_bytes if limit_bytes is None else limit_bytes
    done = (device if device.limit_bytes is not None else changed(device, limit_bytes=limit_bytes)).steps()
    state = initial_state(device.events, device.blocks, done) if len(device.blocks) else None
    start = _begin(settings, told, done, state) if begin is None else begin
    if start == "reconstructed" and state is None:
        raise DiagError("the recording has no blocks to begin with", hint="begin='packed' allocates them anew")
    fresh = partial(_begun, settings, limit_bytes, done, state if start == "reconstructed" else None)
    allocator = fresh(keeps_log)
    first = _packed(done) if start == "packed" else np.zeros(0, STEP)
    placed = allocator.replay(np.concatenate([first, done.steps]))[len(first) :]
    why: list[str | None] | None = None
    if settings == told and start != "packed" and _knows_segments(device):
        why = reasons(partial(fresh, False), done, placed) if explains else [None] * len(placed)
    return _replay(allocator, start, done, placed, why, (*device.doubts, *(state.doubts if state is not None else ())))


def _replay(
    allocator: Allocator, start: Begin, done: Trace, placed: Ints, why: list[str | None] | None, doubts: tuple[str, ...]
) -> Replay:
    placements, ratio = _placements(done, placed, why)
    failed, asked = done.rows["action"].to_numpy() == "oom", done.steps["action"] == ALLOC
    anew = len(done.before) if start == "packed" else 0
    return Replay(
        allocator.settings,
        start,
        allocator.limit_bytes,
        allocator.counters,
        placements,
        ratio,
        avoided_count=int((asked & failed & (placed >= 0)).sum()),
        new_failure_count=int((asked & ~failed & (placed < 0)).sum()),
        allocator=allocator,
        times=pl.concat([pl.Series("time", [None] * anew, done.rows["time"].dtype), done.rows["time"]]),
        doubts=(*done.doubts, *doubts),
    )


def recorded_peaks(device: Device) -> tuple[int | None, int | None]:
    """(largest reserved, largest allocated) bytes of the recording itself; null where it does not tell.

    Reserved follows from the segments at the end, backwards; allocated needs the rounded size of every event, which
    PyTorch's recorder does not write, so it is that of the blocks' replay and stands in `Replay.counters` instead.
    """
    stated = device.events["total_reserved_bytes"].drop_nulls()
    if len(stated):
        return _largest(stated), _largest(device.events["total_allocated_bytes"])
    if device.blocks.is_empty():
        return None, None
    action, size = pl.col("action").cast(pl.String), pl.col("allocated_bytes").cast(pl.Int64).fill_null(0)
    taken, given = action.is_in(["segment_alloc", "segment_map"]), action.is_in(["segment_free", "segment_unmap"])
    change = device.events.select(pl.when(taken).then(size).when(given).then(-size).otherwise(0)).to_series()
    final = int(device.blocks.unique("segment_id")["segment_bytes"].sum())
    level = final - int(change.sum()) + change.cum_sum()
    return max(final - int(change.sum()), _largest(level) or 0), None


def _begun(
    settings: Settings, limit_bytes: int | None, done: Trace, state: InitialState | None, keeps_log: bool
) -> Allocator:
    allocator = Allocator(
        settings,
        limit_bytes=limit_bytes,
        keeps_log=keeps_log,
        streams=done.streams or ("0",),
        pools=done.pools or (None,),
    )
    if state is not None:
        adopt(allocator, state.blocks, state.objects)
    else:
        allocator.take_objects(done.object_count)
    return allocator


def _begin(settings: Settings, told: Settings, done: Trace, state: InitialState | None) -> Begin:
    """Where a replay begins when nobody says."""
    is_alike = settings == told
    if isinstance(settings, TorchSettings) and isinstance(told, TorchSettings):
        is_alike = settings.expandable_segments == told.expandable_segments
    if state is not None and is_alike:
        return "reconstructed" if len(state.blocks) else "empty"
    return "packed" if len(done.before) else "empty"


def _packed(done: Trace) -> Records:
    """Steps that allocate what lived before the trace, by address."""
    steps = np.zeros(len(done.before), STEP)
    steps["action"] = ALLOC
    steps["thing"] = done.before["object"].to_numpy()
    steps["size"] = done.before["requested_bytes"].fill_null(0).to_numpy()
    steps["arena"] = done.before["arena"].to_numpy()
    return steps


def _placements(done: Trace, placed: Ints, why: list[str | None] | None) -> tuple[pl.DataFrame, float | None]:
    recorded = done.recorded_address
    asked = done.steps["action"] == ALLOC
    known = asked & (recorded >= 0)
    frame = done.rows.select("row", "time", "requested_bytes", pl.col("address_id").alias("recorded_address_id"))
    frame = frame.with_columns(
        pl.Series("simulated_address_id", np.where(placed < 0, 0, placed), dtype=pl.UInt64).set(
            pl.Series(placed < 0), None
        ),
        pl.Series("reason", why if why is not None else [None] * len(placed), dtype=pl.String),
    )
    ratio = float((placed == recorded)[known].mean()) if why is not None and known.any() else None
    return frame.filter(pl.Series(asked)), ratio


def _knows_segments(device: Device) -> bool:
    """Whether addresses can be met at all: the recording tells where the driver put the segments."""
    action = device.events["action"].cast(pl.String)
    return bool(len(device.blocks)) or bool(action.is_in(["segment_alloc", "segment_map"]).any())


def _limit(
    recording: Recording, source_id: int, gpu: str | None, events: pl.DataFrame, blocks: pl.DataFrame
) -> int | None:
    """What the process could reserve: at a failed allocation, what it held and what the device had free.

    Of several failures the least, since other processes take memory too, and never below what was reserved at one time.
    """
    room = _of(recording.ooms, source_id, gpu).select((pl.col("reserved_bytes") + pl.col("free_bytes")).min()).item()
    if room is None:
        return None
    peak, _ = recorded_peaks(Device(source_id, gpu, "", events, blocks, None))
    return max(int(room), peak or 0)


def _largest(values: pl.Series) -> int | None:
    known = values.drop_nulls()
    return int(known.to_numpy().max()) if len(known) else None
