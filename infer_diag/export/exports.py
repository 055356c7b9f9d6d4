"""What one export carries, before anything of OpenTelemetry is imported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from infer_diag.export.labels import Labels
from infer_diag.export.measures import Series
from infer_diag.export.spans import Interval


@dataclass(frozen=True)
class Exports:
    """What one export carries; `seed` is the content that the ids of its trace and spans are made from."""

    intervals: Sequence[Interval]
    series: Sequence[Series]
    labels: Labels
    resource: dict[str, str]
    seed: str
