"""How much of a file the kernel's page cache holds, and the calls that empty and fill it."""

from __future__ import annotations

import ctypes
import os
import time
from dataclasses import dataclass
from pathlib import Path

from infer_diag.errors import ProbeUnavailable

_WINDOW_BYTES = 1 << 30
_PROT_READ, _MAP_SHARED = 1, 1
_FAILED = ctypes.c_void_p(-1).value
_LOWEST_BIT = bytes(value & 1 for value in range(256))
_SETTLE_POLLS, _POLL_S, _SETTLE_LIMIT_S = 4, 0.01, 10.0


@dataclass(frozen=True)
class Residency:
    """Bytes of a file in the page cache, whole pages; null where the kernel does not tell this user."""

    resident_bytes: int | None
    size_bytes: int

    @property
    def ratio(self) -> float | None:
        """Share of the file that is cached."""
        if self.resident_bytes is None or not self.size_bytes:
            return None
        return self.resident_bytes / self.size_bytes


def require() -> None:
    """Returns where this system can tell and change what it caches.

    Raises:
        ProbeUnavailable: it is no Linux.
    """
    if not hasattr(os, "posix_fadvise") or os.uname().sysname != "Linux":
        raise ProbeUnavailable("the page cache can be probed on Linux alone", hint="run it on the GPU server itself")


def residency(path: Path) -> Residency:
    """How much of the file is cached, by `mincore` over a mapping that touches no page.

    `mincore` reports every page of a file as cached to a user who neither owns it nor may write to it (since Linux
    5.2), so for such a user the answer is null.
    """
    require()
    size = path.stat().st_size
    if not (os.geteuid() == path.stat().st_uid or os.access(path, os.W_OK)):
        return Residency(None, size)
    with path.open("rb") as file:
        windows = range(0, size, _WINDOW_BYTES)
        pages = sum(_pages(file.fileno(), offset, min(_WINDOW_BYTES, size - offset)) for offset in windows)
    return Residency(min(pages * _page_bytes(), size), size)


def write_out(path: Path) -> None:
    """Writes the file's dirty pages to storage, since `drop` leaves those where they are."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def drop(path: Path) -> None:
    """`POSIX_FADV_DONTNEED` on the whole file; pages that are dirty, locked or mapped by a process stay."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def advise_once(path: Path) -> None:
    """One `POSIX_FADV_WILLNEED` on the whole file, as the article does it."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, path.stat().st_size, os.POSIX_FADV_WILLNEED)


def advise_in_steps(path: Path, step_bytes: int) -> None:
    """`POSIX_FADV_WILLNEED` on one piece after the other, each no longer than the kernel reads ahead at a time."""
    with path.open("rb") as file:
        for offset in range(0, path.stat().st_size, step_bytes):
            os.posix_fadvise(file.fileno(), offset, step_bytes, os.POSIX_FADV_WILLNEED)


def settled(path: Path) -> Residency:
    """The residency once it has stopped growing, since `WILLNEED` only begins the reading; ten seconds at most."""
    end, same, last = time.monotonic() + _SETTLE_LIMIT_S, 0, residency(path)
    while same < _SETTLE_POLLS and time.monotonic() < end:
        time.sleep(_POLL_S)
        now = residency(path)
        same, last = (same + 1 if now == last else 0), now
    return last


def _pages(descriptor: int, offset: int, length: int) -> int:
    libc = _libc()
    address = libc.mmap(None, length, _PROT_READ, _MAP_SHARED, descriptor, offset)
    if address == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        states = (ctypes.c_ubyte * -(-length // _page_bytes()))()
        if libc.mincore(address, length, states):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        libc.munmap(address, length)
    return bytes(states).translate(_LOWEST_BIT).count(1)


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    integer, pointer = ctypes.c_int, ctypes.c_void_p
    libc.mmap.argtypes = (pointer, ctypes.c_size_t, integer, integer, integer, ctypes.c_int64)
    libc.mmap.restype = pointer
    libc.mincore.argtypes = (pointer, ctypes.c_size_t, pointer)
    libc.munmap.argtypes = (pointer, ctypes.c_size_t)
    return libc


def _page_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE")
