"""The notebooks as files, and with other logs than those that they ship with."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
OTHER_SOURCES = [
    "sample:captured/two_starts/server.log",
    "sample:captured/killed_mid_load/server.log",
    "sample:captured/kv_preempts/server.log",
]
CASES = ROOT.parent / "shared" / "cases"
CHECKED = {"nbval-check-output", "keep_output"}

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells_of(path: Path) -> list[dict[str, Any]]:
    """The cells of a notebook as they stand in the file."""
    cells: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return cells


def tags_of(cell: dict[str, Any]) -> set[str]:
    """The tags of a cell."""
    return set(cell["metadata"].get("tags", ()))


def test_there_is_a_notebook_to_start_with() -> None:
    assert "00_start_here" in [path.stem for path in NOTEBOOKS]


@each_notebook
def test_stripping_changes_nothing(path: Path, tmp_path: Path) -> None:
    copy = shutil.copy(path, tmp_path / path.name)
    subprocess.run([Path(sys.executable).with_name("nbstripout"), "--keep-count", copy], check=True)
    assert copy.read_bytes() == path.read_bytes(), f"run: nbstripout --keep-count notebooks/{path.name}"
    assert path.stat().st_size < 200_000


@each_notebook
def test_nothing_of_a_machine_or_of_chance_is_saved(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    assert [cell["id"] for cell in notebook["cells"]] == [str(number) for number in range(len(notebook["cells"]))]
    assert not [cell["metadata"] for cell in notebook["cells"] if set(cell["metadata"]) - {"tags"}]
    shown = json.dumps([cell.get("outputs", []) for cell in notebook["cells"]])
    assert not re.findall(r"/(?:home|root|tmp|Users|mnt|var/folders)/|\b[A-Z]:\\\\| at 0x[0-9a-f]+>", shown)
    assert not re.findall(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", path.read_text("utf-8"))


@each_notebook
def test_parameters_come_first_and_are_annotated(path: Path) -> None:
    first = next(cell for cell in cells_of(path) if cell["cell_type"] == "code")
    assert tags_of(first) == {"parameters"}
    for line in first["source"]:
        assert re.fullmatch(r'\w+: (str|int|float|bool) = ("[^"]*"|[\w.]+)  # \S.*\n?', line)


@each_notebook
def test_a_few_cells_hold_lines_to_quote_and_no_others_have_outputs(path: Path) -> None:
    code = [cell for cell in cells_of(path) if cell["cell_type"] == "code"]
    checked = [cell for cell in code if tags_of(cell) & CHECKED]
    assert 3 <= len(checked) <= 6
    for cell in checked:
        assert tags_of(cell) == CHECKED
        printed = "".join(line for output in cell["outputs"] for line in output["text"])
        assert 1 <= len(printed.splitlines()) <= 5
        assert cell["execution_count"]
    assert not [cell for cell in code if cell not in checked and cell["outputs"]]
    assert not [cell for cell in code if re.search(r"^\s*assert\b", "".join(cell["source"]), re.MULTILINE)]


def test_the_first_notebook_is_short() -> None:
    assert len(cells_of(ROOT / "notebooks" / "00_start_here.ipynb")) <= 12


def executed_with(source: str) -> list[Any]:
    """The cells of the first notebook after it has run with another source."""
    notebook = nbformat.read(ROOT / "notebooks" / "00_start_here.ipynb", as_version=4)
    parameters = next(cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ()))
    parameters.source = f"source: str = {source!r}"
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    return list(notebook.cells)


@pytest.mark.parametrize("source", OTHER_SOURCES)
def test_it_runs_on_other_samples(source: str) -> None:
    cells = executed_with(source)
    assert any(source in output.get("text", "") for cell in cells for output in cell.get("outputs", ()))


@pytest.mark.parametrize("name", ["31-sglang-burst-queue.log", "01-vllm-unlogged-tail.log"])
def test_it_runs_on_logs_with_one_side_only(name: str) -> None:
    path = CASES / name
    if not path.exists():
        pytest.skip("the shared cases are not beside this checkout")
    assert executed_with(str(path))
