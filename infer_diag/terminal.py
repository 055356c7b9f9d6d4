"""What the command line shows: a diagnosis as lines of text, and how far the reading is."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import polars as pl

from infer_diag.redact import redacted, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infer_diag.diagnose import Diagnosis, Finding, FleetDiagnosis

_LONG_BYTES = 20_000_000
_SHOWN_PLACES = 3
_COLOURS = {"high": "bold red", "medium": "yellow", "low": "cyan", "info": "dim"}
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Characters that a terminal obeys."""


def recording_lines(diagnosis: Diagnosis) -> list[str]:
    """What was read, then every finding with what to do and where it stands in the logs."""
    from infer_diag.diagnose.summary import overview

    return clean([*overview(diagnosis), *_finding_lines(diagnosis.findings)])


def fleet_lines(diagnosis: FleetDiagnosis) -> list[str]:
    """The fleet, its dearest deployments, and every finding with what to do and where it stands."""
    from infer_diag.diagnose.cost_findings import fleet_lines as overview

    return clean([*overview(diagnosis), *_finding_lines(diagnosis.findings)])


def _finding_lines(findings: Sequence[Finding]) -> list[str]:
    lines = []
    for finding in findings:
        lines.append(f"{finding.severity:<7}{finding.id}: {finding.sentence}")
        if finding.remedy:
            lines.append(f"{'':7}→ {finding.remedy}")
        if finding.evidence:
            more = len(finding.evidence) - _SHOWN_PLACES
            lines.append(f"{'':7}{', '.join(finding.evidence[:_SHOWN_PLACES])}" + (f" and {more} more" * (more > 0)))
    return lines or ["no findings"]


def clean(lines: Sequence[str]) -> list[str]:
    """A terminal obeys control characters and scrolls into recordings, so neither those nor secrets are printed."""
    text = pl.select(redacted(visible(pl.lit("\n".join(lines), pl.String)))).item()
    return [CONTROL.sub("�", line) for line in str(text).split("\n")]


def print_coloured(lines: list[str]) -> None:
    """Prints the lines with each severity in its colour."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for line in lines:
        word = line.partition(" ")[0]
        shown = Text(line)
        shown.stylize(_COLOURS.get(word, ""), 0, len(word))
        console.print(shown, soft_wrap=True)


def show_progress(path: str, done: int, size: int) -> None:
    """One line that stays in place and goes once the file is read; short files never get one."""
    if size >= _LONG_BYTES:
        text = f"reading {CONTROL.sub('�', path)[-60:]}  {min(done / size, 1):.0%}" if done < size else ""
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def show_count(done: int, size: int, name: str) -> None:
    """How many deployments have answered, on one line that stays in place."""
    text = f"{done} of {size} deployments  {CONTROL.sub('�', name)[-60:]}" if done < size else ""
    sys.stderr.write(f"\r\x1b[K{text}")
    sys.stderr.flush()
