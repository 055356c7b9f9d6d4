"""Events of PyTorch's recorder, taken out of their dictionaries as fast as these are built."""

from __future__ import annotations

from collections import deque
from operator import itemgetter
from typing import Any, NoReturn

import polars as pl

from infer_diag.loaders.allocator.refusing_pickle import RefusedError
from infer_diag.schema import AllocatorEvents

ACTIONS = {
    "alloc": "alloc",
    "free_requested": "free_requested",
    "free_completed": "free",
    "segment_alloc": "segment_alloc",
    "segment_free": "segment_free",
    "segment_map": "segment_map",
    "segment_unmap": "segment_unmap",
    "oom": "oom",
    "snapshot": "snapshot",
    "workspace_snapshot": "snapshot",
}
"""The recorder's actions as actions of `schema.AllocatorEvents`."""

_ENUM = pl.Enum(AllocatorEvents.create_empty()["action"].dtype.categories)  # type: ignore[attr-defined]
_PLACES = {name: list(_ENUM.categories).index(action) for name, action in ACTIONS.items()}
_FAILED = _PLACES["oom"]
_KEYS = ("action", "addr", "size", "stream", "time_us", "frames")
_GETTERS = tuple(itemgetter(key) for key in _KEYS)
_COLUMNS: dict[str, type[pl.DataType]] = {
    "action": pl.UInt8,
    "addr": pl.UInt64,
    "size": pl.UInt64,
    "stream": pl.UInt64,
    "time_us": pl.Int64,
}
_ROWS_HELD = 1 << 15
"""Rows held as Python numbers, which take five times the room of a column's."""


class EventColumns:
    """Stands where a list of events belongs: an unpickler hands it every thousand of them and forgets them.

    Each dictionary is emptied once it is read, which frees most of what it takes although the unpickler goes on to hold
    it. The stacks go the same way, as no frame holds them. `unknown` are the actions that no rule knows, `damaged`
    counts what is no event.
    """

    __slots__ = ("_free", "_held", "_parts", "damaged", "rows", "unknown")

    def __init__(self) -> None:
        self._held: list[list[Any]] = [[] for _ in _COLUMNS]
        self._free: dict[int, Any] = {}
        self._parts: list[pl.DataFrame] = []
        self.rows = 0
        self.damaged = 0
        self.unknown: set[str] = set()

    def append(self, event: Any) -> None:
        """Takes one event."""
        self.extend([event])

    def extend(self, events: list[Any]) -> None:
        """Takes the events and empties them."""
        try:
            *values, frames = (list(map(getter, events)) for getter in _GETTERS)
            values[0] = list(map(_PLACES.get, values[0]))
            if None in values[0] or _FAILED in values[0]:
                raise KeyError
            deque(map(list.clear, frames), 0)
        except (KeyError, TypeError):
            self._extend_uneven(events)
        else:
            for held, found in zip(self._held, values, strict=True):
                held += found
            self.rows += len(events)
            deque(map(dict.clear, events), 0)
        if len(self._held[0]) >= _ROWS_HELD:
            self._freeze()

    def _extend_uneven(self, events: list[Any]) -> None:
        """Events of which some lack a key: failed allocations, and all events of early versions."""
        for event in events:
            action = event.get("action") if type(event) is dict else None
            if type(action) is not str:
                self.damaged += 1
                continue
            if action not in _PLACES:
                self.unknown.add(action)
                continue
            if _PLACES[action] == _FAILED:
                self._free[self.rows] = event.get("device_free")
            self._held[0].append(_PLACES[action])
            for held, key in zip(self._held[1:], _KEYS[1:-1], strict=True):
                held.append(event.get(key))
            self.rows += 1
            event.clear()

    def __setstate__(self, state: Any) -> NoReturn:
        """Refuses what a pickle would make of it.

        Raises:
            RefusedError: always.
        """
        raise RefusedError("a change of its reader")

    def _freeze(self) -> None:
        named = zip(_COLUMNS.items(), self._held, strict=True)
        self._parts.append(pl.DataFrame([column(name, held, kind) for (name, kind), held in named]))
        self._held = [[] for _ in _COLUMNS]

    def frame(self) -> pl.DataFrame:
        """The events so far under the recorder's own names, null where a value is no number of its column."""
        if self._held[0] or not self._parts:
            self._freeze()
        whole = pl.concat(self._parts)
        free = pl.DataFrame(
            [
                pl.Series("row", list(self._free), pl.UInt32),
                column("device_free", list(self._free.values()), pl.UInt64),
            ]
        )
        told = (
            pl.Series("device_free", [None], pl.UInt64).extend_constant(None, max(len(whole) - 1, 0)).head(len(whole))
        )
        if len(free):
            told = told.scatter(free["row"], free["device_free"])
        return whole.with_columns(pl.col("action").cat.to(_ENUM), told)


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
