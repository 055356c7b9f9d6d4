"""SGLang's log in the shapes that its versions, backends and parallel layouts print."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_shapes import read

from infer_diag import diagnose
from infer_diag.recording import Recording


def batch(stamp: str, running: int = 4, usage: str = "0.10", rate: str = "50.00") -> str:
    return (
        f"[{stamp}] Decode batch, #running-req: {running}, #token: 64, token usage: {usage}, cuda graph: True, "
        f"gen throughput (token/s): {rate}, #queue-req: 0"
    )


def start(name: str = "cuda") -> list[str]:
    return [
        "[2026-02-03 04:05:00 TP0] Load weight begin. avail mem=70.00 GB",
        "[2026-02-03 04:05:20 TP0] Load weight end. type=SomeForCausalLM, avail mem=50.00 GB, mem usage=20.00 GB.",
        "[2026-02-03 04:05:21 TP0] Memory pool end. avail mem=9.00 GB",
        f"[2026-02-03 04:05:21 TP0] Capture {name} graph begin. This can take up to several minutes. avail mem=9.00 GB",
        f"[2026-02-03 04:05:30 TP0] Capture {name} graph end. Time elapsed: 8.25 s. mem usage=1.00 GB. avail mem=8.00 GB.",
    ]


def outcome(recording: Recording) -> list[str]:
    return [one["outcome"] for one in diagnose(recording).to_dict()["starts"]]


@pytest.mark.parametrize("name", ["cuda", "npu", "draft cuda", "target decode CUDA", "cpu"])
def test_graphs_of_every_device_are_captured(tmp_path: Path, name: str) -> None:
    captured = read(tmp_path, start(name)).phases.filter(phase="graph_capture")
    assert captured["duration_s"].drop_nulls().to_list() == [8.25]


def test_a_compiled_graph_lies_inside_the_capture(tmp_path: Path) -> None:
    line = "[2026-02-03 04:05:25 TP0] Compiling a graph for dynamic shape takes 2.50 s"
    compiled = read(tmp_path, [*start()[:4], line, start()[4]]).phases.filter(phase="compile")
    assert compiled.select("duration_s", "inside").rows() == [(2.5, "graph_capture")]


@pytest.mark.parametrize("title", ["Loading pt checkpoint shards", "Multi-thread loading shards"])
def test_bars_of_either_loader_are_progress(tmp_path: Path, title: str) -> None:
    bar = f"{title}:  50% Completed | 4/8 [00:12<00:12,  3.00s/it]"
    recording = read(tmp_path, [start()[0], bar])
    assert recording.progress.select("phase", "done_count", "total_count").rows() == [("weights_read", 4, 8)]


def test_a_node_without_the_first_rank_is_read(tmp_path: Path) -> None:
    stamps = [f"2026-02-03 04:05:{second:02d} DP{rank} TP{rank}" for second in (0, 4) for rank in (9, 8, 10)]
    recording = read(tmp_path, [batch(stamp) for stamp in stamps])
    assert sorted(recording.engine_samples["replica"].to_list()) == ["DP10", "DP10", "DP8", "DP8", "DP9", "DP9"]
    assert diagnose(recording).to_dict()["serving"]["running"]["max"] == 12


@pytest.mark.parametrize("ranks", [("TP1", "TP0", "TP3"), ("PP0 TP1", "PP0 TP0", "PP1 TP0")])
def test_one_rank_speaks_for_its_replica(tmp_path: Path, ranks: tuple[str, ...]) -> None:
    recording = read(tmp_path, [batch(f"2026-02-03 04:05:00 {rank}", running=n) for n, rank in enumerate(ranks)])
    assert recording.engine_samples["running_count"].to_list() == [1]


def test_the_watchdog_tells_of_a_scheduler_that_stands_still(tmp_path: Path) -> None:
    hung = [f"[2026-02-03 04:10:05 TP{rank}] Watchdog timeout (self.watchdog_timeout=300)" for rank in range(3)]
    lines = [batch("2026-02-03 04:05:00 TP0"), batch("2026-02-03 04:05:02 TP0"), *hung]
    document = diagnose(read(tmp_path, lines)).to_dict()
    stalls = [one for one in document["findings"] if one["id"] == "batching.scheduler_stall"]
    assert len(stalls) == 1
    assert "300 s" in stalls[0]["sentence"] and "3 workers" in stalls[0]["sentence"]
    assert document["sources"][0]["last_time"].endswith("04:10:05")


WEB_SERVER = "[2026-02-03 04:05:31] INFO:     Application startup complete."
WARMUP = "[2026-02-03 04:05:32 TP0] Prefill batch. #new-seq: 1, #new-token: 6, #cached-token: 0, token usage: 0.00, #running-req: 0, #queue-req: 0, "
FAILED = "[2026-02-03 04:10:40] Received sigquit from a child proces. It usually means the child failed."


def test_a_web_server_whose_engine_fails_its_warmup_is_not_ready(tmp_path: Path) -> None:
    assert outcome(read(tmp_path, [*start(), WEB_SERVER, WARMUP, FAILED])) == ["failed"]


@pytest.mark.parametrize(
    "between",
    [
        "[2026-02-03 04:05:33] The server is fired up and ready to roll!",
        batch("2026-02-03 04:05:33 TP0"),
        '[2026-02-03 04:05:33] INFO:     127.0.0.1:40000 - "POST /generate HTTP/1.1" 200 OK',
    ],
)
def test_an_engine_that_fails_later_was_ready(tmp_path: Path, between: str) -> None:
    assert outcome(read(tmp_path, [*start(), WEB_SERVER, WARMUP, between, FAILED])) == ["ready"]


@pytest.mark.parametrize(
    "verdict",
    [
        "Exception: Capture cuda graph failed: no kernel for this head size",
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        "RuntimeError: Initialization failed. Please see the error messages above.",
    ],
)
def test_a_verdict_alone_tells_of_a_failed_start(tmp_path: Path, verdict: str) -> None:
    lines = [
        "[2026-02-03 04:05:21 TP0] Scheduler hit an exception: Traceback (most recent call last):",
        '  File "/x/sglang/srt/managers/scheduler.py", line 10, in run_scheduler_process',
        verdict,
    ]
    assert outcome(read(tmp_path, lines)) == ["failed"]


def test_a_watchdog_in_a_start_is_its_failure(tmp_path: Path) -> None:
    hung = "[2026-02-03 04:15:30 TP0] Scheduler watchdog timeout (self.watchdog_timeout=600, self.soft=False)"
    document = diagnose(read(tmp_path, [*start()[:4], hung])).to_dict()
    assert [(one["outcome"], one["span_s"]) for one in document["starts"]] == [("failed", 630.0)]


def test_the_reason_of_a_failure_is_quoted_and_not_its_announcement(tmp_path: Path) -> None:
    lines = [
        *start()[:3],
        "[2026-02-03 04:05:23 TP0] Scheduler hit an exception: Traceback (most recent call last):",
        "ValueError: TP rank 0 could finish the model loading, but there are other ranks that didn't finish loading.",
        FAILED,
    ]
    document = diagnose(read(tmp_path, lines)).to_dict()
    (failed,) = [one for one in document["findings"] if one["id"] == "cold_start.failed"]
    assert "didn't finish loading" in failed["sentence"]


def test_process_ids_tell_workers_apart_where_no_rank_is_printed(tmp_path: Path) -> None:
    lines = [
        f"2026-02-03 04:{clock} INFO {pid} [model_runner.py:10] Load weight {what}"
        for clock, pid, what in (
            ("05:00", 71, "begin. avail mem=70.00 GB"),
            ("05:01", 72, "begin. avail mem=70.00 GB"),
            ("05:20", 71, "end. type=SomeForCausalLM, avail mem=50.00 GB"),
            ("05:51", 72, "end. type=SomeForCausalLM, avail mem=50.00 GB"),
        )
    ]
    (one,) = diagnose(read(tmp_path, lines)).to_dict()["starts"]
    assert sorted(phases["weights_load"] for phases in one["by_rank_s"].values()) == [20.0, 50.0]


def test_lines_of_the_first_releases_name_their_device(tmp_path: Path) -> None:
    lines = [
        "[gpu=1] Load weight begin. avail mem=23.00 GB",
        "[gpu=1] Memory pool end. avail mem=2.00 GB",
        "[gpu=1] Decode batch. #running-req: 1, #token: 47, token usage: 0.00, gen throughput (token/s): 33.00, #queue-req: 0",
    ]
    recording = read(tmp_path, lines)
    assert recording.phases["rank"].to_list() == ["1", "1"]
    assert recording.engine_samples["output_tokens_per_s"].to_list() == [33.0]


def test_pods_in_one_stream_start_apart(tmp_path: Path) -> None:
    first = [f"[pod/engine-a/server] {line}" for line in (*start(), batch("2026-02-03 04:05:40 TP0"))]
    second = [f"[pod/engine-b/server] {line}" for line in (*start(), batch("2026-02-03 04:05:40 TP0"))]
    together = [*first[:2], second[0], *first[2:], *second[1:]]
    recording = read(tmp_path, together)
    assert recording.starts["replica"].to_list() == ["engine-a/server", "engine-b/server"]
    assert recording.phases.group_by("start_id").len()["len"].to_list() == [5, 5]


def test_a_damaged_number_costs_its_own_value_and_not_the_file(tmp_path: Path) -> None:
    huge = "99999999999"
    lines = [
        f"[2026-02-03 04:05:01] server_args=ServerArgs(model_path='m', tp_size={huge}, max_running_requests={huge})",
        "[2026-02-03 04:05:02 TP0] Decode batch. #running-req: 4, #token: 47, token usage: 0.01, gen throughput (token/s): 33.00, #queue-req: 0",
        f"[2026-02-03 04:05:12 TP0] Decode batch. #running-req: {huge}, #token: 47, token usage: 0.02, gen throughput (token/s): 33.00, #queue-req: 0",
    ]
    recording = read(tmp_path, lines)
    assert recording.engine_samples["running_count"].to_list() == [4, None]
    assert recording.engine_samples["kv_usage_ratio"].to_list() == [0.01, 0.02]
    assert recording.deployments["max_running_count"].to_list() == [None]
