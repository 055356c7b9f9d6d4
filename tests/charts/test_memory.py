"""What the memory charts draw, read off the figures: sizes, states, bands, and that a large map stays small."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from infer_diag import charts, schema
from infer_diag.attribution.heap.bricks import MOST_BRICKS, snapshot_bricks, trace_bricks
from infer_diag.attribution.heap.curves import heap_curves
from infer_diag.attribution.heap.trace import heap_traces
from infer_diag.attribution.heap.waste import hole_sizes
from infer_diag.recording import Recording

sys.path.insert(0, str(Path(__file__).parents[1] / "attribution"))

from handmade_heap import MIB, SOURCE, Heap, framed


@pytest.fixture(scope="module")
def recording() -> Recording:
    heap = Heap()
    kept = [heap.alloc(size) for size in (3 * MIB, 700, 5 * MIB, 30 * MIB)]
    heap.free(kept[3])
    heap.request_free(kept[1])
    return heap.recording()


def many(count: int, segments: int) -> Recording:
    """A snapshot of so many blocks, every fourth of them idle."""
    sizes = np.where(np.arange(count) % 7 == 0, 1 << 20, 4096)
    rows = pl.DataFrame(
        {
            "source_id": pl.Series([0] * count, dtype=pl.UInt32),
            "line": pl.Series([0] * count, dtype=pl.UInt32),
            "snapshot": "snapshot",
            "gpu": "0",
            "segment_id": (np.arange(count) * segments // count + 1) << 40,
            "segment_kind": "large",
            "stream": "0",
            "address_id": np.cumsum(sizes) + (1 << 30),
            "size_bytes": sizes,
            "requested_bytes": [None if place % 4 == 0 else 4000 for place in range(count)],
            "state": ["inactive" if place % 4 == 0 else "active" for place in range(count)],
        }
    )
    missing = {name: None for name in schema.Blocks.column_names() if name not in rows.columns}
    blocks = rows.with_columns(**{name: pl.lit(value) for name, value in missing.items()})
    return Recording(sources=(SOURCE,), blocks=schema.Blocks.validate(blocks, cast=True))


def data(figure: Any) -> list[dict[str, Any]]:
    return json.loads(figure.to_json())["data"]


def test_the_map_is_one_heatmap_whose_edges_are_the_blocks(recording: Recording) -> None:
    bricks = snapshot_bricks(recording)
    figure = charts.block_map_chart(bricks)
    maps = [trace for trace in figure.data if trace.type == "heatmap"]
    assert len(maps) == 1
    assert not figure.layout.shapes
    assert (
        np.diff(maps[0].x).tolist() == bricks["size_bytes"].to_list() == [size for size, _ in sorted_blocks(recording)]
    )
    assert maps[0].z.shape == (2, len(bricks))
    assert maps[0].x[-1] == sum(size for size, _ in sorted_blocks(recording))


def sorted_blocks(recording: Recording) -> list[tuple[int, str]]:
    rows = recording.blocks.with_columns(pl.col("segment_kind", "state").cast(pl.String))
    return rows.sort("segment_kind", "segment_id", "address_id").select("size_bytes", "state").rows()


def test_the_hover_names_size_state_and_place(recording: Recording) -> None:
    (heatmap,) = [trace for trace in charts.block_map_chart(snapshot_bricks(recording)).data if trace.type == "heatmap"]
    texts = list(heatmap.text[1])
    assert any("in use" in text and "5 MiB" in text and "5,242,880 bytes asked for" in text for text in texts)
    assert any("idle beside live blocks" in text and "12 MiB" in text for text in texts)
    assert any("idle segment" in text and "30 MiB" in text for text in texts)
    assert any("a stream still uses it" in text for text in texts)
    assert all("segment 0x" in text and "stream 0" in text for text in texts)


@pytest.mark.parametrize("segments", [40, 100_000])
def test_a_map_of_a_hundred_thousand_blocks_stays_small(segments: int) -> None:
    recording = many(100_000, segments)
    bricks = snapshot_bricks(recording)
    assert len(bricks) <= MOST_BRICKS
    assert bricks["block_count"].sum() == 100_000
    assert bricks["size_bytes"].sum() == recording.blocks["size_bytes"].sum()
    assert len(charts.block_map_chart(bricks).to_json()) <= 2_000_000


def test_a_map_over_time_stays_small_too() -> None:
    heap = Heap()
    blocks = [heap.alloc(600 + 512 * (place % 9)) for place in range(700)]
    for address in blocks[::2]:
        heap.free(address)
    heap.states.clear()
    (trace,) = heap_traces(heap.recording())
    bricks, curves = trace_bricks(trace), heap_curves(heap.recording())
    figure = charts.memory_chart(bricks, curves)
    assert len(figure.to_json()) <= 2_000_000
    assert len(figure.frames) == len(figure.layout.sliders[0].steps) == bricks["event_id"].n_unique()


def test_each_step_of_the_slider_shows_its_own_state(recording: Recording) -> None:
    (trace,) = heap_traces(recording)
    bricks = trace_bricks(trace, event=3)
    figure = charts.memory_chart(bricks, heap_curves(recording), shown=3)
    frames = {frame.name: frame.data[0] for frame in figure.frames}
    steps = figure.layout.sliders[0]
    assert [step.args[0][0] for step in steps.steps] == list(frames)
    assert steps.steps[steps.active].args[0][0] == "3"
    for name, heatmap in frames.items():
        own = bricks.filter(pl.col("event_id") == int(name))
        assert heatmap.x[-1] == own["size_bytes"].sum()
    assert figure.data[0].x.tolist() == frames["3"].x.tolist()


def test_curves_are_the_frames_and_the_bands_are_the_articles(recording: Recording) -> None:
    curves = heap_curves(recording)
    figure = charts.heap_chart(curves)
    lines = {trace.name: trace.y.tolist() for trace in figure.data}
    device = curves.filter(scope="device")
    assert lines["reserved"] == device["reserved_bytes"].to_list()
    assert lines["in use"] == device["active_bytes"].to_list()
    assert [(shape.y0, shape.y1) for shape in figure.layout.shapes] == [(0, 0.3), (0.3, 0.7), (0.7, 1)]
    assert "recorded" in figure.layout.title.subtitle.text


def test_bounds_are_called_bounds() -> None:
    event = {"action": "alloc", "address_id": 4096, "requested_bytes": 100, "gpu": "0"}
    rmm = Recording(
        sources=(SOURCE.__class__("a.csv", "rmm", "rmm"),), allocator_events=framed(schema.AllocatorEvents, [event])
    )
    assert "lower bound" in charts.heap_chart(heap_curves(rmm)).layout.title.subtitle.text


def test_holes_stand_beside_requests(recording: Recording) -> None:
    sizes = hole_sizes(recording)
    figure = charts.hole_chart(sizes)
    bars = [trace for trace in figure.data if trace.type == "bar"]
    assert sum(sum(bar.y) for bar in bars) == sizes["idle_bytes"].sum()
    assert any(trace.name == "requests of such sizes" for trace in figure.data)


def test_an_empty_map_says_so() -> None:
    figure = charts.block_map_chart(snapshot_bricks(Recording()))
    assert "no block" in figure.layout.title.subtitle.text


def test_names_from_logs_are_escaped() -> None:
    rows = many(8, 1)
    sick = rows.replace(blocks=rows.blocks.with_columns(stream=pl.lit("<img src=x>"), pool=pl.lit("<b>")))
    text = charts.block_map_chart(snapshot_bricks(sick)).to_json()
    assert "<img" not in text and "pool <b>" not in text
    assert data(charts.block_map_chart(snapshot_bricks(rows)))[0]["type"] == "heatmap"
