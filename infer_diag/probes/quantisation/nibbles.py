"""Eight 4-bit numbers in one 32-bit word."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PER_WORD = 8
SEQUENTIAL = (0, 1, 2, 3, 4, 5, 6, 7)
AWQ = (0, 2, 4, 6, 1, 3, 5, 7)
"""Place i of an AWQ word holds the column of this number, so that two halves unpack side by side."""

Ints = NDArray[np.int32]


def packed(values: Ints, order: tuple[int, ...] = SEQUENTIAL) -> Ints:
    """Words of the last axis' values, eight at a time: bits 4i to 4i+3 hold value `order[i]` of its eight.

    Raises:
        ValueError: a value does not fit in four bits, or the axis is no multiple of eight.
    """
    if values.shape[-1] % PER_WORD:
        raise ValueError(f"{values.shape[-1]} values do not fill words of {PER_WORD}")
    if values.size and (values.min() < 0 or values.max() > 15):
        raise ValueError("a value does not fit in four bits")
    groups = values.reshape(*values.shape[:-1], -1, PER_WORD)[..., list(order)].astype(np.uint32)
    words = np.bitwise_or.reduce(groups << (4 * np.arange(PER_WORD, dtype=np.uint32)), axis=-1)
    return np.asarray(words.view(np.int32), dtype=np.int32)


def unpacked(words: Ints, order: tuple[int, ...] = SEQUENTIAL) -> Ints:
    """The values of `packed`."""
    shifted = words.view(np.uint32)[..., None] >> (4 * np.arange(PER_WORD, dtype=np.uint32))
    values = np.empty(shifted.shape, dtype=np.int32)
    values[..., list(order)] = (shifted & 15).astype(np.int32)
    return values.reshape(*words.shape[:-1], -1)
