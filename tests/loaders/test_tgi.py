"""Text Generation Inference: its launcher, its shards and the spans around a finished request."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest
import written
from hypothesis import given
from hypothesis import strategies as st
from test_shapes import read

from infer_diag.diagnose import diagnose
from infer_diag.loaders import tgi

LAUNCHER = "text_generation_launcher"
START = (
    (0.0, "", LAUNCHER, 'Args { model_id: "org/some-2b", num_shard: Some(2), quantize: Some(Awq), max_batch_prefill_tokens: Some(4096) }'),
    (0.5, "download", LAUNCHER, "Starting check and download process for org/some-2b"),
    (1.0, "", LAUNCHER, "Files are already present on the host. Skipping download."),
    (3.5, "download", LAUNCHER, "Successfully downloaded weights for org/some-2b"),
    (4.0, "shard-manager", LAUNCHER, "Starting shard rank=0"),
    (4.0, "shard-manager", LAUNCHER, "Starting shard rank=1"),
    (14.0, "shard-manager", LAUNCHER, "Waiting for shard to be ready... rank=0"),
    (19.5, "shard-manager", LAUNCHER, "Shard ready in 15.480759844s rank=0"),
    (20.5, "shard-manager", LAUNCHER, "Shard ready in 16.480759844s rank=1"),
    (22.5, "", LAUNCHER, "Starting Webserver"),
    (23.0, "", "text_generation_router_v3", "backends/v3/src/lib.rs:125: Warming up model"),
    (25.0, "", LAUNCHER, "KV-cache blocks: 1000, size: 16"),
    (26.0, "", "text_generation_router_v3", "backends/v3/src/lib.rs:145: Setting max batch total tokens to 16000"),
    (26.5, "", "text_generation_router::server", "router/src/server.rs:2266: Connected"),
)  # fmt: skip
TIMES = 'total_time="1.234567891s" validation_time="456.789µs" queue_time="78.9ms" inference_time="1.15s" time_per_token="11.5ms" seed="Some(123)"'
PARAMETERS = 'parameters=GenerateParameters { best_of: None, stop: ["}"], grammar: Some(Json(Object {"a": 1})) }'


def lines(records: tuple[tuple[float, str, str, str], ...] = START, *, colour: bool = False) -> list[str]:
    """The records as the launcher prints them."""
    out = []
    for second, span, target, message in records:
        at = written.BEGIN + timedelta(seconds=second)
        stamp, spans = f"{at:%Y-%m-%dT%H:%M:%S.%f}Z", f"{span}: " if span else ""
        if colour:
            stamp, spans = f"\x1b[2m{stamp}\x1b[0m", f"\x1b[1m{span}\x1b[0m: " if span else ""
            out.append(f"{stamp} \x1b[32m INFO\x1b[0m {spans}\x1b[2m{target}\x1b[0m\x1b[2m:\x1b[0m {message}")
        else:
            out.append(f"{stamp}  INFO {spans}{target}: {message}")
    return out


def as_json(records: tuple[tuple[float, str, str, str], ...] = START) -> list[str]:
    """The records as `--json-output` writes them: the launcher nests its fields, the router does not."""
    out = []
    for second, span, target, message in records:
        at = written.BEGIN + timedelta(seconds=second)
        text, _, rank = message.partition(" rank=")
        text = text.rpartition(".rs:")[2].partition(": ")[2] if ".rs:" in text else text
        told = {"message": text} if "router" in target else {"fields": {"message": text}}
        spans = {"spans": [{"rank": int(rank), "name": span}]} if rank else {}
        stamp = f"{at:%Y-%m-%dT%H:%M:%S.%f}Z"
        out.append(json.dumps({"timestamp": stamp, "level": "INFO", **told, "target": target, **spans}))
    return out


@pytest.mark.parametrize("shape", ["plain", "colour", "json", "syslog colour", "docker", "containerd", "compose"])
def test_a_start_in_every_shape(tmp_path: Path, shape: str) -> None:
    text = {
        "plain": lines(),
        "colour": lines(colour=True),
        "json": as_json(),
        "syslog colour": [line.replace("\x1b", "#033") for line in lines(colour=True)],
        "docker": [f"{line.split('Z')[0]}123Z {line}" for line in lines()],
        "containerd": [f"{line.split('Z')[0]}123Z stdout F {line}" for line in lines()],
        "compose": [f"tgi-1  | {line}" for line in lines()],
    }[shape]
    recording = read(tmp_path, text)
    assert recording.sources[0].engine == "tgi"
    start = diagnose(recording).to_dict()["starts"][0]
    assert start["outcome"] == "ready"
    assert start["span_s"] == pytest.approx(26.5, abs=1e-3)
    assert start["phases_s"] == {"weights_fetch": 3.0, "weights_load": pytest.approx(16.5, abs=0.1), "warmup": 3.0}
    assert {rank: row["weights_load"] for rank, row in start["by_rank_s"].items()} == {"0": 15.48076, "1": 16.48076}
    assert start["caches"]["weights"] == "hit"
    configuration = recording.deployments.row(0, named=True)
    assert (configuration["gpu_count"], configuration["kv_cache_tokens"], configuration["precision"]) == (
        2,
        16000,
        "awq",
    )


def test_a_heartbeat_is_no_progress(tmp_path: Path) -> None:
    recording = read(tmp_path, lines(START[:7]))
    start = diagnose(recording).to_dict()["starts"][0]
    assert (start["outcome"], start["progress"], start["phases_s"]["weights_load"]) == ("unfinished", None, None)


@pytest.mark.parametrize(
    "last",
    ["Shard 0 failed to start", "Webserver Crashed", "Download encountered an error: disk full"],
)
def test_a_failure_is_told_in_the_logs_words(tmp_path: Path, last: str) -> None:
    text = [*lines(START[:7]), f"2026-03-14T09:27:30.000000Z ERROR text_generation_launcher: {last}"]
    assert diagnose(read(tmp_path, text)).to_dict()["starts"][0]["outcome"] == "failed"


SUCCESS = (
    f"generate{{{PARAMETERS} {TIMES}}}: text_generation_router::server: router/src/server.rs:500: Success",
    f"compat_generate{{default_return_full_text=true}}:generate{{{PARAMETERS} {TIMES}}}: text_generation_router::server: router/src/server.rs:289: Success",
    f"text_generation_router::server: router/src/server.rs:500: Success {PARAMETERS} {TIMES}",
    f"chat_completions{{{TIMES}}}: text_generation_router::server: router/src/server.rs:622: Success",
)


@pytest.mark.parametrize("message", SUCCESS)
def test_times_of_a_request_stand_in_its_span(tmp_path: Path, message: str) -> None:
    row = read(tmp_path, [f"2026-03-14T09:30:00.000000Z  INFO {message}"]).request_timings.row(0, named=True)
    assert row["e2e_s"] == pytest.approx(1.234567891)
    assert row["queue_s"] == pytest.approx(0.0789)
    assert row["compute_s"] == pytest.approx(1.15)
    assert row["output_tokens"] == 100
    assert row["tpot_s"] is None  # its time per token counts the prompt's computation


def test_times_of_a_request_as_json(tmp_path: Path) -> None:
    span = {
        "total_time": "2.5s",
        "queue_time": "900ns",
        "inference_time": "2s",
        "time_per_token": "20ms",
        "name": "generate",
    }
    told = {"timestamp": "2026-03-14T09:30:00.000000Z", "level": "INFO", "message": "Success"}
    text = json.dumps({**told, "target": "text_generation_router::server", "span": span, "spans": [span]})
    row = read(tmp_path, [text]).request_timings.row(0, named=True)
    assert (row["e2e_s"], row["queue_s"], row["output_tokens"]) == (2.5, pytest.approx(9e-7), 100)


def test_shares_of_the_requests_time(tmp_path: Path) -> None:
    document = diagnose(read(tmp_path, [f"2026-03-14T09:30:00.000000Z  INFO {SUCCESS[0]}"])).to_dict()
    shares = document["serving"]["shares"]
    assert shares["queue"] == pytest.approx(0.0789 / 1.234567891, abs=1e-6)
    assert shares["other"] == pytest.approx(1 - (0.0789 + 1.15) / 1.234567891, abs=1e-6)
    assert (shares["prefill"], shares["decode"]) == (None, None)


def test_a_micro_sign_that_an_encoding_spoilt_is_still_one(tmp_path: Path) -> None:
    for spoilt in ("µs", "μs", "us", "Âµs", "�s"):
        text = SUCCESS[0].replace('queue_time="78.9ms"', f'queue_time="78.9{spoilt}"')
        row = read(tmp_path, [f"2026-03-14T09:30:00.000000Z  INFO {text}"]).request_timings.row(0, named=True)
        assert row["queue_s"] == pytest.approx(78.9e-6), spoilt


def test_a_success_without_its_times_is_damaged(tmp_path: Path) -> None:
    text = [*lines(), '2026-03-14T09:30:00.000000Z  INFO text_generation_router::server: Success total_time="soon"']
    recording = read(tmp_path, text)
    assert recording.request_timings.is_empty()
    assert recording.rejected["line"].to_list() == [len(text)]


def rust(nanoseconds: int) -> str:
    """A duration as Rust's Debug writes it."""
    for unit, scale in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
        if nanoseconds >= scale:
            whole, rest = divmod(nanoseconds, scale)
            fraction = f"{rest:0{len(str(scale)) - 1}d}".rstrip("0")
            return f"{whole}{'.' + fraction if fraction else ''}{unit}"
    return f"{nanoseconds}ns"


@given(st.integers(0, 10**13), st.integers(1, 10**12), st.integers(1, 4000))
def test_every_duration_is_read_back(queue: int, per_token: int, tokens: int) -> None:
    inference = per_token * tokens
    message = (
        f'Success total_time="{rust(queue + inference)}" queue_time="{rust(queue)}" '
        f'inference_time="{rust(inference)}" time_per_token="{rust(per_token)}"'
    )
    frame = pl.DataFrame({"message": [message]})
    read_back = frame.select(tgi._seconds(name).alias(column) for name, column in tgi._TIMES.items())
    row = read_back.with_columns(tgi._generated().alias("tokens")).row(0, named=True)
    assert row["queue_s"] == pytest.approx(queue / 1e9)
    assert row["e2e_s"] == pytest.approx((queue + inference) / 1e9)
    assert row["tokens"] == tokens
