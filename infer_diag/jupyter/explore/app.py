"""The explorer as a notebook shows it: pages behind buttons, and the lines behind what was chosen below them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ipywidgets as widgets  # type: ignore[import-untyped]

from infer_diag.jupyter.explore.facts import Fact
from infer_diag.jupyter.explore.model import ExploreModel
from infer_diag.jupyter.explore.pages import FULL, GROWS, WRAPPED, MemoryPage, OverviewPage, ServingPage, StartPage
from infer_diag.redact import plain

_PAGE = {"flex": "3 1 620px", "min_width": "0", "width": "auto"}
_EVIDENCE = {"flex": "2 1 440px", "min_width": "0", "width": "auto"}
_HINT = "Choose a number, a bar or a cell: the lines that it comes from are shown here."


class Explorer:
    """One recording to look into; a page is made when it is first opened."""

    def __init__(self, model: ExploreModel) -> None:
        self.model = model
        self._memory: MemoryPage | None = None
        self._evidence = widgets.HTML(layout=GROWS)
        self._evidence.add_class("infer-diag-evidence")
        self._tell(Fact(_HINT), lines=False)
        self._pages: dict[str, widgets.Widget] = {}
        self._names = widgets.ToggleButtons(options=model.pages, style={"button_width": "auto"})
        self._names.observe(lambda _: self._open(), "value")
        self._body = widgets.VBox(layout=_PAGE)
        beside = {**_EVIDENCE, "border_top": "1px solid var(--jp-border-color2, gray)", "padding": "4px 0"}
        both = widgets.HBox([self._body, widgets.VBox([self._evidence], layout=beside)], layout=WRAPPED)
        self.view = widgets.VBox([self._names, both], layout=FULL)
        self.view.add_class("infer-diag-explorer")
        self._open()

    def close(self) -> None:
        """Takes the widgets away."""
        self.view.close()

    def _open(self) -> None:
        name = self._names.value
        if name not in self._pages:
            self._body.children = (widgets.Label(f"reading for {name} …"),)
            try:
                self._pages[name] = self._made(name)
            except Exception as error:  # A traceback would end in a log that nobody reads.
                told = plain(f"{name} cannot be shown ({type(error).__name__}: {error})")
                self._pages[name] = widgets.Label(told)
        self._body.children = (self._pages[name],)

    def _made(self, name: str) -> widgets.Widget:
        makers: dict[str, Callable[[], Any]] = {
            "overview": lambda: OverviewPage(self.model, self._tell).view,
            "cold start": lambda: StartPage(self.model, self._tell).view,
            "batching": lambda: ServingPage(self.model, self._tell, self._follow).view,
            "memory": self._made_memory,
        }
        return makers[name]()

    def _made_memory(self) -> widgets.Widget:
        heaps, refusal = self.model.heaps_or_refusal()
        if not heaps:
            return widgets.Label(refusal or "the recording tells of no heap")
        self._memory = MemoryPage(self.model, self._tell)
        self._memory.follow()
        return self._memory.view

    def _follow(self) -> None:
        if self._memory is not None:
            self._memory.follow()

    def _tell(self, chosen: Fact, *, lines: bool = True) -> None:
        self._evidence.value = self.model.evidence(chosen) if lines else f"<i>{chosen.text}</i>"
