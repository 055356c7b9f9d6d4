"""numba as the simulation loops use it: parts compiled into the loop that calls them, loops cached between runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def part(function: Function) -> Function:
    """The function compiled as a part of a loop; it is cached with the loop and not by itself."""
    return cast(Function, numba.njit(function))


def loop(function: Function) -> Function:
    """The function compiled, its machine code kept on disk.

    numba notices a change of the file that a function stands in and none of the parts that it calls, so a loop has to
    close over `sources_digest()`: what a function closes over is in the key of its cache.
    """
    return cast(Function, numba.njit(cache=True)(function))


@cache
def sources_digest() -> str:
    """Digest of this package's sources that hold parts of a loop, or the types that parts work on."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        source = path.read_bytes()
        if b"serving.compiled import" in source or path.name == "state.py":
            digest.update(source)
    return digest.hexdigest()
