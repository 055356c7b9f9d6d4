"""What vLLM's logs look like in the field: failures alone, engines numbered without a name, copied and wrapped text."""

from __future__ import annotations

import textwrap
from pathlib import Path

import polars as pl
import pytest
from test_shapes import read

from infer_diag.attribution.cold_start import start_phases
from infer_diag.diagnose import diagnose

STAMP = "INFO 03-14 09:26:53 [core.py:77]"

FAILURES = [
    "ValueError: Free memory on device (3.1/23.6 GiB) on startup is less than desired GPU memory utilization (0.9, 21.2 GiB).",
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.",
    "ValueError: To serve at least one request with the model's max seq len (65536), (8.0 GiB KV cache is needed, which is more)",
    "ValueError: The model's max seq len (65536) is larger than the maximum number of tokens that can be stored in KV cache (12).",
    "RuntimeError: CUDA out of memory occurred when warming up sampler with 128 dummy requests.",
]


@pytest.mark.parametrize("message", FAILURES)
@pytest.mark.parametrize(
    "front", ["(EngineCore_DP0 pid=7) ERROR 03-14 09:26:53 [core.py:700] ", "(EngineCore pid=7) ", ""]
)
def test_a_failure_alone_is_a_failed_start(tmp_path: Path, front: str, message: str) -> None:
    recording = read(tmp_path, [f"{front}{message}", "(EngineCore pid=7) more of the traceback"], format="vllm")
    assert recording.starts["failed_line"].to_list() == [1]
    assert recording.incidents.filter(kind="failed")["fields"][0].startswith(message[:100])


def test_a_failure_after_serving_is_that_of_the_next_start(tmp_path: Path) -> None:
    statistics = "Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 4.5%"
    lines = [
        f"{STAMP} Graph capturing finished in 20 secs, took 0.52 GiB",
        f"{STAMP} Engine 000: {statistics}",
        f"ERROR 03-14 09:30:53 [core.py:77] {FAILURES[1]}",
    ]
    recording = read(tmp_path, lines)
    assert recording.starts.select("served", "failed_line").rows() == [(True, None), (False, 3)]


def test_an_exception_while_serving_is_no_failed_start(tmp_path: Path) -> None:
    statistics = "Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 4.5%"
    lines = [f"{STAMP} Engine 000: {statistics}", "ERROR 03-14 09:27:03 [core.py:700] WorkerProc hit an exception."]
    assert read(tmp_path, lines).starts.is_empty()


def test_engines_numbered_without_a_name_are_replicas(tmp_path: Path) -> None:
    lines = [
        "(EngineCore_0 pid=50) INFO 04-01 10:00:10 [gpu_model_runner.py:12] Model loading took 14.2 GiB and 4.100000 seconds",
        "(EngineCore_3 pid=53) INFO 04-01 10:00:19 [gpu_model_runner.py:12] Model loading took 14.2 GiB and 13.200000 seconds",
    ]
    recording = read(tmp_path, lines)
    assert recording.starts["replica"].to_list() == ["DP0", "DP3"]
    lone = read(tmp_path, lines[:1])
    assert lone.starts["replica"].to_list() == [None]


def test_a_load_after_the_pool_was_sized_is_another_start(tmp_path: Path) -> None:
    one = [
        "Loading model weights took 3.5000 GB",
        "# GPU blocks: 900, # CPU blocks: 100",
        "Maximum concurrency for 4096 tokens per request: 3.52x",
    ]
    assert len(read(tmp_path, one * 3).starts) == 3


def test_words_wrapped_by_a_mail_are_joined(tmp_path: Path) -> None:
    records = [
        f"{STAMP} Dynamo bytecode transform time: 6.25 s",
        f"{STAMP} Directly load the compiled graph(s) for shape None from the cache, took 3.125 s",
        f"{STAMP} torch.compile takes 9.38 s in total",
        f"{STAMP} Graph capturing finished in 21 secs, took 0.52 GiB",
        f"{STAMP} init engine (profile, create kv cache, warmup model) took 43.50 seconds",
    ]
    lines = [line for record in records for line in textwrap.wrap(record, 66, break_long_words=False)]
    assert len(lines) > len(records)
    read_back = read(tmp_path, lines)
    assert dict(read_back.phases.select("phase", "duration_s").rows()) == {
        "compile_dynamo": 6.25,
        "compile_graph": 3.125,
        "compile": 9.38,
        "graph_capture": 21.0,
        "init_engine": 43.5,
    }


