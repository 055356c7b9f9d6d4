"""Sets of the whole numbers below a bound, with the nearest member on either side of a number in a few steps.

A bit per number, and above each level one with a bit per word that is not empty, up to a single word.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from infer_diag.simulators.allocators.compiled import compiled

Ints = NDArray[np.int64]

WORD = 5
_BIT = (1 << WORD) - 1
# Words of 32 bits in numbers of 64: no operation on them reaches a sign.
_FULL = (1 << (1 << WORD)) - 1


class RankSet(NamedTuple):
    """The words of all levels, and where each level begins, the widest first."""

    words: Ints
    levels: Ints


def rank_set(bound: int) -> RankSet:
    """An empty set of numbers below `bound`."""
    widths = [max(bound + _BIT, 1) >> WORD]
    while widths[-1] > 1:
        widths.append((widths[-1] + _BIT) >> WORD)
    begins = np.cumsum([0, *widths]).astype(np.int64)
    return RankSet(np.zeros(max(int(begins[-1]), 1), np.int64), begins)


@compiled
def put(ranks: RankSet, rank: int) -> None:
    """Puts a number in."""
    place = rank
    for level in range(len(ranks.levels) - 1):
        ranks.words[ranks.levels[level] + (place >> WORD)] |= 1 << (place & _BIT)
        place >>= WORD


@compiled
def take(ranks: RankSet, rank: int) -> None:
    """Takes a number out."""
    place = rank
    for level in range(len(ranks.levels) - 1):
        word = ranks.levels[level] + (place >> WORD)
        ranks.words[word] &= _FULL ^ (1 << (place & _BIT))
        if ranks.words[word]:
            break
        place >>= WORD


@compiled
def holds(ranks: RankSet, rank: int) -> bool:
    """Whether a number is in."""
    return bool(ranks.words[rank >> WORD] >> (rank & _BIT) & 1)


@compiled
def below(ranks: RankSet, rank: int) -> int:
    """The largest member up to and including `rank`, or -1."""
    place, level = rank, 0
    while place >= 0 and level < len(ranks.levels) - 1:
        found = ranks.words[ranks.levels[level] + (place >> WORD)] & ((2 << (place & _BIT)) - 1)
        if found:
            place = ((place >> WORD) << WORD) | _highest(found)
            while level > 0:
                level -= 1
                place = (place << WORD) | _highest(ranks.words[ranks.levels[level] + place])
            return place
        place, level = (place >> WORD) - 1, level + 1
    return -1


@compiled
def above(ranks: RankSet, rank: int) -> int:
    """The smallest member from `rank` on, or -1."""
    place, level = rank, 0
    while level < len(ranks.levels) - 1 and (place >> WORD) < ranks.levels[level + 1] - ranks.levels[level]:
        found = (ranks.words[ranks.levels[level] + (place >> WORD)] >> (place & _BIT)) << (place & _BIT)
        if found:
            place = ((place >> WORD) << WORD) | _highest(found & -found)
            while level > 0:
                level -= 1
                word = ranks.words[ranks.levels[level] + place]
                place = (place << WORD) | _highest(word & -word)
            return place
        place, level = (place >> WORD) + 1, level + 1
    return -1


@compiled
def _highest(word: int) -> int:
    place = 0
    for step in (16, 8, 4, 2, 1):
        if word >> step:
            word >>= step
            place += step
    return place
