"""A recorded heap as the explorer shows it: its curves, and a map of any moment and any stretch of addresses.

The map is drawn anew from the blocks' lifetimes at each move, so that zooming in shows what is there and no larger
picture of what was drawn before.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from infer_diag.attribution.heap.curves import trace_curves
from infer_diag.attribution.heap.trace import HeapTrace
from infer_diag.charts.template import COLOURS
from infer_diag.jupyter.explore.facts import Fact, fact
from infer_diag.jupyter.explore.lifetimes import Lifetimes, lifetimes
from infer_diag.jupyter.explore.scene import Panel, Scene, nice_ticks, panels_scene
from infer_diag.recording import Recording
from infer_diag.units import format_bytes, format_count, format_ratio, format_s

COLS, ROWS = 160, 40
MOST_INSTANTS, LEAST_INSTANTS = 400, 60
_SCANNED_BLOCKS = 8_000_000
"""Each instant of the curves looks at every block, so large heaps get fewer of them."""
LEAST_CELL_BYTES = 16
MOST_BLOCKS = 12
_STATES = 8
"""Shades between idle and live: a cell may hold both."""

_IDLE, _LIVE, _AWAITING = "#e69f00", "#0072b2", "#cc79a7"
_CURVES = (
    ("reserved_bytes", "reserved", "gap"),
    ("active_bytes", "live or awaited", "decode"),
    ("idle_bytes", "idle", "prefill"),
)

Stretch = tuple[int, int]
"""Bytes on the map's axis: every segment that ever was, one behind the other."""


