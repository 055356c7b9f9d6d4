"""A simulated run written as vLLM's log and metrics comes back out of the loaders as it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import infer_diag as diag
from infer_diag.recording import Recording
from infer_diag.simulators.serving import EngineSettings, Simulation, StepTime, lognormal_tokens, simulate, workload
from infer_diag.simulators.serving.log_text import log_text, metrics_text

COUNT = 120
ASKED = workload(
    np.cumsum(np.random.default_rng(1).exponential(0.08, COUNT)),
    lognormal_tokens(COUNT, mean=300, cv=1.0, seed=2, longest=1500),
    lognormal_tokens(COUNT, mean=100, cv=0.8, seed=3, longest=600),
)
STEP = StepTime(0.01, 6e-5, 1.5e-4)


def run(**options: object) -> Simulation:
    settings = EngineSettings(max_num_seqs=32, kv_cache_tokens=8000, **options)  # type: ignore[arg-type]
    return simulate(ASKED, settings, STEP, sample_every_s=1.0)


def read(text: str, path: Path) -> Recording:
    path.write_text(text)
    return diag.load(str(path), year=2000)


@pytest.mark.parametrize("engines", [1, 2])
def test_the_log_tells_the_same_steps_and_samples(engines: int, tmp_path: Path) -> None:
    truth = run(data_parallel_size=engines)
    told = read(log_text(truth), tmp_path / "server.log")
    assert told.sources[0].format == "vllm"
    assert told.sources[0].rejected_lines == 0
    counts = ["kind", "prefill_count", "decode_count", "prefill_tokens", "decode_tokens"]
    assert told.engine_steps.select(counts).equals(truth.engine_steps.select(counts))
    printed = truth.engine_steps["duration_s"].to_numpy()
    assert np.abs(told.engine_steps["duration_s"].to_numpy() - printed).max() < 5.1e-6
    assert told.engine_steps["replica"].n_unique() == engines
    numbers = ["running_count", "waiting_count"]
    assert told.engine_samples.select(numbers).equals(truth.engine_samples.select(numbers))
    for name, digits in (("prompt_tokens_per_s", 0.06), ("output_tokens_per_s", 0.06), ("kv_usage_ratio", 0.0006)):
        assert (told.engine_samples[name] - truth.engine_samples[name]).abs().max() < digits  # type: ignore[operator]


def test_the_log_tells_the_same_settings_and_requests(tmp_path: Path) -> None:
    told = read(log_text(run()), tmp_path / "server.log")
    known = told.deployments.select(pl.all().drop_nulls().last()).row(0, named=True)
    assert (known["max_running_count"], known["max_batch_tokens"], known["kv_cache_tokens"]) == (32, 2048, 8000)
    assert told.requests["request_id"].to_list() == list(ASKED.request_ids)


def test_the_metrics_tell_the_same_sums(tmp_path: Path) -> None:
    truth = run()
    told = read(metrics_text(truth), tmp_path / "metrics.prom")
    totals = {row["measure"]: row for row in told.request_totals.iter_rows(named=True)}
    done = truth.requests
    spans = {
        "ttft_s": done["first_token_s"] - done["arrival_s"],
        "e2e_s": done["last_token_s"] - done["arrival_s"],
        "queue_s": done["scheduled_s"] - done["queued_s"],
        "prefill_s": done["first_token_s"] - done["scheduled_s"],
        "decode_s": done["last_token_s"] - done["first_token_s"],
        "prompt_tokens": done["prompt_tokens"],
        "output_tokens": done["output_tokens"],
    }
    for measure, values in spans.items():
        assert totals[measure]["request_count"] == COUNT
        assert totals[measure]["mean"] == pytest.approx(values.mean())
        assert sum(totals[measure]["bucket_counts"]) == COUNT
    preempted = told.engine_samples["preemption_count"].to_list()
    assert preempted == [truth.requests["preemption_count"].sum()]


def test_the_text_says_that_it_is_simulated() -> None:
    assert "simulated" in log_text(run()).splitlines()[0]
    assert "simulated" in metrics_text(run()).splitlines()[0]
