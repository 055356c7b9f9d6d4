"""Traces of PyTorch's profiler and exports of Nsight Systems, held against sums that are made without polars."""

from __future__ import annotations

import gzip
import json
import random
import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import infer_diag as diag
from infer_diag.attribution.gpu_activity import gpu_activity
from infer_diag.errors import DiagError, SourceError
from infer_diag.loaders import load
from infer_diag.loaders.gpu_traces import json_events

CORPUS = Path(__file__).parents[3] / "shared" / "corpus"
needs_corpus = pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus of real traces is not here")
BASE_NS = 1_735_632_360_000_000_000


def kernel(ts: float, dur: float, correlation: int, **more: Any) -> dict[str, Any]:
    args = {"device": 0, "stream": 7, "correlation": correlation, "grid": [24, 1, 1]}
    return {
        "ph": "X",
        "cat": "kernel",
        "name": "gemm<128>",
        "pid": 0,
        "tid": 7,
        "ts": ts,
        "dur": dur,
        "args": args,
        **more,
    }


def call(ts: float, correlation: int) -> dict[str, Any]:
    args = {"cbid": 211, "correlation": correlation}
    return {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        "pid": 9,
        "tid": 9,
        "ts": ts,
        "dur": 3.5,
        "args": args,
    }


def memory(ts: float, size: int, device_type: int = 1) -> dict[str, Any]:
    args = {
        "Device Type": device_type,
        "Device Id": 2,
        "Addr": 4096,
        "Bytes": size,
        "Total Allocated": 700,
        "Total Reserved": 900,
    }
    return {
        "ph": "i",
        "cat": "cpu_instant_event",
        "s": "t",
        "name": "[memory]",
        "pid": 9,
        "tid": 9,
        "ts": ts,
        "args": args,
    }


COPY = {
    "ph": "X",
    "cat": "gpu_memcpy",
    "name": "Memcpy HtoD (Pageable -> Device)",
    "pid": 0,
    "tid": 20,
    "ts": 1010.5,
    "dur": 20.0,
    "args": {"device": 0, "stream": 20, "correlation": 3, "bytes": 92928},
}
OPERATOR = {
    "ph": "X",
    "cat": "cpu_op",
    "name": "aten::mm",
    "pid": 9,
    "tid": 9,
    "ts": 990.0,
    "dur": 40,
    "args": {"Input Dims": [[], [1]]},
}
LABEL = {"name": "process_name", "ph": "M", "ts": 0, "pid": "Spans", "tid": 0, "args": {"name": "a } , { name"}}
EVENTS = [
    OPERATOR,
    call(1000.0, 1),
    call(1001.25, 2),
    kernel(1005.125, 10.0, 1),
    kernel(1012.0, 2.0, 2),
    memory(1013.0, 512),
    memory(1014.0, -512),
    memory(1015.0, 64, device_type=0),
    COPY,
    LABEL,
]
HEAD = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "Some GPU"}, {"id": 1, "name": "Some GPU"}]}
TAIL = {"traceName": "a.json", "distributedInfo": {"rank": 0, "world_size": 4}, "baseTimeNanoseconds": BASE_NS}


def trace(events: list[Any], head: dict[str, Any] = HEAD, tail: dict[str, Any] = TAIL) -> dict[str, Any]:
    return {**head, "traceEvents": events, **tail}


def written(path: Path, value: object, **how: Any) -> Path:
    path.write_text(json.dumps(value, **how))
    return path


def test_kernels_copies_and_allocations(tmp_path: Path) -> None:
    recording = load(written(tmp_path / "a.json", trace(EVENTS)))
    kernels = recording.kernels
    assert kernels["kind"].cast(pl.String).to_list() == ["kernel", "memcpy", "kernel"]
    assert kernels["begin_s"].to_list() == pytest.approx([0.0, 5.375e-6, 6.875e-6], abs=1e-12)
    assert kernels["duration_s"].to_list() == pytest.approx([10e-6, 20e-6, 2e-6])
    assert kernels["launch_s"].to_list() == [pytest.approx(5.125e-6), None, pytest.approx(10.75e-6)]
    assert kernels["correlation_id"].to_list() == [1, 3, 2]
    assert kernels["stream"].cast(pl.String).to_list() == ["7", "20", "7"]
    assert kernels["size_bytes"].to_list() == [None, 92928, None]
    assert kernels["time"][0] == datetime(2024, 12, 31, 8, 6, 0, 1005, UTC)
    events = recording.allocator_events
    assert events["action"].cast(pl.String).to_list() == ["alloc", "free"]
    assert events["allocated_bytes"].to_list() == [512, 512]
    assert events.select(pl.col("gpu").cast(pl.String), "total_allocated_bytes", "total_reserved_bytes").row(0) == (
        "2",
        700,
        900,
    )
    assert recording.deployments.select("engine", "gpu", "gpu_count").row(0) == ("pytorch", "Some GPU", 4)


