"""Which share of the scatter of start times tenants, nodes and start kinds make.

Model: y = ln(duration) = μ + tenant + node + kind + ε. Each factor is held against a model of all the others, so that a
tenant who lives on a slow node is not blamed for it. Sums of squares grow with the number of labels even where labels
mean nothing; components are therefore solved from their expectations (Henderson's third method).
"""

from __future__ import annotations

from dataclasses import dataclass

import dataframely as dy
import numpy as np
import numpy.typing as npt
import polars as pl
import scipy

from infer_diag.attribution.quantiles import median
from infer_diag.attribution.tenancy.frames import JitterLevels, JitterShares
from infer_diag.attribution.tenancy.sample_size import LEAST_STARTS, LEAST_TENANTS

FACTORS = ("tenant", "node", "kind")
FIXED = ("kind",)
PERMUTATIONS = 999
CONFIDENCE = 0.95
_SEED = 20_240_215
_RANK_TOLERANCE = 1e-9
_LARGEST_NON_CENTRALITY = 1e8
"""From here on a share is 1 to seven digits whatever its interval, and the distribution cannot be computed."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class JitterSplit:
    """Shares of the variance by factor with their intervals, and the starts by level."""

    shares: dy.DataFrame[JitterShares]
    levels: dy.DataFrame[JitterLevels]


@dataclass(frozen=True)
class _Component:
    """One factor's part: mean squares with degrees of freedom, starts per level as far as they count, and its p."""

    levels: int
    freedom: int
    mean_square: float
    per_level: float
    variance: float
    naive: float
    p: float | None


def jitter_split(observations: pl.DataFrame) -> JitterSplit:
    """The debiased share of each factor in the variance of ln(duration), with F interval and permutation p-value.

    Frame in: StartObservations. Frames out: JitterShares, JitterLevels. σ²_F = max(0, (SS_F − df_F·MS_e)/tr(Z′MZ)) with
    SS_F the sum of squares of F beyond all other factors, Z its indicators and M the residual maker of the others;
    share = σ²_F / (Σ σ²_G + MS_e). The interval is that of F (normal ln durations); p permutes the factor's labels
    among starts that are alike in all other factors. A share needs 5 levels with 10 starts each; else it is null with
    the reason, and the levels tell what can be told. The kinds are no sample of kinds, so 2 are enough, n stands for
    the trace, and the interval is that of a non-central F: the share is one of these starts.
    """
    known = [name for name in FACTORS if name in observations.columns and observations[name].null_count() == 0]
    kept = [name for name in known if observations[name].n_unique() > 1]
    y = np.log(observations["duration_s"].to_numpy()) if len(observations) else np.empty(0)
    codes = {name: observations[name].rank("dense").to_numpy().astype(np.int64) - 1 for name in kept}
    rows = [_absent(name, len(y), observations) for name in FACTORS if name not in kept]
    differ = len(y) > 0 and float(np.ptp(y)) > _RANK_TOLERANCE
    error = _residual(y, codes) if differ else None
    if error is None:
        why = "too few starts for so many labels" if differ else "no start lasts longer than another"
        rows += [_row(name, len(y), None, reason=why) for name in (*kept, "residual")]
    else:
        found = {name: _component(name, y, codes, error[0]) for name in kept}
        rows += _shares(found, *error, codes)
    frame = pl.DataFrame(rows, schema=JitterShares.create_empty().schema)
    return JitterSplit(JitterShares.validate(frame, cast=True), _levels(observations, known))


def _absent(name: str, count: int, observations: pl.DataFrame) -> dict[str, object]:
    told = name in observations.columns and observations[name].null_count() < len(observations)
    why = f"every start has the same {name}" if told else f"no line tells the {name} of a start"
    if told and observations[name].null_count():
        why = f"the {name} of some starts is not told"
    return _row(name, count, None, reason=why)


def _row(name: str, count: int, levels: int | None, **values: object) -> dict[str, object]:
    told: dict[str, object] = {"factor": name, "level_count": levels, "start_count": count}
    return {**told, "status": "not_identifiable", **values}


def _indicators(codes: npt.NDArray[np.int64]) -> Floats:
    found: Floats = np.eye(int(codes.max()) + 1)[codes]
    return found


def _basis(columns: Floats) -> Floats:
    """Orthonormal columns that span the same space."""
    if not columns.shape[1]:
        return columns
    left, values, _ = np.linalg.svd(columns, full_matrices=False)
    return left[:, values > _RANK_TOLERANCE * max(float(values.max(initial=0.0)), 1.0)]


def _others(name: str | None, codes: dict[str, npt.NDArray[np.int64]], count: int) -> Floats:
    parts = [np.ones((count, 1)), *(_indicators(each) for other, each in codes.items() if other != name)]
    return _basis(np.hstack(parts))


def _without(basis: Floats, values: Floats) -> Floats:
    left: Floats = values - basis @ (basis.T @ values)
    return left


def _residual(y: Floats, codes: dict[str, npt.NDArray[np.int64]]) -> tuple[float, int] | None:
    """Mean square and degrees of freedom of what no factor explains; null where nothing is left."""
    whole = _others(None, codes, len(y))
    freedom = len(y) - whole.shape[1]
    rest = _without(whole, y)
    return (float(rest @ rest) / freedom, freedom) if freedom > 0 else None


