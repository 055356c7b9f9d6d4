"""A controller of the batch size: the plant with its bound, a run batch by batch, and policies beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from infer_diag.charts.buttons import add_buttons
from infer_diag.charts.template import COLOURS, INK, dressed, label
from infer_diag.units import format_count, format_ratio, format_s

_BOUND = COLOURS["failure"]
_LINES = ("#8a8f98", "#e69f00", "#009e73", "#cc79a7", "#8e5bb0", "#56b4e9", "#b5a642", "#5b6470", "#44aa99", "#0072b2")
_PANELS = (("limit_count", "hv"), ("served_per_s", "hv"), ("oldest_wait_s", "linear"))
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")


def plant_chart(
    rates: pl.DataFrame,
    *,
    capacity_per_s: float,
    offered: Sequence[tuple[str, float]],
    points: Sequence[tuple[int, float]],
) -> go.Figure:
    """Requests per second that batches of each size serve, the most that any can, what is offered, published points.

    Frame in: `simulators.batch_control.frames.PlantRates`. `points`: (batch, requests per second).
    """
    figure = go.Figure(
        go.Scatter(
            name="b / t(b)",
            x=rates["batch_count"].to_list(),
            y=rates["served_per_s"].to_list(),
            mode="lines",
            line={"color": COLOURS["ours"], "width": 3},
            hovertext=[_batch(row) for row in rates.to_dicts()],
            hoverinfo="text",
        )
    )
    figure.add_trace(
        go.Scatter(
            name="the article's table",
            x=[batch for batch, _ in points],
            y=[rate for _, rate in points],
            mode="markers",
            marker={"color": COLOURS["published"], "size": 12, "symbol": "diamond", "line": {"width": 1, "color": INK}},
            hovertemplate="the article: batch %{x}, %{y} requests/s<extra></extra>",
        )
    )
    _add_level(figure, capacity_per_s, f"no batch serves more: {format_count(capacity_per_s)}/s", _BOUND, "top right")
    for name, rate in offered:
        _add_level(figure, rate, f"{label(name)}: {format_count(rate)}/s", INK, "top left")
    dressed(figure, "What a batch can serve", "modelled: the line through the article's two rows", height=380)
    figure.update_xaxes(title_text="requests in a batch", rangemode="tozero")
    figure.update_yaxes(title_text="requests per second", rangemode="tozero")
    return figure


def _batch(row: dict[str, Any]) -> str:
    served = format_count(row["served_per_s"])
    return f"batches of {row['batch_count']}: {format_s(row['duration_s'])} each<br>{served} requests/s"


def control_chart(
    runs: Sequence[pl.DataFrame],
    *,
    capacity_per_s: float,
    slo_s: float,
    burst: tuple[float, float] | None = None,
    shown: Sequence[str] = (),
) -> go.Figure:
    """Runs batch by batch: what the controller allows, what is served, how long the oldest request has waited.

    Frames in: `simulators.batch_control.frames.ControlSteps`, one a policy. Those in `shown` are visible at first (all,
    where it is empty); a click on a name in the legend shows or hides the others.
    """
    figure = make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.06)
    for place, run in enumerate(runs):
        _add_run(figure, run, place, shown)
    _add_level(figure, capacity_per_s, f"most: {format_count(capacity_per_s)}/s", _BOUND, "top left", row=2)
    _add_level(figure, slo_s, f"SLO {format_s(slo_s)}", _BOUND, "top left", row=3)
    if burst is not None:
        figure.add_vrect(x0=burst[0], x1=burst[1], fillcolor=COLOURS["queue"], opacity=0.1, line_width=0)
    dressed(figure, "Controllers, batch by batch", "simulated · one seed · shaded: the burst", height=680)
    for row, title in enumerate(("batch allowed", "served per s", "oldest wait"), 1):
        figure.update_yaxes(title_text=title, rangemode="tozero", row=row, col=1)
    figure.update_yaxes(ticksuffix=" s", row=3, col=1)
    figure.update_xaxes(title_text="seconds", row=3, col=1)
    figure.update_layout(hovermode="closest", legend={"groupclick": "togglegroup"}, margin={"b": 110})
    return figure


def _add_run(figure: go.Figure, run: pl.DataFrame, place: int, shown: Sequence[str]) -> None:
    name = label(str(run["policy"][0])) if len(run) else "no batch"
    visible: Any = True if not shown or name in shown else "legendonly"
    for row, (column, shape) in enumerate(_PANELS, 1):
        figure.add_trace(
            go.Scatter(
                name=name,
                legendgroup=name,
                showlegend=row == 1,
                visible=visible,
                x=run["begin_s"].to_list(),
                y=run[column].to_list(),
                mode="lines",
                line={
                    "color": _LINES[place % len(_LINES)],
                    "width": 2,
                    "dash": _DASHES[place // len(_LINES) % len(_DASHES)],
                    "shape": shape,
                },
                hovertemplate=f"{name}<br>%{{x:.2f}} s: %{{y:.3~g}}<extra></extra>",
            ),
            row=row,
            col=1,
        )


def policies_chart(summary: pl.DataFrame, *, seed_count: int) -> go.Figure:
    """Share of requests within the SLO by policy, with 95 % intervals over the seeds, beside what none can exceed.

    Frame in: `simulators.batch_control.frames.ControlSummary`. Buttons choose the scenario.
    """
    scenarios = summary["scenario"].unique(maintain_order=True).to_list()
    figure = go.Figure()
    for place, scenario in enumerate(scenarios):
        part = summary.filter(pl.col("scenario") == scenario)
        found = part.filter(pl.col("measure") == "in_slo_ratio").to_dicts()[::-1]
        most = part.filter(pl.col("measure") == "most_in_slo_ratio").to_dicts()[::-1]
        figure.add_trace(_shares(found, visible=place == 0))
        figure.add_trace(_most(most, visible=place == 0))
        figure.add_trace(_told(found, visible=place == 0))
    dressed(
        figure,
        "Requests within the SLO",
        f"simulated · mean and 95 % interval over {seed_count} seeds · bound modelled",
        height=470,
    )
    if len(scenarios) > 1:
        add_buttons(figure, [label(scenario) for scenario in scenarios], 3)
    figure.update_layout(margin={"r": 16})
    figure.update_xaxes(
        title_text="share of requests", tickformat=".0%", range=[0, 1.22], tickvals=[0, 0.25, 0.5, 0.75, 1]
    )
    figure.update_yaxes(showgrid=False)
    return figure


def _shares(rows: list[dict[str, Any]], *, visible: bool) -> go.Bar:
    return go.Bar(
        name="within the SLO",
        orientation="h",
        visible=visible,
        y=[label(row["policy"]) for row in rows],
        x=[row["mean"] for row in rows],
        marker={"color": COLOURS["cached"]},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [(row["upper"] or row["mean"]) - row["mean"] for row in rows],
            "arrayminus": [row["mean"] - (row["mean"] if row["lower"] is None else row["lower"]) for row in rows],
            "color": INK,
            "thickness": 1.5,
        },
        hovertext=[
            f"{label(row['policy'])}: {format_ratio(row['mean'])}"
            + ("" if row["lower"] is None else f" ({format_ratio(row['lower'])} to {format_ratio(row['upper'])})")
            for row in rows
        ],
        hoverinfo="text",
    )


def _told(rows: list[dict[str, Any]], *, visible: bool) -> go.Scatter:
    """The shares as text in a column beside the bars, since short bars hold none."""
    return go.Scatter(
        visible=visible,
        showlegend=False,
        y=[label(row["policy"]) for row in rows],
        x=[1.02] * len(rows),
        text=[format_ratio(row["mean"]) for row in rows],
        mode="text",
        textposition="middle right",
        hoverinfo="skip",
    )


def _most(rows: list[dict[str, Any]], *, visible: bool) -> go.Scatter:
    return go.Scatter(
        name="no controller exceeds",
        visible=visible,
        y=[label(row["policy"]) for row in rows],
        x=[row["mean"] for row in rows],
        mode="lines",
        line={"color": _BOUND, "width": 2, "dash": "dash"},
        hovertemplate="no controller exceeds %{x:.1%}<extra></extra>",
    )


def _add_level(figure: go.Figure, value: float, text: str, colour: str, position: str, row: int | None = None) -> None:
    placed = {} if row is None else {"row": row, "col": 1}
    figure.add_hline(
        y=value,
        line={"color": colour, "width": 1.5, "dash": "dash"},
        annotation={"text": text, "font": {"color": colour, "size": 12}, "showarrow": False},
        annotation_position=position,
        **placed,
    )
