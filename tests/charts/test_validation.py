"""The charts of the validation draw what they are given."""

from __future__ import annotations

import polars as pl

from infer_diag.charts.validation import bias_chart, coverage_chart

ROWS = pl.DataFrame(
    {
        "scenario": ["batching", "idle", "<b>odd</b>"],
        "sight": ["steps", "logs", "gauges"],
        "cause": ["batching", "idle", "residual"],
        "bias": [0.01, -0.2, None],
        "bias_half": [0.005, None, None],
        "covered_ratio": [0.95, 0.4, None],
        "covered_below": [0.03, 0.2, None],
        "covered_above": [0.02, 0.2, None],
    }
)


def test_every_row_is_a_point_and_what_is_refused_is_none() -> None:
    for figure, values in (
        (bias_chart(ROWS, 0.05), [[0.01], [], [-0.2]]),
        (coverage_chart(ROWS, (0.92, 0.98)), [[0.95], [], [0.4]]),
    ):
        assert [list(trace.x) for trace in figure.data] == values
        assert len(figure.layout.shapes) == 1
    assert list(bias_chart(ROWS, 0.05).data[0].y) == ["batching: batching"]
    assert coverage_chart(ROWS, (0.92, 0.98)).data[2].error_x.arrayminus == (0.2,)


def test_nothing_to_draw_is_an_empty_chart() -> None:
    assert not any(len(trace.x) for trace in bias_chart(ROWS.clear(), 0.05).data)
