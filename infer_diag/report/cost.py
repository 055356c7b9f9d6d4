"""The cost section of one deployment's report: the cost per token as far as it is known, the ledger, the log to add."""

from __future__ import annotations

from typing import Any

from infer_diag.diagnose.cost_document import cost_sentence
from infer_diag.units import format_count


def cost_section(told: dict[str, Any] | None) -> dict[str, Any] | None:
    """Plain values out of the document's `cost`; null where the logs tell neither of GPU time nor of tokens."""
    if told is None:
        return None
    known = {name: entry for name, entry in told["ledger"].items() if entry["status"] != "not_identifiable"}
    refused = {name: entry for name, entry in told["ledger"].items() if name not in known}
    return {
        "sentence": cost_sentence(told),
        "next_log": told["next_log"],
        "rows": [_row(name, entry) for name, entry in known.items()],
        "refused": [
            {"entry": _words(name), "missing": entry["missing"] or "unknown"} for name, entry in refused.items()
        ],
    }


def _row(name: str, entry: dict[str, Any]) -> dict[str, str]:
    return {
        "entry": _words(name),
        "amount": _amount(entry["value"], entry["lower"], entry["upper"]),
        "unit": entry["unit"],
        "status": entry["status"],
        "source": entry["source"] or "",
    }


def _words(name: str) -> str:
    return name.replace("_", " ")


def _amount(value: float | None, lower: float | None, upper: float | None) -> str:
    if lower is not None and upper is not None:
        return f"{format_count(value)} ({format_count(lower)} to {format_count(upper)})"
    if lower is not None and lower == value:
        return f"at least {format_count(value)}"
    if upper is not None and upper == value:
        return f"at most {format_count(value)}"
    return format_count(value)
