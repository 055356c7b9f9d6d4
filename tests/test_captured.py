"""The diagnosis of the recorded runs, held against what the client and the server's counters measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import infer_diag as diag

CAPTURED = Path(__file__).resolve().parent.parent / "sample_logs" / "captured"
SERVED = ("plain", "sequence_limit", "kv_preempts", "long_short_bursts", "two_starts")
STEPPED = ("plain", "kv_preempts", "long_short_bursts")


@cache
def diagnosed(name: str) -> diag.Diagnosis:
    return diag.diagnose(diag.load(CAPTURED / name / "server.log"))


@cache
def truth(name: str) -> list[dict[str, Any]]:
    """What the client saw of each start."""
    return json.loads((CAPTURED / name / "meta.json").read_text())["starts"]


def summed(name: str, number: Callable[[dict[str, Any]], float]) -> float:
    return sum(number(start) for start in truth(name))


def ids(name: str) -> set[str]:
    return {finding.id for finding in diagnosed(name).findings}


@pytest.mark.parametrize("name", SERVED)
def test_every_finished_request_is_counted(name: str) -> None:
    served = diagnosed(name).to_dict()["serving"]
    assert served["requests"]["count"] == summed(name, lambda start: start["client"]["finished"])


@pytest.mark.parametrize("name", SERVED)
def test_each_start_is_found_and_was_ready_when_the_client_saw_it(name: str) -> None:
    starts = diagnosed(name).to_dict()["starts"]
    assert [start["outcome"] for start in starts] == ["ready"] * len(truth(name))
    for start, seen in zip(starts, truth(name), strict=True):
        # The first line comes seconds after the launch: what passes before it is in no log.
        assert seen["ready_after_s"] - 15 <= start["span_s"] <= seen["ready_after_s"] + 1


@pytest.mark.parametrize("name", SERVED)
def test_parts_and_gaps_of_a_start_add_up_to_its_span(name: str) -> None:
    frames = diagnosed(name).cold_start
    whole = frames.slices.group_by("start_id").agg(pl.col("duration_s").sum().round(6))
    spans = frames.summary.select("start_id", pl.col("span_s").round(6))
    assert whole.join(spans, on="start_id").filter(pl.col("duration_s") != pl.col("span_s")).is_empty()


@pytest.mark.parametrize("name", STEPPED)
def test_steps_compute_the_prompts_that_the_client_sent(name: str) -> None:
    steps = diagnosed(name).recording.engine_steps
    counters = [start["server_counters"] for start in truth(name)]
    assert steps["prefill_tokens"].sum() == sum(
        each["prompt_tokens"] - each["prompt_tokens_cached"] for each in counters
    )


@pytest.mark.parametrize("name", STEPPED)
def test_steps_compute_the_outputs_that_the_client_got_and_what_preemption_lost(name: str) -> None:
    computed = diagnosed(name).recording.engine_steps["decode_tokens"].sum()
    # The first token of each request comes out of its prefill.
    expected = summed(name, lambda start: start["client"]["output_tokens"] - start["client"]["finished"])
    preempted = summed(name, lambda start: start["server_counters"]["preemptions"])
    assert computed == expected if preempted == 0 else computed > expected


@pytest.mark.parametrize("name", SERVED)
def test_the_mean_rate_agrees_with_the_clients(name: str) -> None:
    rate = diagnosed(name).to_dict()["serving"]["output_tokens_per_s"]["mean"]
    client = summed(name, lambda start: start["client"]["output_tokens"]) / summed(
        name, lambda start: start["client"]["wall_s"]
    )
    # Statistics come every 10 s, and idle seconds at either end count in them but not in the client's wall time.
    assert 0.6 * client <= rate <= 1.2 * client


@pytest.mark.parametrize("name", SERVED)
def test_preemptions_are_never_told_wrong(name: str) -> None:
    counted = summed(name, lambda start: start["server_counters"]["preemptions"])
    assert diagnosed(name).to_dict()["serving"]["preemptions"] in (None, counted)
    assert ("batching.preemption_suspected" in ids(name)) == (counted > 0)


def test_what_limits_each_run_is_found_and_nothing_else_is() -> None:
    assert "batching.concurrency_cap" in ids("sequence_limit")
    assert "batching.kv_saturation" in ids("kv_preempts")
    assert "batching.burst" in ids("long_short_bursts")
    limits = {"batching.concurrency_cap", "batching.kv_saturation", "batching.burst", "batching.preemption_suspected"}
    assert not limits & ids("plain")
    assert not limits & ids("two_starts")
    assert limits & ids("sequence_limit") == {"batching.concurrency_cap"}


def test_a_server_that_was_killed_is_neither_ready_nor_failed() -> None:
    (start,) = diagnosed("killed_mid_load").to_dict()["starts"]
    assert start["outcome"] not in ("ready", "failed")
    assert diagnosed("killed_mid_load").to_dict()["serving"] is None
