"""Make a start cold: no compiled artefact, and no file of the model or the interpreter in the page cache."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def empty_caches(compiled: Path, *folders: Path) -> None:
    """Delete the folder ``compiled`` and drop every file below ``folders`` from the page cache.

    The kernel keeps pages that are dirty or mapped by a process that still runs; nothing else is asked of it, so
    other programs keep their files.
    """
    shutil.rmtree(compiled, ignore_errors=True)
    for folder in folders:
        for parent, _, names in os.walk(folder):
            for name in names:
                _drop(Path(parent) / name)


def _drop(path: Path) -> None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)
