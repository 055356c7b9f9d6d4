"""Why an LLM deployment costs what it costs, from the logs that it already writes.

    import infer_diag as diag
    recording = diag.load("server.log")
    diagnosis = diag.diagnose(recording)
    diag.report(diagnosis, "report.html")
    diag.export.otlp(diagnosis, "http://collector:4318")

In a notebook: `%load_ext infer_diag`, then `%diag help`. On the command line: `infer-diag --help`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from infer_diag import export, samples
    from infer_diag.diagnose import Diagnosis, diagnose
    from infer_diag.errors import DiagError
    from infer_diag.fleet import Facts, Fleet
    from infer_diag.fleet_paths import load_fleet
    from infer_diag.loaders import load
    from infer_diag.recording import Recording
    from infer_diag.report import report

__version__ = "0.1.0"
__all__ = [
    "DiagError",
    "Diagnosis",
    "Facts",
    "Fleet",
    "Recording",
    "__version__",
    "diagnose",
    "export",
    "load",
    "load_fleet",
    "load_ipython_extension",
    "report",
    "samples",
    "unload_ipython_extension",
]

_HOMES = {
    "DiagError": "infer_diag.errors",
    "Diagnosis": "infer_diag.diagnose",
    "Facts": "infer_diag.fleet",
    "Fleet": "infer_diag.fleet",
    "Recording": "infer_diag.recording",
    "diagnose": "infer_diag.diagnose",
    "load": "infer_diag.loaders",
    "load_fleet": "infer_diag.fleet_paths",
    "report": "infer_diag.report",
}


def load_ipython_extension(shell: InteractiveShell) -> None:
    """`%load_ext infer_diag`: register the magic `%diag` and its completion."""
    import_module("infer_diag.jupyter").load(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """`%unload_ext infer_diag`: take the magic and its completion away again."""
    import_module("infer_diag.jupyter").unload(shell)


class _Package(ModuleType):
    """Keeps `infer_diag.diagnose` and `infer_diag.report` the functions.

    The import system binds a sub-package of the same name over them as soon as anything imports it.
    """

    def __getattr__(self, name: str) -> object:
        if name in ("export", "samples"):
            return import_module(f"infer_diag.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_HOMES[name]), name)
        super().__setattr__(name, value)
        return value

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


sys.modules[__name__].__class__ = _Package
