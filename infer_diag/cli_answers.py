"""What several verbs of the command line do: read and diagnose, word the answer, write the report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from infer_diag.terminal import fleet_lines, recording_lines, show_count, show_progress

if TYPE_CHECKING:
    from infer_diag.diagnose import Diagnosis, FleetDiagnosis


def diagnosed(paths: list[str], quiet: bool, **options: Any) -> Diagnosis | FleetDiagnosis:
    """The diagnosis of the logs as one recording, or of a fleet where the one path holds an inventory of one."""
    from infer_diag.diagnose import diagnose as diagnose_recording
    from infer_diag.fleet_paths import has_inventory, load_fleet
    from infer_diag.loaders import load

    shown = sys.stderr.isatty() and not quiet
    if len(paths) == 1 and has_inventory(paths[0]):
        fleet = load_fleet(paths[0], year=options["year"], tz=options["tz"])
        return diagnose_recording(fleet, progress=show_count if shown else None)
    return diagnose_recording(load(*paths, **options, progress=show_progress if shown else None))


def told(diagnosis: Diagnosis | FleetDiagnosis) -> list[str]:
    """The diagnosis as lines for a terminal."""
    from infer_diag.diagnose import Diagnosis

    return recording_lines(diagnosis) if isinstance(diagnosis, Diagnosis) else fleet_lines(diagnosis)


def write_report(
    diagnosis: Diagnosis | FleetDiagnosis,
    path: Path,
    quiet: bool,
    format: str | None = None,
    load_options: dict[str, Any] | None = None,
) -> None:
    """Writes the report, and says where it is."""
    from infer_diag.report import report

    report(diagnosis, path, format=format, load_options=load_options)
    if not quiet:
        typer.echo(f"report: {path.resolve()}", err=True)
