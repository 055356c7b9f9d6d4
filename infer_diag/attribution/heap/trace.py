"""One device's recorded allocator events as a heap that can be replayed, with what lived before the first of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from infer_diag.attribution.heap.before import blocks_before, segments_before, touched
from infer_diag.attribution.heap.policy import Policy, policy_of
from infer_diag.attribution.heap.requests import Requests, recorded_requests
from infer_diag.attribution.heap.segments import GROUP_KEY, final_segments, grouped, segment_rows
from infer_diag.errors import DiagError
from infer_diag.recording import Recording

if TYPE_CHECKING:
    from infer_diag.simulators.heap_replay import HeapEvents, Replayed, Rules

Ints = NDArray[np.int64]
Basis = Literal["segments", "touched"]

_KINDS = {
    "alloc": 0,
    "free": 1,
    "free_requested": 2,
    "segment_alloc": 3,
    "segment_free": 4,
    "segment_map": 5,
    "segment_unmap": 6,
}
_NOTHING = 7


@dataclass(frozen=True, eq=False)
class HeapTrace:
    """The events of one source and device, ready to be replayed.

    `groups` numbers the pools that never share a hole (kind of segment, private pool, stream). `basis`: `segments`
    where the recording names what is reserved, `touched` where only addresses that were once handed out are known to
    be, so that what is idle is a lower bound. `ahead` counts the rows that stand for what lived before the first event.
    `unnamed_bytes` are bytes of each group's segments that no block of the snapshot covers; `final` is the snapshot.
    """

    source_id: int
    gpu: str | None
    events: HeapEvents
    ahead: int
    times: pl.Series
    lines: pl.Series
    failed: Ints
    groups: pl.DataFrame
    policy: Policy
    requests: Requests
    basis: Basis
    has_blocks: bool
    has_requested: bool
    unnamed_bytes: Ints
    final: pl.DataFrame
    totals: pl.DataFrame = field(repr=False)

    @property
    def event_count(self) -> int:
        """Events that the recording holds."""
        return len(self.times)

    def replayed(self, instants: Ints, dumped: NDArray[np.bool_] | None = None) -> Replayed:
        """The heap after the recorded events at these sorted 0-based indexes; -1 is what lived before the first."""
        dumps = np.zeros(len(instants), np.bool_) if dumped is None else dumped
        found: Replayed = simulator().replay(self.settled, self._rules, instants + self.ahead, dumps)
        return found

    @cached_property
    def _rules(self) -> Rules:
        slack, tables = self.policy.slack(self.groups), self.requests.tables(self.groups)
        rules: Rules = simulator().Rules(self.policy.unit_bytes, self.policy.takes_low, slack, *tables)
        return rules

    @cached_property
    def settled(self) -> HeapEvents:
        """The events with the sizes of those blocks whose rounding only later events or the snapshot tell."""
        last = np.array([len(self.events.kinds) - 1])
        first: Replayed = simulator().replay(self.events, self._rules, last, np.ones(1, np.bool_))
        told = _told(first.maps, self.final)
        if not first.corrected.any() and not len(told):
            return self.events
        fixed = self.events.fixed.copy()
        fixed[first.corrected] = first.blocks[first.corrected]
        fixed[told[:, 0]] = told[:, 1]
        return self.events._replace(fixed=fixed)


def _told(maps: Ints, final: pl.DataFrame) -> Ints:
    """(event, bytes) of the live blocks whose size in the snapshot is another one than their rounding gives."""
    live = maps[maps[:, 5] > 0]
    found = pl.DataFrame({"address_id": live[:, 1], "own": live[:, 2], "event": live[:, 6]})
    known = final.filter(pl.col("state").is_in(["active", "awaiting"])).select(
        pl.col("address_id").cast(pl.Int64), pl.col("size_bytes").cast(pl.Int64)
    )
    other = found.join(known, on="address_id").filter(pl.col("own") != pl.col("size_bytes"))
    return other.select("event", "size_bytes").to_numpy().astype(np.int64).reshape(-1, 2)


def simulator() -> ModuleType:
    """The module that replays heaps.

    Raises:
        DiagError: numba is not installed.
    """
    try:
        from infer_diag.simulators import heap_replay
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "numba":
            raise
        raise DiagError(
            "the state of a heap over time needs numba", hint="pip install 'infer-diag[sim]' brings it"
        ) from error
    return heap_replay


def heap_traces(recording: Recording) -> list[HeapTrace]:
    """One trace per source and device whose allocator's events or blocks are recorded, in the order of the sources.

    Frames in: AllocatorEvents, Blocks. Of several snapshots in one source the last one counts.

    Raises:
        DiagError: numba is not installed.
    """
    events = recording.allocator_events.with_columns(pl.col("gpu", "stream").cast(pl.String))
    blocks = recording.blocks.filter(pl.col("snapshot") == pl.col("snapshot").last().over("source_id"))
    keys = pl.concat([events.select("source_id", "gpu"), blocks.select("source_id", "gpu")])
    found = []
    for source_id, gpu in keys.unique(maintain_order=True).sort("source_id", "gpu", nulls_last=True).iter_rows():
        here = (pl.col("source_id") == source_id) & pl.col("gpu").eq_missing(pl.lit(gpu, pl.String))
        found.append(_trace(recording, source_id, gpu, events.filter(here), blocks.filter(here)))
    return found


def _trace(
    recording: Recording, source_id: int, gpu: str | None, events: pl.DataFrame, final: pl.DataFrame
) -> HeapTrace:
    policy = policy_of(recording.sources[source_id], events)
    moves = moves_of(events)
    of_blocks = moves.filter(pl.col("kind") < 3)
    segments = final_segments(final)
    taken = segment_rows(moves, segments, policy)
    before = segments_before(taken, segments)
    basis: Basis = "segments"
    if final.is_empty() and len(of_blocks):
        invented = touched(of_blocks, taken, policy)
        basis = "touched" if len(invented) else "segments"
        before = pl.concat([before, invented], how="diagonal_relaxed")
    groups, before, taken = grouped(before, taken)
    ahead = pl.concat([before, blocks_before(of_blocks, final)], how="diagonal_relaxed")
    heap_events, count = _arrays(ahead, moves, taken)
    shown = recording.allocator_events.columns
    return HeapTrace(
        source_id=source_id,
        gpu=gpu,
        events=heap_events,
        ahead=count,
        times=events["time"],
        lines=events["line"],
        failed=np.flatnonzero((events["action"] == "oom").to_numpy()).astype(np.int64),
        groups=groups,
        policy=policy,
        requests=recorded_requests(of_blocks, policy),
        basis=basis,
        has_blocks=len(of_blocks) + len(final) > 0,
        has_requested=_knows_requests(events, final),
        unnamed_bytes=_unnamed(segments, groups),
        final=final,
        totals=events.select(name for name in shown if name.startswith("total_")),
    )


def moves_of(events: pl.DataFrame) -> pl.DataFrame:
    """The events by kind, with what each asks for, and the size of its block where the event tells it."""
    rows = events.select(
        pl.col("action").cast(pl.String).replace_strict(_KINDS, default=_NOTHING, return_dtype=pl.UInt8).alias("kind"),
        pl.col("address_id").cast(pl.Int64, strict=False).alias("address"),
        pl.coalesce("requested_bytes", "allocated_bytes").cast(pl.Int64, strict=False).fill_null(0).alias("size"),
        pl.when(pl.col("action") == "alloc")
        .then(pl.col("allocated_bytes").cast(pl.Int64, strict=False))
        .fill_null(0)
        .alias("fixed"),
        "stream",
    )
    return rows.with_columns(
        pl.when(pl.col("address").is_null()).then(_NOTHING).otherwise("kind").cast(pl.UInt8).alias("kind")
    )


def _knows_requests(events: pl.DataFrame, final: pl.DataFrame) -> bool:
    asked = events.filter((pl.col("action") == "alloc") | (pl.col("action") == "free"))["requested_bytes"]
    live = final.filter(pl.col("state") == "active")["requested_bytes"]
    return asked.null_count() == 0 and live.null_count() == 0


def _unnamed(segments: pl.DataFrame, groups: pl.DataFrame) -> Ints:
    """Bytes of each group that a snapshot's segments have and its blocks do not name."""
    sums = segments.group_by(GROUP_KEY).agg((pl.col("whole") - (pl.col("end") - pl.col("address"))).sum().alias("more"))
    named = groups.join(sums, on=GROUP_KEY, how="left", nulls_equal=True, maintain_order="left")
    return np.append(named["more"].fill_null(0).to_numpy(), 0).astype(np.int64)


