"""How many warps of a kernel an SM holds, and whether an array fits its shared memory at all."""

from __future__ import annotations

from dataclasses import dataclass

from infer_diag.errors import DiagError

KIB = 1 << 10
STATIC_SHARED_BYTES = 48 * KIB
"""What a kernel may declare as a plain `__shared__` array; more has to be asked for at the launch."""


@dataclass(frozen=True)
class Sm:
    """Limits of one streaming multiprocessor, as the CUDA programming guide lists them by compute capability."""

    name: str
    shared_bytes: int
    block_shared_bytes: int
    register_count: int = 65_536
    warp_count: int = 64
    block_count: int = 32
    l2_bytes: int = 0


SMS: dict[str, Sm] = {
    sm.name: sm
    for sm in (
        Sm("A100", 164 * KIB, 163 * KIB, l2_bytes=40 << 20),
        Sm("H100", 228 * KIB, 227 * KIB, l2_bytes=50 << 20),
        Sm("H200", 228 * KIB, 227 * KIB, l2_bytes=50 << 20),
    )
}
"""Compute capabilities 8.0 and 9.0, with the L2 of their datasheets."""


@dataclass(frozen=True)
class Occupancy:
    """Blocks on an SM, their warps over the most it holds, and which limit binds."""

    block_count: int
    occupancy_ratio: float
    limited_by: str


def occupancy(sm: Sm, *, threads: int, registers: int, shared_bytes: int = 0) -> Occupancy:
    """Occupancy of a kernel: the smallest of what warps, registers, shared memory and block slots allow.

    A warp takes registers in units of 256, a block 1 KiB of shared memory beside its own. No block fits: 0.

    Raises:
        DiagError: a block of 1 to 1024 threads has 1 to 255 registers a thread.
    """
    if not 1 <= threads <= 1024 or not 1 <= registers <= 255 or shared_bytes < 0:
        raise DiagError("a block has 1 to 1024 threads, and a thread 1 to 255 registers")
    warps = -(-threads // 32)
    allowed = {
        "warps": sm.warp_count // warps,
        "registers": sm.register_count // (-(-registers * 32 // 256) * 256) // warps,
        "shared memory": sm.shared_bytes // (shared_bytes + KIB) if shared_bytes <= sm.block_shared_bytes else 0,
        "blocks": sm.block_count,
    }
    limited_by = min(allowed, key=lambda name: allowed[name])
    blocks = allowed[limited_by]
    return Occupancy(blocks, blocks * warps / sm.warp_count, limited_by)


def shared_array_bytes(sequences: int, tokens: int, heads: int, head_dim: int, value_bytes: int = 2) -> int:
    """Bytes of the article's `kv_cache[BS][MAX_SEQ][NUM_HEADS][HEAD_DIM]`."""
    return sequences * tokens * heads * head_dim * value_bytes


def tokens_that_fit(shared_bytes: int, heads: int, head_dim: int, value_bytes: int = 2) -> int:
    """Tokens of all heads that such an array holds in this much shared memory."""
    return shared_bytes // (heads * head_dim * value_bytes)
