"""The same keys and values in each layout, and the sum that a kernel has to find."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infer_diag.probes.kv_layout import kernels

Halves = NDArray[np.uint16]
Words = NDArray[np.uint32]


@dataclass(frozen=True)
class Cache:
    """Random keys and values [sequences, tokens, heads, dims] of two bytes, and the pool that pages them.

    Raises:
        ValueError: tokens do not fill pages and splits, or the sizes do not fit loads of sixteen bytes.
    """

    keys: Halves
    values: Halves
    table: NDArray[np.int32]
    block: int

    def __post_init__(self) -> None:
        if self.block % 8 or self.tokens % self.block or self.dims % 8:
            raise ValueError(f"{self.tokens} tokens in blocks of {self.block} with heads of {self.dims} do not fit")

    @property
    def tokens(self) -> int:
        """Tokens of a sequence."""
        return int(self.keys.shape[1])

    @property
    def dims(self) -> int:
        """Elements of a head."""
        return int(self.keys.shape[3])

    @property
    def read_bytes(self) -> int:
        """Bytes that a kernel reads at least: the keys and values once."""
        return self.keys.nbytes + self.values.nbytes

    def packed(self, kernel: str) -> tuple[Halves, Halves]:
        """(keys, values) as the kernel's layout stores them."""
        if kernel == "bshd":
            return self.keys, self.values
        if kernel == "bhsd":
            return tuple(np.ascontiguousarray(each.transpose(0, 2, 1, 3)) for each in (self.keys, self.values))  # type: ignore[return-value]
        pages = tuple(self._paged(each) for each in (self.keys, self.values))
        if kernel == "paged_nhd":
            return pages  # type: ignore[return-value]
        keys, values = (each.transpose(0, 2, 1, 3) for each in pages)
        if kernel == "vllm_split":
            keys = keys.reshape(*keys.shape[:3], -1, 8).transpose(0, 1, 3, 2, 4)
            values = values.transpose(0, 1, 3, 2)
        return np.ascontiguousarray(keys), np.ascontiguousarray(values)

    def _paged(self, tensor: Halves) -> Halves:
        pages = tensor.reshape(-1, self.block, *tensor.shape[2:])
        pool = np.empty_like(pages)
        pool[self.table.ravel()] = pages
        return pool

    def sums(self) -> Words:
        """[sequences, heads]: Σ over tokens and dims of value · (token factor · t + dim factor · d + 1), modulo 2³²."""
        token = np.arange(self.tokens, dtype=np.uint32)[:, None]
        dim = np.arange(self.dims, dtype=np.uint32)[None, :]
        total = np.zeros((self.keys.shape[0], self.keys.shape[2]), dtype=np.uint32)
        for tensor, of_token, of_dim in (
            (self.keys, kernels.KEY_TOKEN, kernels.KEY_DIM),
            (self.values, kernels.VALUE_TOKEN, kernels.VALUE_DIM),
        ):
            factor = token * np.uint32(of_token) + dim * np.uint32(of_dim) + np.uint32(1)
            for sequence, each in enumerate(tensor):
                total[sequence] += (each.astype(np.uint32) * factor[:, None, :]).sum(axis=(0, 2), dtype=np.uint32)
        return total


def drawn(sequences: int, tokens: int, heads: int, dims: int, *, block: int = 16, seed: int = 0) -> Cache:
    """A cache of random bits, its pages scattered over the pool."""
    draws = np.random.default_rng(seed)
    shape = (sequences, tokens, heads, dims)
    keys, values = (draws.integers(0, 1 << 16, shape, dtype=np.uint16) for _ in range(2))
    table = draws.permutation(sequences * tokens // block).astype(np.int32).reshape(sequences, -1)
    return Cache(keys, values, table, block)


def scalars(cache: Cache, splits: int) -> tuple[Any, ...]:
    """The numbers that a kernel takes after its arrays."""
    return tuple(np.int32(each) for each in (cache.tokens, cache.keys.shape[2], cache.dims, cache.block, splits))


def summed(out: Words, cache: Cache, splits: int) -> Words:
    """[sequences, heads]: what the threads found, put together."""
    per_head = out.reshape(cache.keys.shape[0], cache.keys.shape[2], -1)
    return np.asarray(per_head.sum(axis=2, dtype=np.uint32))
