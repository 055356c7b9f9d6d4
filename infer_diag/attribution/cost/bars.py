"""The rows of a comparison: a bar per cause with its interval, what fixing it alone saves, and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from infer_diag.attribution.cost import BLAMED, CAUSES
from infer_diag.attribution.cost.entries import GAUGES, POD_EVENTS, PRICE, REQUEST_LOG, STEP_LOG
from infer_diag.attribution.cost.evaluation import Compared
from infer_diag.attribution.cost.jackknife import p_value
from infer_diag.attribution.cost.lmdi import dollars, lmdi
from infer_diag.attribution.cost.shapley import alone, interactions, last, orderings, saves_ratio, shapley

Floats = npt.NDArray[np.float64]
Row = dict[str, Any]

OVERLAP_LOG = 0.1
"""Pairs of causes that interact more strongly than this (ln) are to be fixed together."""
OVERLAP_SHARE = 0.2
"""So are causes whose part moves by more than this share of ln R with the order of switching."""
DEMAND_SHARE = 0.1
"""Where the reading of the queue moves a bar by more than this share of ln R, the bar is a range."""
RESIDUAL_LOG = 0.2
RESIDUAL_SHARE = 1 / 3
"""A residual beyond either says that the model does not explain the deployment."""

_UNKNOWN_OF = {
    "cold_start": ("cold_start",),
    "idle": ("idle",),
    "batching": ("batching", "stall"),
    "fragmentation": ("batching", "recompute"),
    "hardware": ("batching",),
    "undelivered": ("undelivered",),
    "mix": ("mix",),
    "prefix_cache": ("prefix_cache",),
    "price": ("price",),
}
_WOULD_TELL = {
    "cold_start": f"the engine's log from its start on, and {POD_EVENTS}",
    "idle": GAUGES,
    "batching": f"running and waiting requests at 8 levels of load or more: {GAUGES}",
    "stall": STEP_LOG,
    "recompute": f"preemption counts and {STEP_LOG}",
    "undelivered": REQUEST_LOG,
    "mix": f"prompt tokens: {REQUEST_LOG}",
    "prefix_cache": "prompt tokens that were found in the prefix cache, by request",
    "price": PRICE,
}
_MODELLED = ("batching", "fragmentation", "hardware", "mix", "residual")


@dataclass(frozen=True, eq=False)
class Intervals:
    """Ends of `Compared.vector`, null where the log is too short; `ends` the vectors at both readings of the queue."""

    lower: Floats | None
    upper: Floats | None
    ends: tuple[Floats, Floats]
    blocks: int


NOTHING_LOG = 1e-12
"""Smaller parts are the rounding of floating point."""


def bar_rows(name: str, made: Compared, spread: Intervals, bounded: frozenset[str]) -> list[Row]:
    """CostBars of one deployment, in the order of CAUSES; `bounded` are causes whose ledger entries are bounds."""
    phi, gained = _clean(shapley(made.game)), _clean(last(made.game))
    single, ranges = alone(made.game), orderings(made.game)
    cost, reference = math.exp(made.deployment.log_cost()), math.exp(made.reference.log_cost())
    money: dict[str, float] = {} if "price" in made.deployment.unknown else dollars(phi, cost, reference)
    shares = _has_ratio(spread)
    rows = []
    for place, cause in enumerate(CAUSES):
        unknown = [key for key in _UNKNOWN_OF.get(cause, ()) if key in made.deployment.unknown]
        nothing = bool(unknown) and len(unknown) == len(_UNKNOWN_OF[cause])
        low, high, demand = _ends(spread, 2 + place)
        saved = _ends(spread, 2 + len(CAUSES) + place)
        short = spread.lower is None
        wide = shares and demand[1] - demand[0] > DEMAND_SHARE * abs(made.game.total)
        rows.append(
            {
                "deployment": name,
                "cause": cause,
                "blamed": cause in BLAMED,
                "log_ratio": None if nothing or short else phi[cause],
                "lower_ratio": None if nothing else low,
                "upper_ratio": None if nothing else high,
                "share_ratio": phi[cause] / made.game.total if shares and not nothing else None,
                "dollars_per_million_tokens": None if nothing or short else money.get(cause),
                "saves_ratio": None if nothing or short else saves_ratio(gained[cause]),
                "saves_lower_ratio": None if nothing or saved[0] is None else saves_ratio(saved[0]),
                "saves_upper_ratio": None if nothing or saved[1] is None else saves_ratio(saved[1]),
                "alone_ratio": None if nothing or short else math.exp(single[cause]),
                "least_ratio": None if nothing or short else ranges[cause][0],
                "most_ratio": None if nothing or short else ranges[cause][1],
                "demand_low_ratio": None if nothing or short else demand[0],
                "demand_high_ratio": None if nothing or short else demand[1],
                "p_ratio": None if nothing else _p(phi[cause], spread, 2 + place),
                "discovered": False,
                "status": _status(cause, nothing, bool(unknown) or wide or cause in bounded, short),
                "missing": _missing(cause, unknown, made, short),
            }
        )
    return rows


def chain_rows(name: str, made: Compared) -> list[Row]:
    """ChainRows of one deployment: both chains, and LMDI between them."""
    here, there = made.deployment.chain(), made.reference.chain()
    logs = lmdi(here, there)
    money = dollars(logs, math.exp(made.deployment.log_cost()), math.exp(made.reference.log_cost()))
    return [
        {
            "deployment": name,
            "factor": factor,
            "deployment_ratio": here[factor],
            "reference_ratio": there[factor],
            "log_ratio": logs[factor],
            "dollars_per_million_tokens": money[factor],
        }
        for factor in here
    ]


def interaction_rows(name: str, made: Compared) -> list[Row]:
    """Interactions of one deployment, those beyond 0.1 alone."""
    return [
        {"deployment": name, "one": one, "other": other, "log_ratio": value}
        for (one, other), value in interactions(made.game).items()
        if abs(value) > OVERLAP_LOG
    ]


def warnings(made: Compared, spread: Intervals) -> list[str]:
    """What stands above the bars: a model that explains too little, causes that overlap, peers that are not alike."""
    phi, ranges, total = shapley(made.game), orderings(made.game), made.game.total
    said = []
    if not made.comparable:
        said.append("the reference runs, or may run, another model or hardware: that stands in a bar of its own")
    residual = abs(phi["residual"])
    if residual > RESIDUAL_LOG or (_has_ratio(spread) and residual > RESIDUAL_SHARE * abs(total)):
        said.append("the model does not explain this deployment: see the residual")
    pairs = [pair for pair, value in interactions(made.game).items() if abs(value) > OVERLAP_LOG]
    wide = [c for c, (low, high) in ranges.items() if _has_ratio(spread) and high - low > OVERLAP_SHARE * abs(total)]
    named = sorted({cause for pair in pairs for cause in pair} | set(wide))
    if named:
        said.append(f"these causes overlap; fix them together: {', '.join(each.replace('_', ' ') for each in named)}")
    if spread.lower is not None and not _has_ratio(spread):
        said.append("the ratio may be 1: there is nothing to share out")
    return said


def bounded_causes(statuses: Mapping[str, str]) -> frozenset[str]:
    """Causes that rest on a ledger entry which is a bound, given the entries' statuses."""
    rests = {
        "cold_start": ("cold", "held"),
        "idle": ("idle",),
        "residual": ("held",),
        "undelivered": ("delivered_output",),
    }
    return frozenset(cause for cause, names in rests.items() if any(statuses.get(name) == "bounded" for name in names))


