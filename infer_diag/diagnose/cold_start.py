"""Every finding on how a start went: what it spent its time on, how it came out, and what the log leaves open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import polars as pl

from infer_diag.attribution.intervals import seconds
from infer_diag.attribution.occurrences import lineage
from infer_diag.attribution.start_reading import StartReading
from infer_diag.diagnose.conflicts import conflicts
from infer_diag.diagnose.finding import RANK, Finding
from infer_diag.diagnose.load_causes import storage_bound, straggler
from infer_diag.diagnose.remedies_cold_start import remedy
from infer_diag.diagnose.start_view import LEAST_S, Row, StartView, start_views
from infer_diag.recording import Recording
from infer_diag.units import format_ratio, format_s

UNLOGGED_SHARE = 0.2
"""From this share of a start in silent gaps on, no ranking of its phases holds: the largest one may be in the gaps."""

GAPS_NAMED = 3

STARTS_TOLD = 3
"""A finding that more starts share is told for the worst of them only: a crash loop is one story and not fifty."""

CAUSES: dict[str, str] = {
    "schedule": "Placing the pod on a node",
    "volume_mount": "Attaching and mounting the volumes",
    "image_pull": "Pulling the image",
    "container_start": "Starting the container",
    "device_init": "Joining the workers and opening the devices",
    "weights_fetch": "Downloading the weights",
    "model_build": "Building the model's modules",
    "weights_load": "Loading the weights",
    "engine_build": "Building the engine",
    "engine_load": "Loading the built engine",
    "compile": "Compiling the model",
    "kv_profile": "The first forward pass, which measures the memory it needs,",
    "kernel_warmup": "Warming up and tuning kernels",
    "graph_capture": "Capturing GPU graphs",
    "first_request": "The first request",
}
"""Phases that are causes of their own, in the order in which they happen."""


def findings(
    recording: Recording,
    phases: pl.DataFrame,
    slices: pl.DataFrame,
    summary: pl.DataFrame,
    readings: Sequence[StartReading] = (),
) -> list[Finding]:
    """Findings with ids `cold_start.*` (and `data.clock_conflict`), start by start; none without a start.

    Frames in: `StartPhases`, `StartSlices`, `StartSummary` of the same recording; `readings` spares reading its starts
    again. A phase is a finding when its length is known and material. `saves` is what the start would lose without the
    phase: its exclusive slices, in seconds.
    """
    found: list[Finding] = []
    for view in start_views(recording, phases, slices, summary, readings):
        found += [finding for rule in _RULES if (finding := rule(view)) is not None]
        found += conflicts(view)
        found += causes(view)
    return _condensed(found)


def _condensed(found: list[Finding]) -> list[Finding]:
    """The findings, with one that many starts share told once, for the start that it weighs most in."""
    alike: dict[str, list[Finding]] = {}
    for finding in found:
        alike.setdefault(finding.id, []).append(finding)
    kept: list[Finding] = []
    for group in alike.values():
        if len(group) <= STARTS_TOLD:
            kept += group
            continue
        worst = min(group, key=lambda finding: (RANK[finding.severity], -(finding.saves or 0.0)))
        kept.append(replace(worst, sentence=f"{worst.sentence} The same is found {len(group) - 1} more times."))
    return kept


def failed(view: StartView) -> Finding | None:
    """A start that the log says has failed, in the log's own words."""
    if view.summary["outcome"] != "failed":
        return None
    line = view.reading.failed_line or 0
    told = [event for event in view.reading.events if event.kind in ("failed", "oom") and event.fields]
    at = [event for event in told if event.line == line] or told
    quote = f": “{' '.join((at[0].fields or '').split())}”" if at else ""
    return Finding(
        id="cold_start.failed",
        severity="high",
        sentence=f"{view.name}The start failed{quote}.",
        status="measured",
        evidence=view.evidence([line, *(event.line for event in at[:1])]),
        remedy=remedy("failed", view.engine),
    )


def unfinished(view: StartView) -> Finding | None:
    """A start that is visibly still going on where the log ends."""
    if view.summary["outcome"] != "unfinished":
        return None
    reading = view.reading
    open_phases = {one.phase for one in reading.running} | {bar.phase for bar in reading.running_bars}
    names = sorted(phase for phase in open_phases if not open_phases & set(lineage(phase, reading.parent)[1:]))
    what = f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} still going on"
    lines = [one.line for one in reading.running] + [bar.newest.line for bar in reading.running_bars]
    done, total = view.summary["done_count"], view.summary["total_count"]
    far = f" ({done} of {total} parts)" if done is not None else ""
    return Finding(
        id="cold_start.unfinished",
        severity="medium",
        sentence=f"{view.name}The log ends while {what}{far}; no line says that it failed.",
        status="measured",
        evidence=view.evidence(sorted(lines)[-3:]),
        remedy=remedy("unfinished", view.engine),
    )


def clock_set_back(view: StartView) -> Finding | None:
    """A start whose last stamps lie before its first ones, so that no difference of them is a length."""
    back = view.reading.set_back
    if back is None:
        return None
    return Finding(
        id="data.clock_conflict",
        severity="medium",
        sentence=(
            f"{view.name}The last stamp before ready lies {format_s(seconds(back))} before an earlier one: the clock "
            "was set back meanwhile, or lines of two clocks are mixed. How long the start took is not told; what its "
            "lines print as durations stands."
        ),
        status="measured",
        evidence=view.evidence([view.reading.first_line, view.reading.ready_line or view.reading.last_line]),
        remedy=remedy("clock_set_back", view.engine),
    )


