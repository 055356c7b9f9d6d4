"""Recording or Fleet → diagnosis: calls every attribution, words what it finds, and ranks it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, overload

import dataframely as dy
import msgspec

from infer_diag.attribution.cold_start import start_frames
from infer_diag.attribution.cost.ledger import Observed, observed
from infer_diag.attribution.serving import Serving, serving
from infer_diag.diagnose import batching, cluster, cold_start, data
from infer_diag.diagnose.cost import FleetDiagnosis, diagnose_fleet
from infer_diag.diagnose.document import document
from infer_diag.diagnose.finding import Finding, ranked
from infer_diag.diagnose.memory import Memory, observed_memory
from infer_diag.diagnose.memory import findings as memory_findings
from infer_diag.diagnose.summary import summary
from infer_diag.errors import DiagError
from infer_diag.fleet import Facts, Fleet, Progress
from infer_diag.recording import Recording
from infer_diag.results import StartPhases, StartSlices, StartSummary

__all__ = ["ColdStart", "Diagnosis", "Finding", "FleetDiagnosis", "Memory", "diagnose"]


@dataclass(frozen=True, eq=False)
class ColdStart:
    """What the starts took: their phases, the exclusive parts that add up to their spans, and a row for each."""

    phases: dy.DataFrame[StartPhases]
    slices: dy.DataFrame[StartSlices]
    summary: dy.DataFrame[StartSummary]


@dataclass(frozen=True, eq=False, repr=False)
class Diagnosis:
    """What the logs say about cold start, batching, memory and cost, and the findings, the gravest first.

    `batching` is null where nothing was served, `memory` as long as no log tells of it.
    """

    recording: Recording
    cold_start: ColdStart
    batching: Serving | None
    findings: tuple[Finding, ...]
    memory: Memory | None = None
    facts: Facts = field(default_factory=Facts)

    @cached_property
    def cost(self) -> Observed:
        """GPU time and tokens of the deployment, each with how sure it is; made when it is first asked for."""
        return observed(self.recording, self.facts)

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


@overload
def diagnose(subject: Recording, *, facts: Facts | None = None) -> Diagnosis:
    """The diagnosis of one recording."""


@overload
def diagnose(
    subject: Fleet,
    reference: str = "median",
    *,
    prompt_token_weight: float | None = None,
    progress: Progress | None = None,
) -> FleetDiagnosis:
    """The diagnosis of a fleet."""


def diagnose(
    subject: Recording | Fleet,
    reference: str = "median",
    *,
    facts: Facts | None = None,
    prompt_token_weight: float | None = None,
    progress: Progress | None = None,
) -> Diagnosis | FleetDiagnosis:
    """The diagnosis of one recording, or of a fleet against a reference; an empty recording gives an empty diagnosis.

    Args:
        subject: what `load` or `load_fleet` gives.
        reference: of a fleet: `median` of comparable peers, `best` of them, `roofline`, or a deployment's name.
        facts: of a recording: what its logs do not tell, such as the price.
        prompt_token_weight: of a fleet: what a prompt token costs in output tokens; null: as the step times say.
        progress: of a fleet: called with (done, all, name) as deployments answer.

    Raises:
        UnknownNameError: no such reference.
        DiagError: `facts` for a fleet, whose facts stand beside its deployments.
    """
    if isinstance(subject, Fleet):
        if facts is not None:
            raise DiagError("a fleet has facts for each deployment", hint="load_fleet(..., facts={name: Facts(...)})")
        return diagnose_fleet(subject, reference, prompt_token_weight=prompt_token_weight, progress=progress)
    return _diagnosed(subject, facts or Facts())


def _diagnosed(recording: Recording, facts: Facts) -> Diagnosis:
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
    return Diagnosis(recording, ColdStart(phases, slices, starts), served, ranked(found), held, facts)
