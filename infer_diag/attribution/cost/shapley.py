"""Exact Shapley values of a cost over cause switches, and what stands beside every share.

A cost model is asked once for each of the 2^n sets of causes that are as in the deployment, the others as in the
reference. Everything here works on ln(cost), so that price and currency cancel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MOST_CAUSES = 12
"""4,096 answers of the model; a cost with more causes is grouped first."""


@dataclass(frozen=True, eq=False)
class Game:
    """ln(cost) of every set of causes: bit j of a place in `table` says that `names[j]` is as in the deployment."""

    names: tuple[str, ...]
    table: Floats

    @property
    def total(self) -> float:
        """ln of the ratio of deployment and reference."""
        return float(self.table[-1] - self.table[0])


def game(names: Sequence[str], value: Callable[[frozenset[str]], float]) -> Game:
    """The game of a cost model: `value(S)` is ln(cost) with the causes in S as in the deployment.

    Raises:
        ValueError: more than 12 causes, or a name twice.
    """
    if len(names) > MOST_CAUSES or len(set(names)) != len(names):
        raise ValueError(f"{len(names)} causes: at most {MOST_CAUSES}, each once")
    sets = (frozenset(name for j, name in enumerate(names) if place >> j & 1) for place in range(1 << len(names)))
    return Game(tuple(names), np.array([value(each) for each in sets], dtype=np.float64))


def with_factors(played: Game, factors: Mapping[str, float]) -> Game:
    """The game with causes added that only multiply the cost: their ln adds to every set that holds them."""
    names, table = list(played.names), played.table
    for name, log_ratio in factors.items():
        names.append(name)
        table = np.concatenate([table, table + log_ratio])
    return Game(tuple(names), table)


def shapley(played: Game) -> dict[str, float]:
    """φ per cause in ln units; they add up to `total`.

    φ_j = Σ over S without j of |S|! (n − |S| − 1)! / n! · [v(S ∪ j) − v(S)] (Shapley 1953).
    """
    n = len(played.names)
    weights = _weights(n)
    return {name: float(weights @ _marginals(played, j)) for j, name in enumerate(played.names)}


def alone(played: Game) -> dict[str, float]:
    """ln of what each cause alone would do to the reference: v({j}) − v(∅)."""
    return {name: float(_marginals(played, j)[0]) for j, name in enumerate(played.names)}


def last(played: Game) -> dict[str, float]:
    """ln of what is gained where the cause alone is taken from the deployment: v(N) − v(N without j)."""
    return {name: float(_marginals(played, j)[-1]) for j, name in enumerate(played.names)}


def saves_ratio(log_last: float) -> float:
    """Share of the deployment's cost that fixing one cause alone saves: 1 − e^(−last)."""
    return -math.expm1(-log_last)


def orderings(played: Game) -> dict[str, tuple[float, float]]:
    """Least and greatest ln contribution of each cause over all orders in which the causes may be switched."""
    found = {}
    for j, name in enumerate(played.names):
        marginals = _marginals(played, j)
        found[name] = (float(marginals.min()), float(marginals.max()))
    return found


def interactions(played: Game) -> dict[tuple[str, str], float]:
    """Pairwise interaction in ln units on the reference: v({i,j}) − v({i}) − v({j}) + v(∅).

    Positive: the causes make each other worse. Negative: they are two limits of which one would have sufficed.
    """
    table, names = played.table, played.names
    return {
        (names[i], names[j]): float(table[1 << i | 1 << j] - table[1 << i] - table[1 << j] + table[0])
        for j in range(len(names))
        for i in range(j)
    }


def grouped(played: Game, groups: Mapping[str, Iterable[str]]) -> Game:
    """The game in which the causes of a group are switched together; every cause is in one group."""
    place = {name: 1 << j for j, name in enumerate(played.names)}
    masks = {group: sum(place[name] for name in members) for group, members in groups.items()}
    if sum(masks.values()) != len(played.table) - 1:
        raise ValueError("every cause belongs to exactly one group")
    return game(tuple(groups), lambda chosen: float(played.table[sum(masks[group] for group in chosen)]))


@lru_cache(maxsize=MOST_CAUSES + 1)
def _without(n: int, j: int) -> npt.NDArray[np.int64]:
    places = np.arange(1 << n)
    without: npt.NDArray[np.int64] = places[(places >> j & 1) == 0]
    return without


@lru_cache(maxsize=MOST_CAUSES + 1)
def _weights(n: int) -> Floats:
    """The weight of each set without one cause, in the order of its place; the same for every cause."""
    sizes = [int(place).bit_count() for place in range(1 << max(n - 1, 0))]
    whole = math.factorial(n)
    return np.array([math.factorial(size) * math.factorial(n - size - 1) / whole for size in sizes])


def _marginals(played: Game, j: int) -> Floats:
    places = _without(len(played.names), j)
    difference: Floats = played.table[places | (1 << j)] - played.table[places]
    return difference