def test_busy_time_counts_streams_that_run_at_once_once(tmp_path: Path) -> None:
    row = gpu_activity(load(written(tmp_path / "a.json", trace(EVENTS)))).row(0, named=True)
    assert (row["kernel_count"], row["copy_count"]) == (2, 1)
    assert row["busy_s"] == pytest.approx(25.375e-6)
    assert row["kernel_busy_s"] == pytest.approx(10e-6)
    assert row["span_s"] == pytest.approx(25.375e-6)
    assert row["launch_p50_s"] == pytest.approx((5.125e-6 + 10.75e-6) / 2)


@pytest.mark.parametrize(
    "how",
    [{}, {"indent": 2}, {"separators": (",", ":")}, {"indent": 1, "separators": (" ,", " : ")}],
    ids=["plain", "indented", "dense", "loose"],
)
@pytest.mark.parametrize("chunk", [64, 300, 1 << 20])
def test_the_layout_of_the_json_and_the_size_of_pieces_make_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any], chunk: int
) -> None:
    monkeypatch.setattr(json_events, "_CHUNK_BYTES", chunk)
    nested = {
        **OPERATOR,
        "args": {"parts": [{"a": 1}, {"b": [{}, {}]}, {"c": "}, {"}], "name": '\\"}, {"cat": "kernel"'},
    }
    many = [nested, *EVENTS] * 30
    plain = load(written(tmp_path / "a.json", trace(many)))
    recording = load(written(tmp_path / "b.json", trace(many), **how))
    assert len(recording.kernels) == 90
    assert recording.kernels.equals(plain.kernels)
    assert recording.allocator_events.equals(plain.allocator_events)
    assert recording.deployments.equals(plain.deployments)
    assert recording.sources[0].doubts == ()
    assert not recording.sources[0].cut


@pytest.mark.parametrize(
    "value",
    [EVENTS, trace(EVENTS, {}, {}), trace(EVENTS, {}, {**HEAD, **TAIL}), trace(EVENTS, {**HEAD, **TAIL}, {})],
    ids=["a bare list", "nothing around", "all behind", "all in front"],
)
def test_what_stands_around_the_events_may_be_anywhere(tmp_path: Path, value: Any) -> None:
    recording = load(written(tmp_path / "a.json", value))
    assert len(recording.kernels) == 3
    assert not recording.sources[0].cut
    named = recording.deployments["gpu"].item()
    assert named == ("Some GPU" if isinstance(value, dict) and "deviceProperties" in value else None)


def test_old_categories_and_absolute_times_are_known(tmp_path: Path) -> None:
    old = [
        kernel(1665536373729077, 4, 5, cat="Kernel"),
        {**call(1665536373729065, 5), "cat": "Runtime"},
        {**COPY, "cat": "Memcpy", "ts": 1665536373729090},
    ]
    recording = load(written(tmp_path / "a.json", {"traceEvents": old}))
    assert recording.kernels["time"][0] == datetime(2022, 10, 12, 0, 59, 33, 729077, UTC)
    assert recording.kernels["launch_s"].to_list() == [pytest.approx(12e-6), None]
    assert recording.kernels["kind"].cast(pl.String).to_list() == ["kernel", "memcpy"]


def test_a_clock_that_is_no_date_gives_no_times(tmp_path: Path) -> None:
    recording = load(written(tmp_path / "a.json", trace(EVENTS, tail={})))
    assert recording.kernels["time"].null_count() == 3
    assert recording.sources[0].clocks == ()


def test_a_launch_after_its_kernel_is_no_waiting_time(tmp_path: Path) -> None:
    recording = load(written(tmp_path / "a.json", trace([kernel(10.0, 1.0, 1), call(11.0, 1)])))
    assert recording.kernels["launch_s"].to_list() == [None]


