"""RMM's log, CuPy's hooks and recordings, dumps of the BFC allocator."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import infer_diag as diag
from infer_diag.attribution.block_map import allocator_peaks
from infer_diag.errors import DiagError, LogFormatError, SourceError
from infer_diag.loaders import load

RMM = """\
Thread,Time,Action,Pointer,Size,Stream
1980043,23:59:58.998533,allocate,0x30a000000,256,0x2
1980044,23:59:59.999990,allocate,0x30b000000,1048576,0x2
1980043,00:00:01.000001,free,0x30a000000,256,0x2
1980044,00:00:02.500000,allocate failure,(nil),99999,0x2
"""
CUPY = """\
{"hook":"alloc","device_id":1,"mem_size":512,"mem_ptr":150496608256}
{"hook":"malloc","device_id":1,"size":24,"mem_size":512,"mem_ptr":150496608256,"pmem_id":"0x7f39200c5278"}
a line of the program itself
{"hook":"free","device_id":1,"mem_size":512,"mem_ptr":150496608256,"pmem_id":"0x7f39200c5278"}
{"hook":"alloc","device_id":1,"mem_size":2400256,"mem_ptr":0}
{"hook":"malloc","device_id":1,"size":2400000,"mem_size":2400256,"mem_ptr":0,"pmem_id":"0x0"}
"""
HEAD = "2026-07-31 20:22:43.03895"
FILE = "tensorflow/core/common_runtime/bfc_allocator.cc"
BFC = f"""\
{HEAD}5: W {FILE}:434] Allocator (GPU_0_bfc) ran out of memory trying to allocate 512.00MiB (rounded to 536870912)requested by op conv/x
Current allocation summary follows.
{HEAD}7: I {FILE}:934] BFCAllocator dump for GPU_0_bfc
{HEAD}8: I {FILE}:941] Bin (256): \tTotal Chunks: 59, Chunks in use: 58. 14.8KiB allocated for chunks. 14.5KiB in use in bin. 10.1KiB client-requested in use in bin.
{HEAD}9: I {FILE}:970] Next region of size 562273024
{HEAD}9: I {FILE}:990] InUse at 7bc12a000000 of size 562273024 next 18446744073709551615
{HEAD}9: I {FILE}:970] Next region of size 536870912
{HEAD}9: I {FILE}:990] InUse at 7bc16c000000 of size 67108864 next 207
{HEAD}9: I {FILE}:990] Free  at 7bc170000000 of size 268435456 next 179
{HEAD}9: I {FILE}:990] InUse at 7bc180000000 of size 33554432 next 180
{HEAD}9: I {FILE}:990] Free  at 7bc182000000 of size 167772160 next 18446744073709551615
{HEAD}9: I {FILE}:1004] total_region_allocated_bytes_: 1099143936 memory_limit_: 1843986432 available bytes: 744842496 curr_region_allocation_bytes_: 2147483648
{HEAD}9: I {FILE}:1010] Stats: \nLimit:                  1843986432
InUse:                   662936320
MaxInUse:               1420726272
NumAllocs:                     455
MaxAllocSize:            562273024
Reserved:                            0
PeakReserved:                        0
LargestFreeBlock:                    0

