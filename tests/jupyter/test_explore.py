"""The explorer: what its models say of a window, a moment and a stretch of addresses, and what its widgets send."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infer_diag.attribution.heap.maps import map_rows
from infer_diag.attribution.heap.trace import heap_traces
from infer_diag.diagnose import diagnose
from infer_diag.jupyter.explore import explore, explorer_panel, heap_model
from infer_diag.jupyter.explore.facts import Fact, evidence_html, fact
from infer_diag.jupyter.explore.heap_model import HeapModel
from infer_diag.jupyter.explore.model import ExploreModel
from infer_diag.jupyter.explore.pages import MemoryPage
from infer_diag.jupyter.explore.scene import nice_ticks, second_ticks
from infer_diag.jupyter.explore.serving_model import ServingModel
from infer_diag.jupyter.explore.start_model import StartModel
from infer_diag.jupyter.explore.windows import within
from infer_diag.loaders import load
from infer_diag.recording import Clock, Recording, Source, combine
from infer_diag.redact import plain
from infer_diag.schema import AllocatorEvents, EngineSamples, Requests

BEGIN = datetime(2026, 3, 14, 9, 26, 53, tzinfo=UTC)
SAMPLE = "sample:captured/kv_preempts"
EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m\u202eevil"
TOKEN = "hf_abcdefghijklmnopqrstuvwxyz123456"


def framed(schema: Any, frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with every column that it lacks as null."""
    missing = [name for name in schema.column_names() if name not in frame.columns]
    whole = frame.with_columns(pl.lit(None).alias(name) for name in missing)
    return schema.validate(whole.select(schema.column_names()), cast=True)


def source(path: str = "made.log") -> Source:
    """A dated source of which nothing can be read again."""
    return Source(path, "vllm", "vllm", lines=10, first_time=BEGIN, clocks=(Clock("inner", "x", zone="UTC"),))


def served(count: int = 100) -> Recording:
    """A request a second, the n-th with a TTFT of n/10 s, and a sample a second."""
    at = pl.int_range(count, eager=True)
    requests = pl.DataFrame({"line": at + 1, "arrival_s": at.cast(pl.Float64)}).with_columns(
        pl.lit(0).alias("source_id"),
        pl.format("r{}", pl.col("line")).alias("request_id"),
        (pl.col("arrival_s") * 1.1 + 0.1).alias("first_token_s"),
        pl.when(pl.col("line") % 2 == 0).then(pl.col("arrival_s") * 1.1 + 5).alias("last_token_s"),
        pl.lit(10).alias("output_tokens"),
    )
    samples = pl.DataFrame({"line": at + 1000}).with_columns(
        pl.lit(0).alias("source_id"),
        pl.lit("interval").alias("kind"),
        (pl.lit(BEGIN) + pl.duration(seconds=pl.col("line") - 1000)).alias("time"),
        (pl.col("line") - 1000).alias("running_count"),
        pl.lit(3).alias("waiting_count"),
        ((pl.col("line") - 1000) / count).alias("kv_usage_ratio"),
    )
    frames = {"requests": framed(Requests, requests), "engine_samples": framed(EngineSamples, samples)}
    return Recording(sources=(source(),), **frames)


def churn(count: int = 600, slots: int = 40, seed: int = 7) -> Recording:
    """A pool that takes and frees blocks at random places, an event each 100 ms."""
    rng = np.random.default_rng(seed)
    rows: list[tuple[str, int, int]] = []
    held: dict[int, int] = {}
    for _ in range(count):
        place = int(rng.integers(slots))
        size = held.pop(place, 0)
        if not size:
            held[place] = int(rng.integers(1, 100)) * 512
        rows.append(("free", place, size) if size else ("alloc", place, held[place]))
    action, place, size = zip(*rows, strict=True)
    frame = pl.DataFrame({"action": action, "place": place, "requested_bytes": size}).with_columns(
        pl.lit(0).alias("source_id"),
        pl.int_range(1, pl.len() + 1).alias("line"),
        (pl.lit(BEGIN) + pl.duration(milliseconds=pl.int_range(pl.len()) * 100)).alias("time"),
        pl.lit("0").alias("gpu"),
        (pl.col("place") * 65536 + (1 << 33)).alias("address_id"),
        pl.col("requested_bytes").alias("allocated_bytes"),
    )
    made = Source("events.parquet", "allocator-events", "cupy", first_time=BEGIN, clocks=(Clock("inner", "x"),))
    return Recording(sources=(made,), allocator_events=framed(AllocatorEvents, frame))


@pytest.fixture(scope="module")
def heap() -> HeapModel:
    """The model of a churning pool."""
    recording = churn()
    (trace,) = heap_traces(recording)
    return HeapModel(recording, trace)


