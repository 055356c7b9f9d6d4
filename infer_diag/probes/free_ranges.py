"""Idle address ranges with best fit and merging of neighbours."""

from __future__ import annotations

from bisect import bisect_left, insort


class FreeRanges:
    """Idle ranges of several segments; ranges of different segments never merge.

    The smallest range that is large enough serves a request, the lowest address among equals; what is left of it stays
    idle.
    """

    def __init__(self) -> None:
        self._by_size: list[tuple[int, int]] = []
        self._sizes: dict[int, int] = {}
        self._begins: dict[int, int] = {}
        self._segments: dict[int, int] = {}

    def add(self, address: int, size: int) -> None:
        """Adds a segment, idle as a whole."""
        self._segments[address] = size
        self._put(address, size)

    def take(self, size: int) -> int | None:
        """The address of a block of this size; None where no range is large enough."""
        place = bisect_left(self._by_size, (size, 0))
        if place == len(self._by_size):
            return None
        found, address = self._by_size[place]
        self._drop(address)
        if found > size:
            self._put(address + size, found - size)
        return address

    def give(self, address: int, size: int) -> None:
        """Makes a block idle and merges it with its idle neighbours of the same segment."""
        after = address + size
        if after in self._sizes and after not in self._segments:
            size += self._drop(after)
        before = self._begins.get(address)
        if before is not None and address not in self._segments:
            size, address = size + self._drop(before), before
        self._put(address, size)

    def release(self) -> list[int]:
        """Removes the segments that are idle as a whole and returns their addresses."""
        whole = [base for base, size in self._segments.items() if self._sizes.get(base) == size]
        for base in whole:
            self._drop(base)
            del self._segments[base]
        return whole

    def ranges(self) -> list[tuple[int, int]]:
        """(address, bytes) of every idle range, by address."""
        return sorted(self._sizes.items())

    @property
    def reserved(self) -> int:
        """Bytes of all segments."""
        return sum(self._segments.values())

    def _put(self, address: int, size: int) -> None:
        insort(self._by_size, (size, address))
        self._sizes[address] = size
        self._begins[address + size] = address

    def _drop(self, address: int) -> int:
        size = self._sizes.pop(address)
        del self._begins[address + size]
        del self._by_size[bisect_left(self._by_size, (size, address))]
        return size
