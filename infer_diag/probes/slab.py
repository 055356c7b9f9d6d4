"""The article's allocator: requests rounded to 2 or 16 MiB inside one arena.

The article states only the alignment. That the rest is one arena with best fit, splitting and merging is our choice.
"""

from __future__ import annotations

from infer_diag.probes.free_ranges import FreeRanges

MIB = 1 << 20
SMALL_BYTES, LARGE_BYTES, SMALL_UP_TO_BYTES = 2 * MIB, 16 * MIB, 4 * MIB


def rounded(size_bytes: int) -> int:
    """Bytes that a request takes: a multiple of 2 MiB up to 4 MiB, of 16 MiB above (facts 4.3d)."""
    unit = SMALL_BYTES if size_bytes <= SMALL_UP_TO_BYTES else LARGE_BYTES
    return -(-size_bytes // unit) * unit


class SlabArena:
    """One range of memory out of which rounded blocks are served."""

    def __init__(self, base: int, size_bytes: int) -> None:
        self._idle = FreeRanges()
        self._idle.add(base, size_bytes)
        self._live: dict[int, int] = {}

    def malloc(self, size_bytes: int) -> int | None:
        """The address of a block, None where no idle range is large enough."""
        size = rounded(size_bytes)
        address = self._idle.take(size)
        if address is not None:
            self._live[address] = size
        return address

    def free(self, address: int) -> None:
        """Gives a block back."""
        self._idle.give(address, self._live.pop(address))

    @property
    def allocated_bytes(self) -> int:
        """Bytes in blocks, rounding included."""
        return sum(self._live.values())

    def free_blocks(self) -> list[tuple[int, int]]:
        """(address, bytes) of every idle range."""
        return self._idle.ranges()
