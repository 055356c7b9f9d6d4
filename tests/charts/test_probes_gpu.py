"""The charts of a CUDA context, of a flag's test, of launches and of quantised layouts."""

from __future__ import annotations

from typing import Any

import polars as pl

from infer_diag.charts import probes_gpu
from infer_diag.probes.context.planted import planted_pairs
from infer_diag.probes.context.readings import article_rows, flag_effect, step_stats
from infer_diag.probes.result import framed


def stats(**median_s: float) -> pl.DataFrame:
    rows = [
        {"repeat_id": repeat, "step": step, "duration_s": seconds * factor}
        for step, seconds in median_s.items()
        for repeat, factor in enumerate((0.9, 1.0, 1.0, 1.1), 1)
    ]
    return step_stats(framed("context_steps", rows))


def article(**median_s: float) -> pl.DataFrame:
    return framed("context_article", article_rows(stats(**median_s)))


def traces(figure: Any) -> dict[str, dict[str, Any]]:
    return {trace["name"]: trace for trace in figure.to_dict()["data"]}


def test_without_a_measurement_only_the_article_is_drawn_and_the_chart_says_so() -> None:
    figure = probes_gpu.context_article_chart(article(), basis="not_identifiable", place="")
    assert list(traces(figure)) == ["the article, A100", "the article, H100"]
    assert "no figure of ours" in figure.layout.title.subtitle.text
    assert traces(figure)["the article, A100"]["y"] == [8.2e-3, 147.6e-3, 63.4e-3]


def test_a_measurement_stands_beside_the_article() -> None:
    figure = probes_gpu.context_article_chart(article(context=0.2, discovery=0.01), basis="recorded", place="GPU <x>")
    ours = traces(figure)["recorded on GPU &lt;x&gt;"]
    assert ours["y"] == [0.01, 0.2, None]


def test_steps_keep_their_order_and_their_quartiles() -> None:
    figure = probes_gpu.context_steps_chart(stats(init=0.1, first_kernel=0.02), basis="measured", place="GPU")
    drawn = traces(figure)
    assert drawn["median"]["y"] == ["init", "first kernel"] and drawn["median"]["x"] == [0.1, 0.02]
    low, high, gap = drawn["quartiles"]["x"][:3]
    assert low < 0.1 < high and gap is None


def test_every_pair_is_joined_and_its_effect_told() -> None:
    pairs = planted_pairs(0.012, pairs=8)
    figure = probes_gpu.flag_pairs_chart(pairs, flag_effect(pairs), title="t", basis="simulated")
    drawn = traces(figure)
    assert drawn["pair"]["y"][:2] == [pairs["without_flag_s"][0], pairs["with_flag_s"][0]]
    assert drawn["with CU_CTX_MAP_HOST"]["y"] == pairs["with_flag_s"].to_list()
    said = figure.layout.title.subtitle.text
    assert said.startswith("simulated · difference") and said.endswith("8 pairs")


def test_too_few_pairs_have_no_interval() -> None:
    pairs = planted_pairs(0.0, pairs=3)
    figure = probes_gpu.flag_pairs_chart(pairs, flag_effect(pairs), title="t", basis="measured")
    assert figure.layout.title.subtitle.text == "measured · too few pairs for an interval"


def test_launches_are_drawn_by_kernel_in_their_order() -> None:
    rows = [
        {"kernel": name, "launch_id": launch, "duration_s": 1.0 / launch, "read_bytes": 8, "written_bytes": 8}
        | {"bytes_per_s": 16.0 * launch}
        for name in ("gptq_act_order", "awq")
        for launch in (2, 1, 3)
    ]
    figure = probes_gpu.launches_chart(framed("kernel_runs", rows), title="t", basis="measured", place="GPU")
    drawn = traces(figure)
    assert list(drawn) == ["gptq act order", "awq"]
    assert drawn["awq"]["x"] == [1, 2, 3] and drawn["awq"]["y"] == [1.0, 0.5, 1 / 3]
    assert figure.layout.yaxis.type == "log"


def test_sizes_are_drawn_by_format() -> None:
    sizes = pl.DataFrame({"model": ["a", "b"] * 2, "form": ["fp8", "fp8", "awq", "awq"], "size_bytes": [8.0, 6, 4, 3]})
    drawn = traces(probes_gpu.weight_sizes_chart(sizes))
    assert {name: trace["x"] for name, trace in drawn.items()} == {"fp8": [8.0, 6.0], "awq": [4.0, 3.0]}


def test_the_scattered_layout_lies_below_the_orderly_one() -> None:
    parts = {"sequential": ([0, 0, 1, 1], 2), "act-order": ([1, 0, 1, 0], 4)}
    frame = pl.concat(
        pl.DataFrame({"layout": name, "input_id": [0, 1, 2, 3], "group_id": groups, "row_count": count})
        for name, (groups, count) in parts.items()
    )
    figure = probes_gpu.group_index_chart(frame)
    assert list(traces(figure)) == ["act-order: 4 rows of scales", "sequential: 2 rows of scales"]
    assert list(figure.data[1].y) == [0, 0, 1, 1]
