"""The entries of a ledger: each amount with its status, its source and the log that would tell better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl

from infer_diag.attribution.cost.activity import Activity
from infer_diag.attribution.cost.delivery import Delivery
from infer_diag.attribution.cost.holds import Hold
from infer_diag.attribution.preemptions import Preemptions
from infer_diag.fleet import Facts
from infer_diag.recording import Recording

Status = Literal["measured", "modelled", "bounded", "not_identifiable"]
MOST_EVIDENCE = 5
COVERED_RATIO = 0.95
"""From here on the rest of the ready time is taken to be like what was seen."""

POD_EVENTS = "pod events (`kubectl get events -o json`), which say when a device was assigned and released"
BILL = "pod events, or the hours billed (`held_gpu_h` in deployments.csv)"
GAUGES = "the engine's metrics, scraped every 15 s or less, or its statistics lines"
STEP_LOG = "step times (vLLM: --enable-logging-iteration-details)"
REQUEST_LOG = "a log of single requests with their tokens and how they ended"
PRICE = "the price per GPU and hour (`price_per_gpu_h` in deployments.csv)"


@dataclass(frozen=True)
class Entry:
    """One amount of the ledger; null where the logs cannot tell, and then `missing` says which log would."""

    unit: str
    value: float | None
    status: Status
    source: str | None = None
    lower: float | None = None
    upper: float | None = None
    missing: str | None = None
    evidence: tuple[str, ...] = ()


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
    found: Sequence[Hold],
    windows: pl.DataFrame,
    did: Activity | None,
    got: Delivery | None,
    sent_back: Preemptions | None,
) -> dict[str, Entry]:
    """The ledger by entry, in the order in which it is read: time, starts, tokens, price."""
    ledger = {"gpus_per_replica": _gpus(recording, facts)}
    sums = {name: _sum(windows, name) for name in windows.columns}
    ledger |= _time(recording, facts, found, sums, did)
    ledger |= _tokens(recording, sums, did, got, sent_back)
    told = () if facts.evidence is None else (facts.evidence,)
    price = facts.price_per_gpu_h
    ledger["price"] = (
        Entry("$/GPU-h", None, "not_identifiable", missing=PRICE)
        if price is None
        else Entry("$/GPU-h", price, "measured", "the deployment's facts", evidence=told)
    )
    return ledger


def _sum(windows: pl.DataFrame, name: str) -> float | None:
    return float(windows[name].sum()) if windows[name].count() else None


def _gpus(recording: Recording, facts: Facts) -> Entry:
    if facts.gpu_count is None:
        return Entry("GPUs", 1.0, "bounded", lower=1.0, missing="the engine's start line with its parallel sizes")
    told = recording.deployments.drop_nulls("gpu_count").sort("source_id", "line").tail(1)
    places = [recording.evidence(*row) for row in told.select("source_id", "line").iter_rows()]
    given = [] if facts.evidence is None else [facts.evidence]
    return Entry("GPUs", float(facts.gpu_count), "measured", "configuration", evidence=tuple(given or places))


def _time(
    recording: Recording,
    facts: Facts,
    found: Sequence[Hold],
    sums: dict[str, float | None],
    did: Activity | None,
) -> dict[str, Entry]:
    lines = tuple(recording.evidence(hold.source_id, hold.line) for hold in found[:MOST_EVIDENCE] if hold.line)
    held = _held(facts, found, sums.get("held_gpu_s"), lines)
    cold = sums.get("cold_gpu_s")
    starts = [hold for hold in found if hold.is_start]
    acquired = all(hold.acquired for hold in starts) and facts.gpu_count is not None
    return {
        "held": held,
        "cold": _bounded_below("GPU-s", cold, acquired, "starts, from acquired to ready", POD_EVENTS, lines),
        "cold_after_oom": _bounded_below(
            "GPU-s", sums.get("oom_cold_gpu_s"), acquired, "starts after a failed allocation", POD_EVENTS, lines
        ),
        "starts": _plain(
            "starts", sums.get("start_count"), "starts in the logs", "the engine's log from its start on", lines
        ),
        "starts_after_oom": _plain(
            "starts", sums.get("oom_start_count"), "starts in the logs", "the engine's log from its start on", lines
        ),
        "idle": _idle(recording, sums.get("idle_gpu_s"), did),
        "step": _plain("GPU-s", sums.get("step_gpu_s"), "timed steps", STEP_LOG, _lines(recording, "engine_steps")),
        "stall": _stall(sums),
        "ready_and_busy": _busy(sums),
    }


def _held(facts: Facts, found: Sequence[Hold], held: float | None, lines: tuple[str, ...]) -> Entry:
    if held is None:
        return Entry("GPU-s", None, "not_identifiable", missing=BILL)
    if facts.held_gpu_h is not None:
        return Entry("GPU-s", held, "measured", "hours billed", evidence=(facts.evidence,) if facts.evidence else ())
    if all(hold.acquired for hold in found) and facts.gpu_count is not None:
        return Entry("GPU-s", held, "measured", "acquired to released, within the time of the logs", evidence=lines)
    return Entry("GPU-s", held, "bounded", "first to last line", lower=held, missing=BILL, evidence=lines)


def _bounded_below(
    unit: str, value: float | None, whole: bool, source: str, missing: str, lines: tuple[str, ...]
) -> Entry:
    if value is None:
        return Entry(unit, None, "not_identifiable", missing="the engine's log from its start on")
    if whole or not value:
        return Entry(unit, value, "measured", source, evidence=lines)
    return Entry(unit, value, "bounded", f"{source.split(',')[0]}, from their first line", value, None, missing, lines)


def _plain(unit: str, value: float | None, source: str, missing: str, lines: tuple[str, ...] = ()) -> Entry:
    if value is None:
        return Entry(unit, None, "not_identifiable", missing=missing)
    return Entry(unit, value, "measured", source, evidence=lines)


def _idle(recording: Recording, idle: float | None, did: Activity | None) -> Entry:
    if idle is None or did is None or did.basis is None:
        seen = did is not None and did.basis is not None
        why = f"{GAUGES}: what there is covers too little of the time" if seen else GAUGES
        return Entry("GPU-s", None, "not_identifiable", missing=why)
    lines = _lines(recording, "engine_samples") or _lines(recording, "requests")
    unseen = did.ready_gpu_s - did.covered_gpu_s
    if unseen > (1 - COVERED_RATIO) * did.ready_gpu_s:
        return Entry("GPU-s", idle, "bounded", did.basis, idle, idle + unseen, GAUGES, lines)
    return Entry("GPU-s", idle, "measured", did.basis, evidence=lines)


def _busy(sums: dict[str, float | None]) -> Entry:
    held, cold, idle = (sums.get(name) for name in ("held_gpu_s", "cold_gpu_s", "idle_gpu_s"))
    if held is None or cold is None or idle is None:
        return Entry("GPU-s", None, "not_identifiable", missing=GAUGES)
    return Entry("GPU-s", held - cold - idle, "measured", "held − cold − idle")


def _stall(sums: dict[str, float | None]) -> Entry:
    busy, step = _busy(sums).value, sums.get("step_gpu_s")
    if busy is None or step is None:
        return Entry("GPU-s", None, "not_identifiable", missing=STEP_LOG)
    if step > busy:
        return Entry("GPU-s", 0.0, "bounded", "held − cold − idle − step", 0.0, None, "stamps finer than a second")
    return Entry("GPU-s", busy - step, "measured", "held − cold − idle − step")


def _tokens(
    recording: Recording,
    sums: dict[str, float | None],
    did: Activity | None,
    got: Delivery | None,
    sent_back: Preemptions | None,
) -> dict[str, Entry]:
    counted = _lines(recording, "engine_steps") or _lines(recording, "engine_samples")
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
    tells = got is not None and got.tells_success
    return {
        "computed_decode": _plain("tokens", sums.get("decode_tokens"), told, GAUGES, counted),
        "computed_prefill": _plain("tokens", sums.get("prefill_tokens"), told, GAUGES, counted),
        "delivered_output": delivered,
        "delivered_prompt": _plain("tokens", sums.get("prompt_tokens"), basis or "", REQUEST_LOG, places),
        "cached_prompt": _plain("tokens", sums.get("cached_tokens"), basis or "", REQUEST_LOG, places),
        "undelivered_output": _plain(
            "tokens", sums.get("undelivered_tokens") if tells else None, basis or "", REQUEST_LOG, places
        ),
        "recomputed": _recomputed(sums, sent_back),
        "padded": Entry("tokens", None, "not_identifiable", missing="real and padded tokens of each batch"),
    }


def _recomputed(sums: dict[str, float | None], sent_back: Preemptions | None) -> Entry:
    value = sums.get("recomputed_tokens")
    if value is not None:
        return Entry("tokens", value, "measured", "steps and preemptions")
    prompts, count = sums.get("prompt_tokens"), sent_back.upper if sent_back is not None else None
    if count is None or prompts is None:
        return Entry("tokens", None, "not_identifiable", missing=f"preemption counts, or {STEP_LOG}")
    return Entry("tokens", None, "bounded", "preemptions, each of a whole context at most", 0.0, None, STEP_LOG)


def _lines(recording: Recording, name: str) -> tuple[str, ...]:
    frame: pl.DataFrame = getattr(recording, name)
    if frame.is_empty():
        return ()
    ends = frame.select("source_id", "line").sort("source_id", "line")[[0, -1]].unique(maintain_order=True)
    return tuple(recording.evidence(*row) for row in ends.iter_rows() if row[1])