class HeapModel:
    """One device's heap. `moments` are the events that the slider stops at."""

    def __init__(self, recording: Recording, trace: HeapTrace) -> None:
        self._recording, self._trace = recording, trace
        instants = _SCANNED_BLOCKS // max(len(trace.events.addresses), 1)
        curves = trace_curves(trace, min(max(instants, LEAST_INSTANTS), MOST_INSTANTS))
        self.curves = curves.filter(scope="device").sort("event_id")
        self.moments: list[int] = self.curves["event_id"].to_list()
        self._lives: Lifetimes = lifetimes(trace)
        self.whole: Stretch = (0, max(self._lives.axis_bytes, COLS * ROWS * LEAST_CELL_BYTES))
        self._timed = self.curves["time_s"].is_not_null().all()

    @property
    def label(self) -> str:
        """Whose heap it is."""
        source = self._recording.sources[self._trace.source_id].path.rsplit("/", 1)[-1]
        return source if self._trace.gpu is None else f"{source}, GPU {self._trace.gpu}"

    def curve_scene(self, moment: int) -> Scene:
        """Reserved, live and idle bytes over the recording, with a cursor at the moment."""
        x = self._x().to_list()
        high = max((float(self.curves[name].max() or 0) for name, _, _ in _CURVES), default=0.0)  # type: ignore[arg-type]
        panel = Panel("device memory of the allocator", high * 1.06 or 1.0, 100, written=format_bytes, binary=True)
        panel.scale, panel.unit = 1.0 / (1 << 20), " MiB"
        for name, words, colour in _CURVES:
            if self.curves[name].is_not_null().any():
                panel.line(words, COLOURS[colour], x, self.curves[name].cast(pl.Float64).to_list())
        failed = self.curves.filter("is_failure")
        if len(failed):
            dots = self._x().filter(self.curves["is_failure"]).to_list()
            panel.marks.append({"t": "dots", "c": COLOURS["queue"], "x": dots, "y": [panel.high / 1.06] * len(dots)})
        legend = [(words, COLOURS[colour]) for _, words, colour in _CURVES]
        legend += [("allocation failed", COLOURS["queue"])] if len(failed) else []
        span = (x[0], x[-1]) if len(x) > 1 else (0.0, 1.0)
        ticks = None if self._timed else [(value, format_count(value)) for value in nice_ticks(span[0], span[1], 8)]
        return panels_scene(
            "Memory of the allocator over time. Arrow keys or a click move the map's moment.",
            [panel],
            span,
            xticks=ticks,
            xlabel="since the first stamped event" if self._timed else "event",
            legend=legend,
            cursor=x[moment],
        )

    def place(self, moment: int) -> float:
        """Where the moment lies on the curves' axis."""
        return float(self._x()[moment])

    def nearest(self, x: float) -> int:
        """The moment nearest to a place on the curves' axis."""
        return int((self._x() - x).abs().arg_min() or 0)

    def at(self, time: datetime) -> int | None:
        """The last moment at or before a time; null where the events carry no times, or lie elsewhere."""
        known = self.curves["time"]
        first, last = known.min(), known.max()
        if not isinstance(first, datetime) or not isinstance(last, datetime) or not first <= time <= last:
            return None
        return max(int((known <= time).fill_null(True).sum()) - 1, 0)

    def words(self, moment: int) -> str:
        """The moment in words."""
        row = self.curves.row(moment, named=True)
        event = "before the first event" if row["event_id"] < 0 else f"after event {row['event_id'] + 1:,}"
        return f"{format_s(row['time_s'])}, {event}" if row["time_s"] else event

    def facts(self, moment: int) -> list[Fact]:
        """What the heap holds at the moment."""
        row = self.curves.row(moment, named=True)
        place = [(self._trace.source_id, row["line"])]
        told = [
            f"reserved {format_bytes(row['reserved_bytes'])}",
            f"live or awaited {format_bytes(row['active_bytes'])}",
        ]
        if row["hole_count"] is not None:
            told.append(
                f"idle {format_bytes(row['idle_bytes'])} in {row['hole_count']:,} holes, the largest "
                f"{format_bytes(row['largest_free_bytes'])}"
            )
        found = [fact(self._recording, f"{self.words(moment)}: {', '.join(told)}", place)]
        ratios = (
            ("external_frag_ratio", "external fragmentation (1 − largest hole / idle)"),
            ("weighted_unusable_ratio", "idle bytes that the recording's own requests could not use"),
            ("beyond_largest_ratio", "share of the requests larger than the largest hole"),
        )
        for name, words in ratios:
            if row[name] is not None:
                found.append(fact(self._recording, f"{words}: {format_ratio(row[name])}", place))
        if self._trace.basis == "touched":
            found.append(Fact("the recording names no segments: what is reserved and idle is a lower bound"))
        return found

    def raster(self, moment: int, stretch: Stretch) -> tuple[Scene, bytes]:
        """The map of a moment in a stretch of addresses: a cell's colour says which share of it is live."""
        edges = np.linspace(*stretch, COLS * ROWS + 1)
        now = self._index(moment)
        live, awaiting, reserved = self._lives.bytes_between(now, edges)
        share = np.divide(live + awaiting, reserved, out=np.zeros(len(live)), where=reserved > 0)
        codes = 1 + np.round(np.clip(share, 0, 1) * _STATES).astype(np.uint8)
        codes[awaiting * 2 > reserved] = _STATES + 2
        codes[(reserved <= 0) & (live + awaiting <= 0)] = 0
        cell = (stretch[1] - stretch[0]) / (COLS * ROWS)
        rows = range(0, ROWS, 8)
        scene: Scene = {
            "kind": "raster",
            "label": "Block map. Arrow keys move, Enter tells the blocks of a cell; drag to zoom.",
            "cols": COLS,
            "rows": ROWS,
            "height": 240,
            "palette": _palette(),
            "yticks": [[row, f"+{format_bytes(stretch[0] + row * COLS * cell)}"] for row in rows],
            "legend": [["live", _LIVE], ["idle", _IDLE], ["freed, awaited by a stream", _AWAITING]],
            "note": f"a cell is {format_bytes(cell)}, a row {format_bytes(cell * COLS)}; blank: not reserved now",
        }
        return scene, codes.tobytes()

    def zoomed(self, stretch: Stretch, cells: tuple[int, int]) -> Stretch:
        """The stretch of a run of cells of another one."""
        width = (stretch[1] - stretch[0]) / (COLS * ROWS)
        return self.bounded((stretch[0] + int(cells[0] * width), stretch[0] + int((cells[1] + 1) * width)))

    def bounded(self, stretch: Stretch) -> Stretch:
        """The stretch made to lie on the map, and not so small that a cell would be less than an address unit."""
        least = COLS * ROWS * LEAST_CELL_BYTES
        size = min(max(stretch[1] - stretch[0], least), self.whole[1])
        begin = min(max((stretch[0] + stretch[1] - size) // 2, 0), self.whole[1] - size)
        return begin, begin + size

    def blocks(self, moment: int, stretch: Stretch, cell: int) -> list[Fact]:
        """The blocks in a cell, the largest first, with the event that made each; or that there is none."""
        width = (stretch[1] - stretch[0]) / (COLS * ROWS)
        begin = stretch[0] + cell * width
        rows = self._lives.blocks_between(self._index(moment), begin, begin + width)
        facts = [self._block(row) for row in sorted(rows, key=lambda row: -row["size_bytes"])[:MOST_BLOCKS]]
        more = len(rows) - len(facts)
        facts += [Fact(f"and {more:,} smaller blocks")] if more else []
        return facts or [Fact(f"no live block in these {format_bytes(width)}")]

    def _block(self, row: dict[str, Any]) -> Fact:
        event = row["event"] - self._trace.ahead
        asked = f", asked for {format_bytes(row['requested_bytes'])}" if self._trace.has_requested else ""
        since = f"allocated by event {event + 1:,}" if event >= 0 else "there before the recording"
        state = "awaited by a stream" if row["awaiting"] else "live"
        text = f"{format_bytes(row['size_bytes'])} {state} at {row['address_id']:#x}{asked}, {since}"
        line = int(self._trace.lines[event]) if event >= 0 else 0
        return fact(self._recording, text, [(self._trace.source_id, line)])

    def _index(self, moment: int) -> int:
        return self.moments[moment] + self._trace.ahead

    def _x(self) -> pl.Series:
        return self.curves["time_s" if self._timed else "event_id"].cast(pl.Float64)


def _palette() -> list[list[int]]:
    """Colours by code: nothing, from idle to live, awaiting."""
    idle, live, awaiting = (_rgb(colour) for colour in (_IDLE, _LIVE, _AWAITING))
    shades = [idle + (live - idle) * step / _STATES for step in range(_STATES + 1)]
    return [[0, 0, 0, 0], *([*map(round, shade), 255] for shade in shades), [*map(round, awaiting), 255]]


def _rgb(colour: str) -> NDArray[np.float64]:
    return np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)], float)