def _has_ratio(spread: Intervals) -> bool:
    """Whether the interval of ln R excludes 0, so that shares of it mean anything."""
    if spread.lower is None or spread.upper is None:
        return False
    return bool(spread.lower[1] > 0 or spread.upper[1] < 0)


def _ends(spread: Intervals, place: int) -> tuple[float | None, float | None, tuple[float, float]]:
    """The interval of a value, widened by what the two readings of the queue do to it, and that range."""
    low, high = sorted(float(each[place]) for each in spread.ends)
    if spread.lower is None or spread.upper is None:
        return None, None, (low, high)
    middle = float(spread.lower[place] + spread.upper[place]) / 2
    if max(abs(each) for each in (low, high, spread.lower[place], spread.upper[place])) < NOTHING_LOG:
        return 0.0, 0.0, (0.0, 0.0)
    return (
        float(spread.lower[place]) + min(low - middle, 0.0),
        float(spread.upper[place]) + max(high - middle, 0.0),
        (min(low, middle), max(high, middle)),
    )


def _clean(parts: Mapping[str, float]) -> dict[str, float]:
    return {cause: value if abs(value) > NOTHING_LOG else 0.0 for cause, value in parts.items()}


def _p(value: float, spread: Intervals, place: int) -> float | None:
    if spread.lower is None or spread.upper is None:
        return None
    return p_value(value, float(spread.lower[place]), float(spread.upper[place]), spread.blocks)


def _status(cause: str, nothing: bool, bounded: bool, short: bool) -> str:
    if nothing or short:
        return "not_identifiable"
    if bounded:
        return "bounded"
    return "modelled" if cause in _MODELLED else "measured"


def _missing(cause: str, unknown: list[str], made: Compared, short: bool) -> str | None:
    if short:
        return "a longer log: its windows are worth fewer than 10 independent ones"
    if cause == "residual":
        held = sorted(made.deployment.unknown)
        names = ", ".join(each.replace("_", " ") for each in held)
        return f"holds what one side's logs cannot tell: {names}" if held else None
    return "; ".join(dict.fromkeys(_WOULD_TELL[key] for key in unknown)) or None
