"""A watch as a notebook shows it: states, a live timeline, findings as they arise, and a button to stop."""

from __future__ import annotations

from collections.abc import Callable

import ipywidgets as widgets  # type: ignore[import-untyped]

from infer_diag.jupyter.explore.facts import Fact, evidence_html, grown
from infer_diag.jupyter.explore.pages import FULL, GROWS, WRAPPED, FactList
from infer_diag.jupyter.explore.plot import Plot
from infer_diag.jupyter.watch_scene import watch_facts, watch_scene
from infer_diag.redact import plain
from infer_diag.units import format_s
from infer_diag.watch import View

_LONG = 300


class WatchView:
    """The widget of one watch; `show` may be called from any thread."""

    def __init__(self, name: str, stop: Callable[[], None]) -> None:
        self._view: View | None = None
        self._facts: list[Fact] = []
        self._head = widgets.Label(f"{name}: begins …", layout={"flex": "1 1 auto", "width": "auto"})
        self._name = name
        self._stop = widgets.Button(description="stop", icon="stop", tooltip="end this watch and keep what it saw")
        self._stop.on_click(lambda _: stop())
        self._states = widgets.VBox(layout=FULL)
        self._plot = Plot()
        self._found = FactList("findings so far; choose one for its lines", self._tell, 5)
        self._evidence = widgets.HTML(layout=GROWS)
        bar = widgets.HBox([self._stop, self._head], layout=WRAPPED)
        parts = [bar, self._states, self._plot, self._found.view, self._evidence]
        self.view = widgets.VBox(parts, layout=FULL)
        self.view.add_class("infer-diag-watch")

    def show(self, view: View) -> None:
        """Shows what there is now."""
        self._view = view
        over = (
            f"ended: {view.over}; kept as {self._name}"
            if view.over
            else f"watched for {format_s(round(view.elapsed_s))}"
        )
        self._head.value = plain(f"{self._name}: {over}")
        self._states_shown([plain(f"{label}: {state}", _LONG) for label, state in view.states])
        self._stop.disabled = view.over is not None
        self._plot.show(watch_scene(view))
        facts = watch_facts(view)
        if [each.text for each in facts] != [each.text for each in self._facts]:
            self._facts = facts
            self._found.show(facts)

    def failed(self, told: str) -> None:
        """Shows that the watch itself could not go on."""
        self._head.value = plain(told, _LONG)
        self._stop.disabled = True

    def _states_shown(self, lines: list[str]) -> None:
        if len(self._states.children) != len(lines):
            self._states.children = tuple(widgets.Label(layout=GROWS) for _ in lines)
        for label, line in zip(self._states.children, lines, strict=True):
            label.value = line

    def _tell(self, chosen: Fact) -> None:
        if self._view is not None and self._view.diagnosis is not None:
            self._evidence.value = evidence_html(grown(self._view.diagnosis.recording), chosen)
