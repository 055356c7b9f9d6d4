"""What is planted, how often, and what the logs tell: the fleets of the validation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Sight = Literal["steps", "gauges", "logs"]
"""What is seen: counted with steps timed and arrivals told, counted by gauges alone, or the text of simulated runs."""

COUNTED_CAUSES: dict[str, dict[str, Any]] = {
    "cold_start": {"starts_per_h": 0.8, "hold_s": 312.0},
    "batching": {"wanted": 30.0},
    "fragmentation": {"cap": 30.0, "oom_starts_per_h": 0.2},
    "idle": {"idle": 1.6},
}
THROTTLE = 1.3


@dataclass(frozen=True)
class Scenario:
    """`fleets` fleets of healthy deployments with one that has `planted`; `causes` are those with a part in the truth.

    A change that no cause of the analysis stands for belongs to the residual.
    """

    name: str
    fleets: int
    sights: tuple[Sight, ...]
    causes: tuple[str, ...] = ()
    planted: dict[str, Any] = field(default_factory=dict)


_BOTH: tuple[Sight, ...] = ("steps", "gauges")
_LOGGED = 17
_SEVERAL = ("cold_start", "batching", "fragmentation")
_ALL = {key: value for cause in _SEVERAL for key, value in COUNTED_CAUSES[cause].items()}

SCENARIOS = (
    Scenario("nothing", 210, _BOTH),
    *(Scenario(cause, 28, _BOTH, (cause,), changes) for cause, changes in COUNTED_CAUSES.items()),
    Scenario("several causes", 28, _BOTH, _SEVERAL, _ALL),
    Scenario("throttled GPU", 28, _BOTH, (), {"throttle": THROTTLE}),
    Scenario(
        "demand and memory alike",
        14,
        ("steps",),
        ("batching", "fragmentation"),
        {"wanted": 30.0, "cap": 30.0, "swing": 0.0},
    ),
    Scenario("nothing", _LOGGED, ("logs",)),
    *(Scenario(cause, _LOGGED, ("logs",), (cause,)) for cause in COUNTED_CAUSES),
)
WEAK_HOURS = (336, 168, 84, 42, 21, 10)
"""A log of two weeks, and what is left of it when it is halved again and again."""
WEAK_FLEETS = 28
CHANGED_FLEETS = 17


def fleets(scale: float, scenario_fleets: int) -> int:
    """How many fleets at a scale of the whole, at least two."""
    return max(round(scale * scenario_fleets), 2)
