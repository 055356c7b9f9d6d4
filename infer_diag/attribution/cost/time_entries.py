"""The entries of a ledger that count GPU-seconds and starts."""

from __future__ import annotations

from collections.abc import Sequence

from infer_diag.attribution.cost.activity import Activity
from infer_diag.attribution.cost.entry import (
    BILL,
    COVERED_RATIO,
    GAUGES,
    GPUS,
    MOST_EVIDENCE,
    POD_EVENTS,
    STEP_LOG,
    Entry,
    first_and_last,
    plain,
)
from infer_diag.attribution.cost.holds import Hold
from infer_diag.attribution.cost.lanes import Lanes
from infer_diag.fleet import Facts
from infer_diag.recording import Recording

MOST_UNTOLD_RATIO = 0.2
"""Share of the time held of which nothing tells whether it was start or service, above which no cold share is told."""
OPEN_RATIO = 0.02
"""What the unseen ends of holds may add to the time held before it is a bound."""
READY = "the pod's Ready condition (`kubectl get pods -o json`), or the engine's log from its start on"
START_LOG = "the engine's log from its start on"
ROTATED = "the rotated log files that are not there"

Sums = dict[str, float | None]


def untold_ratio(found: Sequence[Hold]) -> float:
    """Share of the time held of which nothing tells whether it was start or service; 1 where no hold does."""
    held = sum(_gpu_s(hold, hold.begin, hold.end) for hold in found)
    if found and all(hold.never_told for hold in found):
        return 1.0
    return _untold(found) / held if held else 0.0


def time_entries(
    recording: Recording, facts: Facts, told: Lanes, found: Sequence[Hold], sums: Sums, did: Activity | None
) -> dict[str, Entry]:
    """Held, cold, idle, step and stalled GPU-seconds, and the starts."""
    lines = tuple(recording.evidence(hold.source_id, hold.line) for hold in found[:MOST_EVIDENCE] if hold.line)
    gaps = any(lane.gaps for lane in told.found)
    ledger = {
        "held": _held(facts, found, sums.get("held_gpu_s"), lines),
        "cold": _cold(facts, found, sums.get("cold_gpu_s"), "starts, from acquired to ready", lines),
        "cold_after_oom": _cold(
            facts,
            [hold for hold in found if hold.after_oom],
            None if sums.get("cold_gpu_s") is None else sums.get("oom_cold_gpu_s"),
            "starts after a failed allocation",
            lines,
        ),
        "starts": _starts(sums.get("start_count"), gaps, lines),
        "starts_after_oom": _starts(sums.get("oom_start_count"), gaps, lines),
        "idle": _idle(recording, found, sums.get("idle_gpu_s"), did),
        "step": plain(
            "GPU-s", sums.get("step_gpu_s"), "timed steps", STEP_LOG, first_and_last(recording, "engine_steps")
        ),
    }
    busy = _busy(facts, found, ledger)
    return ledger | {"stall": _stall(busy, ledger["step"]), "ready_and_busy": busy}


def _gpu_s(hold: Hold, begin: object, end: object) -> float:
    return float((end - begin).total_seconds()) * hold.gpu_count  # type: ignore[operator]


def _untold(found: Sequence[Hold]) -> float:
    return sum(_gpu_s(hold, hold.cold_end, hold.end) for hold in found if hold.never_told)


def _open(found: Sequence[Hold]) -> tuple[float, float]:
    """GPU-seconds by which unseen ends may lie earlier, and later, than they are taken to."""
    early = sum(_gpu_s(hold, hold.end_earliest, hold.end) for hold in found)
    return early, sum(_gpu_s(hold, hold.end, hold.end_latest) for hold in found)


def _held(facts: Facts, found: Sequence[Hold], held: float | None, lines: tuple[str, ...]) -> Entry:
    if held is None:
        return Entry("GPU-s", None, "not_identifiable", missing=BILL)
    if facts.held_gpu_h is not None:
        return Entry("GPU-s", held, "measured", "hours billed", evidence=(facts.evidence,) if facts.evidence else ())
    early, late = _open(found)
    acquired = all(hold.acquired for hold in found) and facts.gpu_count is not None
    if acquired and early + late <= OPEN_RATIO * held:
        return Entry("GPU-s", held, "measured", "acquired to released, within the time of the logs", evidence=lines)
    source = "acquired to the last line of each replica" if acquired else "first to last line"
    upper = held + late if acquired else None
    return Entry("GPU-s", held, "bounded", source, held - early, upper, BILL, lines)


