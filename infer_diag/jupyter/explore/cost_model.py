"""Cost as the explorer shows it: where the GPU time went, a window of it, and the ledger with what it refuses."""

from __future__ import annotations

from datetime import datetime
from functools import cached_property
from typing import Any

import polars as pl

from infer_diag.attribution.cost.ledger import Observed
from infer_diag.charts.template import COLOURS, DARK
from infer_diag.diagnose import Diagnosis
from infer_diag.jupyter.cost import ledger_panel
from infer_diag.jupyter.explore.facts import Fact
from infer_diag.jupyter.explore.scene import Panel, Scene, nice_ticks, panels_scene
from infer_diag.jupyter.explore.windows import Window, within
from infer_diag.redact import plain
from infer_diag.units import format_count, format_s

_ROW = 30
_ROWS = (
    (("cold", "process"), ("idle", "awaiting"), ("ready_and_busy", "decode")),
    (("step", "running"), ("stall", "queue")),
)
"""What adds up to the time held, and below it what adds up to the ready and busy part: entries and their colours."""
_SUMS = (
    ("held_gpu_s", "held", "GPU-s"),
    ("cold_gpu_s", "cold: held before ready", "GPU-s"),
    ("idle_gpu_s", "idle: ready, nothing running or waiting", "GPU-s"),
    ("output_tokens", "output tokens", "tokens"),
    ("prompt_tokens", "prompt tokens", "tokens"),
)
_MILLION = 1e6
_HEADROOM = 1.35
"""The panel's name stands above its bars."""


