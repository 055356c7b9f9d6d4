"""What vLLM's and SGLang's lines say, version by version."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import written
from test_shapes import read

from infer_diag.errors import LogFormatError

VLLM_PHASES = [
    ("Time spent downloading weights for org/m: 12.345678 seconds", "weights_fetch", 12.345678),
    ("Loading weights took 5.52 seconds", "weights_read", 5.52),
    ("Model loading took 14.9888 GiB and 6.884285 seconds", "weights_load", 6.884285),
    ("Model loading took 14.99 GiB memory and 6.884285 seconds", "weights_load", 6.884285),
    ("Dynamo bytecode transform time: 5.86 s", "compile_dynamo", 5.86),
    ("[backbone] Dynamo bytecode transform time: 5.86 s", "compile_dynamo", 5.86),
    ("Compiling a graph for general shape takes 24.53 s", "compile_graph", 24.53),
    ("Compiling a graph for dynamic shape takes 24.53 s", "compile_graph", 24.53),
    ("Compiling a graph for shape 8 takes 3.21 s", "compile_graph", 3.21),
    ("Compiling a graph for compile range (1, 8192) takes 24.53 s", "compile_graph", 24.53),
    ("Directly load the compiled graph(s) for shape None from the cache, took 4.321 s", "compile_graph", 4.321),
    (
        "Directly load the compiled graph(s) for compile range (1, 8192) from the cache, took 0.913 s",
        "compile_graph",
        0.913,
    ),
    ("torch.compile takes 31.20 s in total", "compile", 31.2),
    ("torch.compile took 31.20 s in total", "compile", 31.2),
    ("Initial profiling/warmup run took 2.34 s", "kv_profile", 2.34),
    ("Memory profiling takes 11.94 seconds", "kv_profile", 11.94),
    ("Graph capturing finished in 23 secs.", "graph_capture", 23.0),
    ("Graph capturing finished in 23 secs, took 0.52 GiB", "graph_capture", 23.0),
    ("Encoder graph capturing finished in 3 secs, took 0.10 GiB (12 graphs)", "graph_capture", 3.0),
    ("init engine (profile, create kv cache, warmup model) took 65.43 seconds", "init_engine", 65.43),
    ("init engine (profile, create kv cache, warmup model) took 65.43 s", "init_engine", 65.43),
    ("Chat template warmup completed in 3038.7ms", "warmup", 3.0387),
]


@pytest.mark.parametrize(("message", "phase", "seconds"), VLLM_PHASES)
@pytest.mark.parametrize("place", ["worker.py:266]", "[core.py:77]", "[v1/engine/core.py:77]"])
def test_vllm_durations(tmp_path: Path, message: str, phase: str, seconds: float, place: str) -> None:
    recording = read(tmp_path, [f"INFO 01-23 12:34:56 {place} {message}"], format="vllm")
    rows = recording.phases.select("phase", "duration_s").rows()
    assert rows == [(phase, pytest.approx(seconds))]


def test_vllm_init_line_tells_its_compilation_too(tmp_path: Path) -> None:
    message = "init engine (profile, create kv cache, warmup model) took 65.43 s (compilation: 40.00 s — language_model: 31.20 s, encoder: 8.80 s)"
    recording = read(tmp_path, [f"(EngineCore pid=1) INFO 01-23 12:34:56 [core.py:77] {message}"])
    assert dict(recording.phases.select("phase", "duration_s").rows()) == {"init_engine": 65.43, "compile": 40.0}


def test_resolution_is_half_of_the_last_digit(tmp_path: Path) -> None:
    recording = read(tmp_path, written.vllm_lines())
    resolution = dict(
        recording.phases.filter(rank="TP0").drop_nulls("resolution_s").select("phase", "resolution_s").rows()
    )
    assert resolution["graph_capture"] == pytest.approx(0.5)
    assert resolution["weights_read"] == pytest.approx(0.005)
    assert resolution["weights_load"] == pytest.approx(5e-7)


STATISTICS = [
    ("Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 12.3 tokens/s, Running: 3 reqs, Swapped: 1 reqs, Pending: 2 reqs, "
     "GPU KV cache usage: 4.5%, CPU KV cache usage: 0.0%", 1, None, None),
    ("Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 12.3 tokens/s, Running: 3 reqs, Swapped: 1 reqs, Pending: 2 reqs, "
     "GPU KV cache usage: 4.5%, CPU KV cache usage: 0.0%.", 1, None, None),
    ("Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 12.3 tokens/s, Running: 3 reqs, Waiting: 2 reqs, "
     "GPU KV cache usage: 4.5%, Prefix cache hit rate: 10.0%", None, None, 0.1),
    ("Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 12.3 tokens/s, Running: 3 reqs, Waiting: 2 reqs, "
     "Preemptions: 4, GPU KV cache usage: 4.5%, Prefix cache hit rate: 10.0%, External prefix cache hit rate: 1.0%", None, 4, 0.1),
    ("Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 12.3 tokens/s, Running: 3 reqs, Waiting: 2 reqs, "
     "Deferred: 1 reqs, KV fetch: 1 waiting to start, 2 in progress, 3 completed waiting, Preemptions: 4, XPU KV cache usage: 4.5%",
     None, 4, None),
]  # fmt: skip


@pytest.mark.parametrize(("message", "swapped", "preempted", "hits"), STATISTICS)
def test_vllm_statistics(
    tmp_path: Path, message: str, swapped: int | None, preempted: int | None, hits: float | None
) -> None:
    sample = read(tmp_path, [f"INFO 01-23 12:34:56 [loggers.py:9] {message}"]).engine_samples.row(0, named=True)
    assert (sample["running_count"], sample["waiting_count"], sample["output_tokens_per_s"]) == (3, 2, 12.3)
    assert sample["kv_usage_ratio"] == pytest.approx(0.045)
    assert (sample["swapped_count"], sample["preemption_count"], sample["prefix_hit_ratio"]) == (
        swapped,
        preempted,
        hits,
    )


def test_a_damaged_line_is_kept_with_its_number(tmp_path: Path) -> None:
    lines = [*written.vllm_lines(), "INFO 03-14 09:30:00 [core.py:1] Loading weights took ??? seconds"]
    recording = read(tmp_path, lines)
    assert recording.rejected.select("line", "rule").rows() == [(len(lines), "Loading weights took")]
    assert recording.sources[0].rejected_lines == 1
    with pytest.raises(LogFormatError, match=f":{len(lines)} is damaged"):
        read(tmp_path, lines, strict=True)


def test_lines_that_no_rule_knows_are_counted(tmp_path: Path) -> None:
    before = read(tmp_path, written.vllm_lines()).sources[0]
    after = read(tmp_path, [*written.vllm_lines(), "hello", "INFO 03-14 09:30:00 [x.py:1] news of tomorrow"]).sources[0]
    assert after.unknown_lines == before.unknown_lines + 2
    assert after.rejected_lines == 0


def test_two_runs_in_one_file_are_two_starts(tmp_path: Path) -> None:
    recording = read(tmp_path, written.vllm_lines() + written.vllm_lines())
    assert len(recording.starts) == 2
    counts = recording.phases.group_by("start_id").len()["len"].to_list()
    assert counts[0] == counts[1]
    assert recording.starts["served"].to_list() == [True, True]


def test_a_second_model_of_one_start_is_no_second_start(tmp_path: Path) -> None:
    drafted = (
        *written.VLLM_START[:5],
        (23, "Worker_TP0 pid=71", "Loading weights took 0.75 seconds"),
        *written.VLLM_START[5:],
    )
    assert len(read(tmp_path, written.vllm_lines(drafted)).starts) == 1


@pytest.mark.parametrize("cut", range(1, len(written.VLLM_START)))
def test_a_log_that_ends_early_is_one_start(tmp_path: Path, cut: int) -> None:
    recording = read(tmp_path, written.vllm_lines(written.VLLM_START[:cut]))
    assert len(recording.starts) == 1
    assert recording.starts["ready_line"].to_list() == [None]


def test_ranks_keep_their_names(tmp_path: Path) -> None:
    recording = read(tmp_path, written.vllm_lines())
    loads = recording.phases.filter(pl.col("phase") == "weights_load", pl.col("duration_s").is_not_null())
    assert dict(loads.select("rank", "duration_s").rows()) == {"TP0": 12.75, "TP1": 14.5}


def test_old_ray_workers_are_told_apart(tmp_path: Path) -> None:
    lines = [
        f"(RayWorkerWrapper pid={pid}, ip=192.0.2.{pid % 9}) INFO 02-12 17:52:{pid % 60:02d} model_runner.py:720] Loading model weights took 24.4023 GB"
        for pid in (4392, 4393)
    ]
    assert read(tmp_path, lines).phases["rank"].n_unique() == 2


def test_sglang_start_and_batches(tmp_path: Path) -> None:
    recording = read(tmp_path, list(written.SGLANG))
    assert recording.sources[0].engine == "sglang"
    assert len(recording.starts) == 1
    assert recording.starts["ready_line"].to_list() == [12]
    ended = recording.phases.filter(pl.col("end").is_not_null()).select("phase", "rank", "duration_s").rows()
    assert ("weights_load", "TP0", None) in ended
    assert ("weights_load", "TP1", 23.9) in ended
    assert ("graph_capture", "TP0", 12.34) in ended
    samples = recording.engine_samples.select(
        "kind", "running_count", "waiting_count", "kv_usage_ratio", "output_tokens_per_s"
    ).rows()
    assert samples == [("prefill", 3, 1, 0.01, None), ("decode", 5, 0, 0.02, 123.45), ("decode", 5, 0, 0.03, 130.0)]
    assert recording.incidents.filter(kind="preemption")["fields"].to_list() == ["#retracted_reqs: 3"]
    config = recording.deployments.select(
        "model", "gpu_count", "precision", "kv_cache_tokens", "max_running_count"
    ).rows()
    assert config == [("org/some-8b", 2, "fp8", 446368, 2048)]


def test_v0_requests_begin_and_end(tmp_path: Path) -> None:
    lines = [
        "INFO 01-23 12:34:50 logger.py:37] Received request cmpl-a-0: prompt: 'hi', params: SamplingParams(n=1), prompt_token_ids: [1], lora_request: None.",
        "INFO 01-23 12:34:58 async_llm_engine.py:120] Finished request cmpl-a-0.",
        "WARNING 01-23 12:35:00 scheduler.py:9] Sequence group 7 is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV "
        "cache space. This can affect the end-to-end performance. total_num_cumulative_preemption=51",
    ]
    recording = read(tmp_path, lines, format="vllm")
    assert recording.requests.select("request_id", "arrival_s", "last_token_s").rows() == [("cmpl-a-0", 0.0, 8.0)]
    assert recording.incidents["fields"].to_list() == ["total_num_cumulative_preemption=51"]


def test_only_computed_endpoints_count_as_responses(tmp_path: Path) -> None:
    paths = ["/v1/completions", "/v1/chat/completions", "/generate", "/tokenize", "/v1/load_lora_adapter", "/metrics"]
    lines = [
        *written.vllm_lines(),
        *[f'INFO:     192.0.2.1:5{n} - "POST {path} HTTP/1.1" 200 OK' for n, path in enumerate(paths)],
    ]
    lines.append('INFO:     192.0.2.1:99 - "GET /v1/completions HTTP/1.1" 200 OK')
    answered = read(tmp_path, lines).incidents.filter(kind="response")
    assert answered["fields"].to_list() == [f"POST {path} 200" for path in paths[:3]]
    assert answered["time"].null_count() == 0


def test_a_number_beyond_its_column_costs_its_line_alone(tmp_path: Path) -> None:
    step = "Iteration(1): 99999999999 context requests, 1 context tokens, 0 generation requests, 0 generation tokens, iteration elapsed time: 1.0 ms"
    args = "non-default args: {'model': 'org/m', 'max_num_seqs': 99999999999}"
    lines = [
        *written.vllm_lines(),
        f"INFO 03-14 09:30:00 [core.py:1] {step}",
        f"INFO 03-14 09:30:00 [utils.py:1] {args}",
    ]
    recording = read(tmp_path, lines)
    assert len(recording.engine_steps) == 1
    assert recording.rejected["line"].to_list() == [len(lines) - 1]


def test_each_pod_keeps_its_own_configuration(tmp_path: Path) -> None:
    def pod(name: str, model: str) -> list[str]:
        lines = [line.replace("org/some-8b", model) for line in written.vllm_lines(written.VLLM_START)]
        return [f"[pod/{name}/server] {line}" for line in lines]

    both = [line for pair in zip(pod("a", "org/one"), pod("b", "org/two"), strict=True) for line in pair]
    recording = read(tmp_path, both)
    told = recording.deployments.join(recording.starts.select("start_id", "replica"), on="start_id")
    assert dict(told.select("replica", "model").rows()) == {"a/server": "org/one", "b/server": "org/two"}
