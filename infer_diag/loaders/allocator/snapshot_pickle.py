"""PyTorch's memory snapshots as plain data, their events as columns while the pickle is still being read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from infer_diag.errors import SourceError
from infer_diag.loaders.allocator.event_columns import EventColumns
from infer_diag.loaders.allocator.refusing_pickle import Refusing, unpickled
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.loader import Options

_BLOCK_BYTES = 1 << 20
_MEMO = rb"(?:\x94|q.|r.{4})"
_FIRST_EVENTS = re.compile(
    rb"(\x8c|X)\x0d(\0\0\0|)device_traces(" + _MEMO + rb"\]" + _MEMO + rb"\(?(?:\]" + _MEMO + rb")*)\]"
    rb"(?=" + _MEMO + rb"\(\}" + _MEMO + rb"\()",
    re.DOTALL,
)
"""Opcodes of the key `device_traces`, its list, empty lists of devices that recorded nothing, and then the list that
the first events are about to fill. `\\x94`, `q` and `r` number an object, `]` is a new list, `(` begins its contents,
`}` is a new dictionary."""

_RENAMED = b"device_trace"
_LOOKED_BACK = 256


class Snapshot:
    """`segments` as the recorder wrote them, and the events of each device.

    `simulated_by`: what made them where no allocator did; null for a recorded snapshot.
    """

    def __init__(self, segments: list[Any], events: dict[int, EventColumns], simulated_by: str | None = None) -> None:
        self.segments = segments
        self.events = events
        self.simulated_by = simulated_by


def read_snapshot(file: LogFile, options: Options) -> Snapshot:
    """The snapshot in a file.

    Raises:
        SourceError: the file is no pickle of plain data, or its data is no snapshot.
    """
    redirected: list[EventColumns] = []
    blocks = _redirected(_counted(file, options), redirected)
    data = unpickled(blocks, file.label, file.size_bytes or _BLOCK_BYTES, _handing_out(redirected))
    segments, traces = _parts(data)
    if segments is None:
        raise SourceError(
            f"{file.label} is a pickle, but no snapshot of PyTorch's memory",
            hint="write one with torch.cuda.memory._dump_snapshot(path)",
        )
    events = {}
    for device, trace in enumerate(traces):
        if isinstance(trace, list):
            columns = EventColumns()
            columns.extend(trace)
            trace = columns
        if isinstance(trace, EventColumns):
            events[device] = trace
    made = data.get("simulated_by") if isinstance(data, dict) else None
    return Snapshot(segments, events, made if isinstance(made, str) else None)


def _parts(data: Any) -> tuple[list[Any] | None, list[Any]]:
    """(segments, traces); no segments where the data is something else."""
    if isinstance(data, list) and data and all(isinstance(each, dict) and "blocks" in each for each in data):
        return data, []
    if not isinstance(data, dict) or not isinstance(data.get("segments"), list):
        return None, []
    traces = data.get("device_traces", data.get(_RENAMED.decode()))
    return data["segments"], traces if isinstance(traces, list) else []


def _handing_out(redirected: list[EventColumns]) -> type[Refusing]:
    class SnapshotUnpickler(Refusing):
        """Hands out the columns, once, where `_redirected` asks for them."""

        def persistent_load(self, pid: Any) -> Any:
            return redirected.pop() if pid is None and redirected else super().persistent_load(pid)

    return SnapshotUnpickler


def _counted(file: LogFile, options: Options) -> Iterator[bytes]:
    for block in file.blocks(_BLOCK_BYTES):
        options.on_bytes(len(block))
        yield block


def _redirected(blocks: Iterator[bytes], redirected: list[EventColumns]) -> Iterator[bytes]:
    """The pickle with a reference to an outer object in place of the list that the first events fill.

    The reference takes a byte more than the list, so that the key before it gives up its last letter: the lengths that
    the pickle states of itself stay right. A pickle that is laid out in another way is left as it is.
    """
    kept = b""
    for block in blocks:
        data = kept + block
        match = _FIRST_EVENTS.search(data) if b"device_traces" in data else None
        if match is not None:
            redirected.append(EventColumns())
            opcode, high, before = match.groups()
            key = opcode + bytes([len(_RENAMED)]) + high + _RENAMED
            yield b"".join((data[: match.start()], key, before, b"NQ", data[match.end() :]))
            yield from blocks
            return
        yield data[:-_LOOKED_BACK]
        kept = data[-_LOOKED_BACK:]
    yield kept
