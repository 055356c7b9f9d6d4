"""A heap in plain Python that keeps what it did: the truth that replays of its recording are held against."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from infer_diag import schema
from infer_diag.recording import Recording, Source

MIB = 1 << 20
BEGAN = datetime(2026, 3, 1, tzinfo=UTC)
SOURCE = Source(path="a.pickle", format="pytorch-snapshot", engine="pytorch")

State = list[tuple[int, int, str]]


@dataclass
class Heap:
    """Segments of two kinds, best fit from the low end, rests of large blocks up to a MiB stay with them."""

    segments: dict[int, tuple[int, str]] = field(default_factory=dict)
    live: dict[int, tuple[int, int]] = field(default_factory=dict)
    awaited: set[int] = field(default_factory=set)
    events: list[dict[str, Any]] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    next_segment: int = 1 << 40

    def record(self, action: str, address: int, size: int) -> None:
        """Keeps an event and the state after it."""
        of_segment = action.startswith("segment")
        self.events.append(
            {
                "action": action,
                "address_id": address,
                "allocated_bytes" if of_segment else "requested_bytes": size,
                "time": BEGAN + timedelta(milliseconds=len(self.events)),
                "stream": "0",
                "gpu": "0",
            }
        )
        self.states.append(self.state())

    def holes(self) -> list[tuple[int, int, int]]:
        """(address, size, segment) of every hole."""
        return [
            (address, size, segment)
            for segment in self.segments
            for address, size, state in self.inside(segment)
            if state == "inactive"
        ]

    def inside(self, segment: int) -> State:
        """The blocks and holes of a segment."""
        end, cursor, found = segment + self.segments[segment][0], segment, []
        for address in sorted(each for each in self.live if segment <= each < end):
            if address > cursor:
                found.append((cursor, address - cursor, "inactive"))
            size = self.live[address][0]
            found.append((address, size, "awaiting" if address in self.awaited else "active"))
            cursor = address + size
        return found + ([(cursor, end - cursor, "inactive")] if cursor < end else [])

    def state(self) -> State:
        """All blocks and holes by address."""
        return [row for segment in sorted(self.segments) for row in self.inside(segment)]

    def alloc(self, asked: int) -> int:
        """The address of a new block."""
        size = max(512, -(-asked // 512) * 512)
        kind = "small" if size <= MIB else "large"
        fits = [
            (hole, address)
            for address, hole, segment in self.holes()
            if hole >= size and self.segments[segment][1] == kind
        ]
        if not fits:
            whole = 2 * MIB if kind == "small" else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            self.segments[self.next_segment] = (whole, kind)
            self.record("segment_alloc", self.next_segment, whole)
            fits = [(whole, self.next_segment)]
            # Every other segment touches the one before, as the driver may place them.
            self.next_segment += whole + (0 if len(self.segments) % 2 else 2 * MIB)
        hole, address = min(fits)
        if hole - size < 512 or (kind == "large" and hole - size <= MIB):
            size = hole
        self.live[address] = (size, asked)
        self.record("alloc", address, asked)
        return address

    def request_free(self, address: int) -> None:
        """The program gives a block back, and a stream still uses it."""
        self.awaited.add(address)
        self.record("free_requested", address, self.live[address][1])

    def free(self, address: int) -> None:
        """A block is idle again."""
        if address not in self.awaited:
            self.request_free(address)
        self.awaited.discard(address)
        _, asked = self.live.pop(address)
        self.record("free", address, asked)

    def trim(self) -> None:
        """Gives whole idle segments back."""
        for segment in [each for each in self.segments if len(self.inside(each)) == 1 and each not in self.live]:
            size, _ = self.segments.pop(segment)
            self.record("segment_free", segment, size)

    def blocks(self) -> list[dict[str, Any]]:
        """The snapshot's blocks."""
        return [
            {
                "snapshot": "snapshot",
                "gpu": "0",
                "segment_id": segment,
                "segment_bytes": self.segments[segment][0],
                "segment_kind": self.segments[segment][1],
                "stream": "0",
                "address_id": address,
                "size_bytes": size,
                "requested_bytes": self.live[address][1] if address in self.live else None,
                "state": state,
            }
            for segment in sorted(self.segments)
            for address, size, state in self.inside(segment)
        ]

    def recording(self, forgotten: int = 0) -> Recording:
        """What a recorder that lost its first events holds, with the snapshot at the end."""
        return recorded(self.events[forgotten:], self.blocks())


def recorded(events: list[dict[str, Any]], blocks: list[dict[str, Any]], source: Source = SOURCE) -> Recording:
    """A recording of these events and blocks."""
    return Recording(
        sources=(source,),
        allocator_events=framed(schema.AllocatorEvents, events),
        blocks=framed(schema.Blocks, blocks),
    )


def framed(frame: Any, rows: list[dict[str, Any]]) -> pl.DataFrame:
    """The rows as a frame, null where a column is not said."""
    whole = [{"source_id": 0, "line": 0, **row} for row in rows]
    made = {name: [row.get(name) for row in whole] for name in frame.column_names()}
    result: pl.DataFrame = frame.validate(
        pl.DataFrame(made, schema=frame.create_empty().schema, strict=False), cast=True
    )
    return result
