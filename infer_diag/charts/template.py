"""The look of every chart: the plotly template `infer_diag`, one colour per meaning, and text made safe to show.

Paper is transparent and text is of a grey with the same contrast on white and on near-black, so that one figure reads
on a light and on a dark page; the report sharpens both by its style sheet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import plotly.graph_objects as go
import plotly.io as pio

from infer_diag.recording import Source
from infer_diag.redact import plain

NAME = "infer_diag"
INK = "#757a82"
GRID = "rgba(128,134,144,0.22)"
MANY_POINTS = 20_000

COLOURS = {
    "schedule": "#eadfa5",
    "volume_mount": "#b5a642",
    "image_pull_queue": "#e3d58d",
    "image_pull": "#ddcc77",
    "container_start": "#c9b65a",
    "process": "#88ccee",
    "device_init": "#5fb3de",
    "weights_fetch": "#5ba3d0",
    "model_build": "#7fc4e8",
    "weights_load": "#0072b2",
    "weights_read": "#2e8bc4",
    "engine_build": "#2f8f80",
    "engine_load": "#44aa99",
    "init_engine": "#6cc0b2",
    "compile": "#d55e00",
    "compile_dynamo": "#e58440",
    "compile_graph": "#b84f00",
    "kv_profile": "#8fd1c6",
    "kv_alloc": "#a9dcd3",
    "kernel_warmup": "#f5c26b",
    "graph_capture": "#e69f00",
    "warmup": "#f0b443",
    "server_ready": "#8e5bb0",
    "first_request": "#a97cc6",
    "gap": "#8a8f98",
    "queue": "#d55e00",
    "prefill": "#e69f00",
    "decode": "#0072b2",
    "mixed": "#cc79a7",
    "idle": "#8a8f98",
    "running": "#009e73",
    "waiting": "#d55e00",
    "kv": "#8e5bb0",
    "preemption": "#d55e00",
    "reserved": "#8a8f98",
    "active": "#0072b2",
    "awaiting": "#e69f00",
    "requested": "#88ccee",
    "stuck": "#d55e00",
    "cached": "#c3dbe6",
    "largest_hole": "#8e5bb0",
    "failure": "#b84f00",
    "unusable": "#cc79a7",
    "cold": "#0072b2",
    "warm": "#e69f00",
    "published": "#8a8f98",
    "ours": "#0072b2",
}
"""One colour per meaning: phases of one kind of work share a hue, and hues differ in lightness, so that grey works."""

DARK = {"weights_load", "compile_graph", "server_ready"}
"""Colours that take white text; the others take black."""


def _axis() -> dict[str, object]:
    return {
        "gridcolor": GRID,
        "linecolor": GRID,
        "zerolinecolor": GRID,
        "automargin": True,
        "title": {"standoff": 8, "font": {"size": 12}},
        "tickfont": {"size": 12},
    }


pio.templates[NAME] = go.layout.Template(
    layout={
        "font": {"family": 'system-ui, -apple-system, "Segoe UI", Roboto, sans-serif', "size": 12, "color": INK},
        "title": {"x": 0, "xref": "container", "xanchor": "left", "pad": {"l": 8}, "font": {"size": 16}},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "xaxis": _axis(),
        "yaxis": _axis(),
        "legend": {"orientation": "h", "x": 0, "yref": "container", "y": 0, "yanchor": "bottom", "font": {"size": 12}},
        "hoverlabel": {
            "bgcolor": "#1f2328",
            "bordercolor": "#1f2328",
            "font": {"color": "#f4f5f7", "size": 12},
            "align": "left",
        },
        "uniformtext": {"minsize": 10, "mode": "hide"},
        "margin": {"l": 16, "r": 16, "t": 76, "b": 48},
        "bargap": 0.25,
        "uirevision": NAME,
    }
)


@lru_cache(maxsize=4096)
def label(text: str) -> str:
    """Log text as a chart may show it: redacted, cut to 120 characters, without the markup that plotly would draw."""
    return plain(text, 120).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def phase_name(phase: str | None) -> str:
    """A phase as people read it: `weights_load` is `weights load`."""
    return label((phase or "unknown").replace("_", " "))


def file_name(path: str) -> str:
    """The last part of a path, made safe to show."""
    return label(path.replace("\\", "/").rsplit("/", 1)[-1])


def where(sources: Sequence[Source], source_id: int | None, lines: Iterable[int] | None) -> str:
    """Evidence for a hover text: `server.log:12, 15`, or `line 12, 15` where no source is known."""
    numbers = [str(line) for line in lines or () if line]
    if not numbers:
        return ""
    listed = ", ".join(numbers[:3]) + (" …" if len(numbers) > 3 else "")
    if source_id is None or source_id >= len(sources):
        return f"line {listed}"
    return f"{file_name(sources[source_id].path)}:{listed}"


def status_words(statuses: Iterable[str]) -> str:
    """How sure the numbers of a chart are: `measured`, or `measured, bounded` where several kinds occur."""
    order = ("measured", "modelled", "bounded", "not_identifiable")
    seen = set(statuses)
    return ", ".join(name.replace("_", " ") for name in order if name in seen) or "nothing measured"


def dressed(figure: go.Figure, title: str, subtitle: str, height: int) -> go.Figure:
    """The figure with the template, its title, where its numbers come from, and a height in pixels."""
    return figure.update_layout(
        template=NAME, title={"text": title, "subtitle": {"text": subtitle, "font": {"size": 12}}}, height=height
    )
