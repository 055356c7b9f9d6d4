"""The figures of the article's sections 2.1 to 2.3: all of them stand in a table, and ours say how they came about."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from infer_diag import samples
from infer_diag.probes.context.planted import planted_pairs
from infer_diag.probes.context.readings import flag_effect, step_stats
from infer_diag.probes.obtained import Obtained
from infer_diag.probes.quantisation.reference_runs import SORTED_ONCE, reference_runs
from infer_diag.probes.result import ProbeResult, framed, read_result
from infer_diag.report import claims_context, claims_quantisation, claims_weights

NOTHING = Obtained(None, "not_identifiable", "", "ProbeUnavailable: no GPU")


def got(probe: str, frames: dict[str, pl.DataFrame], how: str = "recorded") -> Obtained:
    return Obtained(ProbeResult(probe, "measured", {}, frames), how, "GPU X", "")


def told(claims: Any) -> str:
    return " ".join(f"{claim.article} {claim.ours} {claim.correction}" for claim in claims)


@pytest.fixture(scope="module")
def reference() -> pl.DataFrame:
    return reference_runs(256, 256, count=4)


@pytest.fixture(scope="module")
def starts() -> tuple[ProbeResult, ProbeResult]:
    cold, warm = (samples.path(f"captured/pipeline_{name}") / "probe_pipeline.json" for name in ("cold", "warm"))
    return read_result(cold), read_result(warm)


def context(**seconds: float) -> Obtained:
    rows = [{"repeat_id": n, "step": name, "duration_s": each} for n in range(4) for name, each in seconds.items()]
    steps, pairs = framed("context_steps", rows), planted_pairs(0.0)
    return got("context", {"context_step_stats": step_stats(steps), "flag_effect": flag_effect(pairs)})


def test_every_figure_of_the_context_section_is_there() -> None:
    text = told(claims_context.context_claims(NOTHING))
    for figure in (
        "8.2",
        "5.1",
        "147.6",
        "92.3",
        "63.4",
        "38.7",
        "219.2",
        "136.1",
        "12 ms",
        "18 %",
        "1.61, 1.60, 1.64",
    ):
        assert figure in text


def test_without_a_gpu_no_figure_of_one_is_given() -> None:
    claims = list(claims_context.context_claims(NOTHING))
    assert {claim.how for claim in claims if claim.ours is not None} == {"modelled", "bounded"}


def test_a_recorded_context_fills_the_table_and_says_where_from() -> None:
    claims = list(claims_context.context_claims(context(discovery=0.01, context=0.2, map_host=0.04)))
    ours = {claim.subject: claim for claim in claims}
    assert ours["context creation"].ours == "200 ms"
    assert ours["the three stages together"].ours == "250 ms"
    assert ours["what dominates"].ours == "80 % is context creation"
    assert ours["context creation"].obtained == "recorded, on GPU X"
    assert "30 pairs" in str(ours["CU_CTX_MAP_HOST costs"].ours)
    assert ours["reuse of a context"].ours is None


def test_a_stage_that_was_not_measured_is_not_summed_over() -> None:
    ours = {claim.subject: claim.ours for claim in claims_context.context_claims(context(context=0.2))}
    assert ours["context creation"] == "200 ms" and ours["the three stages together"] is None


def test_the_articles_columns_are_one_factor_apart_and_its_flag_cannot_save_what_it_says() -> None:
    factor, error = claims_context.one_factor()
    assert factor == pytest.approx(219.2 / 136.1) and error < 0.02
    assert max(claims_context.flag_shares().values()) < claims_context.ARTICLE_SAVING_RATIO / 2
    unlike = {"a": ("", 2.0, 1.0), "b": ("", 1.0, 1.0)}
    assert claims_context.one_factor(unlike)[1] > 0.2


@pytest.mark.parametrize("effect_s", [0.0, 0.012])
@pytest.mark.parametrize("seed", range(3))
def test_the_flags_test_finds_what_was_planted(effect_s: float, seed: int) -> None:
    found = flag_effect(planted_pairs(effect_s, pairs=60, scatter_s=0.002, seed=seed)).row(0, named=True)
    other = 0.012 - effect_s
    assert abs(found["difference_s"] - effect_s) < 0.003
    assert not found["lower_s"] <= other <= found["upper_s"]


def cache(once: float | None = 0.25, empty: float | None = 0.0) -> pl.DataFrame:
    calls = [
        ("read", 1.0),
        ("DONTNEED", empty),
        ("one WILLNEED", once),
        ("DONTNEED", empty),
        ("WILLNEED in steps", 1.0),
    ]
    row = {"repeat_id": 1, "file_bytes": 64 << 20, "duration_s": 0.0}
    rows = [
        {**row, "sequence": sequence, "step_id": place, "call": call, "resident_ratio": ratio, "resident_bytes": None}
        for sequence, part in (("stepwise", calls), ("article", calls[:3]))
        for place, (call, ratio) in enumerate(part, 1)
    ]
    return framed("cache_steps", rows)


def storage(steps: pl.DataFrame) -> Obtained:
    rate = {"run_count": 5, "q1_bytes_per_s": None, "q3_bytes_per_s": None, "is_wide": None, "cache": "cold"}
    rates = [{"method": "read", "p50_bytes_per_s": 1e9, **rate}, {"method": "mmap", "p50_bytes_per_s": 5e8, **rate}]
    settings = [{"setting": "read_expire", "value": "500 ms", "reading": "r"}, {"setting": "scheduler", "reading": "r"}]
    frames = {
        "cache_steps": steps,
        "read_rates": framed("read_rates", rates),
        "block_settings": framed("block_settings", settings),
    }
    return got("weights", frames, "measured")


def test_the_cache_is_judged_by_what_was_seen() -> None:
    said = claims_weights.cache_lines(storage(cache()))
    assert [line.rsplit(": ", 1)[1] for line in said] == ["yes", "no", "yes", "no"]
    said = claims_weights.cache_lines(storage(cache(once=1.0)))
    assert [line.rsplit(": ", 1)[1] for line in said] == ["yes", "yes", "yes", "yes"]


@pytest.mark.parametrize(("empty", "first"), [(1.0, "no"), (None, "unknown")])
def test_where_the_cache_cannot_be_emptied_nothing_is_said_of_what_follows(empty: float | None, first: str) -> None:
    said = claims_weights.cache_lines(storage(cache(once=1.0, empty=empty)))
    assert [line.rsplit(": ", 1)[1] for line in said[:4]] == [first, "unknown", "unknown", "unknown"]
    assert "try another" in said[4] and len(said) == 5


def test_without_a_measurement_the_cell_says_why() -> None:
    assert claims_weights.cache_lines(NOTHING) == [NOTHING.said]


def test_every_figure_of_the_weights_section_is_there(starts: tuple[ProbeResult, ProbeResult]) -> None:
    for each in (NOTHING, storage(cache())):
        text = told(claims_weights.weights_claims(each, *starts))
        for figure in ("+38 %", "+12 %", "500 ms", "1240 ms", "2180 ms", "+1.8 GB", "320 ms", "345 ms", "+0.3 GB"):
            assert figure in text


def test_what_storage_showed_stands_beside_the_articles_advice(starts: tuple[ProbeResult, ProbeResult]) -> None:
    ours = {claim.subject: claim for claim in claims_weights.weights_claims(storage(cache()), *starts)}
    assert ours["DONTNEED, then one WILLNEED"].ours == "25 % of 64 MiB cached"
    assert ours["mmap in place of reading"].ours == "cold, × 0.50 of a plain read"
    assert ours["scheduler on SSD"].how == "not_identifiable"
    assert ours["Hugging Face pipeline, cold start"].how == "recorded"
    hidden = {claim.subject: claim for claim in claims_weights.weights_claims(storage(cache(1.0, 1.0)), *starts)}
    assert hidden["DONTNEED, then one WILLNEED"].ours is None


def test_a_start_asks_for_its_bytes_over_its_seconds() -> None:
    needed = claims_weights.needed_bytes_per_s()
    assert (needed["needed_bytes_per_s"] * needed["start_s"] - needed["size_bytes"]).abs().max() < 1  # type: ignore[operator]
    assert needed["needed_bytes_per_s"].max() > claims_weights.PCIE5_BYTES_PER_S  # type: ignore[operator]


def test_every_figure_of_the_formats_section_is_there(reference: pl.DataFrame) -> None:
    text = told(claims_quantisation.quantisation_claims(NOTHING, reference))
    for figure in ("18.7", "9.2", "22.3", "3.1", "2.1", "0.8", "27.9", "25.4", "2.9", "ValueError"):
        assert figure in text


def test_launches_on_a_gpu_fill_the_table(reference: pl.DataFrame) -> None:
    claims = list(claims_quantisation.quantisation_claims(got("quantisation", {"kernel_runs": reference}), reference))
    launched = [claim for claim in claims if "decompression" in claim.subject or "warm-up" in claim.subject]
    assert len(launched) == 6 and {claim.obtained for claim in launched} == {"recorded, on GPU X"}
    one = got("quantisation", {"kernel_runs": reference.filter(pl.col("launch_id") == 1)})
    later = [claim for claim in claims_quantisation.quantisation_claims(one, reference) if "warm-up" in claim.subject]
    assert {claim.how for claim in later} == {"not_identifiable"}


def test_every_format_is_unpacked_as_often_as_asked(reference: pl.DataFrame) -> None:
    assert reference["launch_id"].to_list() == [1, 2, 3, 4] * 5
    assert SORTED_ONCE in reference["kernel"]
    each = dict(reference.select("kernel", "read_bytes").unique().iter_rows())
    assert each["awq"] < each["gptq"] == each["gptq_act_order"] == each[SORTED_ONCE] < each["fp8"]
    with pytest.raises(ValueError, match="no later launch"):
        claims_quantisation.later_over_first(reference.filter(pl.col("launch_id") == 1), "awq")


def test_act_order_scatters_groups_and_sorting_undoes_it() -> None:
    counts = dict(claims_quantisation.layouts(inputs=1024).select("layout", "row_count").unique().iter_rows())
    assert counts["sequential"] == counts["act-order sorted at load"] == 8
    assert counts["act-order"] > 500


def test_nothing_is_claimed_that_the_kernel_or_the_gpu_did_not_show(reference: pl.DataFrame) -> None:
    for claims in (
        claims_context.context_claims(NOTHING),
        claims_quantisation.quantisation_claims(NOTHING, reference),
    ):
        assert not [claim for claim in claims if claim.how == "recorded"]
