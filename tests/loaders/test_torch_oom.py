"""PyTorch's messages, tables and dumps, as each version prints them and as people paste them."""

from __future__ import annotations

import textwrap
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infer_diag.loaders import load
from infer_diag.loaders.oom_messages import ooms
from infer_diag.recording import Recording

GIB, MIB = float(1 << 30), float(1 << 20)
NEW = (
    "CUDA out of memory. Tried to allocate 3.50 GiB. GPU 2 has a total capacity of 23.69 GiB of which 875.62 MiB is free. "
    "Process 4928 has 3.21 GiB memory in use. Including non-PyTorch memory, this process has 19.40 GiB memory in use. "
    "Of the allocated memory 17.97 GiB is allocated by PyTorch, with 64.00 MiB allocated in private pools (e.g., CUDA Graphs), "
    "and 1.02 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  "
    "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
OLD = (
    "CUDA out of memory. Tried to allocate 3.50 GiB (GPU 2; 23.69 GiB total capacity; 17.97 GiB already allocated; "
    "875.62 MiB free; 18.99 GiB reserved in total by PyTorch)"
)
VERSIONS = {
    "1.3": OLD.replace("18.99 GiB reserved in total by PyTorch)", "1.02 GiB cached)"),
    "1.4": f"RuntimeError: {OLD}",
    "1.13": f"torch.cuda.OutOfMemoryError: {OLD} If reserved memory is >> allocated memory try setting max_split_size_mb",
    "2.1": "torch.cuda.OutOfMemoryError: " + NEW.replace("capacity", "capacty"),
    "2.4": f"torch.OutOfMemoryError: {NEW}",
    "2.9": f"torch.OutOfMemoryError: {NEW.replace('PYTORCH_CUDA_ALLOC_CONF', 'PYTORCH_ALLOC_CONF')}",
    "ROCm": f"torch.OutOfMemoryError: {NEW.replace('CUDA out', 'HIP out')}",
}
WRAPPERS = {
    "alone": "{}",
    "Windows": "PS C:\\work> python train.py\r\nTraceback (most recent call last):\r\n{}\r",
    "CI runner": "2025-10-12T11:25:13.4961658Z FAILED [0.0005s] tests/test_a.py::test_b - {}",
    "containerd": "2026-03-14T09:26:53.123456789Z stderr F {}",
    "compose": "trainer-1  | {}",
    "pytest": "E       {}",
    "logging": "2026-03-14 09:26:53,123 - root - ERROR - Error during generation: {}",
}


def loaded(tmp_path: Path, text: str) -> Recording:
    path = tmp_path / "text.log"
    path.write_bytes(text.encode())
    return load(path)


def read(*messages: str) -> pl.DataFrame:
    return ooms(
        pl.DataFrame(
            {"line": list(range(1, len(messages) + 1)), "message": list(messages), "time": [None] * len(messages)},
            schema={"line": pl.UInt32, "message": pl.String, "time": pl.Datetime("us", "UTC")},
        )
    )


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_is_read_whatever_stands_around_it(tmp_path: Path, version: str, wrapper: str) -> None:
    recording = loaded(tmp_path, WRAPPERS[wrapper].format(VERSIONS[version]) + "\n")
    assert (recording.sources[0].format, len(recording.ooms)) == ("pytorch", 1)
    row = recording.ooms.row(0, named=True)
    assert row["gpu"] == "2"
    told = ("requested_bytes", "total_bytes", "free_bytes", "allocated_bytes")
    expected = (3.5 * GIB, 23.69 * GIB, 875.62 * MIB, 17.97 * GIB)
    assert [row[name] for name in told] == pytest.approx(expected)
    assert (row["reserved_bytes"] or row["allocated_bytes"] + row["idle_bytes"]) == pytest.approx(18.99 * GIB)


def test_the_numbers_of_a_new_message_and_half_their_last_digits() -> None:
    row = read(f"torch.OutOfMemoryError: {NEW}").row(0, named=True)
    assert row["listed_bytes"] == pytest.approx([3.21 * GIB])
    assert row["process_bytes"] == pytest.approx(19.40 * GIB)
    assert row["private_pools_bytes"] == 64 * MIB
    assert row["idle_bytes"] == pytest.approx(1.02 * GIB)
    assert row["reserved_bytes"] is None
    assert row["total_resolution_bytes"] == pytest.approx(0.005 * GIB)
    assert row["free_resolution_bytes"] == pytest.approx(0.005 * MIB)


def test_zero_bytes_and_limits() -> None:
    text = NEW.replace("875.62 MiB is free", "0 bytes is free").replace(
        "Of the allocated", "2.25 GiB allowed; Of the allocated"
    )
    row = read(text).row(0, named=True)
    assert (row["free_bytes"], row["free_resolution_bytes"]) == (0, 0)
    assert row["allowed_bytes"] == pytest.approx(2.25 * GIB)


@given(st.integers(60, 200))
@settings(max_examples=25, deadline=None)
def test_a_message_broken_over_lines_reads_the_same(width: int) -> None:
    whole = read(f"RuntimeError: {NEW}")
    broken = read(*textwrap.wrap(f"RuntimeError: {NEW}", width))
    assert broken.drop("line").equals(whole.drop("line"))


def test_a_message_broken_inside_words_reads_the_same() -> None:
    parts = [NEW[at : at + 70] for at in range(0, len(NEW), 70)]
    assert read(*parts).drop("line").equals(read(NEW).drop("line"))


def test_numbers_of_the_next_message_are_not_taken_for_those_of_a_cut_one() -> None:
    rows = read(NEW[:60], "RuntimeError: " + OLD.replace("17.97", "5.00"))
    assert rows["allocated_bytes"].to_list() == [None, 5 * GIB]


def test_one_failure_shown_again_is_one_and_another_text_is_another() -> None:
    error = f"torch.OutOfMemoryError: {NEW}"
    assert len(read(error, "Traceback (most recent call last):", error)) == 1
    assert len(read(error, f"RuntimeError: Worker failed with error '{NEW}', please check")) == 1
    assert len(read(f"FAILED a.py::one - {error}", f"FAILED a.py::two - {error}")) == 2
    assert len(read(error, error.replace("3.50", "3.60"))) == 2


@pytest.mark.parametrize(
    ("text", "memory", "requested"),
    [
        ("RuntimeError: [enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 3600000000 bytes. Error code 12", "host", 3.6e9),
        ("RuntimeError: DefaultCPUAllocator: not enough memory: you tried to allocate 512 bytes.", "host", 512),
        ("RuntimeError: CUDA error: out of memory", "device", None),
        ("[E] Error: Requested amount of GPU memory (1048576 bytes) could not be allocated. There may not be enough", "device", MIB),
    ],
)  # fmt: skip
def test_other_allocators(text: str, memory: str, requested: float | None) -> None:
    row = read(text).row(0, named=True)
    assert (row["memory"], row["requested_bytes"], row["total_bytes"]) == (memory, requested, None)


def test_a_hint_that_only_speaks_of_memory_is_no_failure() -> None:
    text = "CUDA out of memory occurred when warming up sampler with 256 dummy requests. Please lower max_num_seqs"
    assert read(text, "try a smaller batch if you run out of memory").is_empty()


TABLE = """\
|===========================================================================|
|                  PyTorch CUDA memory summary, device ID 1                 |
|---------------------------------------------------------------------------|
|            CUDA OOMs: 2            |        cudaMalloc retries: 5         |
|===========================================================================|
|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |
|---------------------------------------------------------------------------|
| Allocated memory      |   1000 {u} |   1500 {u} |   9000 {u} |   8000 {u} |
|       from large pool |    900 {u} |   1400 {u} |   8000 {u} |   7100 {u} |
|---------------------------------------------------------------------------|
| Active memory         |   1100 {u} |   1500 {u} |   9000 {u} |   8000 {u} |
|---------------------------------------------------------------------------|
| GPU reserved memory   |   3000 {u} |   3200 {u} |   3200 {u} |    200 {u} |
|---------------------------------------------------------------------------|
| Non-releasable memory |    400 {u} |    500 {u} |   5000 {u} |   4600 {u} |
|---------------------------------------------------------------------------|
| GPU reserved segments |      42    |      50    |      60    |      18    |
|===========================================================================|
"""


@pytest.mark.parametrize(("unit", "scale"), [("MB ", MIB), ("MiB", MIB), ("KiB", 1024), ("GiB", GIB)])
def test_a_table_is_read_in_any_unit(tmp_path: Path, unit: str, scale: float) -> None:
    recording = loaded(tmp_path, TABLE.replace("{u}", unit))
    row = recording.memory_stats.row(0, named=True)
    sizes = ("allocated_bytes", "active_bytes", "reserved_bytes", "inactive_split_bytes", "peak_reserved_bytes", "peak_allocated_bytes", "resolution_bytes")  # fmt: skip
    assert [row[name] / scale for name in sizes] == [1000, 1100, 3000, 400, 3200, 1500, 1]
    assert (row["gpu"], row["oom_count"], row["retry_count"], row["segment_count"]) == ("1", 2, 5, 42)
    assert not recording.sources[0].cut
    assert recording.ooms.is_empty()


def test_a_table_that_breaks_off_is_cut_and_keeps_what_it_says(tmp_path: Path) -> None:
    recording = loaded(tmp_path, "\n".join(TABLE.replace("{u}", "MiB").splitlines()[:11]))
    row = recording.memory_stats.row(0, named=True)
    assert recording.sources[0].cut
    assert (row["allocated_bytes"], row["reserved_bytes"]) == (1000 * MIB, None)


DUMP = """\
{'active_size': 300,
 'blocks': [{'size': 100, 'state': 'active_allocated'},
            {'size': 200, 'requested_size': 150, 'state': 'active_pending_free'},
            {'size': 700, 'state': 'inactive'}],
 'device': 0,
 'total_size': 1000}
{'active_size': 0,
 'blocks': [{'address': 4096, 'size': 500, 'state': 'inactive'}],
 'total_size': 500}
"""


def test_a_dump_is_read_segment_by_segment(tmp_path: Path) -> None:
    recording = loaded(tmp_path, TABLE.replace("{u}", "MiB") + DUMP)
    rows = recording.blocks.select("segment_id", "address_id", "size_bytes", "requested_bytes", "state")
    assert rows.rows() == [
        (1, 0, 100, None, "active"),
        (1, 100, 200, 150, "awaiting"),
        (1, 300, 700, None, "inactive"),
        (2, 4096, 500, None, "inactive"),
    ]
    assert not recording.sources[0].cut
    assert loaded(tmp_path, TABLE.replace("{u}", "MiB") + DUMP[: DUMP.index("'inactive'")]).sources[0].cut


def test_a_failed_allocation_in_an_engine_s_log_leaves_the_log_to_the_engine(tmp_path: Path) -> None:
    stamped = f"(Worker_TP1 pid=7) ERROR 03-14 09:27:12 [multiproc_executor.py:671] torch.OutOfMemoryError: {NEW}\n"
    recording = loaded(tmp_path, stamped)
    assert recording.sources[0].engine == "vllm"
    assert recording.ooms.select("rank", "requested_bytes").row(0) == ("TP1", 3.5 * GIB)
    sglang = (
        "[2026-03-14 09:27:10 TP0] Load weight begin. avail mem=78.50 GB\n"
        f"[2026-03-14 09:27:12 TP0] Scheduler hit an exception: Traceback\ntorch.OutOfMemoryError: {NEW}\n"
    )
    recording = loaded(tmp_path, sglang)
    assert (recording.sources[0].engine, len(recording.ooms)) == ("sglang", 1)


@given(st.text(max_size=200))
@settings(max_examples=50, deadline=None)
def test_no_text_behind_a_message_breaks_it(tail: str) -> None:
    row = read(f"{NEW} {tail}", tail).row(0, named=True)
    assert row["requested_bytes"] == 3.5 * GIB
