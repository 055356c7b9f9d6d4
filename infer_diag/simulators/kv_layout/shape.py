"""Where each layout puts an element of a KV cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from infer_diag.errors import DiagError, UnknownNameError

Layout = Literal["BSHD", "BHSD", "paged NHD", "paged HND", "vLLM split"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
Tensor = Literal["keys", "values"]
CHUNK_BYTES = 16
"""The widest load of a thread, and the x of vLLM's key cache [blocks, heads, head_dim / x, block, x]."""

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class KvShape:
    """One layer's KV cache: sequences of equal length, heads of keys and values, and the pages of a paged cache.

    `query_heads` share the KV heads evenly.

    Raises:
        DiagError: a size is not above 0, tokens do not fill blocks, or query heads do not share KV heads evenly.
    """

    sequences: int = 1
    tokens: int = 2048
    kv_heads: int = 32
    head_dim: int = 128
    value_bytes: int = 2
    block_tokens: int = 16
    query_heads: int | None = None

    def __post_init__(self) -> None:
        sizes = (self.sequences, self.tokens, self.kv_heads, self.head_dim, self.value_bytes, self.block_tokens)
        if min(sizes) < 1 or self.tokens % self.block_tokens:
            raise DiagError(f"{self.tokens} tokens do not fill blocks of {self.block_tokens}, or a size is below 1")
        if self.query_heads is not None and (self.query_heads < 1 or self.query_heads % self.kv_heads):
            raise DiagError(f"{self.query_heads} query heads do not share {self.kv_heads} KV heads evenly")

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return (self.query_heads or self.kv_heads) // self.kv_heads

    @property
    def tensor_bytes(self) -> int:
        """Bytes of the keys, or of the values."""
        return self.sequences * self.tokens * self.kv_heads * self.head_dim * self.value_bytes

    @property
    def row_bytes(self) -> int:
        """Bytes of one token's vector of one head."""
        return self.head_dim * self.value_bytes

    def block_table(self, seed: int | None = 0) -> Ints:
        """(sequence, block of it) → block of the pool: drawn, as a pool in use has them; in order without a seed."""
        count = self.sequences * self.tokens // self.block_tokens
        blocks = np.arange(count) if seed is None else np.random.default_rng(seed).permutation(count)
        return blocks.reshape(self.sequences, -1).astype(np.int64)


def addresses(
    layout: str,
    shape: KvShape,
    sequence: ArrayLike,
    token: ArrayLike,
    head: ArrayLike,
    dim: ArrayLike,
    *,
    tensor: Tensor = "keys",
    table: Ints | None = None,
) -> Ints:
    """Byte offsets of elements within their tensor; the arrays of places broadcast.

    `table` is the block table of the paged layouts (default: `shape.block_table()`).

    Raises:
        UnknownNameError: there is no such layout.
    """
    if layout not in LAYOUTS:
        raise UnknownNameError("layout", layout, LAYOUTS)
    b, t, h, d = (np.asarray(each, dtype=np.int64) for each in (sequence, token, head, dim))
    if layout in ("BSHD", "BHSD"):
        element = _CONTIGUOUS[layout](shape, b, t, h, d)
    else:
        blocks = shape.block_table() if table is None else table
        block, place = blocks[b, t // shape.block_tokens], t % shape.block_tokens
        element = _PAGED[layout](shape, block, place, h, d, tensor)
    return np.asarray(element * shape.value_bytes, dtype=np.int64)


def _bshd(shape: KvShape, b: Ints, t: Ints, h: Ints, d: Ints) -> Ints:
    return ((b * shape.tokens + t) * shape.kv_heads + h) * shape.head_dim + d


def _bhsd(shape: KvShape, b: Ints, t: Ints, h: Ints, d: Ints) -> Ints:
    return ((b * shape.kv_heads + h) * shape.tokens + t) * shape.head_dim + d


def _nhd(shape: KvShape, block: Ints, place: Ints, h: Ints, d: Ints, tensor: Tensor) -> Ints:
    return ((block * shape.block_tokens + place) * shape.kv_heads + h) * shape.head_dim + d


def _hnd(shape: KvShape, block: Ints, place: Ints, h: Ints, d: Ints, tensor: Tensor) -> Ints:
    return ((block * shape.kv_heads + h) * shape.block_tokens + place) * shape.head_dim + d


def _split(shape: KvShape, block: Ints, place: Ints, h: Ints, d: Ints, tensor: Tensor) -> Ints:
    """Keys [blocks, heads, head_dim / x, block, x] with x of 16 bytes; values [blocks, heads, head_dim, block]."""
    of_head = (block * shape.kv_heads + h) * shape.head_dim * shape.block_tokens
    if tensor == "values":
        return of_head + d * shape.block_tokens + place
    x = CHUNK_BYTES // shape.value_bytes
    return of_head + (d // x * shape.block_tokens + place) * x + d % x


_CONTIGUOUS: dict[str, Callable[..., Ints]] = {"BSHD": _bshd, "BHSD": _bhsd}
_PAGED: dict[str, Callable[..., Ints]] = {"paged NHD": _nhd, "paged HND": _hnd, "vLLM split": _split}
