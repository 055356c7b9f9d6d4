"""llama.cpp: timing blocks of three years, loads, locales, and what the sum over a context is not."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest
import written
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from test_shapes import read

from infer_diag.diagnose import diagnose

SLOT = "slot print_timing: id  0 | task 16 | "
TIMES = (
    "prompt eval time =    2817.38 ms /  2029 tokens (    1.39 ms per token,   720.17 tokens per second)",
    "       eval time =     787.48 ms /    11 tokens (   78.75 ms per token,    12.70 tokens per second)",
    "      total time =    3604.86 ms /  2040 tokens",
)
QUEUED = [
    "slot launch_slot_: id  0 | task 16 | processing task",
    "slot update_slots: id  0 | task 16 | new prompt, n_ctx_slot = 4096, n_keep = 0, n_prompt_tokens = 2100",
    "slot update_slots: id  0 | task 16 | kv cache rm [71, end)",
]
LOAD = (
    "main: loading model",
    "srv    load_model: loading model '/models/some-8b-Q4_K_M.gguf'",
    "llama_model_loader: loaded meta data with 36 key-value pairs and 197 tensors from /models/some-8b-Q4_K_M.gguf (version GGUF V3 (latest))",
    "load_tensors: loading model tensors, this can take a while... (mmap = true)",
    "load_tensors:   CPU_Mapped model buffer size =   281.81 MiB",
    "load_tensors:        CUDA0 model buffer size =  4403.49 MiB",
    "llama_context: constructing llama_context",
    "llama_kv_cache:      CUDA0 KV buffer size =   512.00 MiB",
    "llama_context:      CUDA0 compute buffer size =   258.50 MiB",
    "llama_context: graph splits = 2",
    "common_init_from_params: warming up the model with an empty run - please wait ... (--no-warmup to disable)",
    "srv    load_model: initializing slots, n_slots = 4",
    "main: model loaded",
    "main: server is listening on http://127.0.0.1:8080 - starting the main loop",
)


def context(load: float, prompt: float, runs: float, by: str = "llama_print_timings") -> list[str]:
    """What a tool prints of its context: 11 tokens of a prompt, 32 tokens sampled."""
    return [
        f"{by}:        load time = {load:9.2f} ms",
        f"{by}:      sample time =     17.25 ms /    32 runs   (    0.54 ms per token,  1854.64 tokens per second)",
        f"{by}: prompt eval time = {prompt:9.2f} ms /    11 tokens ( 9754.31 ms per token,     0.10 tokens per second)",
        f"{by}:        eval time = {runs:9.2f} ms /    31 runs   (  503.94 ms per token,     1.98 tokens per second)",
        f"{by}:       total time = {prompt + runs + 571:9.2f} ms /    42 tokens",
    ]


def uptime(second: float, line: str, level: str = "I") -> str:
    """The prefix of 2026: minutes, seconds, milliseconds and microseconds of the process."""
    micros = round(second * 1e6)
    return f"{micros // 60_000_000}.{micros // 1_000_000 % 60:02d}.{micros // 1000 % 1000:03d}.{micros % 1000:03d} {level} {line}"


ERAS = {
    "2024 as JSON": [
        json.dumps({"tid": "1", "timestamp": 1717067386 + n, "level": "INFO", "function": "print_timings", "line": 321, "msg": line, "id_task": 19})
        for n, line in enumerate(TIMES)
    ],
    "2024 as JSON, generation": [
        json.dumps({"timestamp": 1717067386, "level": "INFO", "function": "print_timings", "msg": line.replace("       eval", "generation eval")})
        for line in TIMES
    ],
    "2024 as text": [
        f'INFO [           print_timings] {line.strip()} | tid="140" timestamp={1726381666 + n} id_slot=0 id_task=0 t_token=99.4' for n, line in enumerate(TIMES)
    ],
    "2024 with an own name": [f"print_timings: {line}" for line in TIMES],
    "2025 without prefix": [SLOT, *TIMES],
    "2026 with a prefix each": [uptime(41 + n / 1e3, SLOT + line) for n, line in enumerate(TIMES)],
    "2026 below a router": [f"[42027] {uptime(41, SLOT + line)}" for line in TIMES],
}  # fmt: skip


@pytest.mark.parametrize("era", ERAS)
def test_times_of_a_request_in_every_era(tmp_path: Path, era: str) -> None:
    row = read(tmp_path, ERAS[era]).request_timings.row(0, named=True)
    assert (row["prefill_s"], row["decode_s"], row["e2e_s"]) == pytest.approx((2.81738, 0.78748, 3.60486))
    assert (row["prompt_tokens"], row["output_tokens"], row["queue_s"]) == (2029, 11, None)
    assert (row["time"] is not None) == ("2025" not in era and "own name" not in era)


def test_shares_and_tpot_of_a_slot(tmp_path: Path) -> None:
    served = diagnose(read(tmp_path, [SLOT, *TIMES])).to_dict()["serving"]
    assert served["requests"]["count"] == 1
    assert served["requests"]["tpot_s"]["mean"] == pytest.approx(0.78748 / 10)  # the first token belongs to the prompt
    assert served["shares"]["prefill"] + served["shares"]["decode"] == pytest.approx(1.0, abs=1e-6)
    assert served["shares"]["queue"] is None


def test_a_cached_prefix_is_part_of_the_prompt(tmp_path: Path) -> None:
    row = read(tmp_path, [*QUEUED, SLOT, *TIMES]).request_timings.row(0, named=True)
    assert (row["request_id"], row["prompt_tokens"], row["cached_tokens"]) == ("16", 2100, 71)


def test_tasks_that_share_an_id_across_runs_keep_their_own_prompt(tmp_path: Path) -> None:
    later = [line.replace("2100", "2029") for line in QUEUED]
    recording = read(tmp_path, [*QUEUED, SLOT, *TIMES, *later, SLOT, *TIMES])
    assert recording.request_timings["cached_tokens"].to_list() == [71, 0]


def test_blocks_of_slots_that_follow_each_other_stay_apart(tmp_path: Path) -> None:
    other = [
        line.replace("2817.38", "1000.00").replace("787.48", "2000.00").replace("3604.86", "3000.00") for line in TIMES
    ]
    recording = read(tmp_path, [*TIMES, *other, SLOT, *TIMES])
    assert recording.request_timings["e2e_s"].to_list() == pytest.approx([3.60486, 3.0, 3.60486])


def test_a_block_that_was_cut_is_not_filled_from_the_next(tmp_path: Path) -> None:
    recording = read(tmp_path, [SLOT, TIMES[0], "slot print_timing: id  1 | task 17 | ", *TIMES])
    assert recording.request_timings.select("decode_s", "e2e_s").rows() == [
        (None, None),
        pytest.approx((0.78748, 3.60486)),
    ]


@pytest.mark.parametrize("lines", [[SLOT, *TIMES], context(1394.81, 1089.77, 6138.24), list(LOAD)])
def test_the_mark_of_the_decimals_does_not_matter(tmp_path: Path, lines: list[str]) -> None:
    points = read(tmp_path, lines, "points.log")
    commas = read(tmp_path, [line.replace(".", ",") if "=" in line else line for line in lines], "commas.log")
    for frame in ("request_timings", "phases", "components"):
        assert_frame_equal(getattr(points, frame), getattr(commas, frame))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 10**8), st.integers(1, 10**8), st.integers(1, 10**6), st.integers(2, 10**6), st.booleans())
def test_every_block_is_read_back(tmp_path: Path, prompt: int, output: int, n: int, m: int, comma: bool) -> None:
    block = [
        f"prompt eval time = {prompt / 100:10.2f} ms / {n:5d} tokens ({prompt / 100 / n:8.2f} ms per token, 1.00 tokens per second)",
        f"       eval time = {output / 100:10.2f} ms / {m:5d} tokens ({output / 100 / m:8.2f} ms per token, 1.00 tokens per second)",
        f"      total time = {(prompt + output) / 100:10.2f} ms / {n + m:5d} tokens",
    ]
    text = [line.replace(".", ",") for line in block] if comma else block
    row = read(tmp_path, [SLOT, *text]).request_timings.row(0, named=True)
    assert row["prefill_s"] + row["decode_s"] == pytest.approx(row["e2e_s"], abs=1e-6)
    assert (row["prompt_tokens"], row["output_tokens"]) == (n, m)


WRAPPED = [name for name in written.WRAPPERS if name not in ("colour", "colour lost by a paste")]


@pytest.mark.parametrize("name", WRAPPED)
def test_a_wrapper_changes_nothing(tmp_path: Path, name: str) -> None:
    lines = [*LOAD, *QUEUED, SLOT, *TIMES]
    plain = read(tmp_path, lines, "plain.log")
    wrapped = read(tmp_path, [written.WRAPPERS[name](written.BEGIN, line) for line in lines], "wrapped.log")
    assert wrapped.sources[0].engine == "llama.cpp"
    for frame in ("request_timings", "components"):
        expected = getattr(plain, frame).drop("time")
        assert_frame_equal(getattr(wrapped, frame).drop("time"), expected)
    assert wrapped.phases["phase"].to_list() == plain.phases["phase"].to_list()


def test_a_start_of_2026_by_its_own_clock(tmp_path: Path) -> None:
    lines = [uptime(float(second), line) for second, line in enumerate(LOAD)]
    diagnosis = diagnose(read(tmp_path, lines)).to_dict()
    start = diagnosis["starts"][0]
    assert (start["outcome"], start["span_s"]) == ("ready", 13.0)
    assert start["phases_s"] == {"weights_load": 5.0, "kv_alloc": 3.0, "warmup": 1.0}
    assert diagnosis["sources"][0]["first_time"] is None  # an uptime is no date


def test_an_uptime_beside_a_collectors_stamp_is_left_alone(tmp_path: Path) -> None:
    lines = [
        f"{written.utc(written.BEGIN + timedelta(seconds=run + second))} {uptime(float(second), line)}"
        for run in (0, 3600)
        for second, line in enumerate(LOAD)
    ]
    recording = read(tmp_path, lines)
    assert [clock.where for clock in recording.sources[0].clocks] == ["outer"]
    assert len(recording.starts) == 2


def test_an_idle_night_turns_no_day(tmp_path: Path) -> None:
    lines = [uptime(10.0, SLOT + TIMES[0]), uptime(60_000.0, SLOT + TIMES[0])]
    assert read(tmp_path, lines).request_timings["time"].diff().dt.total_seconds().to_list() == [None, 59_990]


def test_buffers_on_a_device_make_the_ledger(tmp_path: Path) -> None:
    told = read(tmp_path, list(LOAD)).components
    assert told.select("name", pl.col("size_bytes") / 2**20).rows() == [
        ("CUDA0 model buffer", pytest.approx(4403.49)),
        ("CUDA0 KV buffer", 512.0),
        ("CUDA0 compute buffer", 258.5),
    ]


def test_the_first_evaluation_is_part_of_the_load_time(tmp_path: Path) -> None:
    recording = read(tmp_path, context(107317.09, 107297.40, 15622.09))
    load = recording.phases.filter(phase="weights_load").row(0, named=True)
    assert load["duration_s"] is None
    assert (load["lower_s"], load["upper_s"]) == (None, pytest.approx(107.31709))
    row = recording.request_timings.row(0, named=True)
    assert (row["e2e_s"], row["output_tokens"]) == (None, 32)
    assert row["tpot_s"] == pytest.approx(15.62209 / 31)


def test_a_load_time_that_is_printed_again_is_one_start(tmp_path: Path) -> None:
    again = context(1394.81, 500.0, 3000.0)
    recording = read(tmp_path, [*context(1394.81, 1089.77, 6138.24), *again, *again])
    assert len(recording.starts) == 1
    assert recording.request_timings["prefill_s"].to_list() == [1.08977, 0.5, 0.5]
    assert recording.phases.filter(phase="weights_load")["upper_s"].to_list() == [pytest.approx(1.39481)]


def test_another_load_time_is_another_run(tmp_path: Path) -> None:
    recording = read(tmp_path, [*context(1394.81, 1089.77, 6138.24), *context(1400.0, 1089.77, 6138.24)])
    assert len(recording.starts) == 2


@pytest.mark.parametrize(("wall", "unlogged"), [("real\t0m9.051s", 1.82299), ("real    1m9,051s", 61.82299)])
def test_the_shells_clock_bounds_a_run_of_one_request(tmp_path: Path, wall: str, unlogged: float) -> None:
    run = [*context(1394.81, 1089.77, 6138.24), "", wall, "user\t1m0.074s", "sys\t0m1.514s"]
    start = diagnose(read(tmp_path, run)).to_dict()["starts"][0]
    assert start["unlogged_s"] == pytest.approx(unlogged)
    assert start["span_s"] is None


def test_the_shells_clock_says_nothing_of_a_run_that_served_more(tmp_path: Path) -> None:
    for more in (context(1394.81, 500.0, 3000.0), [SLOT, *TIMES]):
        run = [*context(1394.81, 1089.77, 6138.24), *more, "real\t59m9.051s"]
        assert diagnose(read(tmp_path, run)).to_dict()["starts"][0]["unlogged_s"] is None


def test_the_sum_that_a_server_prints_at_its_end_is_no_request(tmp_path: Path) -> None:
    end = [uptime(99.0, line) for line in context(8200.92, 915.13, 23038.87, "llama_perf_context_print")]
    lines = [uptime(float(second), line) for second, line in enumerate([*LOAD, *QUEUED, SLOT, *TIMES])]
    recording = read(tmp_path, [*lines, *end])
    assert recording.request_timings["e2e_s"].to_list() == [3.60486]
    start = diagnose(recording).to_dict()["starts"]
    assert [one["span_s"] for one in start] == [13.0]


def test_a_full_cache_is_found(tmp_path: Path) -> None:
    retry = "srv  update_slots: failed to find free space in the KV cache, retrying with smaller batch size, i = 0, n_batch = {}, ret = 1"
    old = "update_slots : failed to find free space in the KV cache, retrying with smaller n_batch = 256"
    recording = read(tmp_path, [*(retry.format(2**n) for n in range(10)), f"[1707364943] {old}"])
    assert recording.incidents["kind"].to_list() == ["kv_full"] * 11
    findings = {finding.id: finding.severity for finding in diagnose(recording).findings}
    assert findings["batching.kv_saturation"] == "high"


PINNED = "ggml_cuda_host_malloc: failed to allocate 1900{}00 MiB of pinned memory: invalid argument"


@pytest.mark.parametrize("mark", [".", ","])
def test_pinned_memory_that_the_host_refuses_fails_no_start(tmp_path: Path, mark: str) -> None:
    recording = read(tmp_path, [*LOAD[:6], PINNED.format(mark), *LOAD[6:]])
    oom = recording.ooms.row(0, named=True)
    assert (oom["memory"], oom["requested_bytes"], oom["total_bytes"]) == ("host", 1900 * 2**20, None)
    assert diagnose(recording).to_dict()["starts"][0]["outcome"] == "ready"


def test_a_device_that_is_too_small_fails_the_start(tmp_path: Path) -> None:
    told = [
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 12345.67 MiB on device 1: cudaMalloc failed: out of memory",
        "llama_model_load: error loading model: unable to allocate CUDA1 buffer",
        "srv    load_model: failed to load model, '/models/some-8b-Q4_K_M.gguf'",
    ]
    recording = read(tmp_path, [*LOAD[:4], *told])
    oom = recording.ooms.row(0, named=True)
    assert (oom["memory"], oom["gpu"], oom["requested_bytes"]) == ("device", "1", pytest.approx(12345.67 * 2**20))
    assert diagnose(recording).to_dict()["starts"][0]["outcome"] == "failed"


def test_the_dots_of_a_load_are_no_cut(tmp_path: Path) -> None:
    recording = read(tmp_path, [*LOAD[:4], "." * 87, *LOAD[4:]])
    assert not recording.sources[0].cut
    assert read(tmp_path, [*LOAD[:4], "...", *LOAD[4:]]).sources[0].cut


def test_slots_without_times_are_no_requests(tmp_path: Path) -> None:
    recording = read(tmp_path, [*LOAD, *QUEUED])
    assert recording.request_timings.is_empty()


UGLY = [
    "prompt eval time = ms / tokens",
    "prompt eval time =    1.1.1 ms /  99999999999999 tokens",
    "       eval time =     nan ms /    10 tokens",
    "slot print_timing: id  x | task y | ",
    "llama_print_timings:        load time =  -1.00 ms",
    "the total time = 12 ms was fine, said the prompt",
    "real\t9999999999999999999999m0.0s",
]


def test_lines_that_only_resemble_are_survived(tmp_path: Path) -> None:
    recording = read(tmp_path, [*LOAD, *UGLY, SLOT, *TIMES, *UGLY])
    assert recording.request_timings["e2e_s"].drop_nulls().to_list() == [3.60486]