def text_of(facts: list[Fact], begin: str) -> str:
    """The one fact that begins so."""
    (found,) = [each.text for each in facts if each.text.startswith(begin)]
    return found


def test_a_window_tells_of_what_lies_in_it() -> None:
    model = ServingModel(served())
    whole, part = model.facts(None), model.facts((10.0, 19.0))
    assert whole[0].text == "100 requests, 50 of them finished"
    assert part[0].text == "10 requests, 5 of them finished"
    assert text_of(part, "TTFT") == "TTFT: median 1.55 s, p95 1.96 s, longest 2 s (10 requests)"
    assert text_of(part, "running") == "running: mean 14.5, from 10 to 19 (10 samples)"
    assert text_of(part, "KV") == "KV cache used: mean 14.5 %, from 10 % to 19 % (10 samples)"
    assert next(each.text for each in model.slowest((10.0, 12.0), "ttft_s")) == "r13: TTFT 1.3 s, at 12 s"


def test_numbers_lead_to_their_lines() -> None:
    part = ServingModel(served()).facts((10.0, 19.0))
    places = {each.text.split(":")[0]: each.places for each in part}
    assert places["TTFT"] == ("made.log:20",)
    assert places["running"] == ("made.log:1019", "made.log:1010")


@given(low=st.floats(-5, 110), high=st.floats(-5, 110))
@settings(deadline=None)
def test_a_window_is_what_a_filter_would_give(low: float, high: float) -> None:
    frame = pl.DataFrame({"x": [0.0, 1.0, 1.0, 5.0, 99.0, None]})
    window = (min(low, high), max(low, high))
    assert within(frame, window)["x"].to_list() == frame.filter(pl.col("x").is_between(*window))["x"].to_list()


def test_what_is_not_told_is_no_zero() -> None:
    recording = served()
    silent = recording.replace(requests=recording.requests.with_columns(pl.lit(None, pl.Float64).alias("last_token_s")))
    assert ServingModel(silent).facts(None)[0].text == "100 requests"
    assert "e2e_s" not in ServingModel(silent).measures
    assert ServingModel(Recording()).is_empty


def test_requests_without_a_common_clock_have_no_place() -> None:
    undated = Source("other.log", "vllm", "vllm", first_time=datetime(2000, 1, 1, tzinfo=UTC))
    recording = served()
    model = ServingModel(recording.replace(sources=(*recording.sources, undated)))
    assert not [each for each in model.facts(None) if "requests," in each.text]
    assert model.histogram(None, "ttft_s") is None


def test_drawn_points_are_bounded_whatever_the_recording_holds() -> None:
    recording = served(30_000)
    scene = ServingModel(recording).timeline
    points = [len(mark["x"]) for panel in scene["panels"] for mark in panel["marks"]]
    assert max(points) <= 1000
    assert len(json.dumps(scene)) < 200_000
    assert len(json.dumps(ServingModel(recording).histogram(None, "ttft_s"))) < 20_000


def test_a_start_is_drawn_with_its_lines() -> None:
    model = StartModel(diagnose(load("sample:captured/two_starts/server.log")))
    for start in model.starts:
        scene = model.scene(start)
        assert scene is not None
        (boxes,) = scene["panels"][0]["marks"]
        first = [number for number, row in enumerate(boxes["row"]) if row == 0]
        assert sum(boxes["x1"][number] - boxes["x0"][number] for number in first) == pytest.approx(scene["x"][1])
        assert all(model.chosen(start, name).places for name in boxes["id"])
        assert model.chosen(start, "part 9999") is model.chosen(start, "<script>") is None
    assert all(each.places for each in model.facts(model.starts[0])[1:])


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_map_is_what_the_replay_gives(seed: int) -> None:
    recording = churn(seed=seed)
    (trace,) = heap_traces(recording)
    model = HeapModel(recording, trace)
    for moment in range(0, len(model.moments), 97):
        rows = map_rows(trace, np.array([model.moments[moment]]))
        live = rows.filter(pl.col("state") == "active")
        now = model._index(moment)
        found = model._lives.bytes_between(now, np.linspace(*model.whole, 101))
        assert found[0].sum() == pytest.approx(live["size_bytes"].sum())
        assert found[2].sum() == pytest.approx(rows["size_bytes"].sum())
        blocks = model._lives.blocks_between(now, *model.whole)
        assert sorted(each["address_id"] for each in blocks) == sorted(live["address_id"])
        assert {each["size_bytes"] for each in blocks} == set(live["size_bytes"])