{HEAD}9: W {FILE}:439] ***********x****______
"""


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize("time_mark", [".", ":"], ids=["point", "colon of older releases"])
@pytest.mark.parametrize("threads", [True, False], ids=["threads", "without threads"])
def test_rmm_events_keep_their_order_over_midnight(tmp_path: Path, time_mark: str, threads: bool) -> None:
    lines = [line.replace(".", time_mark) for line in RMM.splitlines()]
    lines = lines if threads else [line.partition(",")[2] for line in lines]
    recording = load(written(tmp_path / "rmm.dev3.csv", "\n".join(lines) + "\n"))
    events = recording.allocator_events
    assert events["action"].cast(pl.String).to_list() == ["alloc", "alloc", "free", "oom"]
    assert events["requested_bytes"].to_list() == [256, 1048576, 256, 99999]
    assert events["address_id"].to_list() == [0x30A000000, 0x30B000000, 0x30A000000, None]
    assert (events["time"] - events["time"][0]).dt.total_microseconds().to_list() == [0, 1001457, 2001468, 3501467]
    assert events["gpu"].cast(pl.String).unique().to_list() == ["3"]
    assert not recording.sources[0].dated
    assert recording.sources[0].rejected_lines == recording.sources[0].unknown_lines == 0
    [oom] = diag.diagnose(recording).to_dict()["memory"]["ooms"]
    assert (oom["requested_bytes"], oom["verdict"], oom["evidence"]) == (
        99999,
        "undetermined",
        [f"{tmp_path}/rmm.dev3.csv:5"],
    )
    assert allocator_peaks(recording)["peak_bytes"].to_list() == [1048576 + 256]


def test_threads_that_overtake_each_other_are_no_midnight(tmp_path: Path) -> None:
    overtaken = RMM.replace("23:59:59.999990", "23:59:58.990000")
    times = load(written(tmp_path / "a.csv", overtaken)).allocator_events["time"]
    assert (times[1] - times[0]).total_seconds() == pytest.approx(-0.008533)


def test_rmm_epochs_are_dated(tmp_path: Path) -> None:
    text = "Thread,Time,Action,Pointer,Size,Stream\n1,1634567890.123456,allocate,0x7f8a40000000,1024,0x0\n"
    recording = load(written(tmp_path / "a.csv", text))
    assert recording.allocator_events["time"].to_list() == [datetime(2021, 10, 18, 14, 38, 10, 123456, UTC)]
    assert recording.sources[0].dated
    assert recording.allocator_events["gpu"].to_list() == [None]


def test_a_damaged_row_is_kept_apart(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", RMM + "1980044,00:00:0")
    recording = load(path)
    assert recording.rejected.select("line", "text").rows() == [(6, "1980044,00:00:0")]
    with pytest.raises(LogFormatError):
        load(path, strict=True)


def test_cupy_tells_what_it_takes_from_the_driver_and_hands_out(tmp_path: Path) -> None:
    recording = load(written(tmp_path / "a.log", CUPY))
    events = recording.allocator_events
    assert events.select(pl.col("action").cast(pl.String), "requested_bytes", "allocated_bytes", "line").rows() == [
        ("segment_alloc", None, 512, 1),
        ("alloc", 24, 512, 2),
        ("free", None, 512, 4),
        ("oom", 2400000, 2400256, 6),
    ]
    assert events["address_id"].to_list() == [150496608256] * 3 + [None]
    assert events["gpu"].cast(pl.String).unique().to_list() == ["1"]
    assert recording.ooms["requested_bytes"].to_list() == [2400000.0]
    assert (recording.sources[0].engine, recording.sources[0].unknown_lines) == ("cupy", 1)


def test_a_recording_of_events_comes_back_as_it_was(tmp_path: Path) -> None:
    events = load(written(tmp_path / "a.log", CUPY)).allocator_events
    when = pl.lit(datetime(2026, 3, 4, 5, 6, 7, 8, UTC)).alias("time").cast(pl.Datetime("us", "UTC"))
    path = tmp_path / "a.parquet"
    events.with_columns(when).drop("source_id", "line").write_parquet(path)
    recording = load(path)
    assert recording.allocator_events.equals(events.with_columns(when, pl.lit(0, pl.UInt32).alias("line")))
    assert recording.sources[0].format == "allocator-events"
    assert recording.sources[0].first_time == datetime(2026, 3, 4, 5, 6, 7, 8, UTC)


def test_other_parquet_files_are_refused_with_the_way_to_read_them(tmp_path: Path) -> None:
    pl.DataFrame({"start": [1.0], "n_out": [3]}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(SourceError, match="format='table'"):
        load(tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes(b"PAR1" + bytes(200))
    with pytest.raises(SourceError, match="Parquet"):
        load(tmp_path / "b.parquet")
    (tmp_path / "c.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-30])
    with pytest.raises(SourceError, match="Parquet"):
        load(tmp_path / "c.parquet")


def test_a_bfc_dump_gives_chunks_totals_and_the_failure(tmp_path: Path) -> None:
    recording = load(written(tmp_path / "a.log", BFC))
    row = recording.ooms.row(0, named=True)
    assert (row["requested_bytes"], row["gpu"], row["component"]) == (536870912.0, "0", "conv/x")
    assert (row["allocated_bytes"], row["reserved_bytes"], row["allowed_bytes"]) == (
        662936320.0,
        1099143936.0,
        1843986432.0,
    )
    assert recording.blocks.group_by("segment_id", maintain_order=True).len()["len"].to_list() == [1, 4]
    blocks = diag.diagnose(recording).to_dict()["memory"]["blocks"]
    assert blocks["reserved_bytes"] == 562273024 + 536870912
    assert blocks["largest_free_bytes"] == 268435456
    assert blocks["external_frag_ratio"] == pytest.approx(1 - 268435456 / (268435456 + 167772160), abs=1e-6)
    assert blocks["unusable_free_ratio"] == 1.0
    assert recording.sources[0].engine == "tensorflow"
    assert recording.sources[0].doubts == ()


def test_lines_that_were_left_out_of_a_dump_are_a_doubt(tmp_path: Path) -> None:
    short = "\n".join(line for line in BFC.splitlines() if "of size 33554432" not in line)
    assert "do not fill" in " ".join(load(written(tmp_path / "a.log", short)).sources[0].doubts)


def test_the_wording_of_2016_is_read(tmp_path: Path) -> None:
    old = (
        f"I {FILE}:656] Bin (256): \tTotal Chunks: 2, Chunks in use: 1 512B allocated for chunks. 4B client-requested for chunks.\n"
        f"I {FILE}:674] Chunk at 0x1305ce0000 of size 256\n"
        f"I {FILE}:683] Free at 0x1305ce0100 of size 1024\n"
        f"I {FILE}:674] Chunk at 0x1305ce0500 of size 512\n"
        f"I {FILE}:674] Chunk at 0x1405ce0500 of size 512\n"
        f"W {FILE}:271] Ran out of memory trying to allocate 29.91MiB.  See logs for memory state.\n"
    )
    recording = load(written(tmp_path / "a.log", old.replace("Free at", "Free  at")))
    assert recording.blocks["size_bytes"].to_list() == [256, 1024, 512, 512]
    assert recording.blocks["segment_id"].n_unique() == 2
    row = recording.ooms.row(0, named=True)
    assert row["requested_bytes"] == pytest.approx(29.91 * (1 << 20))
    assert row["requested_resolution_bytes"] == pytest.approx(0.005 * (1 << 20))


def test_jax_raises_the_same_failure_twice_and_it_counts_once(tmp_path: Path) -> None:
    raised = "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1073741824 bytes.\n"
    recording = load(
        written(tmp_path / "a.log", "Traceback\njaxlib.xla/client\n" + raised + "During handling\n" + raised)
    )
    assert recording.ooms["requested_bytes"].to_list() == [1073741824.0]


def test_a_retry_that_is_no_failure_is_none(tmp_path: Path) -> None:
    tried = f"{HEAD}1: W {FILE}:2] Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.53GiB with freed_by_count=0. The caller indicates that this is not a failure, but this may mean that there could be performance gains if more memory were available.\n"
    assert load(written(tmp_path / "a.log", tried + BFC)).ooms["requested_bytes"].to_list() == [536870912.0]


slow = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@slow
@given(seed=st.integers(0, 10**6), text=st.sampled_from([RMM, CUPY, BFC]))
def test_damaged_text_is_read_or_refused(tmp_path: Path, seed: int, text: str) -> None:
    chance = random.Random(seed)
    data = bytearray(text.encode())
    for _ in range(chance.randint(1, 8)):
        at, size = chance.randrange(len(data)), chance.choice((1, 5, 60))
        data[at : at + size] = chance.choice(
            (b"", b"9" * 40, b"-1", b"\n", b"nan", b"\xff", b'"', data[at : at + size] * 2)
        )
    (tmp_path / "a.log").write_bytes(data)
    try:
        json.dumps(diag.diagnose(load(tmp_path / "a.log")).to_dict(), allow_nan=False)
    except DiagError as error:
        assert "\n" not in str(error)
