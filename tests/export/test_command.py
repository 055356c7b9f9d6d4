"""The verb `export`: what it says, where it writes, and how it refuses."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import infer_diag as diag
from infer_diag.cli import main

SAMPLE = "sample:captured/two_starts"


class Command:
    """`infer-diag export` in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        """(exit status, standard output, standard error)."""
        self._monkeypatch.setattr(sys, "argv", ["infer-diag", "export", *words])
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        shown = self._capsys.readouterr()
        return int(ended.value.code or 0), shown.out, shown.err


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)
    return Command(monkeypatch, capsys)


def test_it_writes_a_file_and_says_what_is_in_it(run: Command, tmp_path: Path) -> None:
    status, out, err = run(SAMPLE, "--otlp", "out.jsonl", "--label", "tenant_id=acme", "--label", "order_id=A-1")
    assert (status, out) == (0, "")
    assert "samples of" in err and "order_id: on spans alone" in err
    assert len(diag.load(tmp_path / "out.jsonl").starts) == 2


def test_it_sends_to_both(run: Command, collector: Any) -> None:
    status, _, err = run(SAMPLE, "--otlp", collector.url, "--remote-write", f"{collector.url}/api/v1/write", "--quiet")
    assert (status, err) == (0, "")
    assert {path for path, _, _ in collector.taken} == {"/v1/traces", "/v1/metrics", "/api/v1/write"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((SAMPLE,), "where to is not said"),
        ((SAMPLE, "--otlp", "o", "--label", "tenant"), "is no label"),
        ((SAMPLE, "--otlp", "o", "--label", "a=1", "--label", "a=2"), "given twice"),
        ((SAMPLE, "--otlp", "o", "--label", "service.name=x"), "is taken"),
        ((SAMPLE, "--otlp", "o", "--origin", "yesterday"), "is no time"),
        ((SAMPLE, "--otlp", "no-such-folder/o"), "No such file"),
        (("sample:captured/killed_mid_load", "--otlp", "o"), "prints no whole date"),
        (("nowhere.log", "--otlp", "o"), "does not exist"),
        ((SAMPLE, "--remote-write", "http://u:pass-word-1@127.0.0.1:9/w"), "cannot be reached"),
    ],
)
def test_a_refusal_is_one_line(run: Command, words: tuple[str, ...], said: str) -> None:
    status, out, err = run(*words)
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("infer-diag: ") and said in line
    assert "pass-word-1" not in line


def test_its_help_names_examples(run: Command) -> None:
    status, out, _ = run("--help")
    assert status == 0
    assert "--remote-write" in out and "Examples:" in out


def test_without_the_packages_it_says_what_to_install(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "infer_diag.export.otlp_wire", None)
    status, _, err = run(SAMPLE, "--otlp", "out.jsonl")
    assert status == 2
    assert "infer-diag[otel]" in err