def test_a_freed_block_that_a_stream_awaits_is_shown_so() -> None:
    recording = churn(400)
    action = recording.allocator_events["action"].cast(pl.String).to_list()
    last = len(action) - 1 - action[::-1].index("free")
    changed = [*action[:last], "free_requested", *action[last + 1 :]]
    events = recording.allocator_events.with_columns(
        pl.Series("action", changed, recording.allocator_events.schema["action"])
    )
    recording = recording.replace(allocator_events=events)
    (trace,) = heap_traces(recording)
    model = HeapModel(recording, trace)
    _, awaiting, _ = model._lives.bytes_between(model._index(len(model.moments) - 1), np.linspace(*model.whole, 11))
    assert awaiting.sum() == recording.allocator_events["requested_bytes"][last]


def test_zoom_draws_from_the_data(heap: HeapModel) -> None:
    last = len(heap.moments) - 1
    _, whole = heap.raster(last, heap.whole)
    near = heap.zoomed(heap.whole, (0, heap_model.COLS))
    _, cells = heap.raster(last, near)
    assert len(cells) == len(whole) == heap_model.COLS * heap_model.ROWS
    assert near[1] - near[0] < heap.whole[1] / 10
    (block, *_) = heap.blocks(last, near, cells.index(max(cells)))
    assert "live at 0x" in block.text
    event = int(block.text.rsplit(" ", 1)[1].replace(",", ""))
    assert block.places == (f"events.parquet:{event}",)


@given(begin=st.integers(-(1 << 40), 1 << 63), size=st.integers(-5, 1 << 63))
@settings(max_examples=60, deadline=None)
def test_a_stretch_always_lies_on_the_map(heap: HeapModel, begin: int, size: int) -> None:
    low, high = heap.bounded((begin, begin + size))
    assert 0 <= low < high <= heap.whole[1]
    assert heap.raster(0, (low, high))[1]


def test_the_moment_follows_the_window() -> None:
    heap_recording = churn()
    model = ExploreModel(diagnose(combine([served(), heap_recording])))
    (heap,) = model.heaps
    assert model.moment_of(heap) is None
    model.window = (10.0, 20.0)
    moment = model.moment_of(heap)
    assert heap.curves["time_s"][moment] == pytest.approx(20.0, abs=0.2)
    assert heap.curves["time_s"][moment] <= 20.0
    model.window = (10.0, 500.0)
    assert model.moment_of(heap) is None


class Counting:
    """Counts the calls of a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.calls = function, 0

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.calls += 1
        return self.function(*args, **options)


def test_an_interaction_reads_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What passes over the whole recording happens once, when a page is opened."""
    from infer_diag.jupyter.explore import lifetimes, model, serving_model, windows
    from infer_diag.simulators import heap_replay

    passes = {
        name: Counting(getattr(module, name))
        for module, name in (
            (windows, "each_request"), (serving_model, "serving_timeline"), (model, "heap_traces"),
            (heap_model, "trace_curves"), (heap_model, "lifetimes"), (heap_replay, "replay"),
        )
    }  # fmt: skip
    for module in (windows, serving_model, model, heap_model, heap_replay, lifetimes):
        for name, counted in passes.items():
            if hasattr(module, name) and module.__name__.rsplit(".", 1)[-1] != name:
                monkeypatch.setattr(module, name, counted)
    explorer = explore(diagnose(combine([served(), churn()])))
    for page in explorer.model.pages:
        explorer._names.value = page
    before = {name: counted.calls for name, counted in passes.items()}
    (memory,) = [page for page in explorer._following["memory"] if isinstance(page, MemoryPage)]
    for end in (20.0, 30.0, 40.0):
        explorer._choose([5.0, end])
        explorer.model.serving.facts(explorer.model.window)
        memory._zoomed([0, 300])
        memory._celled(17)
    assert {name: counted.calls for name, counted in passes.items()} == before
    assert before["each_request"] == before["heap_traces"] == before["trace_curves"] == 1


def test_a_window_touches_only_its_own_rows() -> None:
    model = ServingModel(served(50_000))
    assert len(within(model._requests, (100.0, 199.0))) == 100
    assert len(within(model._samples, (100.0, 199.0))) == 100


def test_every_page_opens_and_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = combine([load(SAMPLE), churn()])
    explorer = explore(diagnose(recording))
    assert explorer.model.pages == ["overview", "cold start", "batching", "memory", "cost"]
    for page in explorer.model.pages:
        explorer._names.value = page
        assert "cannot be shown" not in str(explorer._body.children)
    explorer._tell(explorer.model.findings()[0])
    assert "▶" in explorer._evidence.value


