from __future__ import annotations

from datetime import timedelta

import made
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infer_diag import schema
from infer_diag.attribution.timeline import serving_timeline, step_sizes
from infer_diag.recording import Clock, Recording

KINDS = st.sampled_from(["prefill", "decode", "mixed", "idle"])
STEP = st.tuples(
    st.integers(0, 400_000), KINDS, st.integers(0, 300), st.integers(0, 9000), st.floats(0, 10, allow_nan=False)
)


def steps_of(told: list[tuple[int, str, int, int, float]]) -> pl.DataFrame:
    rows = [
        {
            "time": made.T0 + timedelta(seconds=at),
            "kind": kind,
            "prefill_count": 0,
            "decode_count": batch,
            "prefill_tokens": tokens,
            "decode_tokens": batch,
            "duration_s": seconds,
            "source_id": 0,
            "line": 1,
        }
        for at, kind, batch, tokens, seconds in told
    ]
    return made.frame(schema.EngineSteps, rows)


@given(st.lists(STEP, min_size=1, max_size=60), st.integers(2, 50))
@settings(deadline=None, max_examples=60)
def test_bins_keep_every_step_and_stay_within_the_points(
    told: list[tuple[int, str, int, int, float]], points: int
) -> None:
    steps = steps_of(told)
    made_of = serving_timeline(Recording(engine_steps=steps), points)
    assert made_of.bins["step_count"].sum() == len(steps)
    assert made_of.bins["duration_s"].sum() == pytest.approx(steps["duration_s"].sum())
    width_s = made_of.bins["width_s"][0]
    assert made_of.bins["width_s"].n_unique() == 1
    assert len(made_of.rates) <= points + 2
    assert made_of.rates["prompt_tokens_per_s"].sum() * width_s == pytest.approx(steps["prefill_tokens"].sum())


@given(st.lists(STEP, max_size=60))
@settings(deadline=None, max_examples=60)
def test_sizes_keep_every_busy_step(told: list[tuple[int, str, int, int, float]]) -> None:
    steps = steps_of(told)
    sizes = step_sizes(steps, ranges=16)
    assert sizes["step_count"].sum() == len(steps.filter((pl.col("kind") != "idle") & (pl.col("decode_count") > 0)))
    assert sizes["batch_count"].n_unique() <= 16
    assert (sizes["p50_duration_s"] <= sizes["p95_duration_s"]).all()


def test_an_interval_without_a_step_has_no_rate() -> None:
    rates = serving_timeline(
        Recording(engine_steps=steps_of([(0, "decode", 4, 0, 0.1), (3, "decode", 6, 0, 0.1)]))
    ).rates
    assert rates["output_tokens_per_s"].to_list() == [4.0, None, None, 6.0]


def test_samples_stay_as_they_are_until_there_are_too_many() -> None:
    samples = made.samples()
    assert serving_timeline(Recording(engine_samples=samples)).samples.equals(samples)
    thinned = serving_timeline(Recording(engine_samples=samples), points=2).samples
    assert len(thinned) < len(samples)
    assert thinned["preemption_count"].sum() == samples["preemption_count"].sum()


def test_steps_without_a_stamp_have_no_place() -> None:
    steps = made.steps().with_columns(time=pl.lit(None, pl.Datetime("us", "UTC")))
    told = serving_timeline(Recording(engine_steps=steps))
    assert told.bins.is_empty() and told.rates.is_empty()


def test_an_undated_source_does_not_stand_beside_a_dated_one() -> None:
    dated = made.source("dated.log")
    undated = made.source("undated.log")
    object.__setattr__(dated, "clocks", (Clock("inner", "2026-02-01 13:17:26"),))
    samples = pl.concat([made.samples(), made.samples().with_columns(source_id=pl.lit(1, pl.UInt32))])
    told = serving_timeline(Recording(sources=(undated, dated), engine_samples=samples))
    assert told.samples["source_id"].unique().to_list() == [1]
