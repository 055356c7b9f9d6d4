"""What devices and the KV pool held, as the explorer shows it: memory over time, and the pool's blocks as a map."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from infer_diag.charts.template import COLOURS
from infer_diag.jupyter.explore.facts import Fact, extremes, fact
from infer_diag.jupyter.explore.scene import Panel, Scene, panels_scene
from infer_diag.jupyter.explore.serving_model import ServingModel
from infer_diag.jupyter.explore.windows import Window, since, within
from infer_diag.recording import Recording
from infer_diag.units import format_bytes, format_ratio

POINTS = 400
MOST_GPUS = 8
COLS, ROWS = 160, 40
MOST_BLOCKS = 12
_CELLS = COLS * ROWS
_LINE_COLOURS = ("decode", "running", "kv", "prefill")
_DASHES = ("", "5 3")
_MEASURES = (
    ("used_bytes", "used on the device", format_bytes),
    ("reserved_bytes", "reserved", format_bytes),
    ("sm_active_ratio", "SMs active", format_ratio),
    ("dram_active_ratio", "DRAM active", format_ratio),
    ("power_w", "power", lambda value: f"{value:,.4g} W"),
)
_STATES = {"active": "#0072b2", "cached": "#c3dbe6", "free": "#e69f00"}


class DeviceModel:
    """The samples of GPUs on the serving timeline."""

    def __init__(self, recording: Recording, serving: ServingModel) -> None:
        self._recording = recording
        rows = recording.gpu_samples
        placed = rows.drop_nulls("time").with_columns(since(serving.origin or rows["time"].min()))  # type: ignore[arg-type]
        self._rows = placed.sort("x", maintain_order=True)
        self._gpus = self._rows.select("gpu", "instance").unique(maintain_order=True).sort("gpu", "instance").rows()

    @property
    def is_empty(self) -> bool:
        """Whether no sample has a time."""
        return self._rows.is_empty()

    @property
    def span(self) -> tuple[float, float]:
        """From the first sample to the last, in the seconds of the serving timeline."""
        return float(self._rows["x"][0]), float(self._rows["x"][-1])

    def timeline(self) -> Scene:
        """Memory used on each device; of many samples in a pixel the one with the most."""
        low, high = self.span
        width = (high - low) / POINTS or 1.0
        panel = Panel("memory used on the device", 0.0, 100, written=format_bytes, binary=True)
        panel.scale, panel.unit = 1.0 / (1 << 30), " GiB"
        legend = []
        for number, place in enumerate(self._gpus[:MOST_GPUS]):
            bin_of = ((pl.col("x") - low) / width).floor().alias("bin")
            told = (
                self._of(self._rows, place)
                .drop_nulls("used_bytes")
                .group_by(bin_of)
                .agg(pl.col("x").get(pl.col("used_bytes").arg_max()), pl.col("used_bytes").max().cast(pl.Float64))
                .sort("x")
            )
            if told.is_empty():
                continue
            panel.high = max(panel.high, float(told["used_bytes"].max()))  # type: ignore[arg-type]
            colour = COLOURS[_LINE_COLOURS[number % len(_LINE_COLOURS)]]
            dash = _DASHES[number // len(_LINE_COLOURS) % len(_DASHES)]
            panel.line(_name(place), colour, told["x"].to_list(), told["used_bytes"].to_list(), dash)
            legend.append((_name(place), colour))
        panel.high = panel.high * 1.06 or 1.0
        more = len(self._gpus) - MOST_GPUS
        note = f"{more} more devices are not drawn" if more > 0 else ""
        label = "Memory of the devices over time. Drag a window, or use the arrow keys; Escape shows all."
        return panels_scene(label, [panel], (low, high), legend=legend, brushable=True, note=note)

    def facts(self, window: Window) -> list[Fact]:
        """Memory, activity and power of each device in a window, with the samples that show the most and the least."""
        rows = within(self._rows, window)
        if rows.is_empty():
            return [Fact("no sample of a GPU lies in this time")]
        return [each for place in self._gpus for each in self._device(self._of(rows, place), place)]

    def _device(self, rows: pl.DataFrame, place: tuple[str, str | None]) -> list[Fact]:
        found = []
        for column, words, written in _MEASURES:
            told = rows.drop_nulls(column)
            if told.is_empty():
                continue
            (mean, least, most), ends = extremes(told, column)
            text = f"{_name(place)}, {words}: mean {written(mean)}, from {written(least)} to {written(most)}"
            note = f"{len(told):,} samples; the one with the most, and the one with the least"
            found.append(fact(self._recording, text, ends, note))
        return found

    @staticmethod
    def _of(rows: pl.DataFrame, place: tuple[str, str | None]) -> pl.DataFrame:
        gpu, instance = place
        return rows.filter(pl.col("gpu").eq_missing(gpu) & pl.col("instance").eq_missing(pl.lit(instance, pl.String)))


class KvModel:
    """The blocks of the KV pool as they were last recorded at a moment."""

    def __init__(self, recording: Recording, serving: ServingModel) -> None:
        self._recording = recording
        rows = recording.kv_blocks.drop_nulls("block_id")
        timed = rows["time"].count() > 0
        x = since(serving.origin or rows["time"].min()) if timed else pl.lit(0.0).alias("x")  # type: ignore[arg-type]
        self._rows = rows.with_columns(x.fill_null(0.0)).sort("x", "block_id", maintain_order=True)
        self._count = int(rows["block_id"].max() or 0) + 1 if len(rows) else 0  # type: ignore[arg-type]

    @property
    def is_empty(self) -> bool:
        """Whether no block is named."""
        return self._rows.is_empty()

    def facts(self, window: Window) -> list[Fact]:
        """Blocks by state at the end of a window, and how far the active ones are filled."""
        rows = self._at(window)
        found = []
        for state in _STATES:
            own = rows.filter(pl.col("state") == state)
            filled = own["filled_tokens"]
            tokens = f", {int(filled.sum()):,} tokens in them" if filled.count() and state != "free" else ""
            text = (
                f"{state}: {len(own):,} blocks of {len(rows):,} ({format_ratio(len(own) / max(len(rows), 1))}){tokens}"
            )
            found.append(fact(self._recording, text, own.select("source_id", "line").head(1).rows()))
        return found

    def raster(self, window: Window) -> tuple[Scene, bytes]:
        """The pool by block number: a cell has the colour of the state that most of its blocks are in."""
        rows = self._at(window)
        each = max(-(-self._count // _CELLS), 1)
        cells = min(-(-self._count // each), _CELLS)
        counts = np.zeros((len(_STATES) + 1, _CELLS), np.int64)
        counts[0] = 0
        for code, state in enumerate(_STATES, start=1):
            ids = rows.filter(pl.col("state") == state)["block_id"].to_numpy().astype(np.int64)
            counts[code] = np.bincount(ids // each, minlength=_CELLS)[:_CELLS]
        codes = np.where(counts.sum(axis=0) > 0, counts.argmax(axis=0), 0).astype(np.uint8)
        codes[cells:] = 0
        scene: Scene = {
            "kind": "raster",
            "label": "Map of the KV pool. Arrow keys move, Enter tells the blocks of a cell.",
            "cols": COLS,
            "rows": ROWS,
            "height": 240,
            "palette": [[0, 0, 0, 0], *([*_rgb(colour), 255] for colour in _STATES.values())],
            "yticks": [[row, f"{row * COLS * each:,}"] for row in range(0, -(-cells // COLS), 8)],
            "legend": [[state, colour] for state, colour in _STATES.items()],
            "note": f"a cell is {each:,} {'blocks' if each > 1 else 'block'}; blank: no block recorded",
        }
        return scene, codes.tobytes()

    def blocks(self, window: Window, cell: int) -> list[Fact]:
        """The blocks of a cell."""
        each = max(-(-self._count // _CELLS), 1)
        rows = self._at(window).filter(pl.col("block_id").cast(pl.Int64).is_between(cell * each, (cell + 1) * each - 1))
        told = [self._block(row) for row in rows.head(MOST_BLOCKS).iter_rows(named=True)]
        more = len(rows) - len(told)
        return [*told, *([Fact(f"and {more:,} more blocks")] * (more > 0))] or [Fact("no block recorded here")]

    def _block(self, row: dict[str, Any]) -> Fact:
        filled = "" if row["filled_tokens"] is None else f", {row['filled_tokens']:,} tokens"
        return fact(
            self._recording, f"block {row['block_id']:,}: {row['state']}{filled}", [(row["source_id"], row["line"])]
        )

    def _at(self, window: Window) -> pl.DataFrame:
        """The last row of each block at the end of the window, or of all where none is as early."""
        early = self._rows if window is None else self._rows.filter(pl.col("x") <= window[1])
        return (self._rows if early.is_empty() else early).unique("block_id", keep="last", maintain_order=True)


def _name(place: tuple[str, str | None]) -> str:
    gpu, instance = place
    return f"GPU {gpu}" + (f" {instance}" if instance else "")


def _rgb(colour: str) -> list[int]:
    return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
