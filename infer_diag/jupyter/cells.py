"""`%%diag probe`: run a cell and keep what CuPy's memory pools did meanwhile as a recording."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from IPython.core.error import UsageError
from IPython.core.magic_arguments import MagicArgumentParser

from infer_diag.errors import DiagError, UnknownNameError
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


def cell_function(shell: InteractiveShell, session: Session) -> Callable[[str, str], Panel]:
    """The function to register as the cell magic; the recordings of `session` get what it records."""
    parser = _parser()

    def diag(line: str, cell: str) -> Panel:
        words = _words(line)
        if not words or words[0] != VERB:
            raise UsageError(str(UnknownNameError("verb of a cell", words[0] if words else "", [VERB])))
        return _probed(shell, session, parser.parse_args(words[1:]), cell)

    diag.__doc__ = f"Run the cell and record what CuPy's memory pools do.\n\n{parser.format_help()}"
    return diag


def _parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = MagicArgumentParser(prog="%%diag probe")
    parser.add_argument("--as", dest="name", metavar="NAME", default="probe", help="name of the recording (probe)")
    parser.add_argument("--out", metavar="DIR", help="keep the events as a file in this folder")
    return parser


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
