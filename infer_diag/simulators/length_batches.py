"""Batches for offline jobs by the lengths of their items, and how much of a padded batch each way wastes.

A batch is padded to its longest item: it computes rows · longest tokens, and waste = 1 − Σ lengths / Σ rows · longest.
Items are named by their place in the sample; every item is in one batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature

import numpy as np
from numpy.typing import ArrayLike, NDArray

from infer_diag.errors import DiagError

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Waste:
    """Tokens that the items have, that padded batches compute, and how many batches these are."""

    real_tokens: int
    computed_tokens: int
    batch_count: int

    @property
    def ratio(self) -> float:
        """1 − real / computed."""
        return 1.0 - self.real_tokens / self.computed_tokens


def count_batches(lengths: ArrayLike, batch_size: int) -> list[Ints]:
    """Batches of so many items in the order in which they come.

    Raises:
        DiagError: no item, a length below 1, or a batch size below 1.
    """
    known = _checked(lengths, batch_size, "batch_size")
    return np.split(np.arange(len(known)), range(batch_size, len(known), batch_size))


def grouped_batches(
    lengths: ArrayLike, batch_size: int, *, window: int | None = None, seed: int | None = 0
) -> list[Ints]:
    """Batches of so many items of similar length: sorted by length within windows of `window` items, batches shuffled.

    `window` null sorts the whole sample, which wastes least; a window keeps a stream's order roughly (a training
    sampler takes 50 batches). `seed` null leaves the batches in order of their windows and lengths.

    Raises:
        DiagError: as `count_batches`, or a window smaller than a batch.
    """
    known = _checked(lengths, batch_size, "batch_size")
    size = len(known) if window is None else window
    if size < min(batch_size, len(known)):
        raise DiagError(f"a window of {size} items holds no batch of {batch_size}", hint="give window of some batches")
    batches = []
    for begin in range(0, len(known), size):
        place = begin + np.argsort(-known[begin : begin + size], kind="stable")
        batches += np.split(place, range(batch_size, len(place), batch_size))
    return _shuffled(batches, seed)


def token_budget_batches(
    lengths: ArrayLike, max_tokens: int, *, window: int | None = None, seed: int | None = 0
) -> list[Ints]:
    """Batches whose padded size, rows · longest, is at most `max_tokens`, of items sorted by length within windows.

    Raises:
        DiagError: as `grouped_batches`, or an item longer than the budget.
    """
    known = _checked(lengths, max_tokens, "max_tokens")
    if known.max() > max_tokens:
        raise DiagError(
            f"an item of {known.max():,} tokens exceeds the budget of {max_tokens:,}", hint="raise max_tokens"
        )
    size = len(known) if window is None else max(1, window)
    batches: list[Ints] = []
    for begin in range(0, len(known), size):
        place = begin + np.argsort(-known[begin : begin + size], kind="stable")
        at = 0
        while at < len(place):
            # Sorted from long to short, the first of a batch is its longest: how many follow is known at once.
            rows = max_tokens // int(known[place[at]])
            batches.append(place[at : at + rows])
            at += rows
    return _shuffled(batches, seed)


def padded_to(lengths: ArrayLike, multiple: int) -> Ints:
    """Lengths rounded up to a multiple, as `pad_to_multiple_of` does: at most multiple − 1 tokens more, never fewer.

    Raises:
        DiagError: as `count_batches`.
    """
    known = _checked(lengths, multiple, "multiple")
    return -(-known // multiple) * multiple


def waste(lengths: ArrayLike, batches: Sequence[ArrayLike], *, multiple: int = 1) -> Waste:
    """What padded batches compute beyond the lengths of their items, each padded to its longest and to a multiple.

    Raises:
        DiagError: as `count_batches`, or the batches do not hold every item once.
    """
    known = _checked(lengths, multiple, "multiple")
    places = [np.asarray(batch, dtype=np.int64) for batch in batches]
    if not np.array_equal(np.sort(np.concatenate(places)), np.arange(len(known))):
        raise DiagError("the batches do not hold every item once", hint="make them of the same lengths")
    computed = sum(len(place) * int(padded_to(known[place], multiple).max()) for place in places)
    return Waste(int(known.sum()), computed, len(places))


def ragged_waste(lengths: ArrayLike) -> Waste:
    """What continuous batching computes: every item's own tokens and no padding.

    Raises:
        DiagError: as `count_batches`.
    """
    known = _checked(lengths, 1, "batch_size")
    return Waste(int(known.sum()), int(known.sum()), 1)


def article_sampler_faults() -> tuple[str, ...]:
    """Why the article's `BatchSampler(LengthGroupedSampler(dataset, batch_size=64), drop_last=True)` cannot be called.

    Both calls are bound to the parameters that the classes publish, so that neither library is needed: transformers'
    sampler takes the batch size first, and torch's needs a batch size of its own. Either way it batches by number.
    """
    dataset: list[int] = []
    calls = (
        ("LengthGroupedSampler", _GROUPED_SAMPLER, (dataset,), {"batch_size": 64}),
        ("BatchSampler", _BATCH_SAMPLER, (dataset,), {"drop_last": True}),
    )
    told = []
    for name, signature, given, named in calls:
        try:
            signature.bind(*given, **named)
        except TypeError as error:
            told.append(f"{name}: {error}")
    return tuple(told)


def _signature(**parameters: object) -> Signature:
    kind = Parameter.POSITIONAL_OR_KEYWORD
    return Signature([Parameter(name, kind, default=default) for name, default in parameters.items()])


_NONE_GIVEN = Parameter.empty
_GROUPED_SAMPLER = _signature(batch_size=_NONE_GIVEN, dataset=None, lengths=None, model_input_name=None, generator=None)
_BATCH_SAMPLER = _signature(sampler=_NONE_GIVEN, batch_size=_NONE_GIVEN, drop_last=_NONE_GIVEN)


def _checked(lengths: ArrayLike, at_least_one: int, name: str) -> Ints:
    known = np.asarray(lengths, dtype=np.int64)
    if known.ndim != 1 or not len(known) or known.min() < 1:
        raise DiagError("a length sample needs one length of 1 or more per item", hint="give token counts")
    if at_least_one < 1:
        raise DiagError(f"{name} is {at_least_one}", hint="give 1 or more")
    return known


def _shuffled(batches: list[Ints], seed: int | None) -> list[Ints]:
    if seed is None:
        return batches
    order = np.random.default_rng(seed).permutation(len(batches))
    return [batches[index] for index in order]
