"""The pages of the explorer: widgets that show what the models say and tell them what the reader chose."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets as widgets  # type: ignore[import-untyped]

from infer_diag.jupyter.explore.facts import Fact
from infer_diag.jupyter.explore.heap_model import HeapModel, Stretch
from infer_diag.jupyter.explore.model import ExploreModel
from infer_diag.jupyter.explore.plot import Plot

Tell = Callable[[Fact], None]
FULL = {"width": "100%", "min_width": "0"}
WRAPPED = {"display": "flex", "flex_flow": "row wrap", "width": "100%", "align_items": "flex-start"}
GROWS = {"width": "auto", "min_width": "0"}
HALF = {"flex": "1 1 330px", "min_width": "0", "width": "auto"}


class FactList:
    """Facts to choose from; choosing one tells of its lines."""

    def __init__(self, title: str, tell: Tell, rows: int = 6, layout: dict[str, str] | None = None) -> None:
        self._tell, self._facts, self._quiet = tell, list[Fact](), False
        self._list = widgets.Select(options=[], rows=rows, layout=GROWS)
        self._list.observe(self._chosen, "value")
        head = widgets.Label(title)
        self.view = widgets.VBox([head, self._list], layout=layout or FULL)

    def show(self, facts: Sequence[Fact]) -> None:
        """Other facts; what was chosen stays so where it is one of them."""
        before = self._list.value
        key = _key(self._facts[before]) if before is not None else None
        self._facts, self._quiet = list(facts), True
        self._list.value = None
        self._list.options = [(each.text, number) for number, each in enumerate(facts)]
        same = [number for number, each in enumerate(facts) if _key(each) == key]
        self._list.value = same[0] if same else None
        self._quiet = False

    def _chosen(self, change: Any) -> None:
        if change["new"] is not None and not self._quiet:
            self._tell(self._facts[change["new"]])


class OverviewPage:
    """What was read, and the findings."""

    def __init__(self, model: ExploreModel, tell: Tell) -> None:
        told = "<br>".join(html.escape(line) for line in model.summary())
        style = "line-height:1.5;white-space:normal;overflow-wrap:anywhere"
        lines = widgets.HTML(f"<div style='{style}'>{told}</div>", layout=GROWS)
        found = model.findings()
        listed = FactList(
            "findings, the gravest first; choose one for its lines", tell, rows=min(max(len(found), 3), 12)
        )
        listed.show(found)
        self.view = widgets.VBox([lines, listed.view], layout=FULL)


class StartPage:
    """One start over time and its parts."""

    def __init__(self, model: ExploreModel, tell: Tell) -> None:
        self._model, self._tell = model, tell
        self._plot = Plot(pick=self._picked)
        self._parts = FactList("the start's parts, the longest first", tell)
        self._start = widgets.Dropdown(options=model.starts.starts, description="start")
        self._start.observe(lambda _: self._show(), "value")
        several = [self._start] if len(model.starts.starts) > 1 else []
        self._unplaced = widgets.Label("the log has no stamps that would order the parts")
        self.view = widgets.VBox([*several, self._plot, self._unplaced, self._parts.view], layout=FULL)
        self._show()

    def _show(self) -> None:
        scene = self._model.starts.scene(self._start.value)
        self._unplaced.layout.display = "none" if scene is not None else ""
        self._plot.show(scene)
        self._parts.show(self._model.starts.facts(self._start.value))

    def _picked(self, name: Any) -> None:
        chosen = self._model.starts.chosen(self._start.value, str(name))
        if chosen is not None:
            self._tell(chosen)


class ServingPage:
    """The serving timeline and what the window in it says; `choose` is called with a window that the reader takes."""

    def __init__(self, model: ExploreModel, tell: Tell, choose: Callable[[Any], None]) -> None:
        self._model, self._choose = model, choose
        serving = model.serving
        low, high = model.span
        self._plot = Plot(brush=choose)
        self._plot.show(serving.timeline)
        self._range = widgets.FloatRangeSlider(
            value=(low, high), min=low, max=high, step=max((high - low) / 1000, 1e-6), description="window",
            readout=False, continuous_update=False, layout={"flex": "1 1 240px", "width": "auto"},
        )  # fmt: skip
        self._range.observe(self._slid, "value")
        self._words = widgets.Label()
        every = widgets.Button(description="all", tooltip="the whole recording", layout={"width": "60px"})
        every.on_click(lambda _: choose(None))
        self._measure = widgets.Dropdown(
            options=[(name, column) for column, name in serving.measures.items()], description="latency"
        )
        self._measure.observe(lambda _: self._show_latency(), "value")
        self._facts = FactList("what this window says; choose a number for its lines", tell, layout=HALF)
        self._slowest = FactList("the slowest requests of this window", tell, layout=HALF)
        self._histogram = Plot()
        latency = [widgets.VBox([self._measure, self._histogram], layout=HALF), self._slowest.view]
        bar = widgets.HBox([self._range, every, self._words], layout=WRAPPED)
        below = widgets.HBox([self._facts.view, *(latency if serving.measures else [])], layout=WRAPPED)
        self.view = widgets.VBox([self._plot, bar, below], layout=FULL)
        self.follow()

    def follow(self) -> None:
        """Shows the window that is chosen now."""
        window = self._model.window
        self._plot.mark(brush=None if window is None else list(window))
        with self._range.hold_trait_notifications():
            self._range.value = window or self._model.span
        self._show()

    def _slid(self, change: Any) -> None:
        whole, now = self._model.span, self._model.window
        value = tuple(change["new"])
        if any(abs(one - other) > self._range.step for one, other in zip(value, now or whole, strict=True)):
            self._choose(None if value == whole else value)

    def _show(self) -> None:
        self._words.value = self._model.window_words()
        self._facts.show(self._model.serving.facts(self._model.window))
        self._show_latency()

    def _show_latency(self) -> None:
        measure = self._measure.value
        if measure is not None:
            self._histogram.show(self._model.serving.histogram(self._model.window, measure))
            self._slowest.show(self._model.serving.slowest(self._model.window, measure))


class MemoryPage:
    """A heap's curves and its block map, which follows the moment and the zoom."""

    def __init__(self, model: ExploreModel, tell: Tell) -> None:
        self._model, self._heaps, self._stretch = model, model.heaps, (0, 1)
        self._curves = Plot(at=self._clicked)
        self._map = Plot(cell=self._celled, zoom=self._zoomed)
        names = [(heap.label, number) for number, heap in enumerate(self._heaps)]
        self._heap = widgets.Dropdown(
            options=names, description="heap", layout={"display": None if len(names) > 1 else "none"}
        )
        self._heap.observe(lambda _: self._other(), "value")
        wide = {"flex": "1 1 240px", "width": "auto"}
        self._moment = widgets.IntSlider(description="moment", readout=False, continuous_update=True, layout=wide)
        self._moment.observe(lambda _: self._show(), "value")
        self._words = widgets.Label()
        buttons = [self._button(*each) for each in _BUTTONS]
        self._facts = FactList("what the heap holds at this moment", tell, 5, HALF)
        self._blocks = FactList("blocks of the chosen cell", tell, 5, HALF)
        bar = widgets.HBox([self._moment, self._words], layout=WRAPPED)
        zooms = widgets.HBox(buttons, layout=WRAPPED)
        below = widgets.HBox([self._facts.view, self._blocks.view], layout=WRAPPED)
        self.view = widgets.VBox([self._heap, self._curves, bar, zooms, self._map, below], layout=FULL)
        self._other()

    def follow(self) -> None:
        """Goes to the moment at the end of the serving window, where the two share a clock."""
        moment = self._model.moment_of(self._now)
        if moment is not None:
            self._moment.value = moment

    @property
    def _now(self) -> HeapModel:
        heap: HeapModel = self._heaps[self._heap.value]
        return heap

    def _button(self, text: str, tip: str, change: Callable[[Stretch], Stretch]) -> widgets.Button:
        button = widgets.Button(description=text, tooltip=tip, layout={"width": "auto"})
        button.on_click(lambda _: self._to(change(self._stretch)))
        return button

    def _other(self) -> None:
        heap = self._now
        self._stretch = heap.whole
        last = len(heap.moments) - 1
        self._curves.show(heap.curve_scene(last))
        with self._moment.hold_trait_notifications():
            self._moment.max = last
            self._moment.value = last
        self._moment.disabled = last == 0
        self._show()

    def _to(self, stretch: Stretch) -> None:
        self._stretch = self._now.bounded(stretch)
        self._draw()

    def _show(self) -> None:
        heap, moment = self._now, self._moment.value
        self._words.value = heap.words(moment)
        self._curves.mark(cursor=heap.place(moment))
        self._facts.show(heap.facts(moment))
        self._draw()

    def _draw(self) -> None:
        self._map.show(*self._now.raster(self._moment.value, self._stretch))
        self._blocks.show([])

    def _clicked(self, x: Any) -> None:
        self._moment.value = self._now.nearest(float(x))

    def _zoomed(self, cells: Any) -> None:
        self._to(self._now.zoomed(self._stretch, (int(cells[0]), int(cells[1]))))

    def _celled(self, cell: Any) -> None:
        self._blocks.show(self._now.blocks(self._moment.value, self._stretch, int(cell)))


def _key(each: Fact) -> str:
    return each.key or each.text


def _scaled(stretch: Stretch, factor: float) -> Stretch:
    middle, half = (stretch[0] + stretch[1]) / 2, (stretch[1] - stretch[0]) * factor / 2
    return int(middle - half), int(middle + half)


def _shifted(stretch: Stretch, share: float) -> Stretch:
    step = int((stretch[1] - stretch[0]) * share)
    return stretch[0] + step, stretch[1] + step


_BUTTONS: tuple[tuple[str, str, Callable[[Stretch], Stretch]], ...] = (
    ("zoom in", "half of these addresses", lambda stretch: _scaled(stretch, 0.5)),
    ("zoom out", "twice as many addresses", lambda stretch: _scaled(stretch, 2.0)),
    ("◀ lower", "lower addresses", lambda stretch: _shifted(stretch, -0.5)),
    ("higher ▶", "higher addresses", lambda stretch: _shifted(stretch, 0.5)),
    ("whole map", "every address", lambda stretch: (0, 1 << 62)),
)
