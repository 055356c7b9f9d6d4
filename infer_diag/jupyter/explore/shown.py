"""A panel that is a widget where there is a front end for it, and its text and table everywhere else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from infer_diag.errors import DiagError
from infer_diag.jupyter.panel import Panel

WIDGET = "application/vnd.jupyter.widget-view+json"


@dataclass(frozen=True, repr=False)
class WidgetPanel(Panel):
    """An answer that can be worked with; a saved notebook keeps its text, its table and the widget's id, no picture."""

    widget: Any = None

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        shown = {WIDGET: {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}}
        return {**shown, "text/html": self._html(), "text/plain": self.text}


def needs_widgets() -> None:
    """Makes sure that widgets can be made.

    Raises:
        DiagError: a package for them is not installed.
    """
    try:
        import anywidget
        import ipywidgets  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise DiagError(
            f"this needs {error.name}, which is not installed", hint="pip install 'infer-diag[lab]' brings it"
        ) from error
    assert anywidget and ipywidgets
