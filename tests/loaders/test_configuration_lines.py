"""What start-up lines say of parallel sizes and the KV pool reaches `deployments`, whichever line it stands in."""

from __future__ import annotations

from pathlib import Path

import pytest

import infer_diag as diag

VLLM = "INFO 03-01 08:00:00 [api_server.py:1287] vLLM API server version 0.11.0\n"
V0 = "INFO 03-01 08:00:00 api_server.py:651] vLLM API server version 0.6.6\n"
LOADED = "INFO 03-01 08:00:20 [default_loader.py:268] Loading weights took 14.20 seconds\n"
POOL = "INFO 03-01 08:00:30 [kv_cache_utils.py:864] GPU KV cache size: 60,000 tokens\n"


def configuration(path: Path, text: str) -> dict[str, object]:
    (path / "server.log").write_text(text)
    recording = diag.load(path / "server.log")
    assert len(recording.deployments) == 1
    return recording.deployments.row(0, named=True)


@pytest.mark.parametrize(
    ("line", "gpus", "engines"),
    [
        ("INFO 03-01 08:00:01 [utils.py:233] non-default args: {'model': 'm', 'tensor_parallel_size': 2}", 2, 1),
        ("INFO 03-01 08:00:01 [utils.py:233] non-default args: {'model': 'm'}", 1, 1),
        (
            "INFO 03-01 08:00:01 [utils.py:233] non-default args: {'tensor_parallel_size': 4, "
            "'pipeline_parallel_size': 2, 'data_parallel_size': 3}",
            8,
            3,
        ),
        ("INFO 03-01 08:00:01 [api_server.py:9] args: Namespace(port=8000, tensor_parallel_size=2, seed=0)", 2, 1),
        (
            "INFO 03-01 08:00:01 [core.py:9] Initializing a V1 LLM engine (v0.11.0) with config: model='m', "
            "tensor_parallel_size=2, pipeline_parallel_size=2, data_parallel_size=2, device_config=cuda",
            4,
            2,
        ),
        (
            "INFO 03-01 08:00:01 [core.py:9] Initializing a V1 LLM engine (v0.11.0) with config: model='m', "
            "tensor_parallel_size=2, pipeline_parallel_size=1, device_config=cpu",
            None,
            None,
        ),
        ("INFO 03-01 08:00:01 [launcher.py:9] nothing of the kind", None, None),
    ],
)
def test_parallel_sizes_of_vllm(tmp_path: Path, line: str, gpus: int | None, engines: int | None) -> None:
    pool = POOL.replace("GPU", "CPU") if "device_config=cpu" in line else POOL
    found = configuration(tmp_path, VLLM + line + "\n" + LOADED + pool)
    assert (found["gpu_count"], found["data_parallel_count"]) == (gpus, engines)


@pytest.mark.parametrize(
    ("lines", "tokens"),
    [
        ("# GPU blocks: 1000, # CPU blocks: 2048", 16_000),
        ("# cuda blocks: 1000, # CPU blocks: 2048", 16_000),
        ("# GPU blocks: 1000, # CPU blocks: 2048\nMaximum concurrency for 4096 tokens per request: 7.81x", 32_000),
        ("Forcing kv cache block size to 64 for FlashMLA backend.\n# cuda blocks: 1000, # CPU blocks: 2048", 64_000),
        ("non-default args: {'model': 'm', 'block_size': 32}\n# GPU blocks: 1000, # CPU blocks: 2048", 32_000),
        ("# CPU blocks: 1000, # CPU blocks: 2048", None),
    ],
)
def test_kv_tokens_of_vllm_before_it_printed_them(tmp_path: Path, lines: str, tokens: int | None) -> None:
    stamped = "".join(
        f"INFO 03-01 08:00:2{number} executor.py:76] {line}\n" for number, line in enumerate(lines.split("\n"))
    )
    assert configuration(tmp_path, V0 + LOADED + stamped)["kv_cache_tokens"] == tokens


def test_blocks_of_a_log_without_a_version_tell_no_tokens(tmp_path: Path) -> None:
    text = LOADED + "INFO 03-01 08:00:21 executor.py:76] # GPU blocks: 1000, # CPU blocks: 2048\n"
    assert configuration(tmp_path, text)["kv_cache_tokens"] is None


@pytest.mark.parametrize(
    ("arguments", "gpus", "engines"),
    [
        ("tp_size=4, pp_size=2, dp_size=1, enable_dp_attention=False", 8, 1),
        ("tp_size=4, dp_size=2, enable_dp_attention=False", 4, 2),
        ("tp_size=8, dp_size=8, enable_dp_attention=True", 1, 8),
    ],
)
def test_parallel_sizes_of_sglang(tmp_path: Path, arguments: str, gpus: int, engines: int) -> None:
    text = (
        f"[2026-03-14 09:26:50] server_args=ServerArgs(model_path='m', {arguments})\n"
        "[2026-03-14 09:26:55] Load weight begin. avail mem=78.00 GB\n"
        "[2026-03-14 09:27:10] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=62.00 GB\n"
    )
    found = configuration(tmp_path, text)
    assert (found["gpu_count"], found["data_parallel_count"]) == (gpus, engines)


def test_ranks_of_tensorrt_llm(tmp_path: Path) -> None:
    text = (
        "[TensorRT-LLM][INFO] TensorRT-LLM version: 0.16.0\n"
        "[TensorRT-LLM][INFO] MPI size: 2, MPI local size: 2, rank: 0\n"
        "[TensorRT-LLM][INFO] Engine load time 8123 ms\n"
        "[TensorRT-LLM][INFO] TRTGptModel maxBatchSize: 64\n"
    )
    assert configuration(tmp_path, text)["gpu_count"] == 2
