"""Where the seconds of a start go: one start over time, and many starts beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
import polars as pl

from infer_diag.charts.template import COLOURS, DARK, INK, dressed, label, phase_name, status_words, where
from infer_diag.recording import Source
from infer_diag.schema import PHASES
from infer_diag.units import format_s

_GAPS = {"silent": "/", "cut": "x"}
_WHOLE = "whole start"
_UNKNOWN = "length unknown"
_MANY_ROWS = 90
_MANY_STARTS = 40
_STATUS_OPACITY = {"measured": 1.0, "modelled": 0.6, "bounded": 0.6, "not_identifiable": 0.35}

Row = dict[str, Any]


def cold_start_timeline(
    slices: pl.DataFrame,
    phases: pl.DataFrame,
    summary: pl.DataFrame,
    start_id: str,
    *,
    sources: Sequence[Source] = (),
) -> go.Figure:
    """One start over time: its exclusive parts and gaps in the first row, every phase (and rank) in a row below.

    Frames in: StartSlices, StartPhases, StartSummary. A phase whose place is unknown is told in its row as text; where
    no part has a place the parts are stacked in the order of the phases, and the axis says that it is no clock.
    """
    own = slices.filter(pl.col("start_id") == start_id)
    parts = own.filter(pl.col("begin_s").is_not_null())
    mine = _shown_phases(phases.filter(pl.col("start_id") == start_id))
    subtitle = _subtitle(summary.filter(pl.col("start_id") == start_id), mine["status"].unique())
    if parts.is_empty():
        return _stacked(own, start_id, subtitle, sources)
    rows = mine.to_dicts()
    names = {_WHOLE: None} | {_row_name(row): None for row in rows}
    figure = go.Figure()
    figure.add_trace(_part_bars(parts.filter(pl.col("phase").is_not_null()).to_dicts(), sources))
    figure.add_trace(_gap_bars(parts.filter(pl.col("phase").is_null()).to_dicts(), sources))
    figure.add_trace(_phase_bars([row for row in rows if _placed(row)], sources))
    figure.add_trace(_phase_texts([row for row in rows if not _placed(row)], sources))
    dressed(figure, f"Cold start · {label(start_id)}", subtitle, height=150 + 26 * len(names))
    figure.update_layout(barmode="overlay", showlegend=False, margin={"r": 72})
    figure.update_xaxes(title_text="seconds since the start began", ticksuffix=" s", rangemode="tozero")
    figure.update_yaxes(categoryorder="array", categoryarray=list(names), autorange="reversed", showgrid=False)
    return figure


def cold_start_bars(slices: pl.DataFrame, summary: pl.DataFrame) -> go.Figure:
    """One stacked bar per start: its exclusive parts in the order of the phases, then its gaps; together its span.

    Frames in: StartSlices, StartSummary.
    """
    outcome = dict(summary.select("start_id", "outcome").iter_rows())
    names = {start: _start_name(start, how) for start, how in outcome.items()}
    figure = go.Figure()
    for phase in PHASES:
        rows = slices.filter(pl.col("phase") == phase).to_dicts()
        if rows:
            figure.add_trace(_stack_trace(rows, names, phase_name(phase), {"color": COLOURS[phase]}))
    for reason, shape in _GAPS.items():
        rows = slices.filter(pl.col("phase").is_null() & (pl.col("reason") == reason)).to_dicts()
        if rows:
            figure.add_trace(_stack_trace(rows, names, _gap_words(reason), _hatched(shape)))
    many = len(names) > _MANY_STARTS
    subtitle = f"{len(names):,} starts · parts that do not overlap, and gaps · from printed durations and stamps"
    dressed(figure, "Cold starts compared", subtitle, height=900 if many else 210 + 30 * len(names))
    figure.update_layout(barmode="stack", bargap=0.05 if many else 0.3, legend={"traceorder": "normal"})
    figure.update_xaxes(ticksuffix=" s")
    figure.update_yaxes(
        type="category", categoryorder="array", categoryarray=list(names.values()), autorange="reversed", showgrid=False
    )
    return figure


def _shown_phases(phases: pl.DataFrame) -> pl.DataFrame:
    """Ranks have rows of their own only where several are told apart, and while a reader can still scan them."""
    several = pl.col("rank").drop_nulls().n_unique().over("phase") > 1
    whole = pl.col("rank").is_null() | ~pl.col("rank").is_null().any().over("phase")
    shown = phases.filter(whole | several)
    shown = phases.filter(whole) if len(shown) > _MANY_ROWS else shown
    return shown.sort("phase", "chosen", "rank", descending=[False, True, False], nulls_last=False, maintain_order=True)


def _subtitle(summary: pl.DataFrame, statuses: pl.Series) -> str:
    words = [status_words(statuses)]
    for row in summary.iter_rows(named=True):
        words.append(_outcome(row["outcome"]))
        words.append(f"span {format_s(row['span_s'])}")
        if row["unlogged_s"]:
            words.append(f"no line explains {format_s(row['unlogged_s'])}")
    return " · ".join(words)


def _part_bars(rows: list[Row], sources: Sequence[Source]) -> go.Bar:
    return _bars(
        "parts",
        rows,
        y=[_WHOLE] * len(rows),
        colours=[COLOURS[row["phase"]] for row in rows],
        text=[f"{phase_name(row['phase'])} {format_s(row['duration_s'])}" for row in rows],
        hover=[_slice_hover(row, sources) for row in rows],
        inside=True,
    ).update(insidetextfont={"color": [_text_colour(row["phase"]) for row in rows]})


def _gap_bars(rows: list[Row], sources: Sequence[Source]) -> go.Bar:
    bars = _bars(
        "gaps",
        rows,
        y=[_WHOLE] * len(rows),
        colours=[COLOURS["gap"]] * len(rows),
        text=[f"{_gap_words(row['reason'])} {format_s(row['duration_s'])}" for row in rows],
        hover=[_slice_hover(row, sources) for row in rows],
        inside=True,
    )
    shapes = [_GAPS.get(row["reason"], "/") for row in rows]
    return bars.update(
        marker={"pattern": _hatch(shapes), "line": {"color": COLOURS["gap"], "width": 1}},
        insidetextfont={"color": INK},
    )


def _phase_bars(rows: list[Row], sources: Sequence[Source]) -> go.Bar:
    bars = _bars(
        "phases",
        rows,
        y=[_row_name(row) for row in rows],
        colours=[COLOURS[row["phase"]] for row in rows],
        text=[_length(row) for row in rows],
        hover=[_phase_hover(row, sources) for row in rows],
        inside=False,
    )
    return bars.update(
        x=[row["lower_s"] if row["duration_s"] is None else row["duration_s"] for row in rows],
        marker={"opacity": [_opacity(row) for row in rows]},
    )


def _phase_texts(rows: list[Row], sources: Sequence[Source]) -> go.Scatter:
    return go.Scatter(
        name="without a place",
        x=[0] * len(rows),
        y=[_row_name(row) for row in rows],
        mode="text",
        text=[f" {_length(row)}" if _length(row) == _UNKNOWN else f" {_length(row)}, place unknown" for row in rows],
        textposition="middle right",
        hovertext=[_phase_hover(row, sources) for row in rows],
        hoverinfo="text",
        cliponaxis=False,
    )


def _bars(
    name: str, rows: list[Row], *, y: list[str], colours: list[str], text: list[str], hover: list[str], inside: bool
) -> go.Bar:
    return go.Bar(
        name=name,
        orientation="h",
        y=y,
        base=[row["begin_s"] for row in rows],
        x=[row["duration_s"] for row in rows],
        marker={"color": colours, "line": {"width": 0}},
        text=text,
        textposition="inside" if inside else "outside",
        insidetextanchor="middle",
        textangle=0,
        cliponaxis=False,
        hovertext=hover,
        hoverinfo="text",
    )


def _stacked(own: pl.DataFrame, start_id: str, subtitle: str, sources: Sequence[Source]) -> go.Figure:
    """The parts of a start without stamps, one trace each so that their names stand in the legend."""
    figure = go.Figure()
    for row in own.iter_rows(named=True):
        gap = row["phase"] is None
        figure.add_trace(
            go.Bar(
                name=_gap_words(row["reason"]) if gap else phase_name(row["phase"]),
                orientation="h",
                y=[label(start_id)],
                x=[row["duration_s"]],
                marker=_hatched(_GAPS.get(row["reason"], "/")) if gap else {"color": COLOURS[row["phase"]]},
                text=[format_s(row["duration_s"])],
                textposition="inside",
                insidetextanchor="middle",
                textangle=0,
                insidetextfont={"color": INK if gap else _text_colour(row["phase"])},
                hovertext=[_slice_hover(row, sources)],
                hoverinfo="text",
            )
        )
    dressed(figure, f"Cold start · {label(start_id)}", f"{subtitle} · no stamps: the order is not known", height=230)
    figure.update_layout(barmode="stack", showlegend=True, legend={"traceorder": "normal"})
    figure.update_xaxes(ticksuffix=" s")
    figure.update_yaxes(showticklabels=False, showgrid=False)
    return figure


def _stack_trace(rows: list[Row], names: dict[str, str], name: str, marker: Row) -> go.Bar:
    return go.Bar(
        name=name,
        orientation="h",
        y=[names.get(row["start_id"], label(row["start_id"])) for row in rows],
        x=[row["duration_s"] for row in rows],
        marker=marker,
        hovertext=[f"{name} · {format_s(row['duration_s'])}" for row in rows],
        hoverinfo="y+text",
    )


def _hatch(shape: str | list[str]) -> Row:
    return {
        "shape": shape,
        "fillmode": "replace",
        "fgcolor": "rgba(138,143,152,0.5)",
        "bgcolor": "rgba(0,0,0,0)",
        "size": 9,
        "solidity": 0.1,
    }


def _hatched(shape: str) -> Row:
    return {"color": COLOURS["gap"], "pattern": _hatch(shape), "line": {"color": COLOURS["gap"], "width": 1}}


def _text_colour(phase: str) -> str:
    return "#ffffff" if phase in DARK else "#14181c"


def _gap_words(reason: str | None) -> str:
    return "text missing" if reason == "cut" else "silent"


def _placed(row: Row) -> bool:
    return row["begin_s"] is not None and (row["duration_s"] is not None or row["lower_s"] is not None)


def _opacity(row: Row) -> float:
    return _STATUS_OPACITY[row["status"]] if row["chosen"] else 0.35


def _length(row: Row) -> str:
    if row["duration_s"] is not None:
        return format_s(row["duration_s"])
    if row["lower_s"] is not None:
        return f"≥ {format_s(row['lower_s'])}"
    return _UNKNOWN if row["upper_s"] is None else f"≤ {format_s(row['upper_s'])}"


def _row_name(row: Row) -> str:
    rank = "" if row["rank"] is None else f" · rank {label(row['rank'])}"
    other = "" if row["chosen"] else " · another line"
    return ("↳ " if row["inside"] else "") + phase_name(row["phase"]) + rank + other


def _start_name(start_id: str, outcome: str) -> str:
    return label(start_id) if outcome == "ready" else f"{label(start_id)} ({_outcome(outcome)})"


def _outcome(outcome: str) -> str:
    return "outcome unknown" if outcome == "unknown" else outcome


def _slice_hover(row: Row, sources: Sequence[Source]) -> str:
    if row["phase"] is not None:
        head = f"<b>{phase_name(row['phase'])}</b> alone · {format_s(row['duration_s'])}"
    else:
        head = f"<b>{_gap_words(row['reason'])}</b> · {format_s(row['duration_s'])}"
        if row["after"] or row["before"]:
            head += f"<br>after {label(row['after'] or 'the begin')}, before {label(row['before'] or 'the end')}"
    begin = "" if row["begin_s"] is None else f"<br>begins at {format_s(row['begin_s'])}"
    return _with_line(head + begin, row, sources)


def _phase_hover(row: Row, sources: Sequence[Source]) -> str:
    head = f"<b>{phase_name(row['phase'])}</b> · {_length(row)} · {row['status'].replace('_', ' ')}"
    if row["begin_s"] is not None:
        head += f"<br>begins at {format_s(row['begin_s'])}, ends at {format_s(row['end_s'])}"
    if not row["chosen"]:
        head += "<br>conflicts with another line, which is the one that counts"
    return _with_line(head, row, sources)


def _with_line(head: str, row: Row, sources: Sequence[Source]) -> str:
    place = where(sources, row["source_id"], row["lines"])
    return f"{head}<br>{place}" if place else head
