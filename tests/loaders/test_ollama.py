"""Ollama: loads inside a server that runs already, progress as a fraction, and the web server's times."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest
import written
from hypothesis import given
from hypothesis import strategies as st
from test_shapes import read

from infer_diag.diagnose import diagnose
from infer_diag.loaders.go_durations import GO_DURATION, go_seconds

COMMAND = "/usr/bin/ollama runner --model /root/.ollama/models/blobs/sha256-8c625 --ctx-size 8192 --batch-size 512 --n-gpu-layers 25 --parallel 4 --port 37753"
BOOT = (
    (0.0, "routes.go:1237", '"Listening on [::]:11434 (version 0.5.12)"'),
    (0.2, "types.go:130", '"inference compute" id=GPU-0 library=cuda variant=v12 compute=8.9 driver=12.4 name="NVIDIA GeForce RTX 4090" total="23.6 GiB"'),
)  # fmt: skip
LOAD = (
    (
        48.0,
        "server.go:130",
        'offload library=cuda layers.requested=-1 layers.model=25 layers.offload=25 layers.split=""',
    ),
    (48.5, "server.go:380", f'"starting llama server" cmd="{COMMAND}"'),
    (48.6, "server.go:591", '"waiting for server to become available" status="llm server loading model"'),
    (49.5, "server.go:602", '"model load progress 0.25"'),
    (50.5, "server.go:602", '"model load progress 0.50"'),
    (52.5, "server.go:596", '"llama runner started in 4.01 seconds"'),
)


def lines(*records: tuple[float, str, str], after: float = 0.0) -> list[str]:
    """The records as Go's slog writes them."""
    out = []
    for second, place, message in records:
        at = written.BEGIN + timedelta(seconds=second + after)
        out.append(
            f"time={at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}+02:00 level=INFO source={place} msg={message}"
        )
    return out


GIN = [
    '[GIN] 2026/03/14 - 09:28:58 | 200 | 10.257673085s |      172.22.0.3 | POST     "/api/chat"',
    '[GIN] 2026/03/14 - 09:30:58 | 200 |          1m4s |      172.22.0.3 | POST     "/v1/chat/completions"',
    '[GIN] 2026/03/14 - 09:30:59 | 200 |      28.205µs |      172.22.0.3 | GET      "/api/version"',
    '[GIN] 2026/03/14 - 09:31:58 | 500 |  5.257673085s |      172.22.0.3 | POST     "/api/chat"',
    '[GIN] 2026/03/14 - 09:32:58 | 200 |         8m44s |      172.22.0.3 | POST     "/api/pull"',
]


def test_a_start_is_the_runners_and_not_the_servers(tmp_path: Path) -> None:
    recording = read(tmp_path, [*lines(*BOOT, *LOAD), *GIN])
    assert recording.sources[0].engine == "ollama"
    start = diagnose(recording).to_dict()["starts"][0]
    assert (start["outcome"], start["phases_s"]) == ("ready", {"weights_load": 4.01})
    assert start["span_s"] == pytest.approx(4.01, abs=0.02)
    told = recording.deployments.filter(start_id="start-1").row(0, named=True)
    assert (told["model"], told["kv_cache_tokens"], told["max_running_count"]) == ("sha256-8c625", 8192, 4)


@pytest.mark.parametrize("name", ["plain", "crlf", "containerd", "compose", "systemd", "docker json-file", "Loki"])
def test_a_wrapper_changes_nothing(tmp_path: Path, name: str) -> None:
    at = written.BEGIN
    wrapped = [written.WRAPPERS[name](at, line) for line in [*lines(*BOOT, *LOAD), *GIN]]
    recording = read(tmp_path, wrapped)
    assert recording.phases["duration_s"].drop_nulls().to_list() == [4.01]
    assert recording.request_timings["e2e_s"].to_list() == [10.257673085, 64.0]
    assert recording.progress["done_count"].to_list() == [25, 50]


def test_every_load_is_a_start(tmp_path: Path) -> None:
    text = lines(*BOOT, *LOAD) + GIN + lines(*LOAD, after=600.0)
    starts = diagnose(read(tmp_path, text)).to_dict()["starts"]
    assert [start["span_s"] for start in starts] == pytest.approx([4.01, 4.01], abs=0.02)


def test_a_load_that_stops_halfway_has_a_pace(tmp_path: Path) -> None:
    start = diagnose(read(tmp_path, lines(*LOAD[:5]))).to_dict()["starts"][0]
    assert (start["outcome"], start["phases_s"]["weights_load"]) == ("unfinished", None)
    assert start["progress"]["predicted_total_s"] == pytest.approx(4.0)


def test_a_load_that_fails_says_so(tmp_path: Path) -> None:
    failed = (
        60.0,
        "sched.go:455",
        '"error loading llama server" error="llama runner process has terminated: exit status 2"',
    )
    diagnosis = diagnose(read(tmp_path, lines(*LOAD[:4], failed)))
    assert diagnosis.to_dict()["starts"][0]["outcome"] == "failed"
    assert any("exit status 2" in finding.sentence for finding in diagnosis.findings)


def test_only_answers_that_compute_count(tmp_path: Path) -> None:
    recording = read(tmp_path, [*lines(*BOOT, *LOAD), *GIN])
    assert recording.incidents.filter(kind="response")["fields"].to_list() == [
        "POST /api/chat 200",
        "POST /v1/chat/completions 200",
        "POST /api/chat 500",
    ]
    served = diagnose(recording).to_dict()["serving"]["requests"]
    assert (served["count"], served["e2e_s"]["max"]) == (2, 64.0)


def test_a_runners_own_times_win_over_the_web_servers(tmp_path: Path) -> None:
    inside = [
        "llama_model_loader: loaded meta data with 36 key-value pairs and 197 tensors from /m.gguf (version GGUF V3 (latest))",
        "slot print_timing: id  0 | task 16 | ",
        "prompt eval time =    1000.00 ms /  2029 tokens (    1.39 ms per token,   720.17 tokens per second)",
        "       eval time =    2000.00 ms /    11 tokens (   78.75 ms per token,    12.70 tokens per second)",
        "      total time =    3000.00 ms /  2040 tokens",
    ]
    recording = read(tmp_path, [*lines(*BOOT, *LOAD), *inside, GIN[0]])
    assert recording.sources[0].engine == "ollama"
    assert recording.request_timings["e2e_s"].to_list() == [3.0]


def go(nanoseconds: int) -> str:
    """A duration as Go's String writes it."""
    if nanoseconds < 10**9:
        for unit, scale in (("ms", 10**6), ("µs", 10**3), ("ns", 1)):
            if nanoseconds >= scale or scale == 1:
                return f"{nanoseconds / scale:.9f}".rstrip("0").rstrip(".") + (unit if nanoseconds else "s")
    seconds, rest = divmod(nanoseconds, 10**9)
    hours, minutes, seconds = seconds // 3600, seconds // 60 % 60, seconds % 60
    fraction = f".{rest:09d}".rstrip("0").rstrip(".")
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + f"{seconds}{fraction}s"


@given(st.integers(0, 10**14))
def test_every_duration_is_read_back(nanoseconds: int) -> None:
    groups = pl.Series([go(nanoseconds)]).str.extract_groups(f"^{GO_DURATION}$")
    assert pl.select(go_seconds(pl.lit(groups))).item() == pytest.approx(nanoseconds / 1e9)
