"""The report as an executed notebook: from the shipped template, for anyone's logs, the same answer when run again."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import hostile
import nbformat
import pytest

import infer_diag as diag
from infer_diag.errors import DiagError, SourceError
from infer_diag.fleet import fleet_of
from infer_diag.report import notebook as maker
from infer_diag.report import report
from infer_diag.report.notebook import template

LOG = diag.samples.path("captured/sequence_limit") / "server.log"
SECRET = f"INFO 11-29 20:42:20 [api.py:1] started with api_key={hostile.TOKEN} \x1b[31m{hostile.SCRIPT}\u202e\n"


def texts_of(cell: Any) -> list[str]:
    """Everything that the outputs of a cell show."""
    return hostile.strings([dict(output) for output in cell.get("outputs", [])])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a log that holds hostile lines, and the notebook about it."""
    folder = tmp_path_factory.mktemp("handed on")
    lines = LOG.read_text().splitlines(keepends=True)
    (folder / "logs").mkdir()
    (folder / "logs" / "server.log").write_text("".join([lines[0], SECRET, *lines[1:]]))
    diagnosis = diag.diagnose(diag.load(folder / "logs"), facts=diag.Facts(price_per_gpu_h=2.5))
    assert report(diagnosis, folder / "r.ipynb", load_options={"paths": [folder / "logs"]}) == folder / "r.ipynb"
    return folder / "r.ipynb"


def test_it_is_run_and_holds_what_the_diagnosis_says(written: Path) -> None:
    notebook = nbformat.read(written, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    shown = [text for cell in code for text in texts_of(cell)]
    diagnosis = diag.diagnose(diag.load(written.parent / "logs"))
    for finding in diagnosis.findings:
        assert any(finding.sentence in text for text in shown)
    assert any(str(diagnosis.recording.sources[0].sha256) in text for text in shown)
    assert any("application/vnd.plotly.v1+json" in text for text in shown)
    assert any("$/GPU-h" in text and "2.5" in text for text in shown)


def test_it_moves_with_its_logs_and_names_neither_machine_nor_moment(written: Path) -> None:
    text = written.read_text()
    assert 'source = \\"logs\\"' in text
    assert str(written.parent) not in text and str(Path.home()) not in text.replace('"/root"', "")
    notebook = json.loads(text)
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    assert [cell["id"] for cell in notebook["cells"]] == [str(number) for number in range(len(notebook["cells"]))]
    assert not [cell for cell in notebook["cells"] if set(cell["metadata"]) - {"tags"}]


def test_it_shows_no_secret_and_runs_no_markup(written: Path) -> None:
    notebook = json.loads(written.read_text())
    for cell in notebook["cells"]:
        for text in texts_of(cell):
            assert not hostile.faults(text)
        for output in cell.get("outputs", []):
            html = "".join(output.get("data", {}).get("text/html", ""))
            tags = ("b", "p", "table", "thead", "tbody", "tr", "td", "th", "pre", "br")
            assert not hostile.tags(html.replace(' style="text-align:left"', ""), tags)
    assert any("api_key=[redacted]" in text for cell in notebook["cells"] for text in texts_of(cell))


def test_running_it_again_gives_the_same(written: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--nbval",
        "--nbval-current-env",
        written,
    ]
    done = subprocess.run(command, cwd=written.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "passed" in done.stdout


def test_other_logs_are_seen_when_it_is_run_again(written: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(written.parent, tmp_path / "copy")
    with (copy / "logs" / "server.log").open("a") as log:
        log.write("INFO 11-29 20:49:20 [api.py:1] one more line\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval-lax", "--nbval-current-env"]
    done = subprocess.run([*command, copy / "r.ipynb"], cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "SHA-256" in done.stdout


def test_the_template_is_among_the_notebooks() -> None:
    assert template() == Path(__file__).parents[2] / "notebooks" / "report.ipynb"


def test_what_cannot_be_a_notebook_is_said_and_nothing_is_written(tmp_path: Path) -> None:
    here = diag.diagnose(diag.load(LOG))
    refused: list[tuple[Any, dict[str, Any], str]] = [
        (here, {"paths": [f"https://me:{hostile.PASSWORD}@host/server.log"]}, r"holds a secret.*\[redacted\]"),
        (here, {"start": "-2h"}, "cannot read the logs again with start"),
        (diag.diagnose(diag.Recording()), {}, "comes from no file"),
    ]
    for diagnosis, options, told in refused:
        with pytest.raises(DiagError, match=told) as error:
            report(diagnosis, tmp_path / "r.ipynb", load_options=options)
        assert hostile.PASSWORD not in str(error.value)
    with pytest.raises(SourceError, match="no such folder"):
        report(here, tmp_path / "absent" / "r.ipynb")
    assert not list(tmp_path.iterdir())


def test_logs_that_read_otherwise_are_no_report_on_this_diagnosis(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maker, "_executed", lambda *_: nbformat.read(written, as_version=4))
    other = diag.diagnose(diag.load("sample:captured/kv_preempts"))
    with pytest.raises(DiagError, match="gives other findings"):
        report(other, tmp_path / "r.ipynb")
    assert not list(tmp_path.iterdir())


def test_a_fleet_is_refused(tmp_path: Path) -> None:
    recordings = {name: diag.load(f"sample:captured/{name}/server.log") for name in ("sequence_limit", "kv_preempts")}
    with pytest.raises(DiagError, match="a fleet has no notebook"):
        report(diag.diagnose(fleet_of(recordings)), tmp_path / "r.ipynb")
