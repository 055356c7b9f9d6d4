"""What the probes ask of a GPU: few enough calls that a simulated device can stand in for one, and says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol


class OutOfDeviceMemory(Exception):
    """An allocation failed; the probes count these, so they never reach a user."""


class Recorder(Protocol):
    """Takes an allocator's events as they happen."""

    def event(
        self,
        action: str,
        *,
        gpu: int,
        address: int | None = None,
        requested_bytes: int | None = None,
        allocated_bytes: int | None = None,
        stream: int | None = None,
    ) -> None:
        """One event; `action` is one of those of `schema.AllocatorEvents`."""


class Pool(Protocol):
    """An allocator under a limit."""

    def malloc(self, size_bytes: int) -> int:
        """The address of a new block.

        Raises:
            OutOfDeviceMemory: there is no room under the limit.
        """

    def free(self, address: int) -> None:
        """Gives the block back to the pool."""

    def reserved_bytes(self) -> int | None:
        """Bytes that the pool holds of the device; null where it does not tell."""

    def allocated_bytes(self) -> int | None:
        """Bytes that are handed out, after rounding; null where the pool does not tell."""

    def free_blocks(self) -> list[tuple[int, int]] | None:
        """(address, bytes) of every idle block; null where the pool does not tell."""

    def close(self) -> None:
        """Frees everything and gives it back to the device."""


class Device(Protocol):
    """A GPU, or what stands in for one."""

    basis: str
    """`measured` of a real device, `simulated` of any other."""

    def facts(self) -> dict[str, str | int]:
        """Model, memory, driver: what tells kinds of devices apart and no two devices of one kind."""

    def memory(self) -> tuple[int, int]:
        """(free, total) bytes of the device."""

    def malloc(self, size_bytes: int) -> int:
        """The address of a block straight from the driver, neither pooled nor managed.

        Raises:
            OutOfDeviceMemory: there is no room.
        """

    def free(self, address: int) -> None:
        """Gives such a block back."""

    def pools(self) -> Mapping[str, Callable[[int], Pool]]:
        """The allocators that can be compared here, by name, each made with a limit in bytes."""

    def recording(self, recorder: Recorder) -> AbstractContextManager[None]:
        """While it is entered, the events of this thread's CuPy pools go to the recorder."""


def current() -> Device:
    """The GPU that CuPy uses.

    Raises:
        ProbeUnavailable: CuPy is not installed, or finds no device.
    """
    from infer_diag.probes.cupy_device import CuPyDevice

    return CuPyDevice.current()
