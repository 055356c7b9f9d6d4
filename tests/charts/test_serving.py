from __future__ import annotations

from datetime import timedelta
from typing import Any

import made
import plotly.graph_objects as go
import polars as pl
import pytest

from infer_diag import charts, schema
from infer_diag.attribution import timeline
from infer_diag.recording import Recording


def traces(figure: go.Figure) -> dict[str, Any]:
    return {trace.name: trace for trace in figure.data}


def test_each_measure_is_drawn_once_as_it_is() -> None:
    samples = made.samples()
    drawn = traces(charts.serving_timeline(samples))
    assert set(drawn) == {
        "output tokens/s",
        "prompt tokens/s",
        "running",
        "waiting",
        "KV cache used",
        "requests preempted",
    }
    assert list(drawn["output tokens/s"].y) == samples["output_tokens_per_s"].to_list()
    assert list(drawn["waiting"].y) == samples["waiting_count"].to_list()
    assert len(drawn["requests preempted"].x) == samples.filter(pl.col("preemption_count") > 0).height


def test_kv_is_shown_in_percent_up_to_the_whole_pool() -> None:
    figure = charts.serving_timeline(made.samples())
    axis = figure.layout.yaxis3
    assert axis.tickformat == ".0%" and axis.range[0] == 0 and axis.range[1] >= 1


def test_bars_add_up_to_the_step_time() -> None:
    steps = made.steps()
    told = timeline.serving_timeline(
        Recording(sources=(made.source(),), engine_samples=made.samples(), engine_steps=steps)
    )
    figure = charts.serving_timeline(told.samples, told.bins, told.rates)
    bars = [trace for trace in figure.data if trace.type == "bar"]
    assert {trace.name for trace in bars} == {"decode steps", "mixed steps", "prefill steps"}
    assert sum(sum(trace.y) for trace in bars) == pytest.approx(steps["duration_s"].sum())


def test_many_samples_go_to_webgl() -> None:
    rows = 25_000
    many = pl.concat([made.samples().head(1)] * rows).with_columns(
        time=pl.lit(made.T0) + pl.int_range(rows) * timedelta(seconds=1)
    )
    assert {trace.type for trace in charts.serving_timeline(many).data} == {"scattergl"}
    thinned = timeline.serving_timeline(Recording(engine_samples=many)).samples
    assert {trace.type for trace in charts.serving_timeline(thinned).data} == {"scatter"}


def test_without_a_clock_the_axis_counts_lines() -> None:
    figure = charts.serving_timeline(made.samples().with_columns(time=pl.lit(None, pl.Datetime("us", "UTC"))))
    assert list(traces(figure)["running"].x) == made.samples()["line"].to_list()
    assert "no clock" in figure.layout.title.subtitle.text


def test_a_date_that_the_log_does_not_print_is_not_shown() -> None:
    assert charts.serving_timeline(made.samples(), dated=False).layout.xaxis.tickformat == "%H:%M:%S"
    assert charts.serving_timeline(made.samples()).layout.xaxis.tickformat is None


def test_engines_have_a_line_each_and_safe_names() -> None:
    two = pl.concat(
        [
            made.samples().with_columns(replica=pl.lit("<b>dp0</b>")),
            made.samples().with_columns(replica=pl.lit("dp1"), source_id=pl.lit(1, pl.UInt32)),
        ]
    )
    names = set(traces(charts.serving_timeline(two, sources=(made.source("/a/x.log"), made.source("/b/y.log")))))
    assert {"running · x.log &lt;b&gt;dp0&lt;/b&gt;", "running · y.log dp1"} <= names


def test_empty_frames_draw_an_empty_figure() -> None:
    assert not charts.serving_timeline(schema.EngineSamples.create_empty()).data
    assert not charts.step_chart(timeline.step_sizes(schema.EngineSteps.create_empty())).data


def test_step_chart_draws_the_quantiles_of_each_kind() -> None:
    sizes = timeline.step_sizes(made.steps())
    drawn = traces(charts.step_chart(sizes))
    for kind in ("prefill", "mixed", "decode"):
        rows = sizes.filter(pl.col("kind") == kind)
        assert list(drawn[kind].y) == rows["p50_duration_s"].to_list()
        assert list(drawn[f"{kind}, p95"].y) == rows["p95_duration_s"].to_list()
        assert drawn[kind].marker.color == charts.COLOURS[kind]
