"""Where requests' KV tokens go: contiguous reservations of a buddy allocator, or pages, while the queue never ends.

Definitions as in the PagedAttention paper (Kwon et al., SOSP 2023, figure 2): token states are slots that hold a token;
reserved ones will hold one of the same request later; internal ones never will; the rest is external, measured while
the head of the queue finds no room. The round-up of the buddy allocator counts as external. Every figure is simulated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from infer_diag.errors import DiagError, UnknownNameError
from infer_diag.schema import KvBlocks
from infer_diag.simulators.kv_loops import Totals, contiguous, paged

Ints = NDArray[np.int64]
Placement = Literal["max", "pow2", "oracle", "paged", "paged_chunked"]
"""Reserve the longest length, the prompt and the next power of two of the output, the exact length, or pages."""

_STEPS = 3000
_WARM_UP_STEPS = 1500


@dataclass(frozen=True)
class KvShares:
    """Mean shares of the KV slots over the measured steps, 0 to 1; they add up to 1.

    `free_ratio` is what paged placement keeps for growth; external waste of pages is 0 by construction, since any free
    page serves any request.
    """

    placement: Placement
    token_ratio: float
    reserved_ratio: float
    internal_ratio: float
    external_ratio: float
    free_ratio: float
    batch_count: float
    preemption_count: int


@dataclass(frozen=True)
class KvRun:
    """The shares of one run, and what each block or reservation held at its last step."""

    shares: KvShares
    blocks: pl.DataFrame


def sharegpt_like(seed: int, count: int = 4000, *, max_tokens: int = 2048) -> tuple[Ints, Ints]:
    """(prompt, output) tokens of requests as long as ShareGPT's: lognormal, mean 161 (CV 1.2) and 338 (CV 1.0).

    Longer ones than `max_tokens` in all are cut, the prompt first to half of it.
    """
    draw = np.random.default_rng(seed)
    prompt, output = (_lognormal(draw, mean, variation, count) for mean, variation in ((161, 1.2), (338, 1.0)))
    prompt = np.clip(prompt, 1, max_tokens // 2)
    return prompt, np.clip(output, 1, max_tokens - prompt)


def kv_placement(
    prompt_tokens: Ints,
    output_tokens: Ints,
    placement: Placement,
    *,
    slots: int = 16384,
    max_tokens: int = 2048,
    block_tokens: int = 16,
    chunk_tokens: int = 512,
    steps: int = _STEPS,
    warm_up_steps: int = _WARM_UP_STEPS,
) -> KvRun:
    """How a placement uses `slots` KV tokens while requests are served first come, first served, one token a step.

    The requests come again from the first when they run out. Pages: a request is admitted when its prompt and one
    token fit, takes a page when it crosses into it, and the newest request gives way (and is computed again) when none
    is free. Chunked: `chunk_tokens` prompt tokens a step in all, and pages only for tokens that are computed.

    Raises:
        UnknownNameError: no such placement.
        DiagError: a request is longer than `max_tokens` or than all slots, or there is none.
    """
    if placement not in get_args(Placement):
        raise UnknownNameError("placement", placement, get_args(Placement))
    total = prompt_tokens + output_tokens
    if not len(total) or min(prompt_tokens.min(), output_tokens.min()) < 1 or not total.max() <= max_tokens <= slots:
        raise DiagError("requests must have 1 token of each kind and fit into max_tokens, and that into the slots")
    measured = np.array([steps, warm_up_steps], np.int64)
    if placement in ("paged", "paged_chunked"):
        chunk = chunk_tokens if placement == "paged_chunked" else 0
        totals, held, filled = paged(prompt_tokens, output_tokens, slots // block_tokens, block_tokens, chunk, measured)
        return KvRun(_shares(placement, totals, slots), _pages(held, filled, slots // block_tokens, block_tokens))
    reserve = {"max": np.full_like(total, max_tokens), "oracle": total}.get(placement)
    if reserve is None:
        reserve = prompt_tokens + 2 ** np.ceil(np.log2(output_tokens)).astype(np.int64)
    totals, held, filled = contiguous(prompt_tokens, output_tokens, np.minimum(reserve, slots), slots, measured)
    return KvRun(_shares(placement, totals, slots), _reservations(held, filled))


def kv_placement_table(seeds: Iterable[int], **options: int) -> pl.DataFrame:
    """One row per seed and placement: the columns of `KvShares`; lengths as `sharegpt_like` draws them."""
    rows = []
    for seed in seeds:
        prompt, output = sharegpt_like(seed)
        for placement in get_args(Placement):
            rows.append({"seed_id": seed, **asdict(kv_placement(prompt, output, placement, **options).shares)})
    return pl.DataFrame(rows)


def _lognormal(draw: np.random.Generator, mean: float, variation: float, count: int) -> Ints:
    spread = np.log(1 + variation**2)
    return np.rint(draw.lognormal(np.log(mean) - spread / 2, np.sqrt(spread), count)).astype(np.int64)


def _shares(placement: Placement, totals: Totals, slots: int) -> KvShares:
    whole = max(totals.steps, 1) * slots
    tokens, reserved, internal = totals.tokens / whole, totals.reserved / whole, totals.internal / whole
    rest = max(0.0, 1 - tokens - reserved - internal)
    is_paged = placement in ("paged", "paged_chunked")
    return KvShares(
        placement,
        tokens,
        reserved,
        internal,
        0.0 if is_paged else rest,
        rest if is_paged else 0.0,
        totals.running / max(totals.steps, 1),
        int(totals.preemptions),
    )


def _pages(held: Ints, filled: Ints, count: int, block_tokens: int) -> pl.DataFrame:
    """`schema.KvBlocks` of pages: each request's are full but its last one."""
    within = np.concatenate([np.arange(each) for each in held]) if len(held) else np.zeros(0, np.int64)
    tokens = np.clip(np.repeat(filled, held) - within * block_tokens, 0, block_tokens)
    free = count - len(tokens)
    return _kv_blocks(np.arange(count), np.concatenate([tokens, np.zeros(free, np.int64)]), len(tokens))


def _reservations(begins: Ints, filled: Ints) -> pl.DataFrame:
    """`schema.KvBlocks` of contiguous reservations, each named by its first slot."""
    order = np.argsort(begins)
    return _kv_blocks(begins[order], filled[order], len(begins))


def _kv_blocks(ids: Ints, tokens: Ints, active: int) -> pl.DataFrame:
    frame = pl.DataFrame(
        {"source_id": 0, "line": 0, "block_id": ids, "filled_tokens": tokens}
        | {"state": ["active"] * active + ["free"] * (len(ids) - active)}
    ).with_columns(pl.lit(None, pl.Datetime("us", "UTC")).alias("time"))
    return KvBlocks.validate(frame.select(KvBlocks.column_names()), cast=True)
