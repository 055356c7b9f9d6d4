"""Fleet → what each deployment's tokens cost, why, and which evidence stands behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dataframely as dy
import msgspec

from infer_diag.attribution.cost.frames import FleetRollup
from infer_diag.attribution.cost.ledger import Observed, observed
from infer_diag.diagnose.finding import Finding
from infer_diag.fleet import Broken, Facts, Fleet, Progress
from infer_diag.recording import Recording

if TYPE_CHECKING:
    from infer_diag.attribution.cost.analysis import Costs

MOST_FINDINGS = 8
"""Findings of one deployment that travel with it: the gravest."""
MOST_LINES = 12


@dataclass(frozen=True, eq=False)
class Asked:
    """What a deployment answers where its logs lie: its cost's parts and its gravest findings."""

    seen: Observed
    findings: tuple[Finding, ...]


@dataclass(frozen=True, eq=False, repr=False)
class FleetDiagnosis:
    """What a fleet costs and why. `costs` are the frames, `findings` those of the fleet, the gravest first.

    `evidence` holds each deployment's own findings, whose lines lead into its logs; `broken` those that gave no answer.
    """

    names: tuple[str, ...]
    costs: Costs
    rollup: dy.DataFrame[FleetRollup]
    findings: tuple[Finding, ...]
    evidence: dict[str, tuple[Finding, ...]]
    broken: tuple[Broken, ...]

    def to_dict(self) -> dict[str, Any]:
        """The fleet's document of the JSON contract, as Python values."""
        from infer_diag.diagnose.cost_document import fleet_document

        return fleet_document(self)

    def to_json(self) -> str:
        """The document, indented, the same bytes for the same logs, wherever they were read."""
        return msgspec.json.format(msgspec.json.encode(self.to_dict()), indent=2).decode()

    def text(self) -> str:
        """At most 12 lines: the fleet, its dearest deployments, the findings that weigh most."""
        from infer_diag.diagnose.cost_findings import fleet_lines

        lines = fleet_lines(self)
        found = [f"{each.severity:<6} {each.id}: {each.sentence}" for each in self.findings]
        room = MOST_LINES - len(lines)
        shown = found if len(found) <= room else [*found[: room - 1], f"… and {len(found) - room + 1} more findings"]
        return "\n".join([*lines, *(shown or ["no findings"])])

    def __repr__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/plain": self.text()}


def asked(recording: Recording, facts: Facts) -> Asked:
    """The answer of one deployment; small, whatever the size of its logs."""
    from infer_diag.diagnose import diagnose

    return Asked(observed(recording, facts), diagnose(recording).findings[:MOST_FINDINGS])


def diagnose_fleet(
    fleet: Fleet,
    reference: str = "median",
    *,
    prompt_token_weight: float | None = None,
    progress: Progress | None = None,
) -> FleetDiagnosis:
    """The diagnosis of a fleet against a reference: `median`, `best`, `roofline`, or a deployment's name.

    Args:
        fleet: as `load_fleet` gives it; each deployment is read where the fleet's workers are.
        reference: what a deployment is compared with.
        prompt_token_weight: ω, what a prompt token costs in output tokens; null: as the fitted step times say.
        progress: called with (done, all, name) as deployments answer.

    Raises:
        UnknownNameError: no such reference.
    """
    from infer_diag.attribution.cost.analysis import costs
    from infer_diag.attribution.cost.reference import check
    from infer_diag.attribution.cost.rollup import rollup
    from infer_diag.diagnose.cost_findings import findings

    check(reference, fleet.names())
    answers = fleet.map(asked, progress)
    if reference in fleet.names():
        check(reference, list(answers.found))
    seen = {name: answer.seen for name, answer in answers.found.items()}
    analysed = costs(seen, reference, prompt_token_weight=prompt_token_weight)
    evidence = {name: answer.findings for name, answer in answers.found.items()}
    return FleetDiagnosis(
        tuple(fleet.names()),
        analysed,
        rollup(analysed),
        findings(analysed, answers.broken),
        evidence,
        answers.broken,
    )
