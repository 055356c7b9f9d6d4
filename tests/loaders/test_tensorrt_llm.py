"""TensorRT-LLM: build and load lines, the ledger of memory, iterations in text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from infer_diag.errors import SourceError
from infer_diag.loaders import load
from infer_diag.recording import Recording

GIB, MIB = float(1 << 30), float(1 << 20)


def loaded(tmp_path: Path, text: str, **options: Any) -> Recording:
    path = tmp_path / "trt.log"
    path.write_text(text)
    return load(path, **options)


BUILD = """\
[10/12/2024-15:45:50] [TRT-LLM] [I] TensorRT-LLM version: 0.13.0
[10/12/2024-15:46:16] [TRT] [I] Engine generation completed in 15.4544 seconds.
[10/12/2024-15:46:23] [TRT-LLM] [I] Total time of building Unnamed Network 0: 00:00:22
[10/12/2024-15:46:43] [TRT-LLM] [I] Engine serialized. Total time: 00:00:19
[10/12/2024-15:46:43] [TRT-LLM] [I] Total time of building all engines: 01:00:47
"""


def test_a_build_is_as_long_as_its_last_line_says(tmp_path: Path) -> None:
    recording = loaded(tmp_path, BUILD)
    assert recording.sources[0].engine_version == "0.13.0"
    (row,) = recording.phases.to_dicts()
    assert (row["phase"], row["duration_s"], row["resolution_s"], row["line"]) == ("engine_build", 3647, 1, 5)
    assert f"{row['end']:%Y-%m-%d %H:%M:%S}" == "2024-10-12 15:46:43"


START = """\
[TensorRT-LLM] TensorRT-LLM version: 1.2.0rc2
[12/20/2025-04:20:21] [TRT-LLM] [I] Rank 0 uses 63.32 GB for model weights.
Loading safetensors weights in parallel: 100%|██████████| 15/15 [00:00<00:00, 81.92it/s]
Loading weights:  50%|█████     | 400/801 [00:23<00:24, 17.29it/s]
1: Model init total -- 49.14s
[TensorRT-LLM][INFO] [MemUsageChange] Init CUDA: CPU +13, GPU -2, now: CPU 125, GPU 436 (MiB)
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 3.44 MB GPU memory for runtime buffers.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 0.56 GiB for max tokens in paged KV cache (8224).
[TensorRT-LLM][INFO] TRTGptModel maxBatchSize: 64
[12/20/2025-04:21:19] [TRT-LLM] [I] [Autotuner] Autotuning process starts ...
[12/20/2025-04:21:29] [TRT-LLM] [I] [Autotuner] Autotuning process ends
INFO:     Application startup complete.
"""


def test_a_start_of_the_pytorch_backend(tmp_path: Path) -> None:
    recording = loaded(tmp_path, START)
    assert recording.sources[0].engine == "tensorrt-llm"
    loads = recording.phases.filter(phase="weights_load").row(0, named=True)
    assert (loads["duration_s"], loads["line"]) == (49.14, 5)
    assert recording.phases.filter(phase="kernel_warmup").height == 2
    assert recording.progress.select("done_count", "total_count").rows() == [(15, 15), (400, 801)]
    assert recording.starts["ready_line"].to_list() == [12]
    row = recording.deployments.row(0, named=True)
    assert (row["engine_version"], row["kv_cache_tokens"], row["max_running_count"]) == ("1.2.0rc2", 8224, 64)


def test_sizes_printed_one_by_one_are_components(tmp_path: Path) -> None:
    found = dict(loaded(tmp_path, START).components.select("name", "size_bytes").iter_rows())
    assert found["Init CUDA"] == -2 * MIB
    assert found["runtime buffers"] == pytest.approx(3.44 * MIB)
    assert found["KV cache"] == pytest.approx(0.56 * GIB)
    assert found["model weights"] == pytest.approx(63.32 * GIB)


LEDGER = """\
RuntimeError: Executor creation failed due to insufficient GPU memory.

The following component could not be created: KV cache
Total GPU memory (GiB): 80.00
Free GPU memory before component creation attempt (GiB): 20.50

Previously created components and free GPU memory before/after creation (GiB):
model: 79.00 / 30.25
sampler: 30.25 / 30.25
model_extra: 30.25 / 31.00