def test_a_trace_that_breaks_off_gives_what_is_whole(tmp_path: Path) -> None:
    text = json.dumps(trace(EVENTS))
    (tmp_path / "a.json").write_text(text[: text.index('"[memory]"')])
    recording = load(tmp_path / "a.json")
    assert len(recording.kernels) == 2
    assert recording.sources[0].cut
    assert "data.cut" in {finding.id for finding in diag.diagnose(recording).findings}


@pytest.mark.parametrize(
    "damage", ['"ts": NaN', '"ts": "soon"', '"ts": 1e999', '"dur": []', '"args": 3', '"name": "\\q"']
)
def test_a_damaged_event_costs_no_other(tmp_path: Path, damage: str) -> None:
    bad = '{"ph": "X", "cat": "kernel", ' + damage + "}"
    text = (
        json.dumps(trace(EVENTS))
        .replace('"traceEvents": [', f'"traceEvents": [{bad}, ')
        .replace(', {"ph": "i"', f', {bad}, {{"ph": "i"', 1)
    )
    (tmp_path / "a.json").write_text(text)
    recording = load(tmp_path / "a.json")
    assert len(recording.kernels) == 3
    assert "2 events cannot be read" in " ".join(recording.sources[0].doubts)


def test_other_chrome_traces_are_refused(tmp_path: Path) -> None:
    other = {"traceEvents": [{"ph": "X", "cat": "flutter", "name": "frame", "ts": 1, "dur": 2}]}
    with pytest.raises(SourceError, match="none of PyTorch"):
        load(written(tmp_path / "a.json", other))


@pytest.mark.parametrize("place", ["in an event", "instead of events", "in front"])
def test_json_that_nests_ten_thousand_deep_is_refused(tmp_path: Path, place: str) -> None:
    deep = "[" * 10_000 + "]" * 10_000
    texts = {
        "in an event": f'{{"schemaVersion": 1, "traceEvents": [{{"ph": "X", "args": {{"x": {deep}}}}}]}}',
        "instead of events": f'{{"schemaVersion": 1, "traceEvents": [{deep}]}}',
        "in front": f'{{"schemaVersion": {deep}, "traceEvents": []}}',
    }
    (tmp_path / "a.json").write_text(texts[place])
    try:
        recording = load(tmp_path / "a.json", format="kineto")
    except DiagError as error:
        assert "\n" not in str(error)
    else:
        assert recording.kernels.is_empty()


def test_bombs_in_archives_are_refused(tmp_path: Path) -> None:
    begin = b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "name": "'
    stretch = zstandard.ZstdCompressor().compressobj()
    with (tmp_path / "a.zst").open("wb") as out:
        out.write(stretch.compress(begin))
        for _ in range(200):
            out.write(stretch.compress(b"x" * (1 << 20)))
        out.write(stretch.flush())
    with pytest.raises(SourceError, match="without one whole event"):
        load(tmp_path / "a.zst")
    (tmp_path / "b.gz").write_bytes(gzip.compress(begin + b'"}' + b',{"ph":"X"}' * 2_000_000 + b"]}"))
    assert load(tmp_path / "b.gz").kernels.is_empty()


