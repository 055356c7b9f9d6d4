"""Observed deployments → what each costs, why, and how sure that is; pure, so any process may do it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import dataframely as dy
import numpy as np
import numpy.typing as npt
import polars as pl

from infer_diag.attribution.cost.bars import (
    Intervals,
    Row,
    bar_rows,
    bounded_causes,
    chain_rows,
    interaction_rows,
    warnings,
)
from infer_diag.attribution.cost.entries import ledger_rows
from infer_diag.attribution.cost.evaluation import Compared, Evaluation, Masks, evaluation, series
from infer_diag.attribution.cost.frames import (
    ChainRows,
    CostBars,
    DeploymentCosts,
    Interactions,
    LedgerRows,
    Sensitivities,
)
from infer_diag.attribution.cost.jackknife import (
    BLOCKS,
    PROVISIONAL_BLOCKS,
    Verdict,
    block_of,
    blocks_of_days,
    discovered,
    effective_count,
    jackknife,
    verdict,
)
from infer_diag.attribution.cost.ledger import Observed
from infer_diag.attribution.cost.profile import Mask, NoCost, Profile, equivalent_tokens, log_measured, profile
from infer_diag.attribution.cost.reference import best_peers, check, halves
from infer_diag.attribution.cost.sensitivity import sensitivity_rows
from infer_diag.attribution.cost.shapley import shapley

Floats = npt.NDArray[np.float64]

DAYS_ASKED_S = 7 * 86_400.0
"""Traffic that has a daily cycle is not seen whole in less."""
LEAST_WINDOWS = 3 * PROVISIONAL_BLOCKS
"""Three windows a block: in fewer, no autocorrelation shows, and blocks are no shorter than what they should hold."""
_WORKLOAD = ("mix", "prefix_cache")


@dataclass(frozen=True, eq=False)
class Costs:
    """The cost analysis of a fleet as frames, all keyed by `deployment`; `refused` says why one has no comparison.

    `prompt_token_weight` is ω, null where no step curve tells it: then prompts are not weighted. `blocks`: of time, for
    the intervals.
    """

    reference: str
    deployments: dy.DataFrame[DeploymentCosts]
    bars: dy.DataFrame[CostBars]
    chain: dy.DataFrame[ChainRows]
    interactions: dy.DataFrame[Interactions]
    ledger: dy.DataFrame[LedgerRows]
    sensitivity: dy.DataFrame[Sensitivities]
    prompt_token_weight: float | None
    blocks: int
    refused: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _Study:
    """What stays the same over all runs of the jackknife."""

    told: dict[str, Profile]
    groups: dict[str, str]
    use: dict[str, Mask]
    verdicts: dict[str, Verdict]
    effective: dict[str, float]
    blocks: int
    best: dict[str, str | None]
    how: str
    weight: float | None

    def run(self, keep: Masks, demand: str = "point") -> Evaluation:
        return evaluation(
            self.told,
            keep,
            self.groups,
            self.how,
            best=self.best,
            weight=self.weight,
            demand=demand,  # type: ignore[arg-type]
        )


def costs(
    seen: Mapping[str, Observed], reference: str = "median", *, prompt_token_weight: float | None = None
) -> Costs:
    """What each deployment's tokens cost against a reference, and whose the difference is.

    `reference`: `median` of comparable peers, `best` of them (chosen on one half of the time, judged on the other),
    `roofline`, or a deployment's name. Intervals: delete-block jackknife of everything, reference and fits included.
    Frames in: CostWindows of each deployment.

    Raises:
        UnknownNameError: no such reference.
    """
    check(reference, list(seen))
    told = {name: profile(name, each) for name, each in seen.items() if len(each.windows)}
    refused = {name: "no clock or no engine in its logs" for name in seen if name not in told}
    study = _study(told, reference, prompt_token_weight)
    whole = study.run(study.use)
    refused |= whole.refused
    spreads = _spreads(study, whole)
    bars, chain, pairs = _compared_rows(seen, whole, spreads)
    rows = [
        _deployment_row(study, whole, name, each, whole.found.get(name), spreads.get(name), refused.get(name))
        for name, each in seen.items()
    ]
    ledgers = ledger_rows({name: each.ledger for name, each in seen.items()})
    return Costs(
        reference,
        DeploymentCosts.validate(_frame(DeploymentCosts, rows), cast=True),
        CostBars.validate(_with_discoveries(_frame(CostBars, bars)), cast=True),
        ChainRows.validate(_frame(ChainRows, chain), cast=True),
        Interactions.validate(_frame(Interactions, pairs), cast=True),
        LedgerRows.validate(_frame(LedgerRows, ledgers), cast=True),
        Sensitivities.validate(_frame(Sensitivities, _sensitivities(study, whole)), cast=True),
        whole.weight,
        study.blocks,
        refused,
    )


def _compared_rows(
    seen: Mapping[str, Observed], whole: Evaluation, spreads: Mapping[str, Intervals]
) -> tuple[list[Row], list[Row], list[Row]]:
    """CostBars, ChainRows and Interactions of every deployment that has a comparison."""
    bars, chain, pairs = [], [], []
    for name, each in seen.items():
        made = whole.found.get(name)
        if made is not None:
            statuses = {entry: value.status for entry, value in each.ledger.items()}
            bars += bar_rows(name, made, spreads[name], bounded_causes(statuses))
            chain += chain_rows(name, made)
            pairs += interaction_rows(name, made)
    return bars, chain, pairs


def _study(told: dict[str, Profile], how: str, weight: float | None) -> _Study:
    groups = {name: each.seen.group for name, each in told.items()}
    effective = {name: effective_count(series(each)) for name, each in told.items()}
    verdicts: dict[str, Verdict] = {
        name: verdict(value) if told[name].count >= LEAST_WINDOWS else "refused" for name, value in effective.items()
    }
    spans = [each.count * each.seen.width_s for each in told.values()]
    blocks = blocks_of_days(min(spans)) if spans and min(spans) >= DAYS_ASKED_S else BLOCKS
    if "provisional" in verdicts.values():
        blocks = PROVISIONAL_BLOCKS
    blocks = blocks or BLOCKS
    use: dict[str, Mask] = {name: np.ones(each.count, dtype=bool) for name, each in told.items()}
    best: dict[str, str | None] = {}
    if how == "best":
        split = {name: halves(each.count, 2 * blocks) for name, each in told.items()}
        choosing = {name: masks[0] for name, masks in split.items()}
        first = evaluation(told, choosing, groups, "median", weight=weight)
        best = best_peers(told, choosing, groups, first.weight or 0.0, blocks)
        use = {name: masks[1] for name, masks in split.items()}
    return _Study(told, groups, use, verdicts, effective, blocks, best, how, weight)


def _spreads(study: _Study, whole: Evaluation) -> dict[str, Intervals]:
    """The intervals of every comparison: everything is done again without each block of time in turn."""
    owners = {name: _owner(study.use[name], study.blocks) for name in study.told}
    runs = [
        study.run({name: study.use[name] & (owners[name] != block) for name in study.told})
        for block in range(study.blocks)
    ]
    low, high = study.run(study.use, "low"), study.run(study.use, "high")
    found = {}
    for name, made in whole.found.items():
        full = made.vector()
        vectors = [run.found[name].vector() for run in runs if name in run.found]
        ends = tuple(run.found[name].vector() if name in run.found else full for run in (low, high))
        if study.verdicts[name] == "refused" or len(vectors) < study.blocks:
            found[name] = Intervals(None, None, (ends[0], ends[1]), study.blocks)
        else:
            lower, upper = jackknife(full, np.array(vectors))
            found[name] = Intervals(lower, upper, (ends[0], ends[1]), study.blocks)
    return found


def _owner(use: Mask, blocks: int) -> npt.NDArray[np.int64]:
    owner = np.full(len(use), -1)
    owner[use] = block_of(int(use.sum()), blocks)
    return owner


def _deployment_row(
    study: _Study,
    whole: Evaluation,
    name: str,
    seen: Observed,
    made: Compared | None,
    spread: Intervals | None,
    refusal: str | None,
) -> Row:
    each = study.told.get(name)
    status = seen.ledger["held"].status
    row: Row = {
        "deployment": name,
        "group": seen.group,
        "reference": made.label if made is not None else None,
        "window_s": len(seen.windows) * seen.width_s,
        "effective_count": study.effective.get(name, 0.0),
        "verdict": study.verdicts.get(name, "refused"),
        "status": "bounded" if status == "bounded" or seen.ledger["delivered_output"].status == "bounded" else status,
        "notes": [*seen.notes, *([refusal] if refusal else [])],
    }
    if each is not None:
        row |= _levels(each, study.use[name], whole.weight)
        if 0 < len(seen.windows) * seen.width_s < DAYS_ASKED_S:
            row["notes"].append("less than 7 days: what it says holds for these hours, not for a week")
    if made is not None and spread is not None:
        row |= _ratios(made, spread, priced=seen.facts.price_per_gpu_h is not None)
        row["notes"] = [*warnings(made, spread), *row["notes"]]
    return row


def _levels(told: Profile, keep: Mask, weight: float | None) -> Row:
    try:
        cost = math.exp(log_measured(told, keep))
    except NoCost:
        return {}
    output = told.total("output_tokens", keep) or 0.0
    priced = told.seen.facts.price_per_gpu_h is not None
    gpu_s = cost * 3600 / told.price_per_gpu_h
    equivalent = cost * output / equivalent_tokens(told, keep, weight or 0.0)
    return {
        "dollars_per_million_tokens": cost if priced else None,
        "dollars_per_million_equivalent_tokens": equivalent if priced and weight is not None else None,
        "gpu_s_per_million_tokens": gpu_s,
        "delivered_tokens": output,
    }


def _ratios(made: Compared, spread: Intervals, *, priced: bool) -> Row:
    phi = shapley(made.game)
    workload = sum(phi[cause] for cause in _WORKLOAD)
    row: Row = {"cost_ratio": math.exp(made.game.total), "equivalent_ratio": math.exp(made.game.total - workload)}
    if spread.lower is not None and spread.upper is not None:
        row |= {
            "ratio_lower_ratio": math.exp(spread.lower[1]),
            "ratio_upper_ratio": math.exp(spread.upper[1]),
            "lower_dollars_per_million_tokens": math.exp(spread.lower[0]) if priced else None,
            "upper_dollars_per_million_tokens": math.exp(spread.upper[0]) if priced else None,
        }
    return row


def _with_discoveries(bars: pl.DataFrame) -> pl.DataFrame:
    """Which bars stand over the whole fleet; what is never blamed is not tested."""
    if bars.is_empty():
        return bars
    tested = bars.with_row_index("place").filter(pl.col("blamed") & pl.col("p_ratio").is_not_null())
    stands = discovered(tested["p_ratio"].to_list())
    named = [place for place, holds in zip(tested["place"], stands, strict=True) if holds]
    return bars.with_columns(discovered=pl.int_range(pl.len()).is_in(named))


def _sensitivities(study: _Study, whole: Evaluation) -> list[Row]:
    if whole.weight is None:
        return []
    settings = {"prompt tokens weighted half": whole.weight / 2, "prompt tokens weighted twice": whole.weight * 2}
    runs = {
        setting: evaluation(study.told, study.use, study.groups, study.how, best=study.best, weight=weight)
        for setting, weight in settings.items()
    }
    return [row for setting, run in runs.items() for row in sensitivity_rows(setting, run.found)] + sensitivity_rows(
        "one price for all", whole.found, without=("price",)
    )


def _frame(schema: type[dy.Schema], rows: Sequence[Row]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={name: column.dtype for name, column in schema.columns().items()}, orient="row")
