"""What a watch has seen, as a scene: rates, queue, KV use, preemptions and device memory over its time."""

from __future__ import annotations

from datetime import datetime

import polars as pl

from infer_diag.charts.template import COLOURS
from infer_diag.jupyter.explore.facts import Fact
from infer_diag.jupyter.explore.scene import Panel, Scene, panels_scene
from infer_diag.redact import plain
from infer_diag.units import format_bytes, format_count, format_ratio
from infer_diag.watch import View

MOST_POINTS = 600
MOST_LINES = 4
_DASHES = ("", "5 3", "2 2", "7 2 2 2")
_GPU_COLOURS = ("decode", "running", "kv", "prefill")
_LINES = (
    ("rate", "output_tokens_per_s", "output tokens/s", "decode"),
    ("rate", "prompt_tokens_per_s", "prompt tokens/s", "prefill"),
    ("load", "running_count", "running", "running"),
    ("load", "waiting_count", "waiting", "waiting"),
    ("kv", "kv_usage_ratio", "KV cache used", "kv"),
)
_LONG = 600


def watch_scene(view: View) -> Scene | None:
    """The samples of a view over time; null before the first one."""
    engines = [part for label, rows in view.samples for part in _engines(label, rows)][:MOST_LINES]
    gpus = [] if view.gpus is None else view.gpus.partition_by("gpu", maintain_order=True)[:MOST_LINES]
    times = [frame["time"].drop_nulls() for frame in (*(rows for _, rows in engines), *gpus)]
    known = pl.concat(times) if times else pl.Series([], dtype=pl.Datetime("us", "UTC"))
    first, last = known.min(), known.max()
    if not isinstance(first, datetime) or not isinstance(last, datetime):
        return None
    panels = {
        "rate": Panel("tokens per second", 0.0, 64, written=format_count),
        "load": Panel("requests", 0.0, 64, written=format_count),
        "kv": Panel("KV cache used", 0.0, 64, written=format_ratio, scale=100.0, unit=" %"),
        "gpu": Panel(
            "memory used on the GPU", 0.0, 64, written=format_bytes, binary=True, scale=1.0 / (1 << 30), unit=" GiB"
        ),
    }
    legend = _draw_engines(panels, engines, first) | _draw_gpus(panels["gpu"], gpus, first)
    shown = [panel for panel in panels.values() if panel.marks]
    for panel in shown:
        panel.high = panel.high * 1.08 or 1.0
    if not shown:
        return None
    span = (0.0, max((last - first).total_seconds(), 1.0))
    note = f"{format_count(_preempted(view))} preemptions since the watch began"
    label = f"Live since {first:%H:%M:%S} UTC"
    return panels_scene(label, shown, span, legend=list(legend.items()), note=note, xlabel=label)


def watch_facts(view: View) -> list[Fact]:
    """How starts stand, then the findings so far, each with its lines."""
    stands = [
        Fact(
            plain(f"{label}: {each.sentence}", _LONG), each.evidence, _note(each.status, each.remedy), f"start {label}"
        )
        for label, each in view.verdicts
    ]
    found = view.diagnosis.findings if view.diagnosis is not None else ()
    return stands + [
        Fact(
            plain(f"{each.severity}: {each.sentence}", _LONG),
            each.evidence,
            _note(f"{each.id}, {each.status}", each.remedy),
            each.id,
        )
        for each in found
    ]


def _note(status: str, remedy: str | None) -> str:
    return status.replace("_", " ") + (f" · → {remedy}" if remedy else "")


def _engines(label: str, rows: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    parts = rows.drop_nulls("time").partition_by("replica", maintain_order=True)
    return [(f"{label} {part['replica'][0] or ''}".strip(), part) for part in parts]


def _draw_engines(panels: dict[str, Panel], engines: list[tuple[str, pl.DataFrame]], first: datetime) -> dict[str, str]:
    legend: dict[str, str] = {}
    for number, (label, rows) in enumerate(engines):
        for place, column, name, colour in _LINES:
            told = _thinned(rows.drop_nulls(column))
            if told.is_empty():
                continue
            y = told[column].cast(pl.Float64)
            panels[place].high = max(panels[place].high, float(y.max()))  # type: ignore[arg-type]
            whose = f" · {label}" if len(engines) > 1 else ""
            panels[place].line(name + whose, COLOURS[colour], _x(told, first), y.to_list(), _DASHES[number])
            legend[name] = COLOURS[colour]
    return legend


def _draw_gpus(panel: Panel, gpus: list[pl.DataFrame], first: datetime) -> dict[str, str]:
    legend: dict[str, str] = {}
    for number, rows in enumerate(gpus):
        told = _thinned(rows.drop_nulls(("time", "used_bytes")))
        if told.is_empty():
            continue
        y = told["used_bytes"].cast(pl.Float64)
        panel.high = max(panel.high, float(y.max()))  # type: ignore[arg-type]
        name = f"GPU {told['gpu'][0]}"
        legend[name] = COLOURS[_GPU_COLOURS[number]]
        panel.line(name, legend[name], _x(told, first), y.to_list())
    return legend


def _preempted(view: View) -> float | None:
    """Preemptions that the samples count; null where none of them does."""
    counts = [rows["preemption_count"].drop_nulls() for _, rows in view.samples]
    return float(sum(each.sum() for each in counts)) if any(len(each) for each in counts) else None


def _thinned(rows: pl.DataFrame) -> pl.DataFrame:
    """Every n-th row counted from the newest, which is always shown."""
    step = -(-len(rows) // MOST_POINTS) or 1
    return rows.reverse().gather_every(step).reverse()


def _x(rows: pl.DataFrame, first: datetime) -> list[float]:
    since = pl.col("time") - pl.lit(first, pl.Datetime("us", "UTC"))
    return rows.select(since.dt.total_microseconds() / 1e6).to_series().to_list()
