"""Measures of how broken up free memory is, each with what it sees and what it is blind to.

All take the sizes of the holes of one pool, in bytes: holes of different pools never serve the same request, and no
hole of one segment joins that of another.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Cause = Literal["fits", "fragmentation", "exhausted"]

INDEX_THRESHOLD = 0.5
"""Linux reclaims instead of compacting up to this index (`vm.extfrag_threshold`, default 500 of 1,000)."""


def _sizes(holes: ArrayLike) -> Floats:
    sizes = np.asarray(holes, np.float64)
    return sizes[sizes > 0]


def external_frag_ratio(holes: ArrayLike) -> float | None:
    """1 − largest / free; null where nothing is free.

    The article's measure, and that of RMM's arena (`arena.hpp`). It knows no request: ten equal holes give 0.9 however
    large they are, and a single hole gives 0 however small it is, so alone it tells neither harm nor health.
    """
    sizes = _sizes(holes)
    return float(1 - sizes.max() / sizes.sum()) if len(sizes) else None


def unusable_ratio(holes: ArrayLike, request_bytes: float) -> float | None:
    """1 − Σ holes ≥ request / free: the share of free bytes that one such request cannot use; null without free bytes.

    Gorman and Whitcroft, "Measuring the impact of the Linux memory anti-fragmentation policy", 2006. It depends on the
    request, and 1 does not tell whether the bytes are broken up or too few (`failure_index` does).
    """
    sizes = _sizes(holes)
    return float(1 - sizes[sizes >= request_bytes].sum() / sizes.sum()) if len(sizes) else None


def unpackable_ratio(holes: ArrayLike, request_bytes: float) -> float | None:
    """1 − request · Σ ⌊hole / request⌋ / free: what stays over once as many such requests as fit are in.

    Linux computes its unusable index so (`mm/vmstat.c`), where sizes are powers of two. It counts the rest of a hole
    that serves, so it is never below `unusable_ratio` and does not fall as holes grow.
    """
    sizes = _sizes(holes)
    if not len(sizes):
        return None
    return float(1 - request_bytes * np.floor(sizes / request_bytes).sum() / sizes.sum())


def weighted_unusable_ratio(holes: ArrayLike, request_bytes: ArrayLike, counts: ArrayLike) -> float | None:
    """Σ_r w_r · `unusable_ratio`(r) with w_r the share of all requested bytes that requests of size r ask for.

    The sizes and how often each is asked for come from the recording, which frees the index from a badly chosen
    request; it says nothing of requests that the recording never made. Null without free bytes or requests.
    """
    sizes, asked = _sizes(holes), np.asarray(request_bytes, np.float64)
    weights = asked * np.asarray(counts, np.float64)
    if not len(sizes) or weights.sum() <= 0:
        return None
    order = np.argsort(asked)
    served = np.concatenate([[0.0], np.cumsum(weights[order])])[np.searchsorted(asked[order], sizes, side="right")]
    return float(1 - (sizes * served).sum() / sizes.sum() / weights.sum())


def beyond_largest_ratio(holes: ArrayLike, request_bytes: ArrayLike, counts: ArrayLike) -> float | None:
    """The share of the recording's requests that are larger than the largest hole; null without requests.

    The probability that the next request, drawn as those before, needs memory from the driver. It sees no second
    request at the same time, and nothing of what the driver still has.
    """
    sizes, asked, many = _sizes(holes), np.asarray(request_bytes, np.float64), np.asarray(counts, np.float64)
    return float(many[asked > sizes.max(initial=0.0)].sum() / many.sum()) if many.sum() > 0 else None


def failure_index(holes: ArrayLike, request_bytes: float) -> float | None:
    """1 − (1 + free / request) / number of holes where no hole serves the request, −1 where one does; null without.

    Linux's external fragmentation index (`mm/vmstat.c`): near 1 the bytes are there in pieces, near or below 0 they are
    not there. It explains a failure and predicts none. Null without holes: then nothing is there at all.
    """
    sizes = _sizes(holes)
    if not len(sizes):
        return None
    return -1.0 if sizes.max() >= request_bytes else float(1 - (1 + sizes.sum() / request_bytes) / len(sizes))


def failure_cause(holes: ArrayLike, request_bytes: float) -> Cause:
    """Why a request cannot be served from these holes: `fits`, `fragmentation`, or `exhausted`.

    By the index against Linux's threshold, except that bytes that would not suffice even joined are `exhausted`.
    """
    sizes = _sizes(holes)
    index = failure_index(sizes, request_bytes)
    if index == -1.0:
        return "fits"
    enough = sizes.sum() >= request_bytes
    return "fragmentation" if enough and index is not None and index > INDEX_THRESHOLD else "exhausted"


def largest_servable_bytes(holes: ArrayLike, headroom_bytes: float = 0.0) -> float:
    """max(largest hole, headroom): what one request may ask for, where the driver still gives `headroom_bytes`."""
    return float(max(_sizes(holes).max(initial=0.0), headroom_bytes))
