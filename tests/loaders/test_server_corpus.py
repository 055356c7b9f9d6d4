"""Every file of the shared corpus is read as what it is, and the servers' files against arithmetic on their bare text."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest

import infer_diag as diag
from infer_diag.attribution.cold_start import start_frames
from infer_diag.attribution.serving import serving

CORPUS = Path(__file__).parents[3] / "shared" / "corpus"
pytestmark = pytest.mark.skipif(not CORPUS.exists(), reason="the shared corpus is not beside this checkout")

FORMATS = {
    "kineto": {"kineto"},
    "model_loads": {"model-loads"},
    "nsys": {"nsight-systems"},
    "requests": {"azure-llm", "mooncake"},
    "server_logs": {"vllm", "prometheus"},
    "snapshots": {"pytorch-snapshot"},
    "vllm_runs": {"vllm-run", "vllm-run-series", "vllm-run-meta"},
}
FILES = sorted(path for path in CORPUS.glob("*/*") if path.suffix != ".md")
TP4, TINY = "vllm_0.15.0_gpt-oss-120b_tp4_server.log", "vllm_0.32.0_cpu_tiny_llama"


def text(name: str) -> str:
    plain = (CORPUS / "server_logs" / name).read_text(encoding="utf-8", errors="replace")
    return re.sub(r"\x1b\[[0-9;]*m", "", plain)


def numbers(pattern: str, log: str) -> list[tuple[float, ...]]:
    found = [match if isinstance(match, tuple) else (match,) for match in re.findall(pattern, log)]
    return [tuple(float(each) for each in match) for match in found]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_file_is_read_as_what_it_is(path: Path) -> None:
    recording = diag.load(path)
    assert recording.sources[0].format in FORMATS[path.parent.name]
    assert set(recording.rows()) - {"rejected"}
    assert recording.sources[0].rejected_lines == 0
    assert not recording.sources[0].cut


ITERATION = (
    r"Iteration\(\d+\): (\d+) context requests, (\d+) context tokens, (\d+) generation requests, (\d+) generation tokens, "
    r"iteration elapsed time: ([\d.]+) ms"
)
RATES = r"Avg prompt throughput: ([\d.]+) tokens/s, Avg generation throughput: ([\d.]+) tokens/s, Running: (\d+) reqs"


def test_the_steps_of_a_long_log_add_up() -> None:
    told = numbers(ITERATION, text(TP4))
    steps = diag.load(CORPUS / "server_logs" / TP4).engine_steps
    names = ["prefill_count", "prefill_tokens", "decode_count", "decode_tokens"]
    assert len(steps) == len(told) == 7241
    assert [steps[name].sum() for name in names] == [sum(row[place] for row in told) for place in range(4)]
    assert steps["duration_s"].sum() == pytest.approx(sum(row[4] for row in told) / 1e3, abs=1e-9)


def test_the_start_of_a_long_log_is_what_its_lines_print() -> None:
    log = text(TP4)
    (start,) = diag.diagnose(diag.load(CORPUS / "server_logs" / TP4)).to_dict()["starts"]
    loads = [seconds for _, seconds in numbers(r"Model loading took ([\d.]+) GiB memory and ([\d.]+) seconds", log)]
    reads = [seconds for (seconds,) in numbers(r"Loading weights took ([\d.]+) seconds", log)]
    ((init,),) = numbers(r"init engine \([^)]*\) took ([\d.]+) s", log)
    assert start["phases_s"]["weights_load"] == pytest.approx(max(loads), abs=1.0)
    assert start["phases_s"]["weights_read"] == pytest.approx(max(reads), abs=1.0)
    assert start["phases_s"]["init_engine"] == init
    parts = start_frames(diag.load(CORPUS / "server_logs" / TP4)).slices["duration_s"].sum()
    assert parts == pytest.approx(start["span_s"], abs=1e-6)


@pytest.mark.parametrize("name", [TP4, f"{TINY}.log"])
def test_statistics_lines_are_all_there(name: str) -> None:
    told = numbers(RATES, text(name))
    samples = diag.load(CORPUS / "server_logs" / name).engine_samples
    columns = ["prompt_tokens_per_s", "output_tokens_per_s", "running_count"]
    assert samples.select(pl.col(columns).cast(pl.Float64)).rows() == told


def test_a_log_and_its_scrape_tell_of_the_same_requests_and_tokens() -> None:
    log, scrape = (diag.load(CORPUS / "server_logs" / f"{TINY}.{kind}") for kind in ("log", "prom"))
    totals = {row["measure"]: row for row in scrape.request_totals.iter_rows(named=True)}
    exposed = {
        name: float(value)
        for name, value in re.findall(
            r'^(vllm:\w+)\{engine="0",model_name="[^"]*"\} (\S+)$', text(f"{TINY}.prom"), re.M
        )
    }
    assert {row["request_count"] for row in totals.values()} == {60} == {serving(log).request_count}  # type: ignore[union-attr]
    for measure, family in (
        ("ttft_s", "time_to_first_token_seconds"),
        ("queue_s", "request_queue_time_seconds"),
        ("e2e_s", "e2e_request_latency_seconds"),
        ("prompt_tokens", "request_prompt_tokens"),
    ):
        mean = exposed[f"vllm:{family}_sum"] / exposed[f"vllm:{family}_count"]
        assert totals[measure]["mean"] == pytest.approx(mean, rel=1e-12)
    # Each line is the mean over about ten seconds.
    rates = log.engine_samples.select("prompt_tokens_per_s", "output_tokens_per_s").sum().row(0)
    counted = (exposed["vllm:prompt_tokens_total"], exposed["vllm:generation_tokens_total"])
    assert tuple(10 * rate for rate in rates) == pytest.approx(counted, rel=1e-3)
