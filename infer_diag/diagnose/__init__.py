"""Recording → Diagnosis: calls every attribution, words what it finds, and ranks it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import dataframely as dy
import msgspec

from infer_diag.attribution.cold_start import start_frames
from infer_diag.attribution.serving import Serving, serving
from infer_diag.diagnose import batching, cluster, cold_start, data
from infer_diag.diagnose.document import document
from infer_diag.diagnose.finding import Finding, ranked
from infer_diag.diagnose.memory import Memory, observed_memory
from infer_diag.diagnose.memory import findings as memory_findings
from infer_diag.diagnose.summary import summary
from infer_diag.recording import Recording
from infer_diag.results import StartPhases, StartSlices, StartSummary

__all__ = ["ColdStart", "Diagnosis", "Finding", "Memory", "diagnose"]


@dataclass(frozen=True, eq=False)
class ColdStart:
    """What the starts took: their phases, the exclusive parts that add up to their spans, and a row for each."""

    phases: dy.DataFrame[StartPhases]
    slices: dy.DataFrame[StartSlices]
    summary: dy.DataFrame[StartSummary]


@dataclass(frozen=True, eq=False, repr=False)
class Diagnosis:
    """What the logs say about cold start, batching, memory and cost, and the findings, the gravest first.

    `batching` is null where nothing was served; `memory` and `cost` are null as long as no log tells of them.
    """

    recording: Recording
    cold_start: ColdStart
    batching: Serving | None
    findings: tuple[Finding, ...]
    memory: Memory | None = None
    cost: None = None

    def to_dict(self) -> dict[str, Any]:
        """The document of the JSON contract, as Python values."""
        return document(self)

    def to_json(self) -> str:
        """The document of the JSON contract, indented, the same bytes for the same logs."""
        return msgspec.json.format(msgspec.json.encode(self.to_dict()), indent=2).decode()

    def text(self) -> str:
        """At most 12 lines: sources, starts, serving, the findings that weigh most."""
        return summary(self)

    def __repr__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/plain": self.text()}


def diagnose(recording: Recording) -> Diagnosis:
    """The diagnosis of one recording; an empty one gives an empty diagnosis and no error."""
    frames = start_frames(recording)
    phases, slices, starts = frames.phases, frames.slices, frames.summary
    served, held = serving(recording), observed_memory(recording)
    found = [
        *cold_start.findings(recording, phases, slices, starts, frames.readings),
        *cluster.findings(recording, starts, phases),
        *batching.findings(recording, served),
        *memory_findings(recording, held),
        *data.findings(recording, served),
    ]
    return Diagnosis(recording, ColdStart(phases, slices, starts), served, ranked(found), held)
