"""What must hold for any fleet: changes of the logs that may not change the answer, or only in one direction."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import polars as pl

from infer_diag.attribution.cost.analysis import Costs, costs
from infer_diag.attribution.cost.ledger import Observed

Fleet = Mapping[str, Observed]
_EXACT = 1e-9
_FIT_LOG = 1e-3


def holds(made: Fleet) -> dict[str, bool]:
    """Each property by name, and whether it holds for this fleet."""
    found = costs(made)
    return {name: bool(check(made, found)) for name, check in PROPERTIES.items()}


def bars_add_up(made: Fleet, found: Costs) -> bool:
    """The bars of each deployment are ln of its ratio."""
    sums = found.bars.group_by("deployment").agg(pl.col("log_ratio").sum())
    both = sums.join(found.deployments.filter(pl.col("verdict") != "refused"), on="deployment").drop_nulls("cost_ratio")
    return bool(np.allclose(both["log_ratio"], both["cost_ratio"].log(), rtol=_EXACT, atol=1e-12))


def order_does_not_matter(made: Fleet, found: Costs) -> bool:
    """The same deployments in another order."""
    return _same(found, costs(dict(reversed(made.items()))))


def price_scales_dollars_alone(made: Fleet, found: Costs) -> bool:
    """All prices doubled."""
    dearer = {
        name: replace(each, facts=replace(each.facts, price_per_gpu_h=2 * (each.facts.price_per_gpu_h or 0.0)))
        for name, each in made.items()
    }
    after = costs(dearer)
    money = [_column(each, "dollars_per_million_tokens") for each in (found, after)]
    return _same(found, after) and bool(np.allclose(2 * money[0], money[1], rtol=_EXACT, atol=1e-12))


def swapping_negates(made: Fleet, found: Costs) -> bool:
    """Two deployments, each in turn the reference."""
    one, other = list(made)[:2]
    two = {name: made[name] for name in (one, other)}
    there, back = _parts(costs(two, other), one), _parts(costs(two, one), other)
    both = there.keys() & back.keys()
    return all(math.isclose(there[cause], -back[cause], rel_tol=1e-7, abs_tol=1e-9) for cause in both)


def against_itself_is_nothing(made: Fleet, found: Costs) -> bool:
    """A deployment as its own reference."""
    name = next(iter(made))
    return set(_parts(costs(made, name), name).values()) <= {0.0}


def two_halves_are_the_whole(made: Fleet, found: Costs) -> bool:
    """One deployment told as two of half the size; its windows then weigh twice in the fit, which may move the rest."""
    name, there = list(made)[-1], next(iter(made))
    whole = made[name]
    sums = pl.col("^.*_gpu_s$", "start_count", "oom_start_count", "step_count", "^.*_tokens$").exclude("context_tokens")
    quarter = pl.col("step_variance_count") / 4
    split = pl.concat([whole.windows, whole.windows]).with_columns(sums / 2, quarter)
    both = {name: whole, there: made[there]}
    parts = _parts(costs(both, there), name), _parts(costs({**both, name: replace(whole, windows=split)}, there), name)
    return all(math.isclose(parts[0][cause], parts[1][cause], abs_tol=_FIT_LOG) for cause in parts[0])


def longer_starts_never_lower_cold_start(made: Fleet, found: Costs) -> bool:
    """100 s more for each start, held and not delivering."""
    name = list(made)[1]
    more = 100 * pl.col("start_count")
    longer = made[name].windows.with_columns(pl.col("held_gpu_s", "cold_gpu_s") + more)
    after = costs({**made, name: replace(made[name], windows=longer)})
    return _part(after, name, "cold_start") >= _part(found, name, "cold_start") - 1e-12


def fewer_ooms_never_raise_fragmentation(made: Fleet, found: Costs) -> bool:
    """The starts after a failed allocation taken for ordinary ones."""
    name = max(made, key=lambda each: made[each].windows["oom_start_count"].sum())
    without = made[name].windows.with_columns(pl.col("oom_start_count", "oom_cold_gpu_s") * 0)
    after = costs({**made, name: replace(made[name], windows=without)})
    return _part(after, name, "fragmentation") <= _part(found, name, "fragmentation") + 1e-12


PROPERTIES: dict[str, Callable[[Fleet, Costs], bool]] = {
    check.__name__.replace("_", " "): check
    for check in (
        bars_add_up,
        order_does_not_matter,
        price_scales_dollars_alone,
        swapping_negates,
        against_itself_is_nothing,
        two_halves_are_the_whole,
        longer_starts_never_lower_cold_start,
        fewer_ooms_never_raise_fragmentation,
    )
}


def _column(found: Costs, name: str) -> np.ndarray:
    return found.bars.sort("deployment", "cause")[name].fill_null(0.0).to_numpy()


def _same(one: Costs, other: Costs) -> bool:
    columns = ("log_ratio", "lower_ratio", "upper_ratio", "saves_ratio")
    return all(np.allclose(_column(one, name), _column(other, name), rtol=1e-7, atol=1e-9) for name in columns)


def _part(found: Costs, name: str, cause: str) -> float:
    return _parts(found, name).get(cause, 0.0)


def _parts(found: Costs, name: str) -> dict[str, float]:
    rows = found.bars.filter(pl.col("deployment") == name)
    return {str(cause): float(value) for cause, value in rows.drop_nulls("log_ratio")["cause", "log_ratio"].iter_rows()}
