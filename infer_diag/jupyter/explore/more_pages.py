"""The pages of the explorer for cost, for the memory of devices and for the blocks of the KV pool."""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any

import ipywidgets as widgets  # type: ignore[import-untyped]

from infer_diag.jupyter.explore.cost_model import CostModel
from infer_diag.jupyter.explore.device_model import DeviceModel, KvModel
from infer_diag.jupyter.explore.model import ExploreModel
from infer_diag.jupyter.explore.pages import FULL, GROWS, HALF, WRAPPED, FactList, Tell
from infer_diag.jupyter.explore.plot import Plot

Chosen = Callable[[Any], None]
"""Called with the ends of the window that the reader chose, or with null for all of it."""


class CostPage:
    """Where the GPU time went, over all of the recording and in its window, and the ledger behind it."""

    def __init__(self, model: ExploreModel, tell: Tell, choose: Chosen) -> None:
        self._model, self._tell = model, tell
        cost: CostModel = model.cost
        lines = "<br>".join(html.escape(line) for line in cost.lines)
        head = widgets.HTML(f"<div style='line-height:1.5;white-space:normal'>{lines}</div>", layout=GROWS)
        self._bars, self._timeline = Plot(pick=self._picked), Plot(brush=choose)
        unknown = widgets.Label("these logs do not tell how long devices were held, so there is nothing to divide")
        drawn = [self._bars] if cost.bars is not None else [unknown]
        self._bars.show(cost.bars)
        if cost.timeline is not None:
            self._timeline.show(cost.timeline)
            drawn.append(self._timeline)
        ledger = FactList("the ledger; choose an entry for its lines", tell, 8, HALF)
        ledger.show(cost.facts())
        self._window = FactList("what this window costs", tell, 8, HALF)
        self._words = widgets.Label()
        below = widgets.HBox([self._window.view, ledger.view], layout=WRAPPED)
        self.view = widgets.VBox([head, *drawn, self._words, below], layout=FULL)
        self.follow()

    def follow(self) -> None:
        """Shows the window that is chosen now."""
        window = self._model.window
        self._timeline.mark(brush=None if window is None else list(window))
        self._words.value = self._model.window_words()
        self._window.show(self._model.cost.window_facts(window))

    def _picked(self, name: Any) -> None:
        chosen = self._model.cost.chosen(str(name))
        if chosen is not None:
            self._tell(chosen)


class DevicePage:
    """The memory of the devices over time, and what their samples say of the window."""

    def __init__(self, model: ExploreModel, tell: Tell, choose: Chosen) -> None:
        self._model = model
        self._devices: DeviceModel = model.devices
        self._plot = Plot(brush=choose)
        self._plot.show(self._devices.timeline())
        self._facts = FactList("what the devices held in this window", tell)
        self.view = widgets.VBox([self._plot, self._facts.view], layout=FULL)
        self.follow()

    def follow(self) -> None:
        """Shows the window that is chosen now."""
        window = self._model.window
        self._plot.mark(brush=None if window is None else list(window))
        self._facts.show(self._devices.facts(window))


class KvPage:
    """The blocks of the KV pool at the end of the window."""

    def __init__(self, model: ExploreModel, tell: Tell) -> None:
        self._model = model
        self._pool: KvModel = model.kv_pool
        self._map = Plot(cell=self._celled)
        self._facts = FactList("the KV pool at the end of this window", tell, 4, HALF)
        self._blocks = FactList("blocks of the chosen cell", tell, 4, HALF)
        below = widgets.HBox([self._facts.view, self._blocks.view], layout=WRAPPED)
        self.view = widgets.VBox([self._map, below], layout=FULL)
        self.follow()

    def follow(self) -> None:
        """Shows the pool at the end of the window that is chosen now."""
        self._map.show(*self._pool.raster(self._model.window))
        self._facts.show(self._pool.facts(self._model.window))
        self._blocks.show([])

    def _celled(self, cell: Any) -> None:
        self._blocks.show(self._pool.blocks(self._model.window, int(cell)))
