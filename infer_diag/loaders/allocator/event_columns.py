"""Events of PyTorch's recorder, taken out of their dictionaries as fast as these are built."""

from __future__ import annotations

from collections import deque
from operator import itemgetter
from typing import Any, NoReturn

import polars as pl

from infer_diag.loaders.allocator.refusing_pickle import RefusedError

_KEYS = ("action", "addr", "size", "stream", "time_us", "frames")
_GETTERS = tuple(itemgetter(key) for key in _KEYS)
_COLUMNS: dict[str, type[pl.DataType]] = {
    "action": pl.String,
    "addr": pl.UInt64,
    "size": pl.UInt64,
    "stream": pl.UInt64,
    "time_us": pl.Int64,
    "device_free": pl.UInt64,
}
_ROWS_HELD = 1 << 17
"""Rows held as Python numbers, which take five times the room of a column's."""


class EventColumns:
    """Stands where a list of events belongs: an unpickler hands it every thousand of them and forgets them.

    Each dictionary is emptied once it is read, which frees most of what it takes although the unpickler goes on to hold
    it. The stacks go the same way, as no frame holds them.
    """

    __slots__ = ("_held", "_parts", "damaged")

    def __init__(self) -> None:
        self._held: list[list[Any]] = [[] for _ in _COLUMNS]
        self._parts: list[pl.DataFrame] = []
        self.damaged = 0

    def append(self, event: Any) -> None:
        """Takes one event."""
        self.extend([event])

    def extend(self, events: list[Any]) -> None:
        """Takes the events and empties them; what is no dictionary is counted in `damaged`."""
        try:
            *values, frames = (list(map(getter, events)) for getter in _GETTERS)
            if "oom" in values[0]:
                raise KeyError
            deque(map(list.clear, frames), 0)
        except (KeyError, TypeError):
            self._extend_uneven(events)
        else:
            for held, found in zip(self._held, (*values, [None] * len(events)), strict=True):
                held += found
            deque(map(dict.clear, events), 0)
        if len(self._held[0]) >= _ROWS_HELD:
            self._freeze()

    def _extend_uneven(self, events: list[Any]) -> None:
        """Events of which some lack a key: failed allocations, and all events of early versions."""
        whole = [event for event in events if type(event) is dict]
        self.damaged += len(events) - len(whole)
        for held, key in zip(self._held, _COLUMNS, strict=True):
            held += [event.get(key) for event in whole]
        deque(map(dict.clear, whole), 0)

    def __setstate__(self, state: Any) -> NoReturn:
        """Refuses what a pickle would make of it.

        Raises:
            RefusedError: always.
        """
        raise RefusedError("a change of its reader")

    def _freeze(self) -> None:
        self._parts.append(pl.DataFrame([column(name, held, _COLUMNS[name]) for name, held in self._named()]))
        self._held = [[] for _ in _COLUMNS]

    def _named(self) -> list[tuple[str, list[Any]]]:
        return list(zip(_COLUMNS, self._held, strict=True))

    def frame(self) -> pl.DataFrame:
        """The events so far under the recorder's own names, null where a value is no number of its column."""
        if self._held[0] or not self._parts:
            self._freeze()
        return pl.concat(self._parts)


def column(name: str, values: list[Any], kind: type[pl.DataType]) -> pl.Series:
    """The values as a column, null where one does not fit."""
    try:
        return pl.Series(name, values, dtype=kind, strict=True)
    except (TypeError, OverflowError, ValueError, pl.exceptions.PolarsError):
        kept = [value if _fits(value, kind) else None for value in values]
        return pl.Series(name, kept, dtype=kind, strict=False)


def _fits(value: Any, kind: type[pl.DataType]) -> bool:
    if kind == pl.String:
        return type(value) is str and value.isascii()
    return type(value) is (bool if kind == pl.Boolean else int)
