"""What a diagnosis says: one sentence, how sure, from which lines, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["high", "medium", "low", "info"]
Status = Literal["measured", "modelled", "bounded", "not_identifiable"]
RANK: dict[str, int] = {"high": 0, "medium": 1, "low": 2, "info": 3}


@dataclass(frozen=True)
class Finding:
    """One finding of the contract; `saves` is in seconds of the thing that the sentence names, null where unknown."""

    id: str
    severity: Severity
    sentence: str
    status: Status
    evidence: tuple[str, ...] = ()
    remedy: str | None = None
    saves: float | None = None

    def to_dict(self) -> dict[str, object]:
        """The finding as the JSON contract has it."""
        return {
            "id": self.id,
            "severity": self.severity,
            "sentence": self.sentence,
            "status": self.status,
            "evidence": list(self.evidence),
            "remedy": self.remedy,
            "saves": self.saves,
        }


def ranked(findings: list[Finding]) -> tuple[Finding, ...]:
    """Findings by severity, then in the order in which they were made."""
    return tuple(sorted(findings, key=lambda finding: RANK[finding.severity]))
