"""What of the answer hangs on a convention: the weight of prompt tokens, and the price paid."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from infer_diag.attribution.cost import BLAMED
from infer_diag.attribution.cost.evaluation import Compared
from infer_diag.attribution.cost.shapley import shapley

_WORKLOAD = ("mix", "prefix_cache")


def sensitivity_rows(setting: str, found: Mapping[str, Compared], without: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Sensitivities under one setting: the ratio without workload and the bars named, and the largest cause."""
    rows = []
    for name, made in found.items():
        phi = shapley(made.game)
        left = made.game.total - sum(phi[cause] for cause in (*_WORKLOAD, *without))
        largest = max(BLAMED, key=lambda cause: phi[cause])
        rows.append(
            {
                "deployment": name,
                "setting": setting,
                "equivalent_ratio": math.exp(left),
                "largest_cause": largest if phi[largest] > 0 else None,
            }
        )
    return rows
