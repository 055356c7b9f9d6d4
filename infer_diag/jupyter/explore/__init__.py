"""`%diag explore`: a recording as an application in the notebook, with the log lines behind every number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infer_diag.jupyter.explore.shown import WidgetPanel, needs_widgets
from infer_diag.jupyter.panels import summary_panel

if TYPE_CHECKING:
    from infer_diag.diagnose import Diagnosis
    from infer_diag.jupyter.explore.app import Explorer

__all__ = ["explore", "explorer_panel"]


def explore(diagnosis: Diagnosis) -> Explorer:
    """The explorer of a diagnosis.

    Raises:
        DiagError: ipywidgets or anywidget is not installed.
    """
    needs_widgets()
    from infer_diag.jupyter.explore.app import Explorer
    from infer_diag.jupyter.explore.model import ExploreModel

    return Explorer(ExploreModel(diagnosis))


def explorer_panel(explorer: Explorer, name: str) -> WidgetPanel:
    """The explorer as a panel: the widget where one can be shown, else the summary and the findings."""
    told = summary_panel(explorer.model.diagnosis)
    return WidgetPanel(f"{name}: {told.title}", told.sentence, told.details, told.frame, None, widget=explorer.view)
