"""Where a notebook's figures come from: the machine, a recording, or nowhere, and that it says which."""

from __future__ import annotations

from pathlib import Path

import pytest

from infer_diag.errors import ProbeUnavailable, SourceError, UnknownNameError
from infer_diag.probes import registry
from infer_diag.probes.budget import Budget
from infer_diag.probes.obtained import obtained
from infer_diag.probes.result import ProbeResult, framed
from infer_diag.probes.settings import Settings
from infer_diag.report.claims import HOW


def result(basis: str = "measured", **device: str | int) -> ProbeResult:
    row = {"pair_id": 1, "without_flag_s": 0.1, "with_flag_s": 0.1, "with_flag_first": True}
    return ProbeResult("context", basis, {"cpu_count": 2}, {"flag_pairs": framed("flag_pairs", [row])}, device=device)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What the context probe does here: `gives` is its result or its error; `saw` is what it was asked."""
    told: dict[str, object] = {}

    def run(self: registry.Probe, out: Path, settings: Settings, budget: Budget | None = None) -> ProbeResult:
        told["saw"] = (out, settings, budget)
        outcome = told["gives"]
        if isinstance(outcome, Exception):
            raise outcome
        assert isinstance(outcome, ProbeResult)
        return outcome

    monkeypatch.setattr(registry.Probe, "run", run)
    return told


def test_a_machine_that_can_measure_is_measured_although_there_is_a_recording(
    machine: dict[str, object], tmp_path: Path
) -> None:
    machine["gives"] = result(name="GPU here")
    result(name="GPU elsewhere").write(tmp_path)
    got = obtained("context", recordings=str(tmp_path), limit_s=3)
    assert (got.how, got.where) == ("measured", "GPU here")
    assert got.said == "The context probe was measured on GPU here."
    assert got.result is machine["gives"]


def test_the_scratch_folder_lies_where_it_was_asked_for_and_is_gone_afterwards(
    machine: dict[str, object], tmp_path: Path
) -> None:
    machine["gives"] = result()
    obtained("context", out=str(tmp_path), limit_s=3)
    saw = machine["saw"]
    assert isinstance(saw, tuple)
    assert saw[0].parent == tmp_path and saw[2].limit_s == 3
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("basis", "how"), [("measured", "recorded"), ("simulated", "simulated")])
def test_a_recording_stands_in_and_is_never_called_measured(
    machine: dict[str, object], tmp_path: Path, basis: str, how: str
) -> None:
    machine["gives"] = ProbeUnavailable("no GPU")
    result(basis, name="NVIDIA X").write(tmp_path)
    got = obtained("context", recordings=str(tmp_path))
    assert (got.how, got.where) == (how, "NVIDIA X")
    assert how in got.said and got.how in HOW


@pytest.mark.parametrize("error", [ProbeUnavailable("no GPU", hint="go elsewhere"), OSError("read-only")])
def test_without_either_there_is_one_line_and_no_result(machine: dict[str, object], error: Exception) -> None:
    machine["gives"] = error
    got = obtained("context")
    assert got.result is None and got.how == "not_identifiable"
    assert got.said.startswith("ProbeUnavailable: ") and str(error) in got.said and "\n" not in got.said


def test_a_folder_that_is_not_there_is_named_as_it_was_given(machine: dict[str, object]) -> None:
    machine["gives"] = result()
    got = obtained("context", out="/no/such/folder")
    assert got.said == "ProbeUnavailable: /no/such/folder: No such file or directory"


def test_a_recording_that_is_not_there_is_an_error(machine: dict[str, object], tmp_path: Path) -> None:
    machine["gives"] = ProbeUnavailable("no GPU")
    with pytest.raises(SourceError, match="No such file"):
        obtained("context", recordings=str(tmp_path))


def test_a_probe_that_does_not_exist_is_named() -> None:
    with pytest.raises(UnknownNameError, match="did you mean context"):
        obtained("contxt")
