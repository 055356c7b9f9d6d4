"""The notebook face: one magic, `%diag`, whose verbs are a few lines each over the Python surface; `%%diag probe`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infer_diag.jupyter.cells import cell_function, cell_grammar
from infer_diag.jupyter.completion import Matcher
from infer_diag.jupyter.cost import ledger_panel
from infer_diag.jupyter.grammar import grammar
from infer_diag.jupyter.magic import Magic
from infer_diag.jupyter.memory_panel import memory_panel
from infer_diag.jupyter.panel import Panel
from infer_diag.jupyter.panels import batching_panel, cold_start_panel, summary_panel
from infer_diag.jupyter.session import Session
from infer_diag.jupyter.source_panels import evidence_panel, sources_panel

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = [
    "MAGIC",
    "Panel",
    "batching_panel",
    "cold_start_panel",
    "evidence_panel",
    "ledger_panel",
    "load",
    "memory_panel",
    "sources_panel",
    "summary_panel",
    "unload",
]

MAGIC = "diag"


def load(shell: InteractiveShell) -> None:
    """Register `%diag`, `%%diag` and their completion."""
    unload(shell)
    session = Session(shell.user_ns)
    parser, cells = grammar(session), cell_grammar()
    shell.register_magic_function(Magic(parser, session).function(), "line", MAGIC)
    shell.register_magic_function(cell_function(shell, session, cells), "cell", MAGIC)
    shell.Completer.custom_matchers.append(Matcher(parser, cells))


def unload(shell: InteractiveShell) -> None:
    """Take `%diag`, `%%diag` and their completion away; the recordings that it held go with it."""
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop(MAGIC, None)
    matchers = shell.Completer.custom_matchers
    matchers[:] = [matcher for matcher in matchers if not isinstance(matcher, Matcher)]