def _component(name: str, y: Floats, codes: dict[str, npt.NDArray[np.int64]], error: float) -> _Component | None:
    """Null where the factor cannot be told from the others."""
    others = _others(name, codes, len(y))
    own = _without(others, _indicators(codes[name]))
    basis = _basis(own)
    freedom, trace = basis.shape[1], float((own**2).sum())
    if not freedom or trace <= _RANK_TOLERANCE:
        return None
    trace = float(len(y)) if name in FIXED else trace
    square = float(((basis.T @ y) ** 2).sum())
    centred = y - y.mean()
    whole = float(centred @ centred)
    return _Component(
        levels=int(codes[name].max()) + 1,
        freedom=freedom,
        mean_square=square / freedom,
        per_level=trace / freedom,
        variance=max(0.0, (square - freedom * error) / trace),
        naive=min(square / whole, 1.0) if whole > 0 else 0.0,
        p=_permuted(y, basis, square, _strata(name, codes, len(y))),
    )


def _strata(name: str, codes: dict[str, npt.NDArray[np.int64]], count: int) -> npt.NDArray[np.int64]:
    strata = np.zeros(count, dtype=np.int64)
    for other, each in codes.items():
        if other != name:
            strata = strata * (int(each.max()) + 1) + each
    return strata


def _permuted(y: Floats, basis: Floats, square: float, strata: npt.NDArray[np.int64]) -> float:
    """Share of permutations within strata whose sum of squares is as large; what the others explain stays the same."""
    rng = np.random.default_rng(_SEED)
    order = np.argsort(strata, kind="stable")
    drawn = np.empty((len(y), PERMUTATIONS))
    for number in range(PERMUTATIONS):
        shuffled = np.lexsort((rng.random(len(y)), strata))
        drawn[order, number] = y[shuffled]
    squares = ((basis.T @ drawn) ** 2).sum(axis=0)
    return float((1 + (squares >= square * (1 - 1e-12)).sum()) / (1 + PERMUTATIONS))


def _shares(
    found: dict[str, _Component | None], error: float, freedom: int, codes: dict[str, npt.NDArray[np.int64]]
) -> list[dict[str, object]]:
    count = len(next(iter(codes.values()), ()))
    total = error + sum(one.variance for one in found.values() if one is not None)
    rows = []
    for name, one in found.items():
        each = np.bincount(codes[name])
        if one is None:
            rows.append(_row(name, count, len(each), reason=f"the {name} cannot be told from the other labels"))
            continue
        told = {"naive_ratio": one.naive, "p_ratio": one.p}
        least = 2 if name in FIXED else LEAST_TENANTS
        if one.levels < least or float(np.median(each)) < LEAST_STARTS:
            why = f"a share needs {least} levels with {LEAST_STARTS} starts each"
            rows.append(_row(name, count, one.levels, reason=why, **told))
            continue
        low, high = _interval(one, error, freedom, total, fixed=name in FIXED)
        share = one.variance / total
        bounds = {"low_ratio": min(low, share), "high_ratio": max(high, share)}
        rows.append(_row(name, count, one.levels, share_ratio=share, **bounds, **told) | {"status": "measured"})
    # Where one factor's share is refused, what the others leave would tell it all the same.
    told_all = bool(rows) and all(row["status"] == "measured" for row in rows)
    rest = {"share_ratio": error / total, "status": "measured"} if told_all else {"reason": "a factor is not told"}
    return [*rows, _row("residual", count, None) | rest]


def _interval(one: _Component, error: float, freedom: int, total: float, *, fixed: bool) -> tuple[float, float]:
    """Share at the ends of the F interval of the component over the error, the other factors as estimated."""
    if error <= _RANK_TOLERANCE * total:  # The labels explain all: what is left is the rounding of the numbers.
        return one.variance / total, one.variance / total
    rest = total / error - one.variance / error
    ends = []
    for side in ((1 + CONFIDENCE) / 2, (1 - CONFIDENCE) / 2):
        ratio = _fixed_ratio(one, error, freedom, side) if fixed else _random_ratio(one, error, freedom, side)
        ends.append(ratio / (ratio + rest))
    return ends[0], ends[1]


def _random_ratio(one: _Component, error: float, freedom: int, side: float) -> float:
    """σ²_F/σ²_e at which the F that was seen is this quantile of its distribution."""
    limit = float(scipy.stats.f.ppf(side, one.freedom, freedom))
    return max((one.mean_square / error / limit - 1) / one.per_level, 0.0)


def _fixed_ratio(one: _Component, error: float, freedom: int, side: float) -> float:
    """The same for levels that are no sample: non-centrality over the number of starts."""
    seen = one.mean_square / error
    if seen * one.freedom > _LARGEST_NON_CENTRALITY:
        return (seen - 1) / one.per_level

    def above(non_centrality: float) -> float:
        return float(scipy.stats.ncf.cdf(seen, one.freedom, freedom, non_centrality)) - side

    if float(scipy.stats.f.cdf(seen, one.freedom, freedom)) <= side:
        return 0.0
    most = 4 * one.freedom * seen + 100.0
    return float(scipy.optimize.brentq(above, 0.0, most)) / (one.per_level * one.freedom)


def _levels(observations: pl.DataFrame, known: list[str]) -> dy.DataFrame[JitterLevels]:
    centre = pl.col("duration_s").log().mean()
    whole = observations.select(centre).item() if len(observations) else None
    parts = [
        observations.group_by(pl.lit(name).alias("factor"), pl.col(name).alias("level"))
        .agg(
            pl.len().alias("start_count"),
            median(pl.col("duration_s")).alias("p50_s"),
            (centre - pl.lit(whole, pl.Float64)).exp().alias("times_ratio"),
        )
        .sort("p50_s", "level", descending=[True, False])
        for name in known
    ]
    return JitterLevels.validate(pl.concat([JitterLevels.create_empty(), *parts], how="vertical_relaxed"), cast=True)