def test_output_of_others_between_records_is_not_joined(tmp_path: Path) -> None:
    lines = [
        f"{STAMP} Graph capturing finished in 21 secs, took 0.52 GiB",
        "done",
        f"{STAMP} a longer line of no use {'x' * 40}",
        "ok",
    ]
    recording = read(tmp_path, lines)
    assert recording.sources[0].notes == ()


def test_numbers_between_the_rates_and_the_counts_do_no_harm(tmp_path: Path) -> None:
    message = (
        "Avg prompt throughput: 82.5 tokens/s, Avg generation throughput: 18.5 tokens/s, Longest step: 86.5 ms, "
        "Avg time/tok:49.5 ms, Running: 5 reqs, Swapped: 0 reqs, Pending: 15 reqs, GPU KV cache usage: 99.0%, CPU KV cache usage: 0.0%"
    )
    recording = read(tmp_path, [f"INFO 02-01 06:36:05 llm_engine.py:921] {message}"])
    assert recording.rejected.is_empty()
    assert recording.engine_samples.select("running_count", "waiting_count").rows() == [(5, 15)]


def test_sleeping_and_answering_are_no_part_of_the_start(tmp_path: Path) -> None:
    lines = [
        "INFO 07-04 01:44:00 [llm_engine.py:428] init engine (profile, create kv cache, warmup model) took 6.75 seconds",
        "Processed prompts: 100%|####| 4/4 [00:02<00:00,  2.19s/it, est. speed input: 1.83 toks/s, output: 7.31 toks/s]",
        "INFO 07-04 01:45:05 [executor_base.py:208] It took 44.250000 seconds to fall asleep.",
        "INFO 07-04 02:45:12 [executor_base.py:219] It took 1.375000 seconds to wake up tags ['weights'].",
    ]
    recording = read(tmp_path, lines)
    assert recording.starts.select("served", "last_line").rows() == [(True, 1)]
    assert recording.incidents.filter(kind="in_use")["line"].to_list() == [2, 3, 4]


@pytest.mark.parametrize(
    ("message", "phase", "seconds"),
    [
        ("Loading model weights took 2.3185 GB and 21.066112 seconds", "weights_load", 21.066112),
        ("Compilation finished in in 44.09 [secs].", "compile", 44.09),
        ("Compilation finished in 0.11 [secs].", "compile", 0.11),
    ],
)
def test_wordings_of_few_versions(tmp_path: Path, message: str, phase: str, seconds: float) -> None:
    recording = read(tmp_path, [f"{STAMP} {message}"], format="vllm")
    assert recording.phases.select("phase", "duration_s").rows() == [(phase, pytest.approx(seconds))]


def test_a_download_shows_its_bar(tmp_path: Path) -> None:
    lines = [
        f"{STAMP} Starting to load model org/some-8b...",
        "Fetching 12 files:   0%|          | 0/12 [00:00<?, ?it/s]\rFetching 12 files:  50%|#####     | 6/12 [01:10<01:11, 11.67s/it]",
    ]
    bars = read(tmp_path, lines).progress.filter(pl.col("done_count") > 0)
    assert bars.select("phase", "done_count", "total_count", "elapsed_s").rows() == [("weights_fetch", 6, 12, 70.0)]


@pytest.mark.parametrize(
    "title",
    ["Multi-thread loading shards", "Loading safetensors using Runai Model Streamer", "Loading pt checkpoint shards"],
)
def test_every_loader_shows_its_bar(tmp_path: Path, title: str) -> None:
    lines = [
        f"{STAMP} Starting to load model org/some-8b...",
        f"{title}:  25% Completed | 2/8 [00:14<00:42,  7.00s/it]",
    ]
    assert read(tmp_path, lines).progress.select("phase", "done_count", "elapsed_s").rows() == [
        ("weights_read", 2, 14.0)
    ]