def plain_truth(path: Path) -> tuple[int, int, float, int]:
    """(kernels, copies, busy seconds, allocator events) by json and a loop."""
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    kinds = {"kernel": "kernel", "Kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "copy"}
    acts = sorted((e["ts"], e["ts"] + e["dur"], kinds[e["cat"]]) for e in events if e.get("cat") in kinds)
    busy, reached = 0.0, float("-inf")
    for begin, end, _ in acts:
        busy += max(end - max(begin, reached), 0)
        reached = max(reached, end)
    moved = [e for e in events if e.get("name") == "[memory]" and e["args"]["Device Type"] != 0 and e["args"]["Bytes"]]
    kernels = sum(kind == "kernel" for _, _, kind in acts)
    return kernels, len(acts) - kernels, busy / 1e6, len(moved)


KERNELS = {
    "hta__df_index_resolver.json": 19370,
    "hta__inference_rank_1.json": 4,
    "hta__rank_not_found.json": 0,
    "hta_amd__mi250_minitoy_train_ROCm6_2_kineto.json": 14,
    "hta_cp__benchmark_result_493459_1694039959_trace.json": 79,
    "hta_cupti__benchmark_result_924719_1679055439_trace.json": 0,
}


@needs_corpus
@pytest.mark.parametrize("path", sorted((CORPUS / "kineto").glob("*")), ids=lambda path: path.stem)
def test_real_traces_give_their_kernels_and_busy_time(path: Path) -> None:
    kernels, copies, busy_s, moved = plain_truth(path)
    recording = load(path)
    told = gpu_activity(recording)
    assert kernels == KERNELS[path.stem]
    assert (told["kernel_count"].sum(), told["copy_count"].sum()) == (kernels, copies)
    assert told["busy_s"].sum() == pytest.approx(busy_s, abs=1e-9)
    assert len(recording.allocator_events) == moved
    assert not recording.sources[0].cut
    assert recording.sources[0].doubts == ()


STRINGS = [(1, "void gemm<float>(int)"), (2, "gemm"), (3, "cudaLaunchKernel"), (4, "evil\x00name")]
PROCESS = 18244107 << 24


def exported(path: Path, **tables: str | list[tuple[Any, ...]]) -> Path:
    """An export with these tables: `name=[columns, rows…]`."""
    connection = sqlite3.connect(path)
    for name, rows in tables.items():
        columns, *values = rows
        connection.execute(f"CREATE TABLE {name} ({columns})")
        marks = ", ".join("?" * len(str(columns).split(",")))
        connection.executemany(f"INSERT INTO {name} VALUES ({marks})", values)
    connection.commit()
    connection.close()
    return path


ACTS = "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER"
NSIGHT: dict[str, Any] = {
    "StringIds": ["id INTEGER, value TEXT", *STRINGS],
    "TARGET_INFO_SESSION_START_TIME": ["utcEpochNs INTEGER, utcTime TEXT", (1781267898002099210, "")],
    "TARGET_INFO_GPU": ["id INTEGER, name TEXT", (0, "Some GPU"), (1, "Some GPU")],
    "META_DATA_EXPORT": ["name TEXT, value TEXT", ("EXPORT_PRODUCT_VERSION", "2025.1.3.140")],
    "CUPTI_ACTIVITY_KIND_KERNEL": [
        f"{ACTS}, demangledName INTEGER, shortName INTEGER",
        (5000, 9000, 0, 7, 1, PROCESS, 1, 2),
        (8000, 12000, 0, 8, 1, PROCESS + (1 << 24), 99, 2),
        (20000, 20500, 1, 7, 2, PROCESS, None, None),
    ],
    "CUPTI_ACTIVITY_KIND_MEMCPY": [f"{ACTS}, bytes INTEGER, copyKind INTEGER", (1000, 1500, 0, 7, 9, PROCESS, 4096, 1)],
    "ENUM_CUDA_MEMCPY_OPER": ["id INTEGER, label TEXT", (1, "Host-to-Device")],
    "CUPTI_ACTIVITY_KIND_RUNTIME": [
        "start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER",
        (4000, 4100, PROCESS + 77, 1, 3),
        (7900, 7950, PROCESS + (1 << 24) + 78, 1, 3),
    ],
    "CUDA_GPU_MEMORY_USAGE_EVENTS": [
        "start INTEGER, globalPid INTEGER, deviceId INTEGER, address INTEGER, bytes INTEGER, memKind INTEGER, memoryOperationType INTEGER",
        (100, PROCESS, 0, 4096, 1 << 20, 2, 0),
        (200, PROCESS, 0, 8192, 1 << 10, 1, 0),
        (300, PROCESS, 0, 4096, 1 << 20, 2, 1),
    ],
}


def test_an_export_of_nsight_systems(tmp_path: Path) -> None:
    recording = load(exported(tmp_path / "a.sqlite", **NSIGHT))
    rows = recording.kernels.select(
        pl.col("kind", "name", "gpu", "stream").cast(pl.String), "launch_s", "size_bytes"
    ).rows()
    assert rows == [
        ("memcpy", "memcpy Host-to-Device", "0", "7", None, 4096),
        ("kernel", "void gemm<float>(int)", "0", "7", pytest.approx(1e-6), None),
        ("kernel", "gemm", "0", "8", pytest.approx(1e-7), None),
        ("kernel", "unknown", "1", "7", None, None),
    ]
    assert recording.kernels["begin_s"].to_list() == pytest.approx([0, 4e-6, 7e-6, 19e-6])
    assert recording.kernels["time"][0] == datetime(2026, 6, 12, 12, 38, 18, 2100, UTC)
    events = recording.allocator_events
    assert events.select(pl.col("action").cast(pl.String), "allocated_bytes").rows() == [
        ("segment_alloc", 1 << 20),
        ("segment_free", 1 << 20),
    ]
    activity = gpu_activity(recording).sort("gpu")
    assert activity["kernel_busy_s"].to_list() == pytest.approx([7e-6, 0.5e-6])
    assert (recording.sources[0].engine_version, recording.deployments["gpu"].item()) == ("2025.1.3.140", "Some GPU")


def test_tables_that_were_not_needed_are_not_there(tmp_path: Path) -> None:
    few = {name: NSIGHT[name] for name in ("StringIds", "TARGET_INFO_GPU")}
    recording = load(exported(tmp_path / "a.sqlite", **few))
    assert recording.kernels.is_empty()
    assert recording.deployments["gpu"].item() == "Some GPU"


def test_a_compressed_export_is_read(tmp_path: Path) -> None:
    plain = exported(tmp_path / "a.sqlite", **NSIGHT)
    (tmp_path / "b.gz").write_bytes(gzip.compress(plain.read_bytes()))
    assert load(tmp_path / "b.gz").kernels.equals(load(plain).kernels)


def test_other_databases_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no export of Nsight"):
        load(exported(tmp_path / "a.sqlite", people=["name TEXT", ("Ada",)]))


def test_nothing_that_a_database_defines_is_run(tmp_path: Path) -> None:
    """A view that never ends in place of a table, and a column that is computed when it is read."""
    path = exported(tmp_path / "a.sqlite", StringIds=NSIGHT["StringIds"], TARGET_INFO_GPU=NSIGHT["TARGET_INFO_GPU"])
    with sqlite3.connect(path) as connection:
        connection.execute(
            "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE n(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM n)"
            " SELECT start, start AS end FROM n"
        )
    connection.close()
    assert load(path).kernels.is_empty()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER, end AS (zeroblob(1000000000)))")
        connection.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (1)")
    connection.close()
    with pytest.raises(SourceError, match="cannot be read as plain tables"):
        load(path)


