"""The cost of a deployment, and of a fleet, as the JSON document that tools outside Python read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import polars as pl

from infer_diag.attribution.cost.entries import Entry
from infer_diag.attribution.cost.ledger import Observed
from infer_diag.diagnose.cost_findings import next_log
from infer_diag.redact import redact
from infer_diag.units import format_count

if TYPE_CHECKING:
    from infer_diag.diagnose.cost import FleetDiagnosis

SCHEMA_VERSION = 1
DIGITS = 9
"""Finer than any figure is known; coarse enough that the order of summing does not show."""
_BAR = {
    "log_ratio": "ln",
    "lower_ratio": "lower",
    "upper_ratio": "upper",
    "share_ratio": "share",
    "dollars_per_million_tokens": "dollars_per_million_tokens",
    "saves_ratio": "saves",
    "saves_lower_ratio": "saves_lower",
    "saves_upper_ratio": "saves_upper",
    "alone_ratio": "alone",
    "least_ratio": "least",
    "most_ratio": "most",
    "demand_low_ratio": "demand_low",
    "demand_high_ratio": "demand_high",
}
_DEPLOYMENT = (
    "group",
    "reference",
    "window_s",
    "effective_count",
    "verdict",
    "dollars_per_million_tokens",
    "lower_dollars_per_million_tokens",
    "upper_dollars_per_million_tokens",
    "dollars_per_million_equivalent_tokens",
    "gpu_s_per_million_tokens",
    "delivered_tokens",
    "cost_ratio",
    "ratio_lower_ratio",
    "ratio_upper_ratio",
    "equivalent_ratio",
    "status",
    "notes",
)


def deployment_document(seen: Observed) -> dict[str, Any] | None:
    """`cost` of a single deployment: the ledger, the cost as far as it is known, and the one log to switch on next.

    Null where the logs tell neither of GPU time nor of tokens.
    """
    if all(seen.ledger[name].value is None for name in ("held", "delivered_output", "computed_decode")):
        return None
    held, output = seen.ledger["held"], seen.ledger["delivered_output"]
    gpu_s = held.value * 1e6 / output.value if held.value and output.value else None
    price = seen.ledger["price"].value
    bounded = "bounded" in (held.status, output.status)
    dollars = gpu_s * price / 3600 if gpu_s is not None and price is not None else None
    found: dict[str, Any] = plain(
        {
            "status": "not_identifiable" if gpu_s is None else "bounded" if bounded else "measured",
            "gpu_s_per_million_tokens": gpu_s,
            "dollars_per_million_tokens": dollars,
            "lower_dollars_per_million_tokens": dollars,
            "upper_dollars_per_million_tokens": None if bounded else dollars,
            "ledger": {name: entry_document(entry) for name, entry in seen.ledger.items()},
            "next_log": next_log(seen.ledger),
            "notes": list(seen.notes),
        }
    )
    return found


def cost_sentence(told: dict[str, Any]) -> str:
    """The cost per token of a `deployment_document`, as far as it is known."""
    gpu_s, dollars = told["gpu_s_per_million_tokens"], told["dollars_per_million_tokens"]
    if gpu_s is None:
        return "no cost per token: the logs do not tell both GPU time and tokens"
    least = "at least " if told["status"] == "bounded" else ""
    money = "" if dollars is None else f", ${dollars:.4g}"
    return f"{least}{format_count(gpu_s)} GPU-s{money} per 1M output tokens"


def entry_document(entry: Entry) -> dict[str, Any]:
    """One amount of the ledger."""
    return {
        "value": entry.value,
        "unit": entry.unit,
        "lower": entry.lower,
        "upper": entry.upper,
        "status": entry.status,
        "source": entry.source,
        "missing": entry.missing,
        "evidence": list(entry.evidence),
    }


def fleet_document(diagnosis: FleetDiagnosis) -> dict[str, Any]:
    """The fleet's document: one entry per deployment, the roll-up, what hangs on conventions, and the findings."""
    told = diagnosis.costs
    whole = {
        "schema_version": SCHEMA_VERSION,
        "fleet": {
            "deployments": len(diagnosis.names),
            "reference": told.reference,
            "prompt_token_weight": told.prompt_token_weight,
            "blocks": told.blocks,
            "causes": [
                _without(row, "cause") | {"cause": row["cause"]} for row in diagnosis.rollup.iter_rows(named=True)
            ],
        },
        "deployments": [_deployment(diagnosis, row) for row in told.deployments.iter_rows(named=True)],
        "broken": [{"deployment": each.name, "reason": redact(each.reason)} for each in diagnosis.broken],
        "findings": [finding.to_dict() for finding in diagnosis.findings],
    }
    found: dict[str, Any] = plain(whole)
    return found


def _deployment(diagnosis: FleetDiagnosis, row: Mapping[str, Any]) -> dict[str, Any]:
    told, name = diagnosis.costs, row["deployment"]
    bars = told.bars.filter(deployment=name)
    return {
        "deployment": name,
        **{key: row[key] for key in _DEPLOYMENT},
        "refused": told.refused.get(name),
        "causes": [_bar(bar) for bar in bars.with_columns(pl.col("status").cast(pl.String)).iter_rows(named=True)],
        "chain": _rows(told.chain, name),
        "interactions": _rows(told.interactions, name),
        "sensitivity": _rows(told.sensitivity, name),
        "ledger": {
            each["entry"]: {
                "value": each["amount_count"],
                "unit": each["unit"],
                "lower": each["lower_count"],
                "upper": each["upper_count"],
                "status": each["status"],
                "source": each["source"],
                "missing": each["missing"],
                "evidence": each["evidence"],
            }
            for each in told.ledger.filter(deployment=name).iter_rows(named=True)
        },
        "findings": [finding.to_dict() for finding in diagnosis.evidence.get(name, ())],
    }


def _bar(bar: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "cause": bar["cause"],
        "blamed": bar["blamed"],
        **{key: bar[name] for name, key in _BAR.items()},
        "discovered": bar["discovered"],
        "status": bar["status"],
        "missing": bar["missing"],
    }


def _rows(frame: pl.DataFrame, name: str) -> list[dict[str, Any]]:
    return [_without(row, "deployment") for row in frame.filter(deployment=name).iter_rows(named=True)]


def _without(row: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != key}


def plain(value: Any) -> Any:
    """The value with floats rounded, and null in place of what is no finite number."""
    if isinstance(value, float):
        return round(value, DIGITS) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value
