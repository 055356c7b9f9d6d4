"""FP8 E4M3 (the kind without infinities): four exponent bits with bias 7, three of mantissa, ±448 at most."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

LARGEST = 448.0
_NAN = 0x7F

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@cache
def values() -> Floats:
    """The number behind each of the 256 codes; 0x7f and 0xff are no numbers."""
    codes = np.arange(128)
    exponent, mantissa = codes >> 3, codes & 7
    normal = np.ldexp(1 + mantissa / 8, exponent - 7)
    positive = np.where(exponent == 0, np.ldexp(mantissa / 8, -6), normal)
    positive[_NAN] = np.nan
    return np.concatenate([positive, -positive]).astype(np.float32)


def packed(weight: Floats) -> tuple[Bytes, float]:
    """(codes, scale) with weight ≈ value(code) · scale, the largest magnitude on 448; round half to even.

    A weight of zeros has scale 1. What is no number stays none.
    """
    largest = float(np.nanmax(np.abs(weight), initial=0.0))
    scale = largest / LARGEST if largest > 0 else 1.0
    return encoded(weight / np.float32(scale)), scale


def unpacked(codes: Bytes, scale: float) -> Floats:
    """value(code) · scale."""
    return np.asarray(values()[codes] * np.float32(scale), dtype=np.float32)


def encoded(numbers: Floats) -> Bytes:
    """The nearest code of each number, ties to the even one; beyond ±448 it saturates, as inference kernels do."""
    table = values()[:_NAN]
    magnitude = np.minimum(np.abs(numbers), np.float32(LARGEST))
    above = np.clip(np.searchsorted(table, magnitude), 1, _NAN - 1)
    below = above - 1
    down, up = magnitude - table[below], table[above] - magnitude
    nearest = np.where((down < up) | ((down == up) & (below % 2 == 0)), below, above)
    codes = np.where(np.isnan(numbers), _NAN, nearest).astype(np.uint8)
    return np.asarray(codes | (np.signbit(numbers).astype(np.uint8) << 7), dtype=np.uint8)