class CostModel:
    """The ledger of a diagnosis; `origin` is where the seconds of the serving timeline count from."""

    def __init__(self, diagnosis: Diagnosis, origin: datetime | None) -> None:
        self._diagnosis, self._origin = diagnosis, origin

    @cached_property
    def _observed(self) -> Observed:
        return self._diagnosis.cost

    @cached_property
    def _windows(self) -> pl.DataFrame:
        """The windows with `x`, their middle, on the serving timeline; on their own where neither has a clock."""
        begin = self._observed.begin
        shift = 0.0 if begin is None or self._origin is None else (begin - self._origin).total_seconds()
        x0 = pl.col("begin_s") + shift
        return self._observed.windows.with_columns(x0=x0, x=x0 + self._observed.width_s / 2).sort("x")

    @property
    def lines(self) -> list[str]:
        """What it costs per token as far as the logs tell, the log to switch on next, and what was assumed."""
        panel = ledger_panel(self._diagnosis)
        after = [line for line in panel.lines[2:] if line.startswith("the log to switch on next")]
        return [panel.sentence, *after, *(plain(note, 300) for note in self._observed.notes)]

    def facts(self) -> list[Fact]:
        """Every entry of the ledger with its lines: the known ones, then those that these logs cannot tell."""
        told = [self._entry(name) for name, entry in self._observed.ledger.items() if entry.value is not None]
        return told + [self._entry(name) for name, entry in self._observed.ledger.items() if entry.value is None]

    def chosen(self, name: str) -> Fact | None:
        """The entry behind a bar."""
        return self._entry(name) if name in self._observed.ledger else None

    @cached_property
    def bars(self) -> Scene | None:
        """The GPU time held, end to end by part; null where it is unknown how long the devices were held."""
        held = self._value("held")
        if not held:
            return None
        boxes: dict[str, list[Any]] = {name: [] for name in ("x0", "x1", "row", "c", "ink", "text", "hover", "id")}
        legend: list[tuple[str, str]] = []
        at = self._end_to_end(boxes, legend, 0, 0.0)
        if at < held * 0.999:
            self._box(boxes, 0, (at, held - at), "held", "gap")
            legend.append(("not told apart", COLOURS["gap"]))
        busy = self._value("ready_and_busy")
        if busy is not None:
            self._end_to_end(boxes, legend, 1, held - busy)
        rows = max(boxes["row"]) + 1
        panel = Panel("", 1.0, _ROW * rows, marks=[{"t": "boxes", **boxes}], ticked=False, rows=rows)
        ticks = [(value, format_count(value)) for value in nice_ticks(0.0, held, 8)]
        label = "GPU-seconds held, by what they went to. Arrow keys choose a part, its lines stand beside it."
        return panels_scene(label, [panel], (0.0, held), xticks=ticks, xlabel="GPU-s", legend=legend)

    @cached_property
    def timeline(self) -> Scene | None:
        """GPU time by window, and what a token cost in it; null where nothing dates the logs."""
        windows = self._windows
        if windows.is_empty():
            return None
        width = self._observed.width_s
        held = Panel("GPU-s held in a window", _most(windows, pl.col("held_gpu_s")), 72, written=format_count)
        cold, idle = pl.col("cold_gpu_s").fill_null(0.0), pl.col("idle_gpu_s").fill_null(0.0)
        # Each is drawn over the one before, so that what of it is still seen is its own part.
        layers = [("held", "decode" if self._value("ready_and_busy") is not None else "gap", pl.col("held_gpu_s"))]
        layers += [("idle", "awaiting", cold + idle)] if windows["idle_gpu_s"].count() else []
        layers += [("cold", "process", cold)] if windows["cold_gpu_s"].count() else []
        for _, colour, value in layers:
            held.marks.append(_bars(windows, windows.select(value).to_series(), width, COLOURS[colour]))
        panels = [held]
        per_token = windows.select("x0", each=_per_million()).filter(pl.col("each").is_finite())
        if len(per_token):
            cost = Panel("GPU-s per 1M output tokens", _most(per_token, pl.col("each")), 72, written=format_count)
            cost.marks.append(_bars(per_token, per_token["each"], width, COLOURS["kv"]))
            panels.append(cost)
        first = {"held": "busy" if layers[0][1] == "decode" else "held, not told apart"}
        legend = [(first.get(name, name), COLOURS[colour]) for name, colour, _ in layers]
        span = (float(windows["x0"][0]), float(windows["x0"][-1]) + width)
        label = "GPU time over time. Drag a window, or use the arrow keys; Shift moves its end, Escape shows all."
        return panels_scene(label, panels, span, legend=legend, brushable=True, xlabel=f"windows of {format_s(width)}")

    def window_facts(self, window: Window) -> list[Fact]:
        """Sums over the windows whose middle lies in the chosen time, and what a token cost in it."""
        rows = within(self._windows, window)
        if rows.is_empty():
            return [Fact("no window of the cost lies in this time; one is " + format_s(self._observed.width_s))]
        many = len(rows) != 1
        found = [Fact(f"{len(rows):,} {'windows' if many else 'window'} of {format_s(self._observed.width_s)}")]
        for column, words, unit in _SUMS:
            told = rows[column].count() > 0
            amount = f"{float(rows[column].sum()):,.6g} {unit}" if told else "these logs cannot tell"
            found.append(Fact(f"{words}: {amount}"))
        held, tokens = float(rows["held_gpu_s"].sum()), float(rows["output_tokens"].sum())
        least = "at least " if self._observed.ledger["held"].status == "bounded" else ""
        if tokens > 0:
            gpu_s, price = held * _MILLION / tokens, self._value("price")
            money = "" if price is None else f", ${gpu_s * price / 3600:.4g}"
            found.append(Fact(f"{least}{gpu_s:,.4g} GPU-s{money} per 1M output tokens in this time"))
        else:
            found.append(Fact("no cost per token in this time: no output token is counted in it"))
        return found

    def _entry(self, name: str) -> Fact:
        entry = self._observed.ledger[name]
        if entry.value is None:
            note = f"needs {entry.missing}" if entry.missing else ""
            if entry.lower is not None or entry.upper is not None:
                note = " · ".join(part for part in (_ends(entry.lower, entry.upper, entry.unit), note) if part)
            return Fact(f"{_words(name)}: these logs cannot tell", entry.evidence, note, name)
        notes = [entry.source or "", _ends(entry.lower, entry.upper, entry.unit)]
        notes += [f"would tell better: {entry.missing}"] if entry.missing else []
        status = entry.status.replace("_", " ")
        text = f"{_words(name)}: {entry.value:,.6g} {entry.unit} · {status}"
        return Fact(text, entry.evidence, " · ".join(note for note in notes if note), name)

    def _value(self, name: str) -> float | None:
        entry = self._observed.ledger.get(name)
        return None if entry is None else entry.value

    def _end_to_end(self, boxes: dict[str, list[Any]], legend: list[tuple[str, str]], row: int, begin: float) -> float:
        """Adds the known parts of a row, and returns where they end."""
        for name, colour in _ROWS[row]:
            value = self._value(name)
            if value:
                self._box(boxes, row, (begin, value), name, colour)
                legend.append((_words(name), COLOURS[colour]))
                begin += value
        return begin

    def _box(self, boxes: dict[str, list[Any]], row: int, place: tuple[float, float], name: str, colour: str) -> None:
        begin, length = place
        share = f"{length:,.4g} GPU-s"
        words = "not told apart" if colour == "gap" else _words(name)
        ink = "#ffffff" if colour in DARK or colour == "decode" else "#111111"
        values = (begin, begin + length, row, COLOURS[colour], ink, words, f"{words}: {share}", name)
        for key, value in zip(boxes, values, strict=True):
            boxes[key].append(value)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _ends(lower: float | None, upper: float | None, unit: str) -> str:
    if lower is None and upper is None:
        return ""
    if upper is None:
        return f"at least {lower:,.6g} {unit}"
    return f"at most {upper:,.6g} {unit}" if lower is None else f"{lower:,.6g} to {upper:,.6g} {unit}"


def _per_million() -> pl.Expr:
    tokens = pl.col("output_tokens")
    return pl.when(tokens > 0).then(pl.col("held_gpu_s") * _MILLION / tokens)


def _most(rows: pl.DataFrame, value: pl.Expr) -> float:
    return float(rows.select(value.max()).item() or 0.0) * _HEADROOM or 1.0


def _bars(rows: pl.DataFrame, y: pl.Series, width: float, colour: str) -> dict[str, Any]:
    x0 = rows["x0"]
    return {"t": "bars", "c": colour, "x0": x0.to_list(), "x1": (x0 + width).to_list(), "y": y.to_list()}
