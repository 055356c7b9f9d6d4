"""What bpftrace prints, as text and as JSON: events become allocator events, maps a table, and the rest nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from test_ugly_input import diagnosed, mutated

import infer_diag as diag
from infer_diag.errors import SourceError
from infer_diag.loaders.allocator.bpftrace import histograms
from infer_diag.recording import Recording

EVENTS = [
    "infer_diag cuda_alloc time=2026-03-14T09:00:00.000100+0000 pid=42 address=0x7f0000000000 size=2097152 result=0 ns=278513",
    "infer_diag cuda_alloc time=2026-03-14T09:00:00.000500+0000 pid=42 address=0x7f0000200000 size=1048576 result=0 ns=300000",
    "infer_diag cuda_free time=2026-03-14T09:00:01.000000+0000 pid=42 address=0x7f0000000000 result=0 ns=121487",
    "infer_diag cuda_alloc time=2026-03-14T17:00:02.000000+0800 pid=42 address=0x7f0000000000 size=4096 result=0 ns=1000",
    "infer_diag cuda_free time=2026-03-14T09:00:03.000000+0000 pid=42 address=0x7f0000000000 result=0 ns=1000",
    "infer_diag cuda_free time=2026-03-14T09:00:04.000000+0000 pid=42 address=0x7f00000f0000 result=0 ns=1000",
    "infer_diag cuda_alloc time=2026-03-14T09:00:05.000000+0000 pid=42 address=0x0 size=2199023255552 result=2 ns=1000",
    "infer_diag cuda_free time=2026-03-14T09:00:06.000000+0000 pid=42 address=0x1 result=1 ns=1000",
]
TEXT = "Attaching 5 probes...\n" + "\n".join(EVENTS) + "\n\n\n\n"
AS_JSON = "\n".join(
    [
        '{"type": "attached_probes", "data": {"probes": 5}}',
        *(json.dumps({"type": "printf", "data": f"{event}\n"}) for event in EVENTS),
        "",
    ]
)
# Recorded with bpftrace 0.17; the signed and the linear histogram are of its documentation's shape.
MAPS = """\
Attaching 10 probes...


@cuLaunchKernel_us[16872]: 
[0]                  143 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
[1]                    5 |@                                                   |
[2, 4)                 2 |                                                    |

@cuModuleLoadData_total_us[16872]: 3117
@cuModuleLoadData_us[python3, 7]: 
[2K, 4K)               1 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
[1M, 2M)               3 |@                                                   |

@linear: 
(..., 0)               4 |@@                                                  |
[0, 100)               6 |@@@                                                 |
[100, ...)             1 |@                                                   |

@major_faults[vllm]: 12
"""
MAPS_JSON = """\
{"type": "attached_probes", "data": {"probes": 10}}

