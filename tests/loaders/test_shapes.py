"""What others wrap around an engine's lines must not change what they say."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from pathlib import Path

import polars as pl
import pytest
import written
import zstandard
from polars.testing import assert_frame_equal

from infer_diag.loaders import load
from infer_diag.recording import Recording


def read(tmp_path: Path, data: bytes | list[str], name: str = "server.log", **options: object) -> Recording:
    """The recording of a file with these bytes or lines."""
    path = tmp_path / name
    path.write_bytes(data if isinstance(data, bytes) else ("\n".join(data) + "\n").encode())
    return load(path, **options)  # type: ignore[arg-type]


def told(recording: Recording) -> dict[str, pl.DataFrame]:
    """What a recording says, apart from where on the clock it stands and which line says it."""
    phases = recording.phases.select("rank", "phase", "inside", "duration_s", "resolution_s", "is_total", "size_bytes")
    samples = recording.engine_samples.drop("source_id", "line", "time")
    steps = recording.engine_steps.drop("source_id", "line", "time", "replica")
    return {"phases": phases, "samples": samples, "steps": steps}


@pytest.mark.parametrize("name", written.WRAPPERS)
def test_a_wrapper_changes_nothing(tmp_path: Path, name: str) -> None:
    plain = read(tmp_path, written.vllm_lines(), "plain.log")
    wrapped = read(tmp_path, written.vllm_lines(wrap=written.WRAPPERS[name]), "wrapped.log")
    for frame, expected in told(plain).items():
        assert_frame_equal(told(wrapped)[frame].drop("replica", strict=False), expected.drop("replica", strict=False))
    span = wrapped.starts["last_time"][0] - wrapped.starts["first_time"][0]
    assert span == plain.starts["last_time"][0] - plain.starts["first_time"][0]
    assert wrapped.phases["line"].to_list() == plain.phases["line"].to_list()


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("gzip", gzip.compress),
        ("zstd", zstandard.ZstdCompressor().compress),
        ("bz2", bz2.compress),
        ("xz", lzma.compress),
        ("utf-16", lambda data: data.decode().encode("utf-16")),
        ("utf-16 without a mark", lambda data: data.decode().encode("utf-16-le")),
        ("byte order mark", lambda data: b"\xef\xbb\xbf" + data),
    ],
)
def test_packing_and_encoding_change_nothing(tmp_path: Path, name: str, pack: object) -> None:
    data = "\n".join(written.vllm_lines()).encode()
    packed = read(tmp_path, pack(data), "packed.log")  # type: ignore[operator]
    for frame, expected in told(read(tmp_path, data, "plain.log")).items():
        assert_frame_equal(told(packed)[frame], expected)


def test_bytes_that_are_no_utf8_cost_only_themselves(tmp_path: Path) -> None:
    lines = written.vllm_lines()
    data = b"\n".join([lines[0].encode(), b"caf\xe9 \xff\xfe broken", *(line.encode() for line in lines[1:])])
    assert len(read(tmp_path, data).phases) == len(read(tmp_path, lines).phases)


def test_records_glued_to_one_line_are_told_apart(tmp_path: Path) -> None:
    lines = written.vllm_lines()
    glued = [" ".join(lines[:6]), *lines[6:]]
    assert_frame_equal(told(read(tmp_path, glued))["phases"], told(read(tmp_path, lines))["phases"])


def test_a_record_glued_to_a_bar_is_found(tmp_path: Path) -> None:
    bar = "Loading safetensors checkpoint shards:  56% Completed | 5/9 [00:13<00:11,  2.87s/it]"
    lines = written.vllm_lines()
    recording = read(tmp_path, [*lines[:3], bar + lines[3], *lines[4:]])
    assert recording.progress.select("done_count", "total_count", "elapsed_s").rows() == [(5, 9, 13.0)]
    assert recording.phases.filter(phase="weights_read")["duration_s"].to_list() == [10.25]


def test_carriage_returns_separate_the_readings_of_a_bar(tmp_path: Path) -> None:
    bars = "\r".join(
        f"Loading safetensors checkpoint shards:  0% Completed | {n}/4 [00:0{n}<00:01,  1.0s/it]" for n in range(5)
    )
    recording = read(tmp_path, [*written.vllm_lines()[:3], bars, *written.vllm_lines()[3:]])
    assert recording.progress["done_count"].to_list() == [0, 1, 2, 3, 4]
    assert recording.progress["line"].unique().to_list() == [4]


@pytest.mark.parametrize("width", [80, 119, 160])
def test_lines_wrapped_by_a_terminal_are_joined(tmp_path: Path, width: int) -> None:
    lines = written.vllm_lines(wrap=written.WRAPPERS["docker logs --timestamps"])
    wrapped = [line[at : at + width] for line in lines for at in range(0, len(line), width)]
    recording = read(tmp_path, wrapped)
    assert_frame_equal(told(recording)["samples"], told(read(tmp_path, lines, "whole.log"))["samples"])
    assert any("wrapped" in note for note in recording.sources[0].notes)


def test_json_per_line_from_a_logging_configuration(tmp_path: Path) -> None:
    records = [
        json.dumps(
            {
                "asctime": f"{written.BEGIN:%Y-%m-%d} 09:26:{second % 60:02.0f},250",
                "levelname": "INFO",
                "message": message,
            }
        )
        for second, _, message in written.VLLM
        if second < 60
    ]
    recording = read(tmp_path, records)
    assert recording.phases.filter(phase="compile_dynamo")["duration_s"].to_list() == [6.5]
    assert recording.starts["first_time"][0].year == 2026


def test_evidence_names_the_physical_line(tmp_path: Path) -> None:
    lines = ["", "noise", *written.vllm_lines(), "more noise"]
    recording = read(tmp_path, lines)
    for row in recording.phases.iter_rows(named=True):
        if row["duration_s"] is not None:
            assert f"{row['duration_s']:g}"[:4] in lines[row["line"] - 1]


def test_a_prompt_that_quotes_a_log_is_not_read_as_one(tmp_path: Path) -> None:
    quoted = "INFO 03-14 09:00:00 [core.py:1] init engine (profile, create kv cache, warmup model) took 999.00 seconds"
    prompt = f"INFO 03-14 09:28:30 [logger.py:39] Received request cmpl-1-0: prompt: 'why? {quoted}', params: SamplingParams(n=1)"
    recording = read(tmp_path, [*written.vllm_lines(), prompt])
    assert recording.phases.filter(phase="init_engine")["duration_s"].to_list() == [52.4]
    assert recording.requests["request_id"].to_list() == ["cmpl-1-0"]


def test_bars_of_equal_width_are_no_wrapped_text(tmp_path: Path) -> None:
    start = "INFO 03-14 09:26:53 [gpu_model_runner.py:4021] Starting to load model org/some-model-of-a-certain-len"
    bars = [
        f"Loading safetensors checkpoint shards:   {n}% Completed | {n}/86 [00:0{n}<09:59,  8.91it/s]".ljust(
            len(start), "#"
        )[: len(start)]
        for n in range(6)
    ]
    recording = read(tmp_path, [start, *bars])
    assert recording.progress["done_count"].to_list() == [0, 1, 2, 3, 4, 5]
    assert recording.sources[0].notes == ()


@pytest.mark.parametrize(
    "format_",
    [
        "{stamp} INFO 412 [scheduler.py:1040] {message}",
        "{stamp} | INFO | scheduler:run_batch:1040 - {message}",
        "{stamp},125 - engine.scheduler - INFO - {message}",
        "{stamp} TP0] {message}",
        '{stamp}.000000000 +0000 kube.engine: {{"log": "[{stamp} TP0] {message}\\n", "stream": "stderr"}}',
    ],
)
def test_formats_of_logging_configurations_and_pastes(tmp_path: Path, format_: str) -> None:
    records = [(line[1:20], line.split("] ", 1)[1]) for line in written.SGLANG if "batch" in line]
    plain = read(tmp_path, [line for line in written.SGLANG if "batch" in line], "plain.log")
    recording = read(tmp_path, [format_.format(stamp=stamp, message=message) for stamp, message in records])
    columns = ["running_count", "waiting_count", "output_tokens_per_s"]
    assert_frame_equal(recording.engine_samples.select(columns), plain.engine_samples.select(columns))
    assert recording.engine_samples["time"].diff().drop_nulls().dt.total_seconds().to_list() == [4, 1]


def test_carriage_returns_alone_end_lines(tmp_path: Path) -> None:
    plain = read(tmp_path, list(written.SGLANG), "plain.log")
    recording = read(tmp_path, "\r".join(written.SGLANG).encode())
    for frame, expected in told(plain).items():
        assert_frame_equal(told(recording)[frame], expected)
    assert recording.phases["line"].to_list() == plain.phases["line"].to_list()