def test_pages_without_data_are_left_out() -> None:
    assert explore(diagnose(Recording())).model.pages == ["overview"]


def test_a_heap_that_cannot_be_read_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    from infer_diag.errors import DiagError
    from infer_diag.jupyter.explore import model

    def refuse(_: Recording) -> list[Any]:
        raise DiagError("this needs numba")

    monkeypatch.setattr(model, "heap_traces", refuse)
    explorer = explore(diagnose(churn()))
    explorer._names.value = "memory"
    assert explorer._body.children[0].value == "this needs numba"


def test_lines_are_shown_with_their_neighbours_and_inert(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("\n".join(["before", f"{EVIL} token {TOKEN}", "after", *["x"] * 50]) + "\n")
    made = Source(str(path), "vllm", "vllm", lines=53, size_bytes=path.stat().st_size)
    recording = Recording(sources=(made,))
    html = evidence_html(recording, fact(recording, f"{EVIL} {TOKEN}", [(0, 2)]))
    assert "before" in html
    assert "after" in html
    assert "<script" not in html
    assert "<img" not in html
    assert TOKEN not in html
    assert "\x1b" not in html
    assert "\u202e" not in html
    assert html.count("▶") == 1


def test_a_file_that_is_gone_is_said_to_be() -> None:
    recording = Recording(sources=(source(),))
    assert "not there any more" in evidence_html(recording, fact(recording, "x", [(0, 2)]))
    assert "no single line" in evidence_html(recording, fact(recording, "x"))


def test_text_of_logs_is_inert_in_scenes() -> None:
    evil = f"{EVIL} {TOKEN} {'long ' * 500}"
    assert TOKEN not in plain(evil)
    assert "\u202e" not in plain(evil)
    assert len(plain(evil)) <= 160
    recording = served(5)
    named = recording.requests.with_columns(pl.lit(evil).alias("request_id"))
    slow = ServingModel(recording.replace(requests=named)).slowest(None, "ttft_s")
    assert TOKEN not in slow[0].text


@given(low=st.floats(0, 1e7), span=st.floats(1e-6, 1e7), most=st.integers(2, 12))
@settings(deadline=None)
def test_ticks_are_few_and_inside(low: float, span: float, most: int) -> None:
    for ticks in (nice_ticks(low, low + span, most), nice_ticks(low, low + span, most, binary=True)):
        assert len(ticks) <= most + 2
        assert all(low - span * 1e-6 <= tick <= low + span * (1 + 1e-6) for tick in ticks)
    seconds = second_ticks(low, low + span)
    assert len(seconds) <= 10


def test_the_verb_shows_a_widget_and_text_beside_it(notebook: Any) -> None:
    notebook.ok(f"%diag load {SAMPLE} --as prod")
    (bundle,) = notebook.ok("%diag explore prod").bundles
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert "batching." in bundle["text/plain"]
    assert "<table>" in bundle["text/html"]
    assert len(json.dumps(bundle)) < 50_000
    assert "plotly" not in json.dumps(bundle)


def test_the_same_recording_is_one_explorer(notebook: Any) -> None:
    notebook.ok(f"%diag load {SAMPLE} --as prod")
    ids = [notebook.ok("%diag explore prod").bundles[0]["application/vnd.jupyter.widget-view+json"] for _ in "ab"]
    assert ids[0] == ids[1]
    notebook.ok(f"%diag load {SAMPLE} --as prod")
    assert notebook.ok("%diag explore prod").bundles[0]["application/vnd.jupyter.widget-view+json"] != ids[0]


def test_the_code_runs(notebook: Any) -> None:
    notebook.ok(f"%diag load {SAMPLE} --as prod")
    notebook.ok(notebook.ok("%diag explore prod --code").text)
    assert notebook.complete("%diag explore pr") == ["%diag explore prod"]
    assert notebook.run("%diag explore nothing").error is not None


def test_state_that_a_notebook_would_save_is_small() -> None:
    from ipywidgets.widgets.widget import _instances

    before = set(_instances)
    explorer = explore(diagnose(combine([load(SAMPLE), churn()])))
    for page in explorer.model.pages:
        explorer._names.value = page
    states = [json.dumps(each.get_state(), default=str) for key, each in _instances.items() if key not in before]
    assert "plotly" not in "".join(states)
    assert sum(map(len, states)) < 300_000
    assert explorer_panel(explorer, "x").widget is explorer.view


def test_moments_are_placed_in_time(heap: HeapModel) -> None:
    assert heap.at(BEGIN + timedelta(seconds=30)) is not None
    assert heap.at(BEGIN - timedelta(seconds=1)) is None
    assert heap.nearest(heap.place(5)) == 5
