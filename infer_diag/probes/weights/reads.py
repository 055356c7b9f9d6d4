"""The ways in which a loader may read a file, each timed from open to the last byte in the program's own memory."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from infer_diag.probes.weights import page_cache

BLOCK_BYTES = 8 << 20
"""Bytes of one read; each reader has one buffer of that size and fills it again and again."""

READERS = 4

Read = Callable[[Path, int], None]


def plain(path: Path, step_bytes: int) -> None:
    """One `read` after the other."""
    with _opened(path) as descriptor:
        _stripe(descriptor, 0, path.stat().st_size)


def mapped(path: Path, step_bytes: int) -> None:
    """A memory map, copied out block by block, as safetensors' files are read."""
    buffer = bytearray(BLOCK_BYTES)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pages:
        view = memoryview(pages)
        for offset in range(0, len(pages), BLOCK_BYTES):
            block = view[offset : offset + BLOCK_BYTES]
            buffer[: len(block)] = block
            block.release()
        view.release()


def direct(path: Path, step_bytes: int) -> None:
    """`O_DIRECT`: past the page cache.

    Raises:
        OSError: the file system has no such reads.
    """
    with _opened(path, os.O_DIRECT) as descriptor:
        _stripe(descriptor, 0, path.stat().st_size)


def parallel(path: Path, step_bytes: int) -> None:
    """Four readers at a time, each on its own quarter of the file."""
    size = path.stat().st_size
    quarter = -(-size // READERS // BLOCK_BYTES) * BLOCK_BYTES
    with _opened(path) as descriptor, ThreadPoolExecutor(READERS) as readers:
        parts = [readers.submit(_stripe, descriptor, begin, begin + quarter) for begin in range(0, size, quarter)]
    for part in parts:
        part.result()


def advised(path: Path, step_bytes: int) -> None:
    """`WILLNEED` in steps over the whole file, then one `read` after the other."""
    page_cache.advise_in_steps(path, step_bytes)
    plain(path, step_bytes)


METHODS: dict[str, Read] = {
    "read": plain,
    "mmap": mapped,
    "direct": direct,
    "parallel_read": parallel,
    "willneed_steps_read": advised,
}


def timed(method: str, path: Path, step_bytes: int) -> float:
    """Seconds that one reading of the whole file takes.

    Raises:
        OSError: the method does not work on this file system.
    """
    begin = time.perf_counter()
    METHODS[method](path, step_bytes)
    return time.perf_counter() - begin


@contextmanager
def _opened(path: Path, flags: int = 0) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _stripe(descriptor: int, begin: int, end: int) -> None:
    """Reads up to `end` (or the file's) by offset, so that readers share one descriptor; the buffer is page-aligned."""
    with mmap.mmap(-1, BLOCK_BYTES) as buffer:
        for offset in range(begin, end, BLOCK_BYTES):
            taken = 0
            while taken < min(BLOCK_BYTES, end - offset):
                with memoryview(buffer)[taken:] as rest:
                    count = os.preadv(descriptor, [rest], offset + taken)
                if not count:
                    return
                taken += count
