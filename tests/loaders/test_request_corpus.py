"""The shared corpus of traces and recorded runs, against arithmetic that knows nothing of infer_diag."""

from __future__ import annotations

import csv
import json
import statistics
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import infer_diag as diag

CORPUS = Path(__file__).parents[3] / "shared" / "corpus"
pytestmark = pytest.mark.skipif(not CORPUS.exists(), reason="the shared corpus is not beside this checkout")
RTX4090 = "llmservingsim_RTX4090_Llama-3.1-8B"
PRO6000 = "llmservingsim_RTXPRO6000_Qwen3-30B-A3B-Instruct-2507"


def document(name: str) -> dict[str, Any]:
    return diag.diagnose(diag.load(CORPUS / name)).to_dict()


def finding_ids(told: dict[str, Any]) -> dict[str, str]:
    return {finding["id"]: finding["severity"] for finding in told["findings"]}


@pytest.mark.parametrize(("name", "rows", "variation"), [("code", 8819, 0.951), ("conv", 19366, 0.807)])
def test_azure(name: str, rows: int, variation: float) -> None:
    path = CORPUS / "requests" / f"azure_2023_{name}.csv"
    with path.open(newline="") as file:
        truth = list(csv.DictReader(file))
    requests = diag.load(path).requests
    assert len(requests) == len(truth) == rows
    length = requests["prompt_tokens"].cast(int) + requests["output_tokens"].cast(int)
    assert length.to_list() == [int(row["ContextTokens"]) + int(row["GeneratedTokens"]) for row in truth]
    assert round(length.std() / length.mean(), 3) == variation  # type: ignore[operator]
    moments = [datetime.fromisoformat(row["TIMESTAMP"][:26]) for row in truth]
    seconds = [(moment - min(moments)).total_seconds() for moment in moments]
    assert requests["arrival_s"].to_list() == pytest.approx(seconds, abs=1e-6)
    assert set(finding_ids(document(f"requests/azure_2023_{name}.csv"))) <= {
        "data.not_identifiable",
        "batching.length_variance",
    }


def test_mooncake() -> None:
    path = CORPUS / "requests" / "mooncake_conversation.jsonl"
    truth = [json.loads(line) for line in path.read_text().splitlines()]
    requests = diag.load(path).requests
    assert len(requests) == len(truth) == 12_031
    assert requests["prompt_tokens"].cast(int).sum() == sum(row["input_length"] for row in truth)
    assert requests["output_tokens"].cast(int).sum() == sum(row["output_length"] for row in truth)
    assert requests["arrival_s"].max() == pytest.approx(max(row["timestamp"] for row in truth) / 1e3)


@pytest.mark.parametrize("run", [RTX4090, PRO6000])
def test_recorded_requests(run: str) -> None:
    name = f"vllm_runs/{run}_requests.jsonl"
    truth = [json.loads(line) for line in (CORPUS / name).read_text().splitlines()]
    told = document(name)["serving"]
    ttft = [row["first_token_ts"] - row["queued_ts"] for row in truth]
    queue = [row["scheduled_ts"] - row["queued_ts"] for row in truth]
    tpot = [(row["last_token_ts"] - row["first_token_ts"]) / (row["output_toks"] - 1) for row in truth]
    assert told["requests"]["count"] == len(truth) == 300
    assert told["requests"]["ttft_s"]["p50"] == pytest.approx(statistics.median(ttft), abs=1e-5)
    assert told["requests"]["queue_s"]["mean"] == pytest.approx(statistics.mean(queue), abs=1e-5)
    assert told["requests"]["tpot_s"]["mean"] == pytest.approx(statistics.mean(tpot), abs=1e-5)
    assert told["requests"]["output_tokens"]["max"] == max(row["output_toks"] for row in truth)


def test_the_rtx_4090_waits() -> None:
    told = document(f"vllm_runs/{RTX4090}_requests.jsonl")
    requests = told["serving"]["requests"]
    assert round(requests["ttft_s"]["p50"], 1) == 60.1
    assert requests["queue_s"]["mean"] >= 0.98 * requests["ttft_s"]["mean"]
    assert finding_ids(told)["batching.queue"] == "high"
    assert "data.clock_conflict" not in finding_ids(told)


def test_the_other_run_does_not_wait() -> None:
    told = document(f"vllm_runs/{PRO6000}_requests.jsonl")
    assert told["serving"]["shares"]["queue"] < 0.05
    assert not {each for each in finding_ids(told) if each.startswith("batching.")}


def test_series() -> None:
    full, unfilled = (document(f"vllm_runs/{run}_timeseries.csv") for run in (RTX4090, PRO6000))
    with (CORPUS / "vllm_runs" / f"{RTX4090}_timeseries.csv").open(newline="") as file:
        truth = list(csv.DictReader(file))
    assert full["serving"]["samples"] == len(truth)
    assert full["serving"]["kv_usage_ratio"]["mean"] == pytest.approx(
        statistics.mean(float(row["kv_cache_pct"]) for row in truth) / 100, abs=1e-6
    )
    assert full["serving"]["output_tokens_per_s"]["max"] == max(float(row["gen_throughput"]) for row in truth)
    assert finding_ids(full)["batching.kv_saturation"] == "high"
    assert unfilled["serving"]["kv_usage_ratio"] is None
    assert "data.implausible" in finding_ids(unfilled) and "batching.kv_saturation" not in finding_ids(unfilled)


def test_set_up() -> None:
    row = diag.load(CORPUS / "vllm_runs" / f"{RTX4090}_meta.json").deployments.row(0, named=True)
    truth = json.loads((CORPUS / "vllm_runs" / f"{RTX4090}_meta.json").read_text())
    assert row["kv_cache_tokens"] == truth["kv_cache"]["num_gpu_blocks"] * truth["kv_cache"]["block_size"] == 41_408
    assert (row["gpu"], row["engine_version"]) == ("NVIDIA GeForce RTX 4090", "0.19.0")


def test_a_run_as_a_folder() -> None:
    whole = diag.load(*sorted(CORPUS.glob(f"vllm_runs/{RTX4090}_*")))
    assert {source.format for source in whole.sources} == {"vllm-run", "vllm-run-series", "vllm-run-meta"}
    assert len(whole.requests) == 300
