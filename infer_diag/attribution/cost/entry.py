"""One amount of a ledger: its value, how sure it is, from what, and the log that would tell, or tell better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import polars as pl

from infer_diag.recording import Recording

Status = Literal["measured", "modelled", "bounded", "not_identifiable"]
MOST_EVIDENCE = 5
COVERED_RATIO = 0.95
"""From here on the rest of the ready time is taken to be like what was seen."""

POD_EVENTS = "pod events (`kubectl get events -o json`), which say when a device was assigned and released"
BILL = "pod events, or the hours billed (`held_gpu_h` in deployments.csv)"
GPUS = "the engine's start line with its parallel sizes"
GAUGES = "the engine's metrics, scraped every 15 s or less, or its statistics lines"
STEP_LOG = "step times (vLLM: --enable-logging-iteration-details)"
REQUEST_LOG = "a log of single requests with their tokens and how they ended"
PADDED = "real and padded tokens of each batch"
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


def plain(unit: str, value: float | None, source: str, missing: str, lines: tuple[str, ...] = ()) -> Entry:
    """A measured amount, or the refusal that names what would tell it."""
    if value is None:
        return Entry(unit, None, "not_identifiable", missing=missing)
    return Entry(unit, value, "measured", source, evidence=lines)


def first_and_last(recording: Recording, name: str) -> tuple[str, ...]:
    """The lines between which a frame's rows lie."""
    frame: pl.DataFrame = getattr(recording, name)
    if frame.is_empty():
        return ()
    ends = frame.select("source_id", "line").sort("source_id", "line")[[0, -1]].unique(maintain_order=True)
    return tuple(recording.evidence(*row) for row in ends.iter_rows() if row[1])
