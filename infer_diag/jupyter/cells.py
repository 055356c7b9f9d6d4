"""`%%diag probe`: run a cell and keep what CuPy's memory pools did meanwhile as a recording."""

from __future__ import annotations

import argparse
import ast
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from IPython.core.error import UsageError
from IPython.core.magic_arguments import MagicArgumentParser

from infer_diag.errors import DiagError, UnknownNameError
from infer_diag.jupyter.completion import completed, paths
from infer_diag.jupyter.magic import _words
from infer_diag.jupyter.panel import Panel
from infer_diag.jupyter.session import Loaded, Session
from infer_diag.loaders import load
from infer_diag.probes import device as devices
from infer_diag.probes.memory.recorder import EventRecorder

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

VERB = "probe"
_FILE = "allocator_events.parquet"
_ABOUT = "Run the cell and keep what CuPy's memory pools did meanwhile as a recording."


def cell_function(
    shell: InteractiveShell, session: Session, parser: argparse.ArgumentParser
) -> Callable[[str, str], Panel]:
    """The function to register as the cell magic; the recordings of `session` get what it records."""

    def diag(line: str, cell: str) -> Panel:
        words = _words(line)
        if not words or words[0] != VERB:
            raise UsageError(str(UnknownNameError("verb of a cell", words[0] if words else "", [VERB])))
        options = parser.parse_args(words)
        return Panel(probe_code(options, cell), whole=True) if options.code else _probed(shell, session, options, cell)

    diag.__doc__ = f"Run the cell and record what CuPy's memory pools do.\n\n{parser.format_help()}"
    return diag


def cell_grammar() -> argparse.ArgumentParser:
    """The parser of the first line of a `%%diag` cell."""
    parser: argparse.ArgumentParser = MagicArgumentParser(prog="%%diag")
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB")
    probe: argparse.ArgumentParser = subparsers.add_parser(VERB, prog=f"%%diag {VERB}", description=_ABOUT)
    probe.allow_abbrev = False
    probe.add_argument("--as", dest="name", metavar="NAME", default="probe", help="name of the recording (probe)")
    completed(probe.add_argument("--out", metavar="DIR", help="keep the events as a file in this folder"), paths)
    probe.add_argument("--code", action="store_true", help="print the Python that does the same")
    return parser


def probe_code(options: argparse.Namespace, cell: str) -> str:
    """The Python of a `%%diag probe` cell."""
    folder = f"Path({options.out!r})" if options.out else 'Path("probes")'
    return (
        "from pathlib import Path\nimport infer_diag as diag\nfrom infer_diag.probes import device\n"
        "from infer_diag.probes.memory.recorder import EventRecorder\n"
        f"folder = {folder}\nfolder.mkdir(parents=True, exist_ok=True)\nrecorder = EventRecorder()\n"
        f"with device.current().recording(recorder):\n{_indented(cell)}\n"
        f'{options.name} = diag.load(recorder.write(folder / "{_FILE}"))'
    )


def _indented(cell: str) -> str:
    """The cell as a block; lines inside of strings stay as they are."""
    lines = cell.rstrip().splitlines() or ["pass"]
    try:
        strings = [node for node in ast.walk(ast.parse(cell)) if isinstance(node, ast.Constant | ast.JoinedStr)]
    except SyntaxError:  # magics are no Python
        strings = []
    inside = {line for node in strings for line in range(node.lineno + 1, (node.end_lineno or 0) + 1)}
    return "\n".join(line if number in inside else f"    {line}" for number, line in enumerate(lines, start=1))


def _probed(shell: InteractiveShell, session: Session, options: argparse.Namespace, cell: str) -> Panel:
    recorder = EventRecorder()
    with devices.current().recording(recorder):
        result = shell.run_cell(cell)
    if not len(recorder):
        raise DiagError(
            "no memory pool of CuPy did anything in this cell",
            hint="its asynchronous pool and other libraries call no hook; PyTorch records its own memory_snapshot",
        )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.out or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        path = recorder.write(folder / _FILE)
        recording = load(path)
    code = (
        f"recording = diag.load({str(path)!r})" if options.out else f"# recorded live as {options.name}; --out keeps it"
    )
    session.add(Loaded(options.name, recording, (str(path),), code))
    error = result.error_in_exec or result.error_before_exec
    if error is not None:
        raise UsageError(f"the cell failed ({type(error).__name__}); what was recorded until then is {options.name}")
    return Panel(f"recorded as {options.name}", repr(recording))
