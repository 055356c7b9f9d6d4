"""What a plot draws, as plain values: panels over one axis, or a raster of cells; bounded and safe to show."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from infer_diag.redact import plain
from infer_diag.units import format_s

_STEPS = (1, 2, 2.5, 5, 10)
_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400, 172800, 604800)

Scene = dict[str, Any]
"""What goes to the browser, as JSON."""


@dataclass
class Panel:
    """One strip of a scene: its marks and the axis beside them; `rows` counts those of boxes."""

    label: str
    high: float
    height: int = 84
    low: float = 0.0
    written: Callable[[float], str] = lambda value: f"{value:,.4g}"
    marks: list[dict[str, Any]] = field(default_factory=list)
    ticked: bool = True
    binary: bool = False
    rows: int = 1
    scale: float = 1.0
    unit: str = ""

    def line(self, name: str, colour: str, x: Sequence[float], y: Sequence[float | None], dash: str = "") -> None:
        """Adds a line; it breaks where `y` is null."""
        mark = {"t": "line", "n": plain(name), "c": colour, "x": _rounded(x), "y": _rounded(y)}
        self.marks.append(mark | ({"d": dash} if dash else {}))

    def shown(self) -> dict[str, Any]:
        """The panel as JSON."""
        most = max(self.height // 28, 2)
        ticks = nice_ticks(self.low, self.high, most, binary=self.binary) if self.ticked else []
        return {
            "label": plain(self.label),
            "height": self.height,
            "y": [self.low, self.high],
            "yticks": [[value, self.written(value)] for value in ticks],
            "marks": self.marks,
            "rows": self.rows,
            "scale": self.scale,
            "unit": self.unit,
        }


def panels_scene(
    label: str,
    panels: Sequence[Panel],
    span: tuple[float, float],
    *,
    xticks: Sequence[tuple[float, str]] | None = None,
    xlabel: str = "",
    legend: Sequence[tuple[str, str]] = (),
    brushable: bool = False,
    brush: tuple[float, float] | None = None,
    cursor: float | None = None,
    note: str = "",
) -> Scene:
    """Panels above each other; `span` is what their common axis covers, in seconds where no ticks are given."""
    low, high = span if span[1] > span[0] else (span[0], span[0] + 1.0)
    ticks = second_ticks(low, high) if xticks is None else list(xticks)
    return {
        "kind": "panels",
        "label": plain(label),
        "x": [low, high],
        "xticks": [[value, plain(text)] for value, text in ticks],
        "xlabel": plain(xlabel),
        "panels": [panel.shown() for panel in panels],
        "legend": [[plain(name), colour] for name, colour in legend],
        "brushable": brushable,
        "brush": list(brush) if brush is not None else None,
        "cursor": cursor,
        "note": plain(note),
    }


def nice_ticks(low: float, high: float, most: int, *, binary: bool = False) -> list[float]:
    """At most `most` + 1 round numbers from `low` to `high`; `binary`: multiples of a power of two, for bytes."""
    if not high > low:
        return [low]
    raw = (high - low) / most
    if binary:
        step = 2.0 ** math.ceil(math.log2(raw))
        return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * each for each in _STEPS if power * each >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def second_ticks(low: float, high: float, most: int = 8) -> list[tuple[float, str]]:
    """Round seconds, minutes or hours from `low` to `high`, with their text."""
    least = (high - low) / most
    if least < _STEPS_S[0]:
        return [(value, format_s(round(value, 9)) if value else "0 s") for value in nice_ticks(low, high, most)]
    step = next((each for each in _STEPS_S if each >= least), math.ceil(least / 604800) * 604800)
    values = range(math.ceil(low / step) * step, math.floor(high) + 1, step)
    return [(float(value), format_s(value) if value else "0 s") for value in values]


def _rounded(values: Sequence[float | None]) -> list[float | None]:
    """Six significant digits are more than a screen has, and half of the bytes."""
    return [None if value is None else float(f"{value:.7g}") for value in values]
