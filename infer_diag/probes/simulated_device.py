"""A device of Python integers, to test what the probes do with one; nothing that it yields is a measurement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from infer_diag.probes.device import OutOfDeviceMemory, Pool, Recorder
from infer_diag.probes.free_ranges import FreeRanges
from infer_diag.probes.slab import SlabArena

_BASE = 0x7F00_0000_0000
_UNIT = 512
_ASYNC_STEP = 32 << 20


class SimulatedDevice:
    """A device with one address range; its driver serves best fit, as no real one says how it does."""

    basis = "simulated"

    def __init__(self, total_bytes: int, *, others_bytes: int = 0) -> None:
        self._total = total_bytes
        self._idle = FreeRanges()
        self._idle.add(_BASE + others_bytes, total_bytes - others_bytes)
        self._live: dict[int, int] = {}
        self.recorders: list[Recorder] = []
        self.largest_asked_bytes = 0

    def facts(self) -> dict[str, str | int]:
        """What it is."""
        return {"name": "simulated device", "memory_bytes": self._total}

    def memory(self) -> tuple[int, int]:
        """(free, total) bytes."""
        return sum(size for _, size in self._idle.ranges()), self._total

    def malloc(self, size_bytes: int) -> int:
        """A block, best fit.

        Raises:
            OutOfDeviceMemory: no idle range is large enough.
        """
        self.largest_asked_bytes = max(self.largest_asked_bytes, size_bytes)
        address = self._idle.take(size_bytes)
        if address is None:
            raise OutOfDeviceMemory
        self._live[address] = size_bytes
        return address

    def free(self, address: int) -> None:
        """Gives a block back."""
        self._idle.give(address, self._live.pop(address))

    def pools(self) -> Mapping[str, Callable[[int], Pool]]:
        """Models of CuPy's two pools and the article's slab."""
        return {
            "cupy": lambda limit: SimulatedCuPyPool(self, limit),
            "cupy_async": lambda limit: SimulatedAsyncPool(limit),
            "slab": lambda limit: SlabPool(self, limit),
        }

    @contextmanager
    def recording(self, recorder: Recorder) -> Iterator[None]:
        """Events of the CuPy pools of this device go to the recorder."""
        self.recorders.append(recorder)
        try:
            yield
        finally:
            self.recorders.remove(recorder)


class SimulatedCuPyPool:
    """CuPy's `MemoryPool` for one stream: 512 B units, best fit, a miss takes exactly the rounded size from the driver.

    Source: cupy/cuda/memory.pyx, 14.1 and later.
    """

    def __init__(self, device: SimulatedDevice, limit_bytes: int) -> None:
        self._device, self._limit = device, limit_bytes
        self._idle = FreeRanges()
        self._live: dict[int, int] = {}

    def malloc(self, size_bytes: int) -> int:
        """A block.

        Raises:
            OutOfDeviceMemory: the limit or the device is exhausted.
        """
        size = -(-size_bytes // _UNIT) * _UNIT
        address = self._idle.take(size)
        if address is None:
            address = self._grown(size)
        if address is None:
            self._tell("oom", requested_bytes=size_bytes, allocated_bytes=size)
            raise OutOfDeviceMemory
        self._live[address] = size
        self._tell("alloc", address=address, requested_bytes=size_bytes, allocated_bytes=size)
        return address

    def free(self, address: int) -> None:
        """Gives a block back to the pool."""
        size = self._live.pop(address)
        self._idle.give(address, size)
        self._tell("free", address=address, allocated_bytes=size)

    def reserved_bytes(self) -> int:
        """Bytes of all segments."""
        return self._idle.reserved

    def allocated_bytes(self) -> int:
        """Bytes handed out."""
        return sum(self._live.values())

    def free_blocks(self) -> list[tuple[int, int]]:
        """The idle blocks."""
        return self._idle.ranges()

    def close(self) -> None:
        """Gives everything back."""
        for address in list(self._live):
            self.free(address)
        self._give_back()

    def _grown(self, size: int) -> int | None:
        segment = self._segment(size)
        if segment is None:
            self._give_back()
            segment = self._segment(size)
        if segment is None:
            return None
        self._tell("segment_alloc", address=segment, allocated_bytes=size)
        self._idle.add(segment, size)
        return self._idle.take(size)

    def _segment(self, size: int) -> int | None:
        if self._idle.reserved + size > self._limit:
            return None
        try:
            return self._device.malloc(size)
        except OutOfDeviceMemory:
            return None

    def _give_back(self) -> None:
        for segment in self._idle.release():
            self._device.free(segment)

    def _tell(self, action: str, **fields: int) -> None:
        for recorder in self._device.recorders:
            recorder.event(action, gpu=0, stream=0, **fields)


class SimulatedAsyncPool:
    """An approximation of the driver's stream-ordered pool: pages are remapped, so only the sum counts."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit, self._next, self._peak = limit_bytes, _BASE, 0
        self._live: dict[int, int] = {}

    def malloc(self, size_bytes: int) -> int:
        """A block.

        Raises:
            OutOfDeviceMemory: the sum would exceed the limit.
        """
        size = -(-size_bytes // _UNIT) * _UNIT
        if self.allocated_bytes() + size > self._limit:
            raise OutOfDeviceMemory
        self._next += size
        self._live[self._next] = size
        self._peak = max(self._peak, -(-self.allocated_bytes() // _ASYNC_STEP) * _ASYNC_STEP)
        return self._next

    def free(self, address: int) -> None:
        """Gives a block back."""
        del self._live[address]

    def reserved_bytes(self) -> int:
        """Bytes held, in steps of 32 MiB."""
        return self._peak

    def allocated_bytes(self) -> int:
        """Bytes handed out."""
        return sum(self._live.values())

    def free_blocks(self) -> None:
        """Unknown: the driver shows no blocks."""
        return

    def close(self) -> None:
        """Frees everything."""
        self._live.clear()


class SlabPool:
    """The article's slab in one block of a device."""

    def __init__(self, device: SimulatedDevice, limit_bytes: int) -> None:
        self._device, self._limit = device, limit_bytes
        self._base = device.malloc(limit_bytes)
        self._arena = SlabArena(self._base, limit_bytes)

    def malloc(self, size_bytes: int) -> int:
        """A block.

        Raises:
            OutOfDeviceMemory: no idle range is large enough.
        """
        address = self._arena.malloc(size_bytes)
        if address is None:
            raise OutOfDeviceMemory
        return address

    def free(self, address: int) -> None:
        """Gives a block back."""
        self._arena.free(address)

    def reserved_bytes(self) -> int:
        """The whole arena."""
        return self._limit

    def allocated_bytes(self) -> int:
        """Bytes in blocks."""
        return self._arena.allocated_bytes

    def free_blocks(self) -> list[tuple[int, int]]:
        """The idle ranges."""
        return self._arena.free_blocks()

    def close(self) -> None:
        """Gives the arena back."""
        self._device.free(self._base)
