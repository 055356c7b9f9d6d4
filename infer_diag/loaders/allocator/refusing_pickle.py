"""Pickles of plain data, read by an unpickler that resolves nothing: no name, no extension, no reference outside.

A pickle is a program. Without a callable it can only build dictionaries, lists, tuples, sets, strings and numbers, so
what is refused is every way to one. What remains is its use of memory, which is bounded here.
"""

from __future__ import annotations

import copyreg
import gc
import io
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from infer_diag.errors import SourceError

PICKLE_LIMIT = 16 << 30
"""Bytes of a pickle, decompressed; PyTorch's recorder fills that with some hundred million events."""

_MEMORY_FLOOR = 4 << 30
_MEMORY_PER_BYTE = 64
"""Objects take 6 to 30 bytes for each byte of a pickle; a few opcodes can ask for gigabytes without giving any."""


class RefusedError(Exception):
    """A pickle asks for something outside itself."""


class Refusing(pickle.Unpickler):
    """Builds plain data and raises at anything else."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuses every name.

        Raises:
            RefusedError: always.
        """
        raise RefusedError(f"{module[:60]}.{name[:60]}")

    def persistent_load(self, pid: Any) -> Any:
        """Refuses every reference to an object outside.

        Raises:
            RefusedError: always.
        """
        raise RefusedError("an object that lies outside the file")


class BlockStream(io.RawIOBase):
    """Blocks of bytes as one stream, as an unpickler reads it."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._block = memoryview(b"")

    def readable(self) -> bool:
        """A stream to read from."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Copies as many bytes as there are at hand; none at the end."""
        if not self._block:
            self._block = memoryview(next(self._blocks, b""))
        size = min(len(buffer), len(self._block))
        buffer[:size] = self._block[:size]
        self._block = self._block[size:]
        return size


def unpickled(blocks: Iterator[bytes], label: str, size_bytes: int, unpickler: type[Refusing] = Refusing) -> Any:
    """The plain data of a pickle; the garbage collector rests meanwhile, since such data has no cycles to find.

    Raises:
        SourceError: the pickle names code, breaks off, is damaged, or asks for more memory than its size accounts for.
    """
    copyreg.clear_extension_cache()
    stream = io.BufferedReader(BlockStream(_bounded(blocks, label)), 1 << 17)
    collects = gc.isenabled()
    gc.disable()
    try:
        with _bounded_memory(_MEMORY_FLOOR + _MEMORY_PER_BYTE * size_bytes):
            return unpickler(stream).load()
    except RefusedError as error:
        raise SourceError(
            f"{label} is a pickle that asks for {error}: nothing of it was run, and it is not read",
            hint="a memory snapshot holds plain data only; ask where this file comes from",
        ) from None
    except EOFError as error:
        raise SourceError(f"{label} breaks off: the pickle has no end", hint="copy or dump it again") from error
    except (MemoryError, RecursionError) as error:
        raise SourceError(
            f"{label} asks for more memory or depth than a snapshot of its size can", hint="no recorder writes it so"
        ) from error
    except SourceError:
        raise
    except Exception as error:  # damaged opcodes raise whatever the operation they stand for raises
        raise SourceError(f"{label} is a damaged pickle ({str(error)[:80]})", hint="copy or dump it again") from error
    finally:
        if collects:
            gc.enable()


def _bounded(blocks: Iterator[bytes], label: str) -> Iterator[bytes]:
    size = 0
    for block in blocks:
        size += len(block)
        if size > PICKLE_LIMIT:
            raise SourceError(
                f"{label} holds more than {PICKLE_LIMIT >> 30} GiB", hint="record with fewer max_entries and dump again"
            )
        yield block


@contextmanager
def _bounded_memory(allowance: int) -> Iterator[None]:
    """Limits how much more address space the process may take, where the system can: a memo index alone asks for it."""
    if not sys.platform.startswith("linux"):
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", "rb") as statm:  # noqa: PTH123
        wanted = int(statm.read().split()[0]) * resource.getpagesize() + allowance
    tighter = soft == resource.RLIM_INFINITY or wanted < soft
    if tighter:
        resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))
    try:
        yield
    finally:
        if tighter:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
