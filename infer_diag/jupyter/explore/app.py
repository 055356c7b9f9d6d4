"""The explorer as a notebook shows it: pages behind buttons, and the lines behind what was chosen below them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ipywidgets as widgets  # type: ignore[import-untyped]

from infer_diag.jupyter.explore.facts import Fact
from infer_diag.jupyter.explore.model import ExploreModel
from infer_diag.jupyter.explore.more_pages import CostPage, DevicePage, KvPage
from infer_diag.jupyter.explore.pages import FULL, GROWS, WRAPPED, MemoryPage, OverviewPage, ServingPage, StartPage
from infer_diag.jupyter.explore.windows import Window
from infer_diag.redact import plain

_Follows = ServingPage | MemoryPage | CostPage | DevicePage | KvPage
_PAGE = {"flex": "3 1 620px", "min_width": "0", "width": "auto"}
_EVIDENCE = {"flex": "2 1 440px", "min_width": "0", "width": "auto"}
_HINT = "Choose a number, a bar or a cell: the lines that it comes from are shown here."


class Explorer:
    """One recording to look into; a page is made when it is first opened."""

    def __init__(self, model: ExploreModel) -> None:
        self.model = model
        self._following: dict[str, list[_Follows]] = {}
        self._windows: dict[str, Window] = {}
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
            self._windows[name] = self.model.window
        if self._windows[name] != self.model.window:
            self._follow(name)
        self._body.children = (self._pages[name],)

    def _made(self, name: str) -> widgets.Widget:
        makers: dict[str, Callable[[], Any]] = {
            "overview": lambda: OverviewPage(self.model, self._tell).view,
            "cold start": lambda: StartPage(self.model, self._tell).view,
            "batching": lambda: self._followed(ServingPage(self.model, self._tell, self._choose)),
            "memory": self._made_memory,
            "cost": lambda: self._followed(CostPage(self.model, self._tell, self._choose)),
        }
        return makers[name]()

    def _followed(self, page: _Follows) -> widgets.Widget:
        """The view of a page that shows every window from now on, whichever page it was chosen on."""
        self._following.setdefault(self._names.value, []).append(page)
        return page.view

    def _made_memory(self) -> widgets.Widget:
        parts = []
        if not self.model.devices.is_empty:
            parts.append(self._followed(DevicePage(self.model, self._tell, self._choose)))
        if not self.model.kv_pool.is_empty:
            parts.append(self._followed(KvPage(self.model, self._tell)))
        if self.model.has_heap:
            heaps, refusal = self.model.heaps_or_refusal()
            if heaps:
                page = MemoryPage(self.model, self._tell)
                page.follow()
                parts.append(self._followed(page))
            else:
                parts.append(widgets.Label(refusal or "the recording tells of no heap"))
        return parts[0] if len(parts) == 1 else widgets.VBox(parts, layout=FULL)

    def _choose(self, brush: Any) -> None:
        if self.model.choose(brush):
            self._follow(self._names.value)

    def _follow(self, name: str) -> None:
        """Shows the window on one page; the others wait until they are opened, because each costs time."""
        self._windows[name] = self.model.window
        for page in self._following.get(name, []):
            page.follow()

    def _tell(self, chosen: Fact, *, lines: bool = True) -> None:
        self._evidence.value = self.model.evidence(chosen) if lines else f"<i>{chosen.text}</i>"
