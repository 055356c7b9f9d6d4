"""Probes by name: the list, the results that are written and read back, and what a machine without a GPU is told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import dataframely as dy
import pytest

from infer_diag import cli, units
from infer_diag.errors import ProbeUnavailable, SourceError, UnknownNameError
from infer_diag.probes import frames, registry
from infer_diag.probes.budget import Budget
from infer_diag.probes.result import ProbeResult, framed, read_result
from infer_diag.probes.run import run
from infer_diag.probes.settings import Settings
from infer_diag.probes.spread import spread


def made(probe: str = "weights") -> ProbeResult:
    rows = [{"model": "m", "size_bytes": 10, "method": "read", "bytes_per_s": 5.0, "floor_s": 2.0}]
    return ProbeResult(
        probe, "simulated", {"cpu_count": 2}, {"load_floors": framed("load_floors", rows)}, ("It said so.",)
    )


def stand_in(name: str, outcome: Any, needs_gpu: bool = True) -> registry.Probe:
    class Stand(registry.Probe):
        def run(self, out: Path, settings: Settings, budget: Budget | None = None) -> ProbeResult:
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

    return Stand(name, f"about {name}", "", needs_gpu, 10)


def test_every_probe_has_a_home_that_runs() -> None:
    code = "import infer_diag.probes.registry as r, importlib\n"
    code += "for p in r.PROBES.values(): assert callable(importlib.import_module(p.home).run)\n"
    code += "import sys; assert not {'cupy', 'pynvml', 'torch', 'plotly', 'IPython'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_library_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "infer_diag.probes.quantisation.probe", None)
    with pytest.raises(ProbeUnavailable, match="the quantisation probe needs infer_diag"):
        registry.PROBES["quantisation"].run(tmp_path, Settings())


def test_all_stays_below_eight_minutes() -> None:
    assert sum(probe.limit_s for probe in registry.PROBES.values() if probe.name != "pipeline") < 480


def test_a_failing_probe_does_not_take_the_others_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "infer_diag.probes.run.PROBES",
        {
            "a": stand_in("a", ProbeUnavailable("no GPU", hint="use one")),
            "b": stand_in("b", RuntimeError("driver\nfell over")),
            "c": stand_in("c", made("c")),
        },
    )
    ran = run("all", tmp_path)
    assert dict(ran.refused) == {"a": "no GPU · use one", "b": "failed: RuntimeError: driver fell over"}
    assert [done.path for done in ran.done] == [tmp_path / "probe_c.json"]


def test_all_without_anything_to_measure_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infer_diag.probes.run.PROBES", {"a": stand_in("a", ProbeUnavailable("no GPU"))})
    with pytest.raises(ProbeUnavailable, match="no probe can measure here: no GPU"):
        run("all", tmp_path)


def test_an_unknown_probe_is_named_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean weights"):
        run("weigths", tmp_path)


def test_a_result_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    result = made()
    again = read_result(result.write(tmp_path))
    assert again.frames["load_floors"].equals(result.frames["load_floors"])
    assert (again.basis, again.machine, again.sentences) == (result.basis, result.machine, result.sentences)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"infer_diag": "other"}, "no result of a probe"),
        ({"version": 99}, "another version"),
        ({"basis": "guessed"}, "another version"),
        ({"frames": {"load_floors": [{"model": 1, "floor_s": -1}]}}, "damaged"),
        ({"frames": {"unheard_of": []}}, "damaged"),
        ({"frames": []}, "damaged"),
        ({"machine": None}, "damaged"),
    ],
)
def test_what_no_probe_wrote_is_refused(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    path = made().write(tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(SourceError, match=told):
        read_result(path)


@pytest.mark.parametrize("text", ["", "[", "[" * 200_000, "[]"])
def test_no_document_at_all_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "probe_x.json").write_text(text)
    with pytest.raises(SourceError):
        read_result(tmp_path / "probe_x.json")
    with pytest.raises(SourceError, match="No such file"):
        read_result(tmp_path / "absent.json")


def test_every_numeric_column_of_a_probe_names_its_unit() -> None:
    declared = [each for each in vars(frames).values() if isinstance(each, type) and issubclass(each, dy.Schema)]
    endings = tuple(units.SUFFIXES)
    faults = {
        f"{frame.__name__}.{name}"
        for frame in declared
        for name, column in frame.columns().items()
        if column.dtype.is_numeric() and not name.endswith(endings) and name != "line"
    }
    assert not faults


def test_a_spread_is_linear_and_says_when_it_is_wide() -> None:
    told = spread([1.0, 2.0, 3.0, 4.0])
    assert told is not None
    assert (told.p50, told.q1, told.q3, told.is_wide) == (2.5, 1.75, 3.25, True)
    few = spread([3.0, 1.0])
    assert few is not None
    assert (few.p50, few.q1, few.is_wide) == (2.0, None, None)
    assert spread([]) is None


def test_a_budget_ends() -> None:
    now = [0.0]
    budget = Budget(5, clock=lambda: now[0])
    assert (budget.left_s, budget.spent) == (5, False)
    now[0] = 6.0
    assert (budget.left_s, budget.spent) == (0, True)


def test_the_command_lists_runs_and_says_what_it_could_not_measure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["infer-diag", "probe", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown = capsys.readouterr()
        return int(ended.value.code or 0), shown.out, shown.err

    status, out, _ = command("--list")
    assert status == 0
    assert {line.split()[0] for line in out.splitlines()} == set(registry.PROBES)
    status, out, err = command("nothing")
    assert (status, out) == (2, "")
    assert "there is no probe named 'nothing'" in err
    probes = {"c": stand_in("c", made("c")), "a": stand_in("a", ProbeUnavailable("no GPU"))}
    monkeypatch.setattr("infer_diag.probes.run.PROBES", probes)
    status, out, err = command("all", "--out", str(tmp_path), "--quiet")
    assert (status, out) == (0, f"It said so.\nwritten: {tmp_path / 'probe_c.json'}\n")
    assert err == "not measured: a: no GPU\n"