def _cold(facts: Facts, found: Sequence[Hold], value: float | None, source: str, lines: tuple[str, ...]) -> Entry:
    untold, told = _untold(found), sum(_gpu_s(hold, hold.begin, hold.cold_end) for hold in found if hold.is_start)
    late = sum(_gpu_s(hold, hold.begin, hold.cold_end) for hold in found if hold.is_start and not hold.ready_seen)
    if value is None:
        never = any(hold.never_told for hold in found)
        lower, upper = (told - late, told + untold) if untold else (None, None)
        missing = READY if never else START_LOG
        return Entry("GPU-s", None, "not_identifiable", lower=lower, upper=upper, missing=missing)
    acquired = all(hold.acquired for hold in found if hold.is_start) and facts.gpu_count is not None
    if untold > (1 - COVERED_RATIO) * value or late:
        upper = value + untold if acquired else None
        return Entry("GPU-s", value, "bounded", source, value - late, upper, READY, lines)
    if acquired or not value:
        return Entry("GPU-s", value, "measured", source, evidence=lines)
    since = f"{source.split(',')[0]}, from their first line"
    return Entry("GPU-s", value, "bounded", since, value, None, POD_EVENTS, lines)


def _starts(count: float | None, gaps: bool, lines: tuple[str, ...]) -> Entry:
    if count is not None and gaps:
        return Entry("starts", count, "bounded", "starts in the logs", count, None, ROTATED, lines)
    return plain("starts", count, "starts in the logs", START_LOG, lines)


def _idle(recording: Recording, found: Sequence[Hold], idle: float | None, did: Activity | None) -> Entry:
    if idle is None or did is None or did.basis is None:
        seen = did is not None and did.basis is not None
        why = f"{GAUGES}: what there is covers too little of the time" if seen else GAUGES
        return Entry("GPU-s", None, "not_identifiable", missing=why)
    lines = first_and_last(recording, "engine_samples") or first_and_last(recording, "requests")
    unseen = did.ready_gpu_s - did.covered_gpu_s
    if unseen > (1 - COVERED_RATIO) * did.ready_gpu_s:
        return Entry("GPU-s", idle, "bounded", did.basis, idle, idle + unseen, GAUGES, lines)
    if did.of_requests and len({hold.lane for hold in found}) > 1:
        # While one replica works for a request another one may be idle.
        return Entry("GPU-s", idle, "bounded", did.basis, idle, None, GAUGES, lines)
    return Entry("GPU-s", idle, "measured", did.basis, evidence=lines)


def _busy(facts: Facts, found: Sequence[Hold], ledger: dict[str, Entry]) -> Entry:
    """Held − cold − idle. An unknown moment of acquiring adds to both held and cold, and so changes nothing here."""
    held, cold, idle = (ledger[name] for name in ("held", "cold", "idle"))
    lacking = next((part for part in (held, cold, idle) if part.value is None), None)
    if lacking is not None:
        return Entry("GPU-s", None, "not_identifiable", missing=lacking.missing)
    value = _value(held) - _value(cold) - _value(idle)
    early, late = _open(found)
    unseen = 0.0 if idle.status == "measured" else None if idle.upper is None else idle.upper - _value(idle)
    unready = cold.status == "bounded" and cold.missing == READY
    known = facts.gpu_count is not None
    if known and not unseen and unseen is not None and not unready and early + late <= OPEN_RATIO * _value(held):
        return Entry("GPU-s", value, "measured", "held − cold − idle")
    lower = None if unseen is None or unready else max(value - unseen - early, 0.0)
    missing = idle.missing or (READY if unready else BILL if known else GPUS)
    upper = value + late if known and not unready else None
    return Entry("GPU-s", value, "bounded", "held − cold − idle", lower, upper, missing)


def _value(entry: Entry) -> float:
    return entry.value or 0.0


def _stall(busy: Entry, step: Entry) -> Entry:
    if busy.value is None or step.value is None:
        return Entry("GPU-s", None, "not_identifiable", missing=STEP_LOG if step.value is None else busy.missing)
    source = "held − cold − idle − step"
    if step.value > busy.value:
        return Entry("GPU-s", 0.0, "bounded", source, 0.0, None, "stamps finer than a second")
    value = busy.value - step.value
    if busy.status == "measured":
        return Entry("GPU-s", value, "measured", source)
    lower = None if busy.lower is None else max(busy.lower - step.value, 0.0)
    upper = None if busy.upper is None else busy.upper - step.value
    return Entry("GPU-s", value, "bounded", source, lower, upper, busy.missing)
