"""LMDeploy: the statistics line in both stamps, TurboMind's bar, and what is not read."""

from __future__ import annotations

from pathlib import Path

import pytest
import written
from test_shapes import read

from infer_diag.diagnose import diagnose

STATISTICS = (
    "Avg thr (in/out): 123.4 / 56.7 tokens/s, Server (succeeded/failed/routed/waiting): 10 / 0 / 5 / 4, "
    "Engine (running/waiting): 3 / 2, KV cache: 12.3%, "
)
START = [
    "2026-03-14 09:26:53,789 - lmdeploy - INFO - async_engine.py:260 - input backend=turbomind, backend_config=TurbomindEngineConfig(tp=2)",
    "[TM][INFO] NcclGroup initialized",
    "Convert to turbomind format:   2%|▎         | 1/48 [00:01<00:47,  1.01s/it]",
    "Convert to turbomind format: 100%|██████████| 48/48 [00:18<00:00,  3.60it/s]",
    "2026-03-14 09:27:23,789 - lmdeploy - INFO - async_engine.py:290 - updated backend_config=TurbomindEngineConfig(tp=2)",
    "INFO:     Started server process [1]",
    "INFO:     Application startup complete.",
]
SERVED = [
    f"[2026-03-14 09:28:00 Engine 000] {STATISTICS}Prefix cache hit rate: 10.0%, ",
    f"[2026-03-14 09:28:10 DP0] {STATISTICS}",
    f"[2026-03-14 09:28:20] {STATISTICS}",
    'INFO:     127.0.0.1:54321 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
]


def test_statistics_under_every_stamp(tmp_path: Path) -> None:
    samples = read(tmp_path, SERVED).engine_samples
    assert samples["running_count"].to_list() == [3, 3, 3]
    assert samples["waiting_count"].to_list() == [6, 6, 6]  # four more wait for the engine to take them
    assert samples["kv_usage_ratio"].to_list() == pytest.approx([0.123] * 3)
    assert samples["prefix_hit_ratio"].to_list() == [pytest.approx(0.1), None, None]
    assert samples["time"].diff().dt.total_seconds().to_list() == [None, 10, 10]


@pytest.mark.parametrize(
    "name", [name for name in written.WRAPPERS if name not in ("colour", "colour lost by a paste")]
)
def test_a_wrapper_changes_nothing(tmp_path: Path, name: str) -> None:
    wrapped = [written.WRAPPERS[name](written.BEGIN, line) for line in [*START, *SERVED]]
    recording = read(tmp_path, wrapped)
    assert recording.sources[0].engine == "lmdeploy"
    assert recording.engine_samples["output_tokens_per_s"].to_list() == [56.7] * 3
    assert recording.progress["done_count"].to_list() == [1, 48]
    assert len(recording.starts) == 1


def test_two_engines_are_two_replicas(tmp_path: Path) -> None:
    text = [f"[2026-03-14 09:28:00 DP{rank}] {STATISTICS}" for rank in (0, 1)]
    assert read(tmp_path, text).engine_samples["replica"].to_list() == ["DP0", "DP1"]


def test_a_bar_without_stamps_explains_its_part_of_the_start(tmp_path: Path) -> None:
    start = diagnose(read(tmp_path, [*START, *SERVED])).to_dict()["starts"][0]
    assert (start["outcome"], start["span_s"], start["unlogged_s"]) == ("ready", 30.0, 12.0)


def test_a_damaged_statistics_line_is_kept(tmp_path: Path) -> None:
    recording = read(tmp_path, [*SERVED, "[2026-03-14 09:28:30] Avg thr (in/out): nan / tokens/s"])
    assert recording.rejected.select("line", "rule").rows() == [(5, "statistics")]
