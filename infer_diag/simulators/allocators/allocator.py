"""One simulated allocator: allocate and free by hand or by a whole trace, and read what came of it as frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from infer_diag.errors import DiagError
from infer_diag.recording import Recording, Source
from infer_diag.simulators.allocators import frames, heap, loop
from infer_diag.simulators.allocators.heap import Ints, Records
from infer_diag.simulators.allocators.kinds import ALLOC, EMPTY_CACHE, FREE, FREE_REQUESTED
from infer_diag.simulators.allocators.settings import Settings, TorchSettings

_FIRST_ROOM = 4096


@dataclass(frozen=True)
class Counters:
    """What an allocator counts: bytes now and at their peaks, and how often something happened.

    `*_at_reserved_peak`: when most was reserved; `requested_at_peak`: when most was allocated.
    """

    reserved_bytes: int
    allocated_bytes: int
    active_bytes: int
    requested_bytes: int
    reserved_peak_bytes: int
    allocated_at_reserved_peak_bytes: int
    allocated_peak_bytes: int
    requested_at_peak_bytes: int
    failure_count: int
    retry_count: int
    device_malloc_count: int
    device_free_count: int

    @property
    def slack_bytes(self) -> int:
        """Handed out beyond what was asked for: allocated − requested, of blocks that are live."""
        return self.active_bytes - self.requested_bytes

    @property
    def cached_bytes(self) -> int:
        """Held and not handed out: reserved − allocated."""
        return self.reserved_bytes - self.allocated_bytes


class Allocator:
    """A simulated allocator on a device of `limit_bytes`, or one without limit.

    Deterministic: the same calls give the same addresses. Every figure that it fills is simulated.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        limit_bytes: int | None = None,
        keeps_log: bool = True,
        streams: Sequence[str] = ("0",),
        pools: Sequence[str | None] = (None,),
    ) -> None:
        self.settings = TorchSettings() if settings is None else settings
        self.limit_bytes = limit_bytes
        self.policy = self.settings.policy(limit_bytes)
        self.streams, self.pools = list(streams), list(pools)
        self.heap = heap.new_heap(self._is_private(), _FIRST_ROOM)
        self.log: Records = np.zeros(_FIRST_ROOM if keeps_log else 0, heap.ROW)
        self.nodes: Ints = np.full(_FIRST_ROOM, heap.NOTHING, np.int64)
        self._things: dict[int, int] = {}
        self._thing_count = 0

    def malloc(self, nbytes: int, stream: str = "0", *, pool: str | None = None) -> int | None:
        """The address of a new block, or null where the simulated device has no room.

        Raises:
            DiagError: the size is negative.
        """
        if nbytes < 0:
            raise DiagError(f"cannot allocate {nbytes} bytes")
        thing = self._thing_count
        step = np.zeros(1, loop.STEP)
        step["action"], step["thing"], step["size"] = ALLOC, thing, nbytes
        step["arena"] = self._arena(stream, pool)
        address = int(self.replay(step)[0])
        if address < 0:
            return None
        self._things[address] = thing
        return address

    def free(self, address: int) -> None:
        """Frees a block.

        Raises:
            DiagError: no live block begins there.
        """
        self._end(self._ended(address), FREE)

    def free_when_idle(self, address: int) -> int:
        """Frees a block that another stream may still use; returns the number by which `complete` ends the wait.

        Raises:
            DiagError: no live block begins there.
        """
        thing = self._ended(address)
        self._end(thing, FREE_REQUESTED)
        return thing

    def complete(self, waiting: int) -> None:
        """The stream is done with a block; nothing happens where a synchronisation has ended the wait before."""
        self._end(waiting, FREE)

    def empty_cache(self) -> None:
        """Gives idle memory back to the simulated driver, as far as the allocator can."""
        step = np.zeros(1, loop.STEP)
        step["action"] = EMPTY_CACHE
        self.replay(step)

    def replay(self, steps: Records) -> Ints:
        """Takes many steps; returns the address that each allocation got, -1 where it failed and for other steps.

        `steps`: array of `loop.STEP`, its objects numbered from those on that the allocator has seen.
        """
        placed = np.full(len(steps), heap.NOTHING, np.int64)
        self.take_objects(int(steps["thing"].max(initial=-1)) + 1)
        done = loop.run(self.policy, self.heap, self.log, steps, self.nodes, placed, 0)
        while done < len(steps):
            self._make_room()
            done = loop.run(self.policy, self.heap, self.log, steps, self.nodes, placed, done)
        return placed

    def take_objects(self, count: int) -> None:
        """Makes room for objects with numbers below `count`."""
        self._thing_count = max(self._thing_count, count)
        if self._thing_count > len(self.nodes):
            more = np.full(2 * self._thing_count - len(self.nodes), heap.NOTHING, np.int64)
            self.nodes = np.concatenate([self.nodes, more])

    @property
    def counters(self) -> Counters:
        """What the allocator counts, as of now."""
        return Counters(*(int(each) for each in self.heap.counts[: len(Counters.__dataclass_fields__)]))

    def holes(self) -> Ints:
        """Sizes of the idle blocks in bytes, by address."""
        order = frames.heap_order(self.heap)
        nodes = self.heap.nodes[order]
        return np.asarray(nodes["size"][nodes["state"] == heap.IDLE], np.int64)

    def blocks(self) -> pl.DataFrame:
        """`schema.Blocks`: every block that memory backs, by address."""
        return frames.blocks_frame(self.heap, self.streams, self.pools, is_torch=self._is_torch)

    def recording(self, times: pl.Series | None = None) -> Recording:
        """Blocks, events, failures and counters as a recording; its source says that it is simulated."""
        log = self.log[: self.heap.counts[heap.LOGGED]]
        note = "simulated: no allocator did this; " + repr(self.settings)
        return Recording(
            sources=(Source("simulated", "simulated-allocator", "simulator", notes=(note,)),),
            allocator_events=frames.events_frame(log, self.streams, times),
            blocks=self.blocks(),
            memory_stats=frames.stats_frame(self.heap, is_torch=self._is_torch),
            ooms=frames.ooms_frame(log, self.limit_bytes),
        )

    def _ended(self, address: int) -> int:
        thing = self._things.pop(address, None)
        if thing is None:
            raise DiagError(f"no live block begins at {address:#x}")
        return thing

    def _end(self, thing: int, action: int) -> None:
        step = np.zeros(1, loop.STEP)
        step["action"], step["thing"] = action, thing
        self.replay(step)

    def _arena(self, stream: str, pool: str | None) -> int:
        for arena, known in enumerate(zip(self.streams, self.pools, strict=True)):
            if known == (stream, pool):
                return arena
        self.streams.append(stream)
        self.pools.append(pool)
        self.heap = heap.with_arenas(self.heap, self._is_private())
        return len(self.streams) - 1

    @property
    def _is_torch(self) -> bool:
        return isinstance(self.settings, TorchSettings)

    def _is_private(self) -> Ints:
        return np.array([pool is not None for pool in self.pools], np.int64)

    def _make_room(self) -> None:
        counts = self.heap.counts
        need = loop.ROOM + 2 * int(counts[heap.MEMBERS])
        if counts[heap.SPARE_COUNT] < need:
            self.heap = heap.with_capacity(self.heap, 2 * len(self.heap.nodes) + need)
        if len(self.log) and len(self.log) - counts[heap.LOGGED] < need:
            self.log = np.concatenate([self.log, np.zeros(len(self.log) + need, heap.ROW)])
