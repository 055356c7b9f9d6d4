"""What formats weigh and what their group index costs in memory traffic: counted, on no device."""

from __future__ import annotations

import numpy as np

from infer_diag.probes.quantisation.nibbles import Ints

SECTOR_BYTES = 32
"""The smallest piece that an NVIDIA GPU moves between memory and L2."""

_HALF_BYTES = 2


def weight_bytes(parameters: float, form: str, *, group: int = 128, inputs: int = 4096) -> float:
    """Bytes of so many weights of linear layers in a format: `bfloat16`, `fp8`, `awq`, `gptq`, `gptq_act_order`.

    Four bits come with a half-precision scale and a four-bit zero per group; act-order adds an int32 per input, which
    is 4 / outputs per weight, here for square layers of `inputs`. Embeddings usually stay in 16 bits and are not in it.

    Raises:
        KeyError: there is no such format.
    """
    grouped = 0.5 + (_HALF_BYTES + 0.5) / group
    each = {"bfloat16": 2.0, "fp8": 1.0, "awq": grouped, "gptq": grouped, "gptq_act_order": grouped + 4 / inputs}
    return parameters * each[form]


def scale_rows(g_idx: Ints) -> int:
    """How many rows of scales and zeros a thread block loads that walks down the inputs and keeps the last row.

    Sequential groups: inputs / group. Act-order: nearly one per input.
    """
    if not len(g_idx):
        return 0
    return 1 + int(np.count_nonzero(np.diff(g_idx)))


def scale_sectors(g_idx: Ints, columns: int) -> int:
    """Sectors of 32 B that these rows are, for a block of `columns` outputs: half-precision scales and packed zeros."""
    each = -(-columns * _HALF_BYTES // SECTOR_BYTES) + -(-columns // 2 // SECTOR_BYTES)
    return scale_rows(g_idx) * each
