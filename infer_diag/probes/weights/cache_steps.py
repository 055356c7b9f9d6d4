"""The page cache after each call: what DONTNEED empties and how much WILLNEED brings back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from infer_diag.probes.weights import page_cache, reads

Call = Callable[[Path, int], None]


def _drop(path: Path, step_bytes: int) -> None:
    page_cache.drop(path)


def _advise_once(path: Path, step_bytes: int) -> None:
    page_cache.advise_once(path)


READ, DONTNEED, ONE_WILLNEED, WILLNEED_STEPS = "read", "DONTNEED", "one WILLNEED", "WILLNEED in steps"
_CALLS: dict[str, Call] = {
    READ: reads.plain,
    DONTNEED: _drop,
    ONE_WILLNEED: _advise_once,
    WILLNEED_STEPS: page_cache.advise_in_steps,
}
SEQUENCES: dict[str, tuple[str, ...]] = {
    "article": (READ, DONTNEED, ONE_WILLNEED),
    "stepwise": (READ, DONTNEED, ONE_WILLNEED, DONTNEED, WILLNEED_STEPS),
}
"""`article`: a warm cache, then the article's two calls in its order. `stepwise` ends with the whole file cached."""


def cache_steps(path: Path, step_bytes: int, repeat: int) -> Iterator[dict[str, Any]]:
    """Rows of `frames.CacheSteps`: both sequences once, with the residency after each call.

    Every other repetition begins with the other sequence, so that a drift of the machine falls on both.
    """
    size = path.stat().st_size
    for sequence in list(SEQUENCES)[:: 1 if repeat % 2 else -1]:
        for place, call in enumerate(SEQUENCES[sequence], 1):
            begin = time.perf_counter()
            _CALLS[call](path, step_bytes)
            duration = time.perf_counter() - begin
            held = page_cache.settled(path) if "WILLNEED" in call else page_cache.residency(path)
            yield {
                "repeat_id": repeat,
                "sequence": sequence,
                "step_id": place,
                "call": call,
                "file_bytes": size,
                "resident_bytes": held.resident_bytes,
                "resident_ratio": held.ratio,
                "duration_s": duration,
            }
