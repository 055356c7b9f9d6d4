"""A probe's result from wherever there is one: this machine, a recording of another, or nowhere."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from infer_diag.errors import ProbeUnavailable
from infer_diag.probes.budget import Budget
from infer_diag.probes.registry import named
from infer_diag.probes.result import ProbeResult, read_result
from infer_diag.probes.settings import Settings


@dataclass(frozen=True)
class Obtained:
    """A result, how it was obtained and on what, and one sentence that says so; without a result that says why not.

    `how` is `measured`, `recorded`, `simulated` or `not_identifiable`, the words of `report.claims.HOW`.
    """

    result: ProbeResult | None
    how: str
    where: str
    said: str


def obtained(
    name: str,
    *,
    recordings: str = "",
    out: str = "",
    settings: Settings | None = None,
    limit_s: float | None = None,
) -> Obtained:
    """What the probe of this name measures here; where it cannot, what `recordings`/probe_NAME.json holds, if given.

    `out` is the folder that a probe of storage writes its scratch file below (default: the system's temporary folder);
    all that it writes there is removed. `limit_s` bounds the measuring in seconds, in place of the probe's own limit.

    Raises:
        UnknownNameError: there is no such probe.
        SourceError: nothing can be measured, and the recording is absent or damaged.
    """
    probe = named(name)
    try:
        with tempfile.TemporaryDirectory(prefix=".infer-diag-", dir=out or None) as folder:
            budget = Budget(probe.limit_s if limit_s is None else limit_s)
            result = probe.run(Path(folder), settings or Settings(), budget)
    except ProbeUnavailable as error:
        return _recorded(name, recordings, str(error))
    except OSError as error:
        return _recorded(name, recordings, f"{out or 'this machine'}: {error.strerror or error}")
    where = _device(result) or "this machine"
    return Obtained(result, result.basis, where, f"The {name} probe was {result.basis} on {where}.")


def _recorded(name: str, recordings: str, refusal: str) -> Obtained:
    if not recordings:
        return Obtained(None, "not_identifiable", "", f"ProbeUnavailable: {refusal}")
    result = read_result(Path(recordings) / f"probe_{name}.json")
    where = _device(result) or "another machine"
    how = "recorded" if result.basis == "measured" else result.basis
    return Obtained(result, how, where, f"The {name} probe cannot measure here; shown is what was {how} on {where}.")


def _device(result: ProbeResult) -> str:
    return str(result.device.get("name", ""))[:80]