def test_a_process_that_begins_after_a_failure_belongs_to_the_next_start(tmp_path: Path) -> None:
    lines = [
        "INFO 06-13 11:36:30 [__init__.py:244] Automatically detected platform cuda.",
        "INFO 06-13 11:36:42 [default_loader.py:272] Loading weights took 5.50 seconds",
        "ERROR 06-13 11:37:08 [core.py:515] EngineCore failed to start.",
        "INFO 06-13 11:52:01 [__init__.py:244] Automatically detected platform cuda.",
        "INFO 06-13 11:52:05 [api_server.py:1287] vLLM API server version 0.9.1",
        "INFO 06-13 11:52:15 [__init__.py:244] Automatically detected platform cuda.",
        "INFO 06-13 11:52:33 [default_loader.py:272] Loading weights took 5.75 seconds",
    ]
    assert read(tmp_path, lines).starts.select("line", "last_line", "failed_line").rows() == [(1, 3, 3), (4, 7, None)]


def test_a_front_end_that_stops_waiting_ends_the_start(tmp_path: Path) -> None:
    lines = [
        "Loading safetensors checkpoint shards:  50% Completed | 80/160 [09:30<09:30,  7.12s/it]",
        "(ApiServer_2 pid=63) TimeoutError: Timed out waiting for engines to send initial message on input socket.",
    ]
    assert read(tmp_path, lines).starts["failed_line"].to_list() == [2]


def test_the_engines_total_is_no_worker_beside_the_workers(tmp_path: Path) -> None:
    lines = [
        "(Worker_TP0 pid=71) INFO 05-06 21:00:41 [monitor.py:48] torch.compile took 28.25 s in total",
        "(EngineCore pid=41) INFO 05-06 21:00:58 [core.py:299] init engine (profile, create kv cache, warmup model) took 58.50 s (compilation: 28.25 s)",
    ]
    phases = start_phases(read(tmp_path, lines)).filter(phase="compile")
    assert phases.select("rank", "duration_s").rows() == [(None, 28.25), ("TP0", 28.25)]


def test_a_duration_without_a_stamp_lies_between_the_stamps_around_it(tmp_path: Path) -> None:
    lines = [
        "INFO 06-04 13:12:44 [gpu_model_runner.py:1531] Starting to load model org/some-1b...",
        "[RunAI Streamer] Overall time to stream 3.3 GiB of all files: 6.0s, 564.1 MiB/s",
        "INFO 06-04 13:12:51 [gpu_model_runner.py:1549] Model loading took 3.3466 GiB and 6.500000 seconds",
    ]
    phases = start_phases(read(tmp_path, lines, format="vllm"))
    read_s, load_s = (phases.filter(phase=name).row(0, named=True) for name in ("weights_read", "weights_load"))
    assert read_s["duration_s"] == 6.0
    assert load_s["begin_s"] <= read_s["end_s"] <= load_s["end_s"]


def test_a_download_with_a_bar_per_file_is_no_slow_storage(tmp_path: Path) -> None:
    lines = [
        "INFO 02-07 19:23:56 gpu_model_runner.py:867] Starting to load model org/some-3b...",
        "model-00002-of-00002.safetensors: 100%|####| 1.75G/1.75G [00:56<00:00, 30.8MB/s]",
        "model-00001-of-00002.safetensors: 100%|####| 5.00G/5.00G [02:45<00:00, 29.8MB/s]",
        "INFO 02-07 19:26:47 gpu_model_runner.py:872] Loading model weights took 6.2974 GB",
    ]
    recording = read(tmp_path, lines)
    fetch = start_phases(recording).filter(phase="weights_fetch").row(0, named=True)
    assert (fetch["duration_s"], fetch["lower_s"]) == (None, 165.0)
    assert "cold_start.storage_bound" not in {finding.id for finding in diagnose(recording).findings}


def test_a_logger_that_writes_dashes_and_no_milliseconds_is_read(tmp_path: Path) -> None:
    message = "Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 12.5 tokens/s, Running: 3 reqs, Swapped: 0 reqs, Pending: 2 reqs, GPU KV cache usage: 4.5%, CPU KV cache usage: 0.0%."
    lines = [f"2026-03-14 09:26:{second} - vllm.engine.metrics - INFO - {message}" for second in (10, 15, 20)]
    samples = read(tmp_path, lines).engine_samples
    assert samples["running_count"].to_list() == [3, 3, 3]
    assert (samples["time"].max() - samples["time"].min()).total_seconds() == 10.0