def unlogged(view: StartView) -> Finding | None:
    """Time of the start that no line explains."""
    silent, whole = view.summary["unlogged_s"], view.whole_s
    if silent is None or not whole or silent < LEAST_S or silent / whole < UNLOGGED_SHARE:
        return None
    gaps = view.gaps()[:GAPS_NAMED]
    where = "; ".join(_gap_text(gap) for gap in gaps)
    return Finding(
        id="cold_start.unlogged",
        severity=view.severity(silent),
        sentence=(
            f"{view.name}No line explains {format_s(silent)} of the {format_s(whole)} of {view.enclosing} "
            f"({format_ratio(silent / whole)}): {where}. With so much unexplained the phases are not ranked."
        ),
        status="measured",
        evidence=view.evidence_of(gaps),
        remedy=remedy("unlogged", view.engine),
    )


_PLACES = {"first line": "the first line", "last line": "the last line", "engine_begin": "the engine's begin"}


def _gap_text(gap: Row) -> str:
    inside = f" inside {_place(gap['inside'])}" if gap["inside"] is not None else ""
    if gap["after"] is None and not inside:
        return f"{format_s(gap['duration_s'])} outside all that is timed"
    if gap["after"] is None:
        return f"{format_s(gap['duration_s'])}{inside}"
    return f"{format_s(gap['duration_s'])} between {_place(gap['after'])} and {_place(gap['before'])}{inside}"


def _place(name: str) -> str:
    """A gap's neighbour as a sentence names it."""
    return _PLACES.get(name, name.replace("_", " "))


def process(view: StartView) -> Finding | None:
    """Time between the first line and the engine's own begin: interpreter, imports, configuration."""
    row = view.wall("process")
    before = [gap for gap in view.slices if gap["after"] == "first line" and gap["before"] == "engine_begin"]
    seconds = row["duration_s"] if row is not None else before[0]["duration_s"] if before else None
    if seconds is None or not view.is_material(seconds):
        return None
    lines = row["lines"] if row is not None else before[0]["lines"]
    return Finding(
        id="cold_start.process",
        severity=view.severity(seconds),
        sentence=(
            f"{view.name}{format_s(seconds)}{_of_whole(view, seconds)} pass before the engine begins: starting "
            "processes, imports and configuration, no model work."
        ),
        status="measured",
        evidence=view.evidence(lines),
        remedy=remedy("process", view.engine),
    )


def compile_cache(view: StartView) -> Finding | None:
    """Whether the compiler's cache served this start."""
    kept = view.summary["compile_cache"]
    if kept is None:
        return None
    kind = f"compile_cache_{kept}"
    lines = [event.line for event in view.reading.events if event.kind == kind]
    wall = view.wall("compile")
    seconds = wall["duration_s"] if wall is not None else None
    took = f"; compiling takes {format_s(seconds)}" if seconds is not None else ""
    if kept == "hit":
        sentence = f"The compiled graphs come out of the cache{took.replace('compiling', 'what is left of compiling')}."
        return _cache_finding(view, "compile_cache_hit", sentence, lines, None)
    sentence = f"The compiler's cache does not serve this start{took}."
    return _cache_finding(view, "compile_cache_miss", sentence, lines, view.exclusive_s("compile_graph"))


def _cache_finding(view: StartView, name: str, sentence: str, lines: list[int], saves: float | None) -> Finding:
    missed = name.endswith("miss")
    weight = view.severity(saves) if missed and saves is not None and view.is_material(saves) else "low"
    return Finding(
        id=f"cold_start.{name}",
        severity=weight if missed else "info",
        sentence=view.name + sentence,
        status="measured",
        evidence=view.evidence(lines),
        remedy=remedy("compile", view.engine) if missed else None,
        saves=saves,
    )


def causes(view: StartView) -> list[Finding]:
    """A finding for each phase of known, material length."""
    found = []
    for phase, what in CAUSES.items():
        row = view.wall(phase)
        known = None if row is None else row["duration_s"] or _of_parts(view, row)
        if row is None or known is None:
            continue
        own = view.exclusive_s(phase)
        # What overlaps the phase (a download inside the load) is a cause of its own and no weight of this one.
        weight = known if own is None else min(known, own)
        if not view.is_material(weight):
            continue
        length = f"{format_s(known)}{_of_whole(view, known)}{_known_by(view, row)}"
        found.append(
            Finding(
                id=f"cold_start.{phase}",
                severity=view.severity(weight),
                sentence=f"{view.name}{what} takes {length}.",
                status=row["status"],
                evidence=view.evidence_of([row]),
                remedy=remedy(_cause(view, phase), view.engine),
                saves=own,
            )
        )
    return found


def _of_parts(view: StartView, row: Row) -> float | None:
    """What a phase without a length of its own lasted at least, where a part of it has one."""
    parts = [other for other in view.phases if other["inside"] == row["phase"] and other["duration_s"] is not None]
    return float(row["lower_s"]) if parts and row["lower_s"] is not None else None


def _cause(view: StartView, phase: str) -> str:
    cached = phase == "compile" and view.summary["compile_cache"] == "hit"
    return "compile_cached" if cached else phase


def _of_whole(view: StartView, seconds: float) -> str:
    share = view.share(seconds)
    return f" ({format_ratio(share)} of {view.enclosing})" if share is not None else ""


def _known_by(view: StartView, row: Row) -> str:
    ranks = [other for other in view.phases if other["phase"] == row["phase"] and other["rank"] is not None]
    slowest = f", the slowest of {len(ranks)} workers" if len(ranks) > 1 else ""
    bounded = " at least" if row["status"] == "bounded" and row["upper_s"] is None else ""
    return f"{bounded}{slowest}"


_RULES: tuple[Callable[[StartView], Finding | None], ...] = (
    failed,
    unfinished,
    clock_set_back,
    storage_bound,
    straggler,
    unlogged,
    process,
    compile_cache,
)
