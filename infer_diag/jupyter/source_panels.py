"""What a diagnosis stands on as panels: the files that were read, and the lines behind its findings."""

from __future__ import annotations

import polars as pl

from infer_diag.diagnose import Diagnosis
from infer_diag.jupyter.panel import Panel
from infer_diag.recording import Recording
from infer_diag.report.excerpts import excerpts

MOST_PLACES = 3
"""Places that are shown for each finding; the others stand in the table of findings."""


def sources_panel(recording: Recording) -> Panel:
    """Each file with its format, its lines and its checksum, by which another reader knows that he has the same one."""
    names = ("path", "format", "engine", "engine_version", "lines", "rejected_lines", "sha256")
    rows = [[getattr(source, name) for name in names] for source in recording.sources]
    kinds = {name: pl.Int64 if name.endswith("lines") else pl.String for name in names}
    frame = pl.DataFrame(rows, schema=kinds, orient="row")
    lines = tuple(
        f"{source.path}: {source.format}, {source.lines:,} lines, SHA-256 {source.sha256 or 'unknown'}"
        for source in recording.sources
    )
    count = len(recording.sources)
    return Panel(f"{count} {'source' if count == 1 else 'sources'}", "", lines, frame, whole=True)


def evidence_panel(diagnosis: Diagnosis) -> Panel:
    """The log lines behind each finding, the gravest first, each with its neighbours and its number."""
    cited = [each.evidence[:MOST_PLACES] for each in diagnosis.findings]
    found = excerpts(diagnosis.recording, (place for places in cited for place in places))
    lines = list[str]()
    for finding, places in zip(diagnosis.findings, cited, strict=True):
        lines.append(f"{finding.severity} {finding.id}" + ("" if places else ": no single line says it"))
        for place in places:
            lines.append(f"  {place}")
            lines += [f"  {'>' if each.cited else ' '}{each.number:>7}  {each.text}" for each in found.get(place, ())]
    return Panel("Lines behind the findings", "", tuple(lines), whole=True)
