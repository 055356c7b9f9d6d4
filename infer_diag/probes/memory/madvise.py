"""What this kernel answers to advice on pages of host memory; none of it reaches the memory of a GPU."""

from __future__ import annotations

import ctypes
import errno
import mmap
import platform
import re
import sys
from pathlib import Path

import dataframely as dy
import polars as pl

HUGE_BYTES = 2 << 20
COLLAPSE = 25
"""`MADV_COLLAPSE` since Linux 6.1 (include/uapi/asm-generic/mman-common.h)."""
NO_ADVICE = 99
"""A number that no header gives to an advice."""
_HEADERS = (
    "/usr/include/asm-generic/mman-common.h",
    "/usr/include/bits/mman-linux.h",
    "/usr/include/x86_64-linux-gnu/bits/mman-linux.h",
    "/usr/include/aarch64-linux-gnu/bits/mman-linux.h",
)
_NAME = re.compile(r"#\s*define\s+(MADV_\w+)")


class MadviseAnswers(dy.Schema):
    """One row per advice and kind of mapping that was asked: `done`, or the name of the error."""

    advice = dy.String()
    mapping = dy.Enum(("private", "shared"))
    answer = dy.String()


def madvise_answers() -> dy.DataFrame[MadviseAnswers]:
    """What the running kernel says to MADV_COLLAPSE and to a number that is no advice, on 4 MiB of anonymous memory.

    Frame out: MadviseAnswers; none where this is no Linux.
    """
    if sys.platform != "linux":
        return MadviseAnswers.create_empty()
    rows = [
        {"advice": name, "mapping": mapping, "answer": _answer(number, flags)}
        for name, number in (("MADV_COLLAPSE", COLLAPSE), (f"advice {NO_ADVICE}", NO_ADVICE))
        for mapping, flags in (("private", mmap.MAP_PRIVATE), ("shared", mmap.MAP_SHARED))
    ]
    return MadviseAnswers.validate(pl.DataFrame(rows), cast=True)


def _answer(advice: int, flags: int) -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    with mmap.mmap(-1, 2 * HUGE_BYTES, flags=flags | mmap.MAP_ANONYMOUS) as area:
        area[:: mmap.PAGESIZE] = b"x" * (2 * HUGE_BYTES // mmap.PAGESIZE)
        held = ctypes.c_char.from_buffer(area)
        begin = -(-ctypes.addressof(held) // HUGE_BYTES) * HUGE_BYTES
        failed = libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(HUGE_BYTES), ctypes.c_int(advice))
        number = ctypes.get_errno()
        del held
    return "done" if failed == 0 else errno.errorcode.get(number, str(number))


def declared_advice() -> tuple[str, set[str]]:
    """(where names of advice were looked for, the names): C headers where they are installed, and Python's module."""
    names = {name for name in dir(mmap) if name.startswith("MADV_")}
    headers = [path for path in map(Path, _HEADERS) if path.is_file()]
    for path in headers:
        names |= set(_NAME.findall(path.read_text(errors="replace")))
    where = ", ".join(str(path) for path in headers) or "no C header is installed here"
    return f"{where}; Python's mmap module", names


def kernel() -> str:
    """The kernel that answers."""
    return f"{platform.system()} {platform.release()}"
