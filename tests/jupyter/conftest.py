"""A real IPython shell that keeps what it shows."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output


@dataclass
class Ran:
    """How a cell ended: what it showed, what it printed, and its error."""

    bundles: list[dict[str, Any]]
    printed: str
    error: BaseException | None

    @property
    def text(self) -> str:
        """The plain text of the one thing that the cell showed."""
        (bundle,) = self.bundles
        return str(bundle["text/plain"])


@dataclass
class Notebook:
    """Runs cells in a shell as a kernel does."""

    shell: InteractiveShell
    shown: list[dict[str, Any]]

    def run(self, cell: str) -> Ran:
        """Run one cell."""
        self.shown.clear()
        with capture_output(display=False) as captured:
            result = self.shell.run_cell(cell, store_history=True)
        error = result.error_in_exec or result.error_before_exec
        return Ran(list(self.shown), captured.stdout + captured.stderr, error)

    def ok(self, cell: str) -> Ran:
        """Run one cell that must not fail."""
        ran = self.run(cell)
        assert ran.error is None
        return ran

    def complete(self, line: str) -> list[str]:
        """What the tab key offers at the end of a line."""
        with provisionalcompleter():
            return [line[: each.start] + each.text for each in self.shell.Completer.completions(line, len(line))]


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    """A fresh shell in an empty folder, without the extension."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.chdir(tmp_path)
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance(colors="nocolor")
    shell.Completer.use_jedi = False
    shown: list[dict[str, Any]] = []
    monkeypatch.setattr(shell.displayhook, "write_output_prompt", lambda: None)
    monkeypatch.setattr(shell.displayhook, "write_format_data", lambda data, metadata=None: shown.append(data))
    yield Notebook(shell, shown)
    atexit.unregister(shell.atexit_operations)
    shell.atexit_operations()
    InteractiveShell.clear_instance()


@pytest.fixture
def notebook(bare: Notebook) -> Notebook:
    """A fresh shell with `%diag`."""
    bare.ok("%load_ext infer_diag")
    return bare
