"""The article's dequantisation as it describes it, to show what comes of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def as_described(words: NDArray[Any], scales: NDArray[Any], indices: NDArray[Any], group: int) -> NDArray[Any]:
    """The packed words cut into rows of a group and multiplied by a scale per row, looked up by an index.

    It neither unpacks the nibbles nor subtracts a zero, and a row of `group` values cannot be multiplied by as many
    scales as there are rows, unless both numbers happen to be equal.

    Raises:
        ValueError: there are not as many rows as values in a row.
    """
    return np.asarray(words.reshape(-1, group) * scales[indices])
