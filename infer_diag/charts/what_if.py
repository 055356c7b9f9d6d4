"""Settings of an allocator beside each other: what the heap takes from the device, and which requests fail."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import polars as pl

from infer_diag.charts.template import COLOURS, INK, dressed, label
from infer_diag.units import format_bytes, format_count, format_ratio

_BEGINS = {"reconstructed": "heap as it was", "packed": "heap allocated anew"}

Row = dict[str, Any]


def what_if_bars(runs: pl.DataFrame) -> go.Figure:
    """One bar per setting: allocated and cached bytes when most was reserved, and how many requests fail.

    Frame in: WhatIf. The recording itself comes first; its bar is not parted, as it does not tell what was allocated.
    Alternatives that were refused have a row that says why.
    """
    rows = runs.to_dicts()
    names = [_name(row, len(runs["gpu"].unique()) > 1) for row in rows]
    figure = go.Figure()
    shown = [(name, row) for name, row in zip(names, rows, strict=True) if row["reserved_peak_bytes"] is not None]
    recorded = [pair for pair in shown if pair[1]["status"] == "recorded"]
    simulated = [pair for pair in shown if pair[1]["status"] == "simulated"]
    figure.add_trace(_bars("reserved, as recorded", recorded, "reserved_peak_bytes", INK))
    figure.add_trace(_bars("allocated", simulated, "allocated_at_reserved_peak_bytes", COLOURS["active"]))
    figure.add_trace(_bars("held beyond that", simulated, "cached_at_peak_bytes", COLOURS["cached"]))
    for name, row in zip(names, rows, strict=True):
        figure.add_annotation(
            x=row["reserved_peak_bytes"] or 0, y=name, text=_note(row), showarrow=False, xanchor="left", xshift=6
        )
    _limits(figure, rows)
    dressed(figure, "What other settings would have done", _subtitle(rows), height=170 + 34 * len(rows))
    figure.update_layout(barmode="stack", margin={"r": 200})
    # A range that holds the notes beside the bars would leave these no room in a narrow window.
    most = max((max(row["reserved_peak_bytes"] or 0, row["limit_bytes"] or 0) for row in rows), default=0)
    figure.update_xaxes(title_text="largest reserved memory", showticklabels=False, range=[0, 1.02 * most or 1])
    figure.update_yaxes(categoryorder="array", categoryarray=names, autorange="reversed", showgrid=False)
    figure.update_yaxes(tickvals=names, ticktext=[name.replace(" + ", "<br>+ ") for name in names])
    return figure


def _name(row: Row, several: bool) -> str:
    parts = [label(row["settings"]), _BEGINS.get(row["begin"] or "", "")]
    parts += [f"GPU {label(row['gpu'] or '?')}"] if several else []
    return " · ".join(part for part in parts if part)


def _bars(name: str, rows: list[tuple[str, Row]], column: str, colour: str) -> go.Bar:
    return go.Bar(
        name=name,
        orientation="h",
        x=[row[column] for _, row in rows],
        y=[each for each, _ in rows],
        marker={"color": colour},
        customdata=[format_bytes(row[column]) for _, row in rows],
        hovertemplate=f"%{{y}}<br>{name}: %{{customdata}}<extra></extra>",
    )


def _note(row: Row) -> str:
    if row["refusal"] is not None:
        return label(f"not simulated: {row['refusal']}")
    told = f"{format_bytes(row['reserved_peak_bytes'])}, {format_count(row['failure_count'])} fail"
    return f"{told}, {format_count(row['retry_count'])} retries" if row["retry_count"] else told


def _limits(figure: go.Figure, rows: list[Row]) -> None:
    for limit in sorted({row["limit_bytes"] for row in rows if row["limit_bytes"] is not None}):
        figure.add_vline(x=limit, line={"color": INK, "dash": "dot"})


def _subtitle(rows: list[Row]) -> str:
    """How far the model can be trusted, from the replay of the recording itself."""
    own = next((row for row in rows if row["status"] == "simulated" and row["refusal"] is None), None)
    if own is None:
        return "simulated"
    if own["placed_ratio"] is None:
        return "simulated; how far the model is off is unknown, since no recorded address can be held against it"
    return f"simulated; the replay of the recording itself meets {format_ratio(own['placed_ratio'])} of its addresses"
