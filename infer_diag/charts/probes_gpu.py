"""What the probes of a CUDA context and of quantised weights found: steps, pairs of starts, launches, layouts."""

from __future__ import annotations

from itertools import chain

import plotly.graph_objects as go
import polars as pl

from infer_diag.charts.template import COLOURS, INK, dressed, label
from infer_diag.units import format_bytes, format_count, format_s

_FORMATS = ("#0072b2", "#e69f00", "#d55e00", "#009e73", "#8e5bb0")
_TICKS_S = [digit * 10.0**power for power in range(-7, 3) for digit in (1, 3)]


def context_article_chart(article: pl.DataFrame, *, basis: str, place: str) -> go.Figure:
    """The article's stages on its two GPUs, and the step of ours that comes nearest where one was measured.

    Frame in: `probes.frames.ContextArticle`.
    """
    figure = go.Figure()
    stages = [label(stage) for stage in article["stage"]]
    columns = [("a100_s", "the article, A100", "published"), ("h100_s", "the article, H100", "cached")]
    if article["p50_s"].is_not_null().any():
        columns.append(("p50_s", f"{basis} on {label(place)}", "ours"))
    for column, name, colour in columns:
        figure.add_trace(
            go.Bar(
                name=name,
                x=stages,
                y=article[column].to_list(),
                marker={"color": COLOURS[colour]},
                texttemplate="%{y:.4~s}s",
                textposition="outside",
                cliponaxis=False,
                hoverinfo="x+name+y",
            )
        )
    ours = f"ours {basis} on {label(place)}" if len(columns) > 2 else "no figure of ours: no GPU here, no recording"
    dressed(figure, "Stages of a CUDA context", f"the article's table · {ours}", height=380)
    figure.update_layout(barmode="group")
    figure.update_yaxes(title_text="seconds", tickformat="~s", ticksuffix="s", rangemode="tozero")
    return figure


def context_steps_chart(stats: pl.DataFrame, *, basis: str, place: str) -> go.Figure:
    """Median seconds of each step in fresh processes with their quartiles; the hover text has the memory it takes.

    Frame in: `probes.frames.ContextStepStats`.
    """
    rows = stats.to_dicts()
    names = [label(row["step"].replace("_", " ")) for row in rows]
    figure = go.Figure(
        go.Bar(
            name="median",
            orientation="h",
            y=names,
            x=[row["p50_s"] for row in rows],
            marker={"color": COLOURS["cached"]},
            text=[f" {format_s(row['p50_s'])}" for row in rows],
            textposition="outside",
            cliponaxis=False,
            hovertext=[_step(row) for row in rows],
            hoverinfo="text",
        )
    )
    figure.add_trace(
        go.Scatter(
            name="quartiles",
            x=list(chain.from_iterable((row["q1_s"], row["q3_s"], None) for row in rows)),
            y=list(chain.from_iterable((name, name, None) for name in names)),
            mode="lines",
            line={"color": COLOURS["ours"], "width": 4},
            hoverinfo="skip",
        )
    )
    dressed(figure, "A context in fresh processes, step by step", f"{basis} on {label(place)}", height=400)
    figure.update_xaxes(title_text="seconds", tickformat="~s", ticksuffix="s", rangemode="tozero")
    figure.update_yaxes(categoryorder="array", categoryarray=names, autorange="reversed", showgrid=False)
    figure.update_layout(margin={"r": 72})
    return figure


def flag_pairs_chart(pairs: pl.DataFrame, effect: pl.DataFrame, *, title: str, basis: str) -> go.Figure:
    """Pairs of starts without and with a flag, joined by a line each; the subtitle has the effect and its interval.

    Frames in: `probes.frames.FlagPairs`, `probes.frames.FlagEffect` (no row: too few pairs to say).
    """
    rows = pairs.to_dicts()
    figure = go.Figure(
        go.Scatter(
            name="pair",
            x=list(chain.from_iterable((row["pair_id"], row["pair_id"], None) for row in rows)),
            y=list(chain.from_iterable((row["without_flag_s"], row["with_flag_s"], None) for row in rows)),
            mode="lines",
            line={"color": COLOURS["published"], "width": 1.5},
            hoverinfo="skip",
            showlegend=False,
        )
    )
    for column, name, colour in (
        ("without_flag_s", "without the flag", "ours"),
        ("with_flag_s", "with CU_CTX_MAP_HOST", "warm"),
    ):
        figure.add_trace(
            go.Scatter(
                name=name,
                x=pairs["pair_id"].to_list(),
                y=pairs[column].to_list(),
                mode="markers",
                marker={"color": COLOURS[colour], "size": 9, "line": {"width": 1, "color": INK}},
                hovertext=[f"pair {row['pair_id']}, {name}: {format_s(row[column])}" for row in rows],
                hoverinfo="text",
            )
        )
    dressed(figure, label(title), f"{basis} · {_effect(effect)}", height=330)
    figure.update_xaxes(title_text="pair")
    figure.update_yaxes(title_text="context creation", tickformat="~s", ticksuffix="s")
    return figure