def test_a_database_is_left_as_it_was(tmp_path: Path) -> None:
    path = exported(tmp_path / "a.sqlite", **NSIGHT)
    before = path.read_bytes()
    load(path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["a.sqlite"]


slow = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@slow
@given(seed=st.integers(0, 10**6))
def test_damaged_databases_are_read_or_refused(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    path = tmp_path / "a.sqlite"
    path.unlink(missing_ok=True)
    data = bytearray(exported(path, **NSIGHT).read_bytes())
    for _ in range(chance.randint(1, 20)):
        data[chance.randrange(16, len(data))] = chance.randrange(256)
    path.write_bytes(data[: chance.choice((len(data), len(data) // 2, 100))])
    diagnosed(path)


@slow
@given(seed=st.integers(0, 10**6))
def test_damaged_traces_are_read_or_refused(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    data = bytearray(json.dumps(trace(EVENTS * 3), indent=chance.choice((None, 1))).encode())
    for _ in range(chance.randint(1, 8)):
        at, size = chance.randrange(len(data)), chance.choice((1, 4, 80))
        data[at : at + size] = chance.choice((b"", b"9" * 40, b"-1e99", b"{", b"]", b"\xff", b'"', b"null", b"[" * 50))
    (tmp_path / "a.json").write_bytes(data)
    diagnosed(tmp_path / "a.json")


def diagnosed(path: Path) -> None:
    """Reads a file; whatever it raises beside the errors of infer_diag fails the test."""
    try:
        recording = load(path)
        gpu_activity(recording)
        diag.diagnose(recording).to_json()
    except DiagError as error:
        assert "\n" not in str(error)


@needs_corpus
def test_a_real_export_without_kernels_tells_its_device() -> None:
    recording = load(CORPUS / "nsys" / "lighttransport__profile.sqlite")
    assert recording.kernels.is_empty()
    assert recording.deployments["gpu"].item() == "NVIDIA GeForce RTX 5060 Ti"
    assert recording.sources[0].engine_version == "2025.1.3.140"
