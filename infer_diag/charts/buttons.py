"""Buttons that choose which traces of a figure are shown."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from infer_diag.charts.template import INK

_ONE_ROW = 32
"""Letters that stand beside each other in a narrow notebook; longer choices unfold."""


def add_buttons(figure: go.Figure, names: Sequence[str], traces_each: int) -> None:
    """Choices above the plot: one shows `traces_each` traces in a row and hides the others."""
    count = len(names) * traces_each
    buttons = [
        {
            "label": name,
            "method": "update",
            "args": [{"visible": [index // traces_each == place for index in range(count)]}],
        }
        for place, name in enumerate(names)
    ]
    menu = {
        "type": "buttons" if sum(map(len, names)) <= _ONE_ROW else "dropdown",
        "direction": "right",
        "buttons": buttons,
        "x": 0,
        "y": 1.02,
        "xanchor": "left",
        "yanchor": "bottom",
        "pad": {"t": 0, "b": 4},
        "bgcolor": "rgba(128,134,144,0.15)",
        "bordercolor": "rgba(128,134,144,0.4)",
        "font": {"color": INK, "size": 12},
    }
    figure.update_layout(
        updatemenus=[menu], margin={"t": 124}, title={"y": 1, "yref": "container", "yanchor": "top", "pad": {"t": 30}}
    )
