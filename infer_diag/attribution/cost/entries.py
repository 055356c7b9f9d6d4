"""The entries of a ledger: each amount with its status, its source and the log that would tell better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from infer_diag.attribution.cost.activity import Activity
from infer_diag.attribution.cost.delivery import Delivery
from infer_diag.attribution.cost.entry import BILL as BILL
from infer_diag.attribution.cost.entry import GAUGES as GAUGES
from infer_diag.attribution.cost.entry import GPUS, PADDED, first_and_last, plain
from infer_diag.attribution.cost.entry import POD_EVENTS as POD_EVENTS
from infer_diag.attribution.cost.entry import PRICE as PRICE
from infer_diag.attribution.cost.entry import REQUEST_LOG as REQUEST_LOG
from infer_diag.attribution.cost.entry import STEP_LOG as STEP_LOG
from infer_diag.attribution.cost.entry import Entry as Entry
from infer_diag.attribution.cost.holds import Hold
from infer_diag.attribution.cost.lanes import Lanes
from infer_diag.attribution.cost.time_entries import time_entries
from infer_diag.attribution.preemptions import Preemptions
from infer_diag.attribution.throughput_loss.padding import padding
from infer_diag.fleet import Facts
from infer_diag.recording import Recording


def ledger_rows(ledgers: Mapping[str, Mapping[str, Entry]]) -> list[dict[str, Any]]:
    """LedgerRows of every deployment."""
    return [
        {
            "deployment": name,
            "entry": entry,
            "unit": each.unit,
            "amount_count": each.value,
            "lower_count": each.lower,
            "upper_count": each.upper,
            "status": each.status,
            "source": each.source,
            "missing": each.missing,
            "evidence": list(each.evidence),
        }
        for name, ledger in ledgers.items()
        for entry, each in ledger.items()
    ]


def entries(
    recording: Recording,
    facts: Facts,
    told: Lanes,
    found: Sequence[Hold],
    windows: pl.DataFrame,
    did: Activity | None,
    got: Delivery | None,
    sent_back: Preemptions | None,
) -> dict[str, Entry]:
    """The ledger by entry, in the order in which it is read: time, starts, tokens, price."""
    ledger = {"gpus_per_replica": _gpus(recording, facts)}
    sums = {name: _sum(windows, name) for name in windows.columns}
    ledger |= time_entries(recording, facts, told, found, sums, did)
    ledger |= _tokens(recording, sums, did, got, sent_back)
    given = () if facts.evidence is None else (facts.evidence,)
    price = facts.price_per_gpu_h
    ledger["price"] = (
        Entry("$/GPU-h", None, "not_identifiable", missing=PRICE)
        if price is None
        else Entry("$/GPU-h", price, "measured", "the deployment's facts", evidence=given)
    )
    return ledger


def _sum(windows: pl.DataFrame, name: str) -> float | None:
    return float(windows[name].sum()) if windows[name].count() else None


def _gpus(recording: Recording, facts: Facts) -> Entry:
    if facts.gpu_count is None:
        return Entry("GPUs", 1.0, "bounded", lower=1.0, missing=GPUS)
    told = recording.deployments.drop_nulls("gpu_count").sort("source_id", "line").tail(1)
    places = [recording.evidence(*row) for row in told.select("source_id", "line").iter_rows()]
    given = [] if facts.evidence is None else [facts.evidence]
    return Entry("GPUs", float(facts.gpu_count), "measured", "configuration", evidence=tuple(given or places))


def _tokens(
    recording: Recording,
    sums: dict[str, float | None],
    did: Activity | None,
    got: Delivery | None,
    sent_back: Preemptions | None,
) -> dict[str, Entry]:
    counted = first_and_last(recording, "engine_steps") or first_and_last(recording, "engine_samples")
    told = "timed steps" if did is not None and did.steps_timed else "the engine's counters"
    places = () if got is None else tuple(recording.evidence(*place) for place in got.lines if place[1])
    basis = None if got is None else got.basis
    output = sums.get("output_tokens")
    delivered = Entry("tokens", None, "not_identifiable", missing=REQUEST_LOG)
    if output is not None:
        delivered = (
            Entry("tokens", output, "bounded", "the engine's counters", None, output, REQUEST_LOG, counted)
            if basis is None
            else Entry("tokens", output, "measured", basis, evidence=places)
        )
    return {
        "computed_decode": _computed(sums.get("decode_tokens"), told, did, counted, places),
        "computed_prefill": _computed(sums.get("prefill_tokens"), told, did, counted, places),
        "delivered_output": delivered,
        "delivered_prompt": plain("tokens", sums.get("prompt_tokens"), basis or "", REQUEST_LOG, places),
        "cached_prompt": plain("tokens", sums.get("cached_tokens"), basis or "", REQUEST_LOG, places),
        "undelivered_output": _undelivered(sums.get("undelivered_tokens"), got, places),
        "recomputed": _recomputed(sums, sent_back),
        "padded": _padded(sums.get("padded_tokens"), recording),
    }


def _undelivered(value: float | None, got: Delivery | None, lines: tuple[str, ...]) -> Entry:
    """Output of requests that did not succeed; a lower bound where some of them tell no output."""
    if got is None or not got.tells_success:
        return Entry("tokens", None, "not_identifiable", missing=REQUEST_LOG)
    missing = f"the output tokens of {got.lost_count} requests that failed or were aborted"
    if value is None:
        return Entry("tokens", None, "not_identifiable", lower=0.0, missing=missing)
    if not got.lost_count:
        return Entry("tokens", value, "measured", got.basis, evidence=lines)
    return Entry("tokens", value, "bounded", got.basis, value, None, missing, lines)


def _padded(value: float | None, recording: Recording) -> Entry:
    """Output tokens computed in rows whose request had ended."""
    if value is None:
        why = padding(recording)
        return Entry("tokens", None, "not_identifiable", missing=f"{PADDED}: {why}" if isinstance(why, str) else PADDED)
    lines = first_and_last(recording, "engine_steps")
    return Entry("tokens", value, "measured", "timed steps of whole batches, and their requests", evidence=lines)


def _computed(
    value: float | None, source: str, did: Activity | None, lines: tuple[str, ...], places: tuple[str, ...]
) -> Entry:
    """Tokens that the engine computed: as its counters say, else at least what finished requests got."""
    if value is None or did is None or not did.of_requests or did.steps_timed:
        return plain("tokens", value, source, GAUGES, lines)
    return Entry("tokens", value, "bounded", "single requests, placed by their own times", value, None, GAUGES, places)


def _recomputed(sums: dict[str, float | None], sent_back: Preemptions | None) -> Entry:
    value = sums.get("recomputed_tokens")
    if value is not None:
        return Entry("tokens", value, "measured", "steps and preemptions")
    prompts, count = sums.get("prompt_tokens"), sent_back.upper if sent_back is not None else None
    if count is None or prompts is None:
        return Entry("tokens", None, "not_identifiable", missing=f"preemption counts, or {STEP_LOG}")
    return Entry("tokens", None, "bounded", "preemptions, each of a whole context at most", 0.0, None, STEP_LOG)
