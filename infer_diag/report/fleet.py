"""The page of a fleet: deployments ranked, a map of causes, a waterfall each, and the ledger behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import polars as pl

from infer_diag.attribution.cost import CAUSES
from infer_diag.attribution.cost.waterfall import waterfall
from infer_diag.charts.cost import cost_heatmap, cost_waterfall
from infer_diag.diagnose.cost_findings import NAMES
from infer_diag.report.figures import Chart, chart
from infer_diag.units import format_ratio

if TYPE_CHECKING:
    from infer_diag.diagnose import FleetDiagnosis

_ANSWER_SENTENCES = 3
_MOST_EVIDENCE = 3
Row = dict[str, Any]


def fleet_page(diagnosis: FleetDiagnosis) -> Row:
    """The content of the page without its charts: plain values."""
    told = diagnosis.costs
    rows = list(_ranked(diagnosis).iter_rows(named=True))
    grave = [each for each in diagnosis.findings if each.severity in ("high", "medium")]
    weight = told.prompt_token_weight
    return {
        "subject": f"{len(diagnosis.names)} deployments · reference: {told.reference}",
        "answer": [{"severity": each.severity, "sentence": each.sentence} for each in grave[:_ANSWER_SENTENCES]],
        "ranking": [_ranking(diagnosis, row, number) for number, row in enumerate(rows)],
        "causes": [_cause(row) for row in diagnosis.rollup.iter_rows(named=True)],
        "weight": "No step curve tells what a prompt token costs, so prompts are not weighted."
        if weight is None
        else f"A prompt token is counted as {weight:.3g} output tokens, as the fitted step times say.",
        "findings": [each.to_dict() | {"status": each.status.replace("_", " ")} for each in diagnosis.findings],
        "deployments": [_deployment(diagnosis, row, number) for number, row in enumerate(rows)],
        "blocks": told.blocks,
    }


def fleet_charts(diagnosis: FleetDiagnosis) -> tuple[Chart | None, dict[str, Chart]]:
    """The map of causes, and the waterfall of each deployment that has one."""
    told = diagnosis.costs
    names = fleet_order(diagnosis)
    drawn: dict[str, Chart] = {}
    for number, name in enumerate(names):
        steps = waterfall(told, name)
        if len(steps):
            caption = f"{name}: blamed causes first, then what is never blamed."
            drawn[name] = chart(cost_waterfall(steps), f"chart-cost-{number}", caption)
    if told.bars.is_empty():
        return None, drawn
    caption = "Rows as ranked above; the exact values and what each saves stand under the pointer."
    return chart(cost_heatmap(told.bars, names, CAUSES), "chart-causes", caption), drawn


def fleet_order(diagnosis: FleetDiagnosis) -> list[str]:
    """Names of the deployments in the order of the page: the dearest first."""
    return list(_ranked(diagnosis)["deployment"])


def _ranked(diagnosis: FleetDiagnosis) -> pl.DataFrame:
    order = ["cost_ratio", "deployment"]
    return diagnosis.costs.deployments.sort(order, descending=[True, False], nulls_last=True)


def _ranking(diagnosis: FleetDiagnosis, row: Row, number: int) -> Row:
    bars = diagnosis.costs.bars.filter((pl.col("deployment") == row["deployment"]) & pl.col("blamed"))
    worst = bars.drop_nulls("log_ratio").sort("log_ratio", descending=True).head(1)
    cause = NAMES[worst["cause"].item()] if len(worst) and worst["log_ratio"].item() > 0 else ""
    return {
        "anchor": f"deployment-{number}",
        "name": row["deployment"],
        "cost": _cost(row),
        "ratio": _with_ends(row["cost_ratio"], row["ratio_lower_ratio"], row["ratio_upper_ratio"]),
        "cause": cause,
        "reference": row["reference"] or "none",
        "status": row["status"].replace("_", " "),
    }


def _cost(row: Row) -> str:
    least = "≥ " if row["status"] == "bounded" else ""
    if row["dollars_per_million_tokens"] is not None:
        ends = row["lower_dollars_per_million_tokens"], row["upper_dollars_per_million_tokens"]
        return f"{least}${_with_ends(row['dollars_per_million_tokens'], *ends)}"
    gpu_s = row["gpu_s_per_million_tokens"]
    return "unknown" if gpu_s is None else f"{least}{gpu_s:.4g} GPU-s"


def _with_ends(value: float | None, low: float | None, high: float | None, sign: str = "") -> str:
    if value is None:
        return "unknown"
    return f"{value:{sign}.3g}" + ("" if low is None or high is None else f" ({low:{sign}.3g} to {high:{sign}.3g})")


def _cause(row: Row) -> Row:
    return {
        "name": NAMES[row["cause"]],
        "blamed": row["blamed"],
        "excess": _dollars(row["excess_dollars_count"]),
        "recoverable": _dollars(row["recoverable_dollars_count"]),
        "excludes": row["excludes_zero_count"],
        "discovered": row["discovered_count"] if row["blamed"] else "",
        "deployments": row["deployment_count"],
    }


def _dollars(value: float | None) -> str:
    if value is None:
        return "no price is known"
    return f"-${-value:,.2f}" if round(value, 2) < 0 else f"${abs(value):,.2f}"


def _deployment(diagnosis: FleetDiagnosis, row: Row, number: int) -> Row:
    name, told = row["deployment"], diagnosis.costs
    found = diagnosis.evidence.get(name, ())
    return {
        "anchor": f"deployment-{number}",
        "name": name,
        "group": row["group"],
        "notes": row["notes"],
        "bars": [_bar(bar) for bar in told.bars.filter(pl.col("deployment") == name).iter_rows(named=True)],
        "ledger": [_entry(each) for each in told.ledger.filter(pl.col("deployment") == name).iter_rows(named=True)],
        "findings": [
            {"severity": each.severity, "sentence": each.sentence, "evidence": _places(each.evidence)} for each in found
        ],
    }


def _bar(bar: Mapping[str, Any]) -> Row:
    known = bar["log_ratio"] is not None
    return {
        "cause": NAMES[bar["cause"]],
        "value": _with_ends(bar["log_ratio"], bar["lower_ratio"], bar["upper_ratio"], "+"),
        "share": "" if bar["share_ratio"] is None else format_ratio(bar["share_ratio"]),
        "saves": format_ratio(bar["saves_ratio"]) if known else "",
        "orders": f"{bar['least_ratio']:+.3g} to {bar['most_ratio']:+.3g}" if known else "",
        "status": bar["status"].replace("_", " "),
        "missing": bar["missing"] or "",
    }


def _entry(row: Mapping[str, Any]) -> Row:
    amount = "unknown" if row["amount_count"] is None else f"{row['amount_count']:,.6g} {row['unit']}"
    return {
        "entry": row["entry"].replace("_", " "),
        "amount": amount,
        "status": row["status"].replace("_", " "),
        "source": row["source"] or "",
        "missing": row["missing"] or "",
        "evidence": _places(row["evidence"]),
    }


def _places(evidence: Any) -> str:
    shown = list(evidence)[:_MOST_EVIDENCE]
    return ", ".join(shown) + (" …" if len(list(evidence)) > _MOST_EVIDENCE else "")
