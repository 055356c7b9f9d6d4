"""Which sizes to capture: the exact optimum against every other list, engines' own lists, and what a graph costs."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import infer_diag as diag
from infer_diag.attribution.capture_costs import GraphCost, capture_costs, graph_cost
from infer_diag.attribution.capture_sizes import (
    ARTICLE_GRAPHS,
    ARTICLE_MOST_PADDING,
    ARTICLE_SIZES,
    BatchSizes,
    batch_sizes,
    capture_frontier,
    capture_plan,
    compared,
    designed,
    padded_token_s,
    vllm_sizes,
    vllm_sizes_for,
)
from infer_diag.charts import capture_chart, floors_chart
from infer_diag.errors import DiagError
from infer_diag.probes.obtained import Obtained
from infer_diag.probes.result import ProbeResult, framed
from infer_diag.recording import Recording
from infer_diag.report.claims_graphs import floor_lines, graph_claims, memory_floors
from tests.attribution.handmade_start import HandmadeStart

LOG = Path(__file__).parents[3] / "shared" / "corpus" / "server_logs" / "vllm_0.15.0_gpt-oss-120b_tp4_server.log"

histograms = st.dictionaries(st.integers(1, 60), st.integers(1, 1000), min_size=1, max_size=7)


def batches(counts: dict[int, int], seconds: float | None = None) -> pl.DataFrame:
    rows = {
        "size_tokens": list(counts),
        "step_count": list(counts.values()),
        "duration_s": [None if seconds is None else seconds * count for count in counts.values()],
    }
    return BatchSizes.validate(pl.DataFrame(rows, schema=BatchSizes.create_empty().schema).sort("size_tokens"))


def padding(counts: dict[int, int], sizes: tuple[int, ...]) -> int:
    return sum(number * (min(size for size in sizes if size >= each) - each) for each, number in counts.items())


@settings(max_examples=60, deadline=None)
@given(histograms)
def test_no_list_of_as_many_sizes_pads_less(counts: dict[int, int]) -> None:
    frontier = capture_frontier(batches(counts), most=len(counts))
    steps = sum(counts.values())
    for row in frontier.iter_rows(named=True):
        # Small ranges are searched whole, larger ones over the sizes that occur.
        pool = range(1, max(counts)) if max(counts) <= 12 else sorted(counts)[:-1]
        others = [(*each, max(counts)) for each in combinations(pool, row["graph_count"] - 1)]
        best = min(padding(counts, each) for each in others)
        assert row["padding_tokens"] * steps == pytest.approx(best, abs=1e-6)
        assert padding(counts, tuple(row["sizes"])) == best
        assert row["covered_ratio"] == 1


@settings(max_examples=40, deadline=None)
@given(histograms)
def test_more_graphs_never_pad_more_and_all_sizes_pad_nothing(counts: dict[int, int]) -> None:
    pads = capture_frontier(batches(counts), most=100)["padding_tokens"].to_list()
    assert pads == sorted(pads, reverse=True)
    assert len(pads) == len(counts)
    assert pads[-1] == 0


def test_a_list_pads_each_step_to_its_next_graph() -> None:
    plan = capture_plan(batches({3: 10, 8: 5, 9: 1, 40: 4}), (4, 8, 16), "mine").row(0, named=True)
    assert plan["covered_ratio"] == pytest.approx(16 / 20)
    assert plan["padding_tokens"] == pytest.approx((10 * 1 + 0 + 7) / 16)
    assert plan["padding_ratio"] == pytest.approx(17 / (10 * 4 + 5 * 8 + 16))


def test_the_articles_grid_captures_six_graphs_and_replays_no_step_that_is_mostly_padding() -> None:
    plan = capture_plan(
        batches({1: 10, 2: 10, 12: 10, 33: 10}),
        ARTICLE_SIZES,
        "article",
        cost=GraphCost(0.5, 2e6),
        graph_count=ARTICLE_GRAPHS,
        most_padding_ratio=ARTICLE_MOST_PADDING,
    ).row(0, named=True)
    assert plan["covered_ratio"] == pytest.approx(10 / 40)  # 7 of 8 and 6 of 8 rows are padding; 33 has no graph
    assert (plan["capture_s"], plan["graph_bytes"]) == (3.0, 12e6)


def test_the_largest_size_is_kept_so_that_unseen_steps_replay() -> None:
    frontier = capture_frontier(batches({3: 10, 8: 5, 300: 7}), most=9, largest=256)
    assert all(row[-1] == 256 for row in frontier["sizes"].to_list())
    assert frontier["covered_ratio"].unique().to_list() == [pytest.approx(15 / 22)]
    assert frontier["padding_tokens"][-1] == 0


def test_sizes_are_multiples_where_the_engine_needs_them() -> None:
    frontier = capture_frontier(batches({3: 10, 5: 2, 8: 5, 17: 1}), most=9, multiple_of=4)
    assert frontier["sizes"].to_list()[-1] == [4, 8, 20]


def test_vllms_lists() -> None:
    assert vllm_sizes(16) == (1, 2, 4, 8, 16)
    assert len(vllm_sizes(512)) == 51
    assert len(vllm_sizes(1024)) == 83
    assert vllm_sizes(3) == (1, 2)
    told = pl.DataFrame({"max_running_count": [None, 8, None]}, schema={"max_running_count": pl.UInt32})
    assert vllm_sizes_for(told) == (1, 2, 4, 8, 16)
    assert vllm_sizes_for(told.head(1)) == vllm_sizes(512)
    assert vllm_sizes_for(told.with_columns(max_running_count=1024)) == vllm_sizes(512)


def test_a_budget_is_held_and_needs_bytes() -> None:
    counts = dict.fromkeys(range(1, 20), 10)
    cost = GraphCost(None, 1e6)
    frontier = capture_frontier(batches(counts), most=19, cost=cost)
    assert designed(frontier, budget_bytes=5.5e6)["graph_count"][0] == 5
    with pytest.raises(DiagError, match="too small"):
        designed(frontier, budget_bytes=1e5)
    with pytest.raises(DiagError, match="no line tells"):
        designed(capture_frontier(batches(counts), most=3), budget_bytes=1e9)


def test_with_prices_a_graph_is_captured_only_while_it_pays() -> None:
    counts = {1: 1000, 10: 1000, 20: 1}
    frontier = capture_frontier(batches(counts), most=3, cost=GraphCost(1.0, 1e6), token_s=1e-3)
    # 10 saves 10,000 tokens (10 s) for 1 s; 1 saves 9,000 (9 s) for 1 s.
    assert designed(frontier)["sizes"].to_list() == [[1, 10, 20]]
    dear = capture_frontier(batches(counts), most=3, cost=GraphCost(9.5, 1e6), token_s=1e-3)
    assert designed(dear)["sizes"].to_list() == [[10, 20]]


def test_a_padded_token_costs_the_slope_of_the_steps() -> None:
    rows = {
        "size_tokens": list(range(1, 13)),
        "step_count": [5] * 12,
        "duration_s": [5 * (0.01 + 2e-4 * each) for each in range(1, 13)],
    }
    made = BatchSizes.validate(pl.DataFrame(rows, schema=BatchSizes.create_empty().schema))
    assert padded_token_s(made) == pytest.approx(2e-4)
    assert padded_token_s(made.head(7)) is None


def test_a_reference_that_pads_nothing_cannot_be_beaten() -> None:
    made = batches({1: 5, 2: 5})
    verdict = compared(capture_frontier(made, most=2).tail(1), capture_plan(made, (1, 2), "theirs"))
    assert not verdict.better
    assert "cannot be beaten" in verdict.sentence


def test_nothing_to_capture_is_refused() -> None:
    with pytest.raises(DiagError):
        capture_frontier(batches({300: 1}), most=3, largest=256)
    with pytest.raises(DiagError):
        capture_plan(batches({1: 1}), (), "none")


def loaded(tmp_path: Path, text: str) -> Recording:
    path = tmp_path / "server.log"
    path.write_text(text)
    return diag.load(path)


def test_what_a_graph_costs_by_vllms_lines(tmp_path: Path) -> None:
    bars = "".join(
        f"\rCapturing CUDA graphs ({kind}): {done * 25}%|##| {done}/4 [00:0{done}<00:01,  1.00it/s]"
        for kind in ("mixed prefill-decode, PIECEWISE", "decode, FULL")
        for done in range(5)
    )
    costs = capture_costs(
        loaded(
            tmp_path,
            "INFO 03-11 08:05:01 [core.py:10] Initializing a V1 LLM engine (v0.15.0) with config: model='m'\n"
            f"{bars}\n"
            "INFO 03-11 08:05:35 [gpu_model_runner.py:1608] Graph capturing finished in 16 secs, took 0.50 GiB\n",
        )
    )
    row = costs.row(0, named=True)
    assert (row["graph_count"], row["duration_s"]) == (8, 16.0)
    assert row["graph_s"] == 2.0
    assert row["graph_bytes"] == pytest.approx(0.5 * 2**30 / 8)


def test_a_log_without_bars_tells_no_single_graph(tmp_path: Path) -> None:
    line = "INFO 03-11 08:05:35 [gpu_model_runner.py:1608] Graph capturing finished in 16 secs, took 0.50 GiB\n"
    costs = capture_costs(loaded(tmp_path, line))
    assert costs.row(0, named=True)["graph_s"] is None
    assert graph_cost(costs) is None


def test_workers_of_one_replica_capture_the_same_graphs_and_not_more() -> None:
    made = HandmadeStart()
    for one, other in ((1, 0), (2, 1), (4, 3), (4, 4)):
        for rank, done in (("TP0", one), ("TP1", other)):
            made.bar(done, 4, float(done), phase="graph_capture", replica="DP0", rank=rank)
    for replica in ("DP0", "DP1"):
        made.printed("graph_capture", 10.0, 8.0, "TP0", replica=replica, size_bytes=2.0**30)
    row = capture_costs(made.ready(11.0).recording()).row(0, named=True)
    assert (row["graph_count"], row["size_bytes"]) == (4, 2.0**30)
    assert row["graph_s"] == 2.0


@pytest.fixture(scope="module")
def real() -> Recording:
    if not LOG.exists():
        pytest.skip("the shared corpus is not beside this checkout")
    return diag.load(LOG)


def test_the_design_beats_vllms_own_list_on_a_real_log(real: Recording) -> None:
    made = batch_sizes(real.engine_steps)
    cost = graph_cost(capture_costs(real))
    assert cost is not None
    reference = capture_plan(made, vllm_sizes(1024), "vLLM's list", cost=cost)
    frontier = capture_frontier(made, most=83, largest=1024, cost=cost)
    verdict = compared(designed(frontier, budget_bytes=reference["graph_bytes"][0]), reference)
    assert verdict.better
    assert verdict.saved_ratio is not None and verdict.saved_ratio > 0.5


def test_it_beats_the_list_on_steps_that_it_was_not_made_of(real: Recording) -> None:
    """Chosen on every other step, priced on the rest: an optimum on its own data proves nothing."""
    steps = real.engine_steps.with_row_index("at")
    seen, unseen = (batch_sizes(steps.filter(pl.col("at") % 2 == half)) for half in (0, 1))
    sizes = capture_frontier(seen, most=83, largest=1024)["sizes"].to_list()[-1]
    plan, reference = capture_plan(unseen, sizes, "ours"), capture_plan(unseen, vllm_sizes(1024), "vLLM's list")
    assert compared(plan, reference).better


def test_every_figure_of_the_article_stands_beside_ours() -> None:
    made = batches({4: 10, 12: 10, 40: 2})
    design = capture_frontier(made, most=2).tail(1)
    article = capture_plan(made, ARTICLE_SIZES, "article", graph_count=ARTICLE_GRAPHS)
    verdict = compared(design, capture_plan(made, vllm_sizes(64), "vLLM's list"))
    unseen = Obtained(None, "not_identifiable", "", "ProbeUnavailable: no GPU")
    told = " ".join(graph_claims(unseen, design, article, verdict, "a log").lines)
    for figure in ("4.2 ms → 2.8 ms", "9.1 ms → 6.3 ms", "1.50 and 1.44", "70 %", "cudaGraphBeginCapture"):
        assert figure in told
    assert "cudaStreamBeginCapture" in told and "not identifiable" in told
    row = {"node_count": 1000, "eager_p50_s": 6e-3, "capture_p50_s": 5e-3, "first_launch_p50_s": 2e-3}
    stats = framed("graph_stats", [{**row, "replay_p50_s": 1.5e-3, "taken_bytes": 1, "break_even_count": 2.0}])
    seen = Obtained(ProbeResult("graphs", "measured", {}, {"graph_stats": stats}), "recorded", "GPU X", "")
    last = list(graph_claims(seen, design, article, verdict, "a log"))[-1]
    assert last.ours is not None and "4 times faster" in last.ours
    assert last.obtained == "recorded, GPU X"


def test_no_step_is_faster_than_its_bytes() -> None:
    floors = {(row["model"], row["gpu"], row["batch_count"]): row["floor_s"] for row in memory_floors().to_dicts()}
    assert floors["Llama-2-13B", "A100-SXM-80GB", 16] == pytest.approx(14.4e-3, abs=5e-5)
    assert floors["Qwen2-7B", "H200-SXM", 16] == pytest.approx(3.2e-3, abs=5e-5)
    assert floors["Phi-3-mini", "H100-SXM", 16] == pytest.approx(2.8e-3, abs=5e-5)
    small, large = floor_lines()
    assert "Qwen2-7B" not in small and "Phi-3-mini" in small
    assert "Llama-2-13B" not in large


def test_charts_draw_what_the_frames_hold() -> None:
    frontier = capture_frontier(batches({4: 10, 12: 10, 40: 2}), most=3)
    figure = capture_chart(frontier, capture_plan(batches({4: 1}), (8,), "<b>theirs</b>"))
    assert list(figure.data[0].y) == [*frontier["padding_tokens"].to_list()[:2], None]
    assert "&lt;b&gt;theirs" in figure.data[1].text[0]
    drawn = floors_chart(memory_floors())
    bars = [value for trace in drawn.data if trace.type == "bar" for value in trace.y]
    assert sorted(bars) == sorted(memory_floors()["floor_s"])