def _arrays(ahead: pl.DataFrame, moves: pl.DataFrame, taken: pl.DataFrame) -> tuple[HeapEvents, int]:
    """The rows ahead, a row that does nothing, and the recorded events, with addresses by rank."""
    count = len(ahead) + 1
    none = pl.repeat(-1, len(moves), dtype=pl.Int64, eager=True)
    placed = moves.with_columns(
        (none.clone().scatter(taken["event"], taken[name]) if len(taken) else none).alias(name)
        for name in ("end", "group")
    )
    names = ("kind", "address", "end", "size", "fixed", "group")
    first = ahead.select(pl.col(name).fill_null(-1) for name in names)
    idle = pl.DataFrame({name: [_NOTHING if name == "kind" else -1] for name in names}, schema=first.schema)
    whole = pl.concat([first, idle, placed.select(names)], how="vertical_relaxed")
    columns = {name: whole[name].fill_null(-1).to_numpy() for name in names}
    known = np.unique(np.concatenate([columns["address"], columns["end"]]))
    known = known[known >= 0] if (known >= 0).any() else np.zeros(1, np.int64)
    ranks = {name: np.searchsorted(known, columns[name]).astype(np.int64) for name in ("address", "end")}
    events = simulator().HeapEvents(
        columns["kind"].astype(np.uint8),
        ranks["address"],
        ranks["end"],
        columns["size"].astype(np.int64),
        np.maximum(columns["fixed"], 0).astype(np.int64),
        columns["group"].astype(np.int64),
        known.astype(np.int64),
    )
    return events, count