Please refer to the TensorRT LLM documentation for information on how to control the memory usage
  model: reduce max_num_tokens and / or shard
"""
ALLOCATOR = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 21.00 GiB. GPU 0 has a total capacity of 80.00 GiB of "
    "which 20.50 GiB is free. Of the allocated memory 50.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by "
    "PyTorch but unallocated.\n"
)


def stamped(text: str) -> str:
    return "".join(f"2026-03-14T09:26:53.123456789Z stderr F {line}\n" for line in text.splitlines())


@pytest.mark.parametrize("wrap", [str, stamped], ids=["plain", "containerd"])
def test_the_ledger_of_a_failed_creation(tmp_path: Path, wrap: Any) -> None:
    recording = loaded(tmp_path, wrap(LEDGER))
    entries = recording.components.select("name", "size_bytes", "free_before_bytes").rows()
    assert entries == [
        ("model", 48.75 * GIB, 79 * GIB),
        ("sampler", 0, 30.25 * GIB),
        ("model_extra", -0.75 * GIB, 30.25 * GIB),
    ]
    (row,) = recording.ooms.to_dicts()
    assert (row["component"], row["total_bytes"], row["free_bytes"], row["requested_bytes"]) == (
        "KV cache",
        80 * GIB,
        20.5 * GIB,
        None,
    )


def test_a_creation_that_the_allocator_explains_is_one_failure(tmp_path: Path) -> None:
    recording = loaded(tmp_path, ALLOCATOR + LEDGER)
    assert recording.ooms["requested_bytes"].to_list() == [21 * GIB]
    assert len(recording.components) == 3


def test_a_ledger_shown_twice_counts_once(tmp_path: Path) -> None:
    recording = loaded(tmp_path, LEDGER + LEDGER)
    assert (len(recording.ooms), len(recording.components)) == (1, 3)


STATES = "states = {{'num_ctx_requests': {p}, 'num_ctx_tokens': {t}, 'num_generation_tokens': {g}}}"
HEAD = "[07/24/2025-08:15:13] [TRT-LLM] [I] iter = 7, global_rank = 0, rank = {r}, "
LINES = {
    "0.20": HEAD + "currank_total_requests = 4/4, elapsed_time = 0.0125s, timestamp = 2025-07-24 08:15:13, num_scheduled_requests: {n}, " + STATES,
    "1.0": HEAD + "currank_total_requests = 4/4, host_step_time = 12.5ms, prev_device_step_time = N/A, timestamp = 2025-07-24 08:15:13, num_scheduled_requests: {n}, " + STATES,
    "1.3": HEAD + "num_scheduled_requests = {n}, kv_cache_util = 0.125, currank_total_requests = 4/4, host_step_time = 12.5ms, prev_device_step_time = 11.5ms, timestamp = 2025-07-24 08:15:13, " + STATES,
}  # fmt: skip


@pytest.mark.parametrize("version", LINES)
@pytest.mark.parametrize(
    ("counts", "kind"),
    [
        ({"n": 5, "p": 1, "t": 128, "g": 4}, "mixed"),
        ({"n": 4, "p": 0, "t": 0, "g": 4}, "decode"),
        ({"n": 1, "p": 1, "t": 128, "g": 0}, "prefill"),
        ({"n": 0, "p": 0, "t": 0, "g": 0}, "idle"),
    ],
)
def test_iterations_are_steps(tmp_path: Path, version: str, counts: dict[str, int], kind: str) -> None:
    text = LINES[version].format(r=0, **counts) + "\n" + LINES[version].format(r=3, **counts) + "\n"
    (row,) = loaded(tmp_path, text).engine_steps.to_dicts()
    assert (row["kind"], row["duration_s"]) == (kind, pytest.approx(0.0125))
    assert (row["prefill_count"], row["decode_count"]) == (counts["p"], counts["n"] - counts["p"])
    assert (row["prefill_tokens"], row["decode_tokens"]) == (counts["t"], counts["g"])


def test_the_pool_s_use_where_a_version_prints_it(tmp_path: Path) -> None:
    text = LINES["1.3"].format(r=0, n=5, p=1, t=128, g=4)
    assert loaded(tmp_path, text).engine_samples["kv_usage_ratio"].to_list() == [0.125]


def test_the_batch_manager_s_json(tmp_path: Path) -> None:
    batch = {"Active Request Count": 249, "Generation Requests": 231, "Max KV cache blocks": 2448, "Paused Requests": 2}
    batch |= {"Timestamp": "12-13-2023 14:55:14", "Used KV cache blocks": 612}
    (row,) = loaded(tmp_path, f"[TensorRT-LLM][INFO] {json.dumps(batch)}\n").engine_samples.to_dicts()
    assert (row["running_count"], row["kv_usage_ratio"], row["preemption_count"]) == (249, 0.25, 2)
    assert f"{row['time']:%Y-%m-%d %H:%M:%S}" == "2023-12-13 14:55:14"


def iteration(number: int, latency_ms: float, **batch: Any) -> dict[str, Any]:
    inflight = {"numContextRequests": 0, "numCtxTokens": 0, "numGenRequests": 2, "numPausedRequests": 0} | batch
    pool = {"maxNumBlocks": 100, "usedNumBlocks": 25, "freeNumBlocks": 75, "tokensPerBlock": 64}
    told = {"iter": number, "iterLatencyMS": latency_ms, "numActiveRequests": 3, "numQueuedRequests": 7}
    told |= {"kvCacheStats": pool, "inflightBatchingStats": inflight, "staticBatchingStats": None}
    return told | {"maxNumActiveRequests": 16, "timestamp": f"04-07-2025 20:33:{number:02}.747028"}


ITERATIONS = [
    iteration(0, 0.0, numContextRequests=1, numCtxTokens=500, numGenRequests=0),
    iteration(1, 20.0, avgNumDecodedTokensPerIter=2.5, numPausedRequests=1),
    iteration(2, 40.0, numContextRequests=1, numCtxTokens=100),
]
FORMS = {
    "array": json.dumps(ITERATIONS),
    "lines": "\n".join(map(json.dumps, ITERATIONS)),
    "indented": json.dumps(ITERATIONS, indent=4),
    "answers that overlap": f"{json.dumps(ITERATIONS[:2])}\n{json.dumps(ITERATIONS[1:])}",
    "inside an object": json.dumps({"stats": ITERATIONS}),
    "numbers as text": json.dumps([each | {"numQueuedRequests": "7"} for each in ITERATIONS]),
}


@pytest.mark.parametrize("form", FORMS)
def test_iteration_statistics_in_any_form(tmp_path: Path, form: str) -> None:
    recording = loaded(tmp_path, FORMS[form])
    assert recording.sources[0].format == "tensorrt-llm-statistics"
    samples = recording.engine_samples
    assert samples.select("running_count", "waiting_count", "kv_usage_ratio").rows() == [(3, 7, 0.25)] * 3
    assert samples["preemption_count"].to_list() == [0, 1, 0]
    assert samples["output_tokens_per_s"].to_list() == [None, pytest.approx(250), pytest.approx(50)]
    steps = recording.engine_steps.select(
        pl.col("kind").cast(pl.String), "prefill_tokens", "decode_tokens", "duration_s"
    )
    assert steps.rows() == [("decode", 0, 5, 0.02), ("mixed", 100, 2, 0.04)]
    row = recording.deployments.row(0, named=True)
    assert (row["kv_cache_tokens"], row["max_running_count"]) == (6400, 16)
    assert f"{recording.sources[0].first_time:%Y-%m-%d %H:%M:%S}" == "2025-04-07 20:33:00"


def test_each_iteration_of_an_indented_file_leads_to_its_own_line(tmp_path: Path) -> None:
    text = FORMS["indented"]
    lines = [text.splitlines()[line - 1].strip() for line in loaded(tmp_path, text).engine_samples["line"]]
    assert lines == ['"iterLatencyMS": 0.0,', '"iterLatencyMS": 20.0,', '"iterLatencyMS": 40.0,']


def test_statistics_that_break_off_keep_what_is_whole(tmp_path: Path) -> None:
    text = FORMS["array"]
    recording = loaded(tmp_path, text[: text.index('"timestamp": "04-07-2025 20:33:02')])
    assert recording.sources[0].cut
    assert len(recording.engine_samples) == 3
    assert len(recording.engine_steps) == 2


def test_hostile_nesting_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="too deeply"):
        loaded(tmp_path, '{"iterLatencyMS": ' + "[" * 100_000)
