"""Frames drawn with plotly: no arithmetic here, and nothing is validated or grouped.

Importing it registers the plotly template `infer_diag` and leaves the default template alone.
"""

from __future__ import annotations

from infer_diag.charts.capture_sizes import capture_chart, floors_chart
from infer_diag.charts.coldstart import cold_start_bars, cold_start_timeline
from infer_diag.charts.memory import heap_chart, hole_chart, memory_chart, memory_figure
from infer_diag.charts.memory_map import block_map_chart
from infer_diag.charts.probes import cache_steps_chart, load_floors_chart, pipeline_phases_chart, read_rates_chart
from infer_diag.charts.probes_gpu import (
    context_article_chart,
    context_steps_chart,
    flag_pairs_chart,
    group_index_chart,
    launches_chart,
    weight_sizes_chart,
)
from infer_diag.charts.serving import serving_timeline, step_chart
from infer_diag.charts.starts_together import starts_together_chart
from infer_diag.charts.template import COLOURS, NAME
from infer_diag.charts.tenancy import jitter_chart, waits_chart

__all__ = [
    "COLOURS",
    "NAME",
    "block_map_chart",
    "cache_steps_chart",
    "capture_chart",
    "cold_start_bars",
    "cold_start_timeline",
    "context_article_chart",
    "context_steps_chart",
    "flag_pairs_chart",
    "floors_chart",
    "group_index_chart",
    "heap_chart",
    "hole_chart",
    "jitter_chart",
    "launches_chart",
    "load_floors_chart",
    "memory_chart",
    "memory_figure",
    "pipeline_phases_chart",
    "read_rates_chart",
    "serving_timeline",
    "starts_together_chart",
    "step_chart",
    "waits_chart",
    "weight_sizes_chart",
]
