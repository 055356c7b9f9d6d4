"""AWQ and GPTQ with four bits and asymmetric groups: quantised, packed, and unpacked again.

A weight has the shape (inputs, outputs). A group is a run of inputs that share, for each output, a scale and a zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from infer_diag.probes.quantisation import nibbles

GROUP = 128
_LEVELS = 15

Floats = NDArray[np.float32]
Halves = NDArray[np.float16]


@dataclass(frozen=True)
class AwqWeight:
    """AWQ as its GEMM kernels read it.

    `qweight` (inputs, outputs/8) and `qzeros` (groups, outputs/8) are packed over outputs in AWQ's order, `scales`
    (groups, outputs) are half precision. The group of an input is `input // group`: nothing is looked up.
    """

    qweight: nibbles.Ints
    qzeros: nibbles.Ints
    scales: Halves
    group: int = GROUP


@dataclass(frozen=True)
class GptqWeight:
    """GPTQ as AutoGPTQ stores it.

    `qweight` (inputs/8, outputs) is packed over inputs, `qzeros` (groups, outputs/8) over outputs and less by one,
    `scales` (groups, outputs) are half precision; `g_idx` (inputs) names each input's group.
    """

    qweight: nibbles.Ints
    qzeros: nibbles.Ints
    scales: Halves
    g_idx: nibbles.Ints


def awq_packed(weight: Floats, group: int = GROUP) -> AwqWeight:
    """The weight in AWQ's layout, rounded to the nearest of sixteen levels per group.

    The search for AWQ's channel scales happens before, offline, on activations; nothing of it is left at run time.

    Raises:
        ValueError: the shape does not fit the group or the words.
    """
    levels, zeros, scales = _quantised(weight, np.arange(len(weight)) // _fitting(weight, group))
    return AwqWeight(nibbles.packed(levels, nibbles.AWQ), nibbles.packed(zeros, nibbles.AWQ), scales, group)


def awq_unpacked(weight: AwqWeight) -> Floats:
    """W[k, n] = (q[k, n] − z[k // group, n]) · s[k // group, n]."""
    levels, zeros = (nibbles.unpacked(words, nibbles.AWQ) for words in (weight.qweight, weight.qzeros))
    groups = np.arange(len(levels)) // weight.group
    return (levels - zeros[groups]).astype(np.float32) * weight.scales[groups].astype(np.float32)


def gptq_packed(weight: Floats, group: int = GROUP, order: nibbles.Ints | None = None) -> GptqWeight:
    """The weight in GPTQ's layout; `order` lists the inputs by falling importance for act-order (`desc_act`).

    With an order, the first `group` inputs of it form group 0 and so on, while the rows stay where they are, so the
    groups of neighbouring rows differ. GPTQ's error feedback is not part of the format and is left out.

    Raises:
        ValueError: the shape does not fit the group or the words, or `order` is no permutation of the inputs.
    """
    g_idx = np.arange(len(weight), dtype=np.int32) // _fitting(weight, group)
    if order is not None:
        if not np.array_equal(np.sort(order), np.arange(len(weight))):
            raise ValueError("order is no permutation of the inputs")
        g_idx[order] = g_idx.copy()
    levels, zeros, scales = _quantised(weight, g_idx)
    stored = np.mod(zeros - 1, 16)
    return GptqWeight(nibbles.packed(levels.T.copy()).T.copy(), nibbles.packed(stored), scales, g_idx.astype(np.int32))


def gptq_unpacked(weight: GptqWeight) -> Floats:
    """W[k, n] = (q[k, n] − (z[g, n] + 1)) · s[g, n] with g = g_idx[k]."""
    levels = nibbles.unpacked(weight.qweight.T.copy()).T
    zeros = nibbles.unpacked(weight.qzeros) + 1
    return (levels - zeros[weight.g_idx]).astype(np.float32) * weight.scales[weight.g_idx].astype(np.float32)


def reordered(weight: GptqWeight) -> tuple[GptqWeight, nibbles.Ints]:
    """(the weight with its rows sorted by group, the order of the inputs that this asks of the activations).

    Done once at load it makes act-order as cheap to read as a plain layout: y = x[order] · W'.
    """
    order = np.argsort(weight.g_idx, kind="stable").astype(np.int32)
    levels = nibbles.unpacked(weight.qweight.T.copy()).T[order]
    packed = nibbles.packed(levels.T.copy()).T.copy()
    return GptqWeight(packed, weight.qzeros, weight.scales, weight.g_idx[order]), order


def _fitting(weight: Floats, group: int) -> int:
    if group <= 0 or len(weight) % group or weight.shape[1] % nibbles.PER_WORD:
        raise ValueError(f"a weight of {weight.shape} does not fit groups of {group} and words of {nibbles.PER_WORD}")
    return group


def _quantised(weight: Floats, groups: NDArray[np.int64] | nibbles.Ints) -> tuple[nibbles.Ints, nibbles.Ints, Halves]:
    """(levels, zeros, scales): the range of a group is widened to hold 0, and sixteen levels are laid over it.

    Zeros are kept from 1 to 15, since GPTQ stores them less by one in four bits.
    """
    count = int(groups.max()) + 1
    low, high = np.zeros((count, weight.shape[1]), np.float32), np.zeros((count, weight.shape[1]), np.float32)
    np.minimum.at(low, groups, weight)
    np.maximum.at(high, groups, weight)
    scales = np.maximum((high - low) / (_LEVELS - 1), np.finfo(np.float16).tiny).astype(np.float16)
    wide = scales.astype(np.float32)
    zeros = np.clip(np.rint(-low / wide), 1, _LEVELS).astype(np.int32)
    levels = np.clip(np.rint(weight / wide[groups]) + zeros[groups], 0, _LEVELS).astype(np.int32)
    return levels, zeros, scales
