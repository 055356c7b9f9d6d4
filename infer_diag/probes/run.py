"""Probes run and their results written: one folder that the loaders and the notebooks read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from infer_diag.errors import DiagError, ProbeUnavailable
from infer_diag.probes.budget import Budget
from infer_diag.probes.registry import PROBES, Probe, named
from infer_diag.probes.result import ProbeResult
from infer_diag.probes.settings import Settings

ALL = "all"
ALL_LIMIT_S = 450.0
"""Seconds for every probe together: under eight minutes."""


@dataclass(frozen=True)
class Done:
    """One probe that ran, and the file of its result."""

    result: ProbeResult
    path: Path


@dataclass(frozen=True)
class Ran:
    """The probes that ran, and why the others could not."""

    done: tuple[Done, ...]
    refused: tuple[tuple[str, str], ...]


def run(
    name: str, out: Path, settings: Settings | None = None, *, announce: Callable[[str], None] = lambda _: None
) -> Ran:
    """Runs the probe of this name, or every one that this machine allows for `all`, and writes the results into `out`.

    `all` leaves the pipeline to its own call unless a model is given, and skips what cannot be measured here.

    Raises:
        UnknownNameError: there is no such probe.
        ProbeUnavailable: the named probe cannot measure on this machine, or of `all` none can.
    """
    chosen = settings or Settings()
    probes = _of_all(chosen) if name == ALL else [named(name)]
    out.mkdir(parents=True, exist_ok=True)
    whole = Budget(ALL_LIMIT_S)
    done: list[Done] = []
    refused: list[tuple[str, str]] = []
    for probe in probes:
        limit = min(probe.limit_s, whole.left_s) if name == ALL else probe.limit_s
        announce(f"{probe.name}: {probe.about}")
        try:
            result = probe.run(out, chosen, Budget(limit))
        except Exception as error:  # A driver may fail in any way, and what the other probes found must not be lost.
            if name != ALL:
                raise
            refused.append((probe.name, str(error) if isinstance(error, DiagError) else _told(error)))
            continue
        done.append(Done(result, result.write(out)))
    if not done:
        raise ProbeUnavailable(f"no probe can measure here: {refused[0][1]}")
    return Ran(tuple(done), tuple(refused))


def _of_all(settings: Settings) -> list[Probe]:
    return [probe for probe in PROBES.values() if probe.name != "pipeline" or settings.model is not None]


def _told(error: Exception) -> str:
    return f"failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