{"type": "hist", "data": {"@cuLaunchKernel_us": {"17191": [{"min": 0, "max": 0, "count": 147}, {"min": 2, "max": 3, "count": 3}]}}}
{"type": "map", "data": {"@cuModuleLoadData_total_us": {"17191": 54631}}}
{"type": "map", "data": {"@all": 9}}
{"type": "hist", "data": {"@signed": [{"max": -1, "count": 2}, {"min": 4, "max": 7, "count": 1}]}}
{"type": "stats", "data": {"@s": {"count": 1, "average": 4, "total": 4}}}
"""


def read(path: Path, text: str, **options: str) -> Recording:
    path.write_text(text)
    return diag.load(path, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", [TEXT, AS_JSON], ids=["text", "json"])
def test_what_the_driver_grants_and_takes_back(tmp_path: Path, text: str) -> None:
    recording = read(tmp_path / "log", text)
    source = recording.sources[0]
    assert (source.format, source.rejected_lines) == ("bpftrace", 0)
    rows = recording.allocator_events
    assert rows["action"].to_list() == [
        "segment_alloc",
        "segment_alloc",
        "segment_free",
        "segment_alloc",
        "segment_free",
        "segment_free",
        "oom",
    ]
    assert rows["line"].to_list() == [2, 3, 4, 5, 6, 7, 8]
    # A piece that was granted before the trace began has no size here.
    assert rows["allocated_bytes"].to_list() == [2097152, 1048576, 2097152, 4096, 4096, None, None]
    assert rows["requested_bytes"].to_list() == [None] * 6 + [1 << 41]
    assert rows["address_id"].to_list()[:2] == [0x7F0000000000, 0x7F0000200000]
    assert [f"{time:%H:%M:%S}" for time in rows["time"]] == [f"09:00:0{at}" for at in (0, 0, 1, 2, 3, 4, 5)]
    assert recording.ooms["requested_bytes"].to_list() == [float(1 << 41)]
    assert "4 calls of cuMemAlloc took 581 µs, the longest 300 µs" in source.notes


def test_events_of_one_process_are_kept(tmp_path: Path) -> None:
    """Two processes have the same addresses for different memory."""
    other = EVENTS[0].replace("pid=42", "pid=7")
    recording = read(tmp_path / "log", "\n".join([*EVENTS, other]))
    assert recording.allocator_events["line"].max() == 7
    assert "1 events of 1 other processes are left out: addresses are of process 42" in recording.sources[0].notes


def test_a_damaged_event_is_kept(tmp_path: Path) -> None:
    recording = read(tmp_path / "log", "\n".join([EVENTS[0], EVENTS[1][:90], EVENTS[2]]))
    assert recording.rejected["line"].to_list() == [2]
    assert recording.allocator_events["line"].to_list() == [1, 3]


def test_maps_beside_events_are_told_in_notes_and_nowhere_else(tmp_path: Path) -> None:
    recording = read(tmp_path / "log", TEXT + MAPS)
    assert len(recording.allocator_events) == 7
    assert "@cuLaunchKernel_us: 150 values, which no frame holds" in recording.sources[0].notes


@pytest.mark.parametrize("text", [MAPS, MAPS_JSON])
def test_maps_alone_are_no_recording(tmp_path: Path, text: str) -> None:
    with pytest.raises(SourceError, match=r"maps of bpftrace and no event.*histograms\(path\) reads them"):
        read(tmp_path / "log", text)


def test_maps_as_text(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(MAPS)
    rows = histograms(tmp_path / "log").drop("line").rows()
    assert rows == [
        ("@cuLaunchKernel_us", "16872", 0, 1, 143, None),
        ("@cuLaunchKernel_us", "16872", 1, 2, 5, None),
        ("@cuLaunchKernel_us", "16872", 2, 4, 2, None),
        ("@cuModuleLoadData_total_us", "16872", None, None, None, 3117),
        ("@cuModuleLoadData_us", "python3, 7", 2048, 4096, 1, None),
        ("@cuModuleLoadData_us", "python3, 7", 1 << 20, 2 << 20, 3, None),
        ("@linear", None, None, 0, 4, None),
        ("@linear", None, 0, 100, 6, None),
        ("@linear", None, 100, None, 1, None),
        ("@major_faults", "vllm", None, None, None, 12),
    ]


def test_maps_as_json(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(MAPS_JSON)
    rows = histograms(tmp_path / "log").drop("line").rows()
    assert rows == [
        ("@cuLaunchKernel_us", "17191", 0, 1, 147, None),
        ("@cuLaunchKernel_us", "17191", 2, 4, 3, None),
        ("@cuModuleLoadData_total_us", "17191", None, None, None, 54631),
        ("@all", None, None, None, None, 9),
        ("@signed", None, None, 0, 2, None),
        ("@signed", None, 4, 8, 1, None),
        ("@s", "count", None, None, None, 1),
        ("@s", "average", None, None, None, 4),
        ("@s", "total", None, None, None, 4),
    ]


def test_a_bucket_without_its_name_is_nobody_s(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("[2, 4)   2 |@@|\n@x_us: \nnoise\n[4, 8)   3 |@@|\n@y_us: \n[8, 16)   5 |@@|\n")
    assert histograms(tmp_path / "log").select("map", "count").rows() == [("@y_us", 5)]


def test_what_holds_no_map_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("nothing of the kind\n")
    with pytest.raises(SourceError, match="holds no map of bpftrace"):
        histograms(tmp_path / "log")


@pytest.mark.parametrize("text", [TEXT + MAPS, AS_JSON + MAPS_JSON], ids=["text", "json"])
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_a_mutated_log_is_read_or_refused(tmp_path: Path, text: str, seed: int) -> None:
    path = tmp_path / "mutated.log"
    path.write_bytes(mutated(text.encode(), seed))
    diagnosed(path)
    diagnosed(path, format="bpftrace")


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["min", "max", "count", "@x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=JSON)
@example(data={"@x": {"k": [{"count": 2**70}]}})
@example(data={"@x": [{"min": 1, "max": 2, "count": 1.5}]})
def test_any_map_is_a_table_or_refused(tmp_path: Path, data: object) -> None:
    (tmp_path / "log").write_text(json.dumps({"type": "hist", "data": data}) + "\n")
    try:
        found = histograms(tmp_path / "log")
    except SourceError:
        return
    assert found.columns == ["line", "map", "key", "lower", "upper", "count", "value"]
