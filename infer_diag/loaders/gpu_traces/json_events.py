"""Events of a chrome trace, decoded a few thousand at a time into typed records: the whole is never in memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from infer_diag.errors import SourceError
from infer_diag.loaders.files import LogFile
from infer_diag.loaders.loader import Options

_CHUNK_BYTES = 4 << 20
_ELEMENT_LIMIT = 64 << 20
"""Bytes without the end of an event; what stands before and after the events may be as long."""

_DAMAGE_LIMIT = 1000
_BEGIN = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
_OUT_OF_RANGE = re.compile(rb"-?[0-9.]+[eE]\+?[0-9]{3,}")
_PLACE = re.compile(r"\(byte (\d+)\)")


class Args(msgspec.Struct, gc=False):
    """What an event says beyond its time; profilers write more, which is skipped undecoded."""

    device: int | None = None
    stream: int | str | None = None
    correlation: int | None = None
    bytes: int | float | None = None
    device_type: int | None = msgspec.field(name="Device Type", default=None)
    device_id: int | None = msgspec.field(name="Device Id", default=None)
    address: int | None = msgspec.field(name="Addr", default=None)
    size: int | None = msgspec.field(name="Bytes", default=None)
    total_allocated: int | None = msgspec.field(name="Total Allocated", default=None)
    total_reserved: int | None = msgspec.field(name="Total Reserved", default=None)


class Event(msgspec.Struct, gc=False):
    """One event: microseconds, and a category that says what it is."""

    cat: str | None = None
    name: str | None = None
    ts: float | None = None
    dur: float | None = None
    pid: int | str | None = None
    args: Args | None = None


_DECODER = msgspec.json.Decoder(list[Event])
_FIRST_STEP = 64
_CANDIDATES = 20_000
"""Objects inside one event, one in the other or side by side, before it is taken for none."""


@dataclass
class _Read:
    """What a text gave: its events, what further text may complete, and the text from the end of all events on."""

    events: list[Event] = field(default_factory=list)
    unread: bytes = b""
    over: bytes | None = None


class TraceEvents:
    """Reads one file; `metadata`, `damaged` and the file's `cut` are known once `batches` has run out."""

    def __init__(self, file: LogFile, options: Options) -> None:
        self._file, self._options = file, options
        self.metadata: dict[str, Any] = {}
        self.damaged = 0

    def batches(self) -> Iterator[list[Event]]:
        """The events in the order of the file.

        Raises:
            SourceError: the file is no trace, nests too deeply, or has an event (or a place without one) too large.
        """
        blocks = self._blocks()
        rest = self._after_head(blocks)
        for block in blocks:
            self._check_size(rest)
            rest += block
            end = _last_boundary(rest)
            if end is None:
                continue
            follows = rest.index(b"{", end + 1)
            try:
                yield _DECODER.decode(b"".join((b"[", memoryview(rest)[: end + 1], b"]")))
            except (msgspec.DecodeError, RecursionError):
                read = self._decoded(rest[: end + 1], b"]")
            else:
                rest = rest[follows:]
                continue
            yield read.events
            if read.over is not None:
                self._read_tail(read.over + rest[end + 1 :], blocks)
                return
            rest = read.unread + rest[end + 1 :] if read.unread else rest[follows:]
        read = self._decoded(rest, b"")
        yield read.events
        if read.over is None:
            self._file.cut = True
        else:
            self._read_tail(read.over, blocks)

    def _blocks(self) -> Iterator[bytes]:
        for block in self._file.blocks(_CHUNK_BYTES):
            self._options.on_bytes(len(block))
            yield block

    def _after_head(self, blocks: Iterator[bytes]) -> bytes:
        head = b""
        for block in blocks:
            head += block
            stripped = head.lstrip(b"\xef\xbb\xbf \t\r\n")
            if stripped.startswith(b"["):
                return stripped[1:]
            match = _BEGIN.search(head)
            if match is not None:
                self._add_metadata(head[: match.end()] + b"]}")
                return head[match.end() :]
            self._check_size(head)
        raise SourceError(
            f"{self._file.label} holds no traceEvents", hint="give the profiler's trace as it was exported"
        )

    def _read_tail(self, tail: bytes, blocks: Iterator[bytes]) -> None:
        for block in blocks:
            tail += block
            self._check_size(tail)
        self._add_metadata(b'{"":[' + tail)

    def _add_metadata(self, text: bytes) -> None:
        """Adds what an object says, if it can be read; a trace without it is still one."""
        try:
            found = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return
        if isinstance(found, dict):
            self.metadata |= found

    def _check_size(self, text: bytes) -> None:
        if len(text) > _ELEMENT_LIMIT:
            raise SourceError(
                f"{self._file.label} holds {_ELEMENT_LIMIT >> 20} MiB without one whole event",
                hint="no profiler writes such a trace; export it again",
            )

    def _decoded(self, text: bytes, closing: bytes) -> _Read:
        """The events of a text that begins with one; `closing` is put behind it."""
        read, back = _Read(), 0
        decode: Callable[[bytes], list[Event]] = _DECODER.decode
        while text:
            try:
                read.events += decode(b"[" + text + closing)
                read.over = b"]" if not closing else read.over
                break
            except msgspec.ValidationError as error:
                if "out of range" in str(error):
                    text = self._within_range(text)
                else:
                    decode = self._loosely
            except RecursionError as error:
                raise SourceError(
                    f"{self._file.label} nests JSON too deeply to be read", hint="no profiler writes such a file"
                ) from error
            except msgspec.DecodeError as error:
                complaint = str(error)
                if "truncated" in complaint:
                    end = _last_boundary(text[: max(len(text) - back, 0)])
                    cut = 0 if end is None else end + 1
                    read.unread = text[cut:] + read.unread
                    text, closing, back = text[:cut], b"]", max(2 * back, _FIRST_STEP)
                elif "UTF-8" in complaint:
                    text = text.decode("utf-8", "replace").encode()
                elif "trailing" in complaint:
                    cut = max(text.rfind(b"]", 0, _place(complaint) + 1), 0)
                    text, closing, read.over = text[:cut], b"]", text[cut:]
                else:
                    text = self._mended(text, _place(complaint), read)
        read.unread = read.unread.lstrip(b", \t\r\n")
        return read

    def _mended(self, text: bytes, at: int, read: _Read) -> bytes:
        """The text after an event that cannot be read because of its place `at`; adds the events before it."""
        self.damaged += 1
        if self.damaged > _DAMAGE_LIMIT:
            raise SourceError(f"{self._file.label} is damaged throughout", hint="export it again")
        before, after = _last_boundary(text[: at + 1]), _BETWEEN.search(text, max(at - 1, 0))
        if before is not None:
            read.events += self._decoded(text[: before + 1], b"]").events
        return text[after.end() :] if after is not None else b""

    def _within_range(self, text: bytes) -> bytes:
        """The text with null in place of numbers that no machine holds."""
        mended, count = _OUT_OF_RANGE.subn(b"null", text)
        self.damaged += count
        if not count:
            raise SourceError(f"{self._file.label} holds numbers that cannot be read", hint="export it again")
        return mended

    def _loosely(self, piece: bytes) -> list[Event]:
        """Events among which some hold a value of another type; those are left out and counted."""
        events = []
        values = msgspec.json.decode(piece)
        for value in values if isinstance(values, list) else []:
            try:
                events.append(msgspec.convert(value, Event, strict=False))
            except msgspec.ValidationError:
                self.damaged += 1
        return events


def _place(complaint: str) -> int:
    """Where in the text a complaint about the text behind one bracket points; the byte it names is read by then."""
    found = _PLACE.search(complaint)
    return max(int(found[1]) - 2, 0) if found is not None else 0


def _last_boundary(text: bytes) -> int | None:
    """Where the last object that another one follows ends: the index of its brace."""
    at = len(text)
    for _ in range(_CANDIDATES):
        if (at := text.rfind(b"{", 0, at)) <= 0:
            break
        before = text[max(at - 64, 0) : at].rstrip()
        if before.endswith(b",") and (closed := before[:-1].rstrip()).endswith(b"}"):
            return max(at - 64, 0) + len(closed) - 1
    return None
