"""Policies held against each other on the same arrivals: several seeds, intervals, an oracle and a bound."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import polars as pl
from scipy.special import stdtrit

from infer_diag.errors import DiagError
from infer_diag.simulators.batch_control.bound import most_in_slo, most_served
from infer_diag.simulators.batch_control.controllers import POLICIES, Policy, fixed_limit, table_limit
from infer_diag.simulators.batch_control.frames import ControlRuns, ControlSteps, ControlSummary, PlantRates
from infer_diag.simulators.batch_control.plant import Plant
from infer_diag.simulators.batch_control.scenarios import Floats, Scenario
from infer_diag.simulators.batch_control.server import Run, run_policy

ORACLE = "oracle"
_ORACLE_LIMITS = 9
_ROUNDING_S = 1e-9
"""A request that ends at its deadline is in time, whichever way its sum was rounded."""

_MEASURES = ControlSummary.columns()["measure"].dtype.categories.to_list()  # type: ignore[attr-defined]


def run_oracle(arrival_s: Floats, plant: Plant, *, slo_s: float, horizon_s: float) -> Run:
    """The run with the most requests in the SLO, then the shortest mean response, of several that drop early.

    Each has another fixed limit, Nexus's among them, and the choice is made in hindsight, with all arrivals known, so
    nobody can have it. A controller beats it by no more than the grid of limits is coarse; `bound.most_in_slo` is
    beaten by none at all.
    """
    grid = np.unique(np.linspace(1, plant.limit_count, min(_ORACLE_LIMITS, plant.limit_count)).astype(int))
    limits = [fixed_limit(int(count)) for count in grid] + [table_limit]
    runs = [
        run_policy(arrival_s, plant, Policy(ORACLE, limit, early_drop=True), slo_s=slo_s, horizon_s=horizon_s)
        for limit in limits
    ]
    return max(runs, key=lambda run: (in_slo_count(run), -_mean_s(run.response_s)))


def in_slo_count(run: Run) -> int:
    """Requests whose deadline lies before the horizon and that ended by it."""
    decided = run.arrival_s + run.slo_s <= run.horizon_s
    return int(np.count_nonzero(decided & (run.response_s <= run.slo_s + _ROUNDING_S)))


def compare(
    scenarios: Iterable[Scenario],
    plant: Plant,
    *,
    slo_s: float = 1.0,
    seeds: Sequence[int] = tuple(range(5)),
    policies: Iterable[Policy] = tuple(POLICIES.values()),
    oracle: bool = True,
) -> pl.DataFrame:
    """`frames.ControlRuns`: every policy, and the oracle, on the same arrivals of every seed. Simulated.

    Arrivals of a log are the same for every seed and are run once.

    Raises:
        DiagError: no seed, or an SLO that is not above 0.
    """
    if not seeds:
        raise DiagError("a comparison needs a seed")
    rows: list[dict[str, Any]] = []
    chosen = list(policies)
    for scenario in scenarios:
        for seed in seeds if scenario.is_drawn else seeds[:1]:
            times = scenario.arrivals(seed)
            limits = _bounds(times, plant, scenario, slo_s)
            timing = {"slo_s": slo_s, "horizon_s": scenario.horizon_s}
            runs = {policy.name: run_policy(times, plant, policy, **timing) for policy in chosen}
            if oracle:
                runs[ORACLE] = run_oracle(times, plant, **timing)
            for name, run in runs.items():
                rows.append({**_row(run, scenario), **limits, "policy": name, "seed_id": seed})
    return ControlRuns.validate(pl.DataFrame(rows, schema=ControlRuns.create_empty().schema), cast=True)


def plant_rates(plant: Plant) -> pl.DataFrame:
    """`frames.PlantRates` of a plant."""
    columns = {
        "batch_count": np.arange(1, plant.limit_count + 1),
        "duration_s": plant.seconds[1:],
        "served_per_s": plant.rates_per_s(),
    }
    return PlantRates.validate(pl.DataFrame(columns), cast=True)


def steps(scenario: Scenario, plant: Plant, policy: Policy, *, slo_s: float = 1.0, seed: int = 0) -> pl.DataFrame:
    """`frames.ControlSteps` of one run: what the controller allowed, batch by batch. Simulated."""
    run = run_policy(scenario.arrivals(seed), plant, policy, slo_s=slo_s, horizon_s=scenario.horizon_s)
    frame = pl.DataFrame(
        {
            "begin_s": run.begin_s,
            "duration_s": run.duration_s,
            "limit_count": run.limit_count,
            "batch_count": run.batch_count,
            "waiting_count": run.waiting_count,
            "dropped_count": run.dropped_count,
            "oldest_wait_s": run.oldest_wait_s,
            "served_per_s": run.batch_count / run.duration_s,
        }
    ).with_columns(scenario=pl.lit(scenario.name), policy=pl.lit(policy.name), seed_id=pl.lit(seed))
    return ControlSteps.validate(frame.select(ControlSteps.column_names()), cast=True)


def summary(runs: pl.DataFrame) -> pl.DataFrame:
    """`frames.ControlSummary`: mean over seeds and the 95 % interval mean ± t · s / √n, per scenario and policy.

    Frame in: `frames.ControlRuns`. A measure that is null for one seed has no mean: a p99 that is unknown because too
    many never finished would flatter the policy if it were left out.
    """
    long = runs.unpivot(_MEASURES, index=["scenario", "policy", "seed_id"], variable_name="measure", value_name="value")
    told = long.group_by("scenario", "policy", "measure", maintain_order=True).agg(
        pl.len().alias("seed_count"),
        pl.col("value").count().alias("known_count"),
        pl.col("value").mean().alias("mean"),
        pl.col("value").std().alias("spread"),
    )
    counts = [count for count in told["seed_count"].unique() if count > 1]
    factor = {count: float(stdtrit(count - 1, 0.975)) / count**0.5 for count in counts}
    half = pl.col("spread") * pl.col("seed_count").replace_strict(factor, default=None, return_dtype=pl.Float64)
    whole = pl.col("known_count") == pl.col("seed_count")
    told = told.with_columns(
        mean=pl.when(whole).then("mean"),
        lower=pl.when(whole).then(pl.col("mean") - half),
        upper=pl.when(whole).then(pl.col("mean") + half),
    )
    return ControlSummary.validate(told.select(ControlSummary.column_names()), cast=True)


def _bounds(times: Floats, plant: Plant, scenario: Scenario, slo_s: float) -> dict[str, float | None]:
    decided = times[times + slo_s <= scenario.horizon_s]
    begin_s, end_s = scenario.burst or (0.0, 0.0)
    return {
        "most_in_slo_ratio": most_in_slo(decided, plant, slo_s=slo_s) / len(decided) if len(decided) else None,
        "most_burst_per_s": most_served(times, plant, begin_s, end_s) / (end_s - begin_s) if scenario.burst else None,
    }


def _row(run: Run, scenario: Scenario) -> dict[str, Any]:
    response_s = run.response_s
    served, dropped = int(np.count_nonzero(~np.isnan(response_s))), int(run.dropped.sum())
    decided = int(np.count_nonzero(run.arrival_s + run.slo_s <= run.horizon_s))
    kept = np.where(np.isnan(response_s), np.inf, response_s)[~run.dropped]
    burst_s = None if scenario.burst is None else scenario.burst[1] - scenario.burst[0]
    return {
        "scenario": scenario.name,
        "arrived_count": len(run.arrival_s),
        "served_count": served,
        "dropped_count": dropped,
        "unfinished_count": len(run.arrival_s) - served - dropped,
        "served_per_s": run.served_within(0.0, run.horizon_s) / run.horizon_s,
        "burst_served_per_s": run.served_within(*scenario.burst) / burst_s if scenario.burst and burst_s else None,
        "in_slo_ratio": in_slo_count(run) / decided if decided else None,
        "p50_response_s": _percentile(kept, 50),
        "p99_response_s": _percentile(kept, 99),
        "mean_batch_count": float(run.batch_count.mean()) if len(run.batch_count) else None,
        "recovery_s": _recovery_s(run, scenario.burst[1]) if scenario.burst else None,
    }


def _mean_s(response_s: Floats) -> float:
    served = response_s[~np.isnan(response_s)]
    return float(served.mean()) if len(served) else 0.0


def _percentile(response_s: Floats, share: float) -> float | None:
    """The linear percentile; null where it falls on a request that never finished."""
    if not len(response_s):
        return None
    ordered = np.sort(response_s)
    place = (len(ordered) - 1) * share / 100
    above = ordered[int(np.ceil(place))]
    if not np.isfinite(above):
        return None
    below = ordered[int(np.floor(place))]
    return float(below + (above - below) * (place - np.floor(place)))


def _recovery_s(run: Run, burst_end_s: float) -> float | None:
    """Seconds from the end of the burst to the last miss; null if one falls in the last SLO that can be judged."""
    decided = (run.arrival_s > burst_end_s) & (run.arrival_s + run.slo_s <= run.horizon_s)
    missed = run.arrival_s[decided & ~(run.response_s <= run.slo_s + _ROUNDING_S)]
    if not len(missed):
        return 0.0
    return None if missed[-1] > run.horizon_s - 2 * run.slo_s else float(missed[-1] - burst_end_s)