def launches_chart(runs: pl.DataFrame, *, title: str, basis: str, place: str) -> go.Figure:
    """Seconds of every launch of each kernel on a logarithmic axis: the first one beside the later ones.

    Frame in: `probes.frames.KernelRuns`.
    """
    figure = go.Figure()
    for name, colour in zip(runs["kernel"].unique(maintain_order=True), _FORMATS, strict=False):
        rows = runs.filter(pl.col("kernel") == name).sort("launch_id")
        figure.add_trace(
            go.Scatter(
                name=label(name.replace("_", " ")),
                x=rows["launch_id"].to_list(),
                y=rows["duration_s"].to_list(),
                mode="lines+markers",
                line={"color": colour, "width": 2},
                marker={"size": 7},
                hovertext=[
                    f"{label(name)}, launch {row['launch_id']}: {format_s(row['duration_s'])}"
                    f"<br>{format_bytes(row['bytes_per_s'])}/s"
                    for row in rows.to_dicts()
                ],
                hoverinfo="text",
            )
        )
    dressed(figure, label(title), f"{basis} on {label(place)}", height=360)
    figure.update_xaxes(title_text="launch", dtick=1 if runs["launch_id"].n_unique() <= 20 else 10)
    figure.update_yaxes(
        type="log", title_text="logarithmic", tickvals=_TICKS_S, ticktext=[format_s(at) for at in _TICKS_S]
    )
    return figure


def weight_sizes_chart(sizes: pl.DataFrame) -> go.Figure:
    """Bytes of each model's weights in each format.

    Frame in: `model`, `form`, `size_bytes`, in the order in which they are to stand.
    """
    figure = go.Figure()
    for form, colour in zip(sizes["form"].unique(maintain_order=True), _FORMATS, strict=False):
        rows = sizes.filter(pl.col("form") == form)
        figure.add_trace(
            go.Bar(
                name=label(form.replace("_", " ")),
                orientation="h",
                y=[label(model) for model in rows["model"]],
                x=rows["size_bytes"].to_list(),
                marker={"color": colour},
                texttemplate=" %{x:.3~s}B",
                textposition="outside",
                cliponaxis=False,
                hoverinfo="y+name+x",
            )
        )
    dressed(figure, "What the weights weigh", "modelled from bits per weight, group scales and zeros", height=430)
    figure.update_layout(barmode="group", legend={"traceorder": "normal"}, margin={"r": 72})
    figure.update_xaxes(title_text="bytes", tickformat="~s", ticksuffix="B", rangemode="tozero")
    figure.update_yaxes(autorange="reversed", showgrid=False)
    return figure


def group_index_chart(layouts: pl.DataFrame) -> go.Figure:
    """Which group's scale each input needs, input after input; the legend has how many rows of scales are loaded.

    Frame in: `layout`, `input_id`, `group_id`, `row_count` (the same in every row of a layout).
    """
    figure = go.Figure()
    # The most scattered one goes first, or its cloud would hide the others.
    ordered = layouts.sort("row_count", descending=True, maintain_order=True)
    for name, colour in zip(
        ordered["layout"].unique(maintain_order=True), ("#e69f00", "#0072b2", "#009e73"), strict=False
    ):
        rows = layouts.filter(pl.col("layout") == name)
        figure.add_trace(
            go.Scattergl(
                name=f"{label(name)}: {format_count(rows['row_count'][0])} rows of scales",
                x=rows["input_id"].to_numpy(),
                y=rows["group_id"].to_numpy(),
                mode="markers",
                marker={"color": colour, "size": 4, "opacity": 0.75},
                hoverinfo="x+y",
            )
        )
    dressed(figure, "The group of each input", "counted on one layer of 4-bit weights", height=360)
    figure.update_xaxes(title_text="input, in the order in which a kernel walks them")
    figure.update_yaxes(title_text="group", rangemode="tozero")
    figure.update_layout(legend={"itemsizing": "constant"})
    return figure


def _step(row: dict[str, float | None]) -> str:
    told = f"{label(str(row['step']).replace('_', ' '))}: {format_s(row['p50_s'])}, {row['run_count']} processes"
    told += f"<br>quartiles {format_s(row['q1_s'])} to {format_s(row['q3_s'])}"
    return told if row["p50_bytes"] is None else f"{told}<br>takes {format_bytes(row['p50_bytes'])} of the device"


def _effect(effect: pl.DataFrame) -> str:
    for row in effect.to_dicts():
        return (
            f"difference {format_s(row['difference_s'])}, 95 % interval {format_s(row['lower_s'])} to "
            f"{format_s(row['upper_s'])}, {row['pair_count']} pairs"
        )
    return "too few pairs for an interval"
