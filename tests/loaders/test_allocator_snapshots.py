"""PyTorch's memory snapshots: every layout gives its bytes, and no pickle runs anything."""

from __future__ import annotations

import copyreg
import gc
import gzip
import pickle
import pickletools
import random
import struct
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import infer_diag as diag
from infer_diag.errors import DiagError, SourceError
from infer_diag.loaders import load

CORPUS = Path(__file__).parents[3] / "shared" / "corpus" / "snapshots"
needs_corpus = pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus of real snapshots is not here")
MIB = 1 << 20
TIME_US = 1_772_688_692_983_308


def block(size: int, state: str = "active_allocated", **more: Any) -> dict[str, Any]:
    return {"size": size, "requested_size": size - 12, "state": state, "frames": [], **more}


def segment(address: int, blocks: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    live = sum(each["size"] for each in blocks if each["state"] == "active_allocated")
    whole = sum(each["size"] for each in blocks)
    return {
        "device": 0,
        "address": address,
        "total_size": whole,
        "allocated_size": live,
        "active_size": live,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
        **more,
    }


def event(action: str, address: int, size: int, place: int = 0, **more: Any) -> dict[str, Any]:
    shown = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": TIME_US + place, "frames": [{}]}
    return {**shown, **more}


def written(path: Path, value: object, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    return path


SEGMENTS = [
    segment(1 << 40, [block(6 * MIB), block(4 * MIB, "inactive"), block(10 * MIB, "active_pending_free")]),
    segment(2 << 40, [block(20 * MIB, "inactive")]),
    segment(3 << 40, [block(2 * MIB), block(2 * MIB, "inactive")], is_expandable=True),
]
EVENTS = [
    event("segment_alloc", 1 << 40, 20 * MIB, 0),
    event("alloc", 1 << 40, 5 * MIB, 1),
    event("alloc", (1 << 40) + 6 * MIB, 4 * MIB, 2),
    event("free_requested", (1 << 40) + 6 * MIB, 4 * MIB, 3),
    event("free_completed", (1 << 40) + 6 * MIB, 4 * MIB, 4),
    event("alloc", (1 << 40) + 10 * MIB, 3 * MIB, 5),
]
SNAPSHOT = {"segments": SEGMENTS, "device_traces": [EVENTS], "allocator_settings": {}, "external_annotations": []}


@pytest.mark.parametrize("protocol", range(2, 6))
def test_events_and_blocks_are_the_same_in_every_protocol(tmp_path: Path, protocol: int) -> None:
    recording = load(written(tmp_path / "a.pickle", SNAPSHOT, protocol))
    events = recording.allocator_events
    assert events["action"].cast(pl.String).to_list() == [
        each["action"].replace("free_completed", "free") for each in EVENTS
    ]
    assert events["address_id"].to_list() == [each["addr"] for each in EVENTS]
    assert events["requested_bytes"].to_list() == [None, *(each["size"] for each in EVENTS[1:])]
    assert events["allocated_bytes"].to_list() == [20 * MIB, None, None, None, None, None]
    assert [time.timestamp() for time in events["time"]] == [each["time_us"] / 1e6 for each in EVENTS]
    assert recording.sources[0].engine == "pytorch"
    states = recording.blocks["state"].cast(pl.String).to_list()
    assert states == ["active", "inactive", "awaiting", "inactive", "active", "inactive"]
    assert recording.blocks["requested_bytes"].to_list()[:2] == [6 * MIB - 12, None]


def test_key_orders_and_layouts_make_no_difference(tmp_path: Path) -> None:
    """The reader looks for the first list of events in the bytes; whether it finds it must not show."""
    plain = load(written(tmp_path / "a.pickle", SNAPSHOT))
    swapped = {name: SNAPSHOT[name] for name in reversed(SNAPSHOT)}
    optimised = tmp_path / "c.pickle"
    optimised.write_bytes(pickletools.optimize(pickle.dumps(SNAPSHOT)))
    python_made = tmp_path / "d.pickle"
    python_made.write_bytes(pickle._dumps(SNAPSHOT, protocol=4))  # type: ignore[attr-defined]
    single = {**SNAPSHOT, "device_traces": [EVENTS[:1]]}
    for path in (written(tmp_path / "b.pickle", swapped), optimised, python_made):
        recording = load(path)
        assert recording.allocator_events.equals(plain.allocator_events)
        assert recording.blocks.equals(plain.blocks)
    assert load(written(tmp_path / "e.pickle", single)).allocator_events.equals(plain.allocator_events.head(1))


def test_many_events_come_in_batches_and_none_is_lost(tmp_path: Path) -> None:
    many = [event("alloc" if place % 2 == 0 else "free_completed", place // 2, 512, place) for place in range(300_001)]
    many[150_000] = {"action": "oom", "size": 7, "device_free": 3, "stream": 0, "time_us": TIME_US, "frames": []}
    recording = load(written(tmp_path / "a.pickle", {**SNAPSHOT, "device_traces": [[], many, EVENTS]}))
    told = recording.allocator_events.with_columns(pl.col("gpu").cast(pl.String), pl.col("action").cast(pl.String))
    assert told.group_by("gpu").len().sort("gpu").rows() == [("1", 300_001), ("2", len(EVENTS))]
    first = told.filter(gpu="1")
    assert first["time"].dt.epoch("us").to_list()[:150_000] == [TIME_US + place for place in range(150_000)]
    assert first.filter(action="oom").select("address_id", "requested_bytes", "device_free_bytes").rows() == [
        (None, 7, 3)
    ]


def test_a_bare_list_of_segments_is_a_snapshot(tmp_path: Path) -> None:
    recording = load(written(tmp_path / "a.pickle", SEGMENTS))
    assert len(recording.blocks) == 6
    assert recording.allocator_events.is_empty()


def test_blocks_of_early_versions_get_their_addresses_from_their_sizes(tmp_path: Path) -> None:
    old = [
        {"size": 512, "state": "active_allocated", "history": [{"addr": 9, "real_size": 500, "frames": []}]},
        {"size": 1536, "state": "inactive"},
        {"size": 2048, "state": "active_pending_free"},
    ]
    bare = {"device": 3, "address": 4096, "total_size": 4096, "stream": 0, "segment_type": "small", "blocks": old}
    recording = load(written(tmp_path / "a.pickle", {"segments": [bare], "device_traces": []}))
    assert recording.blocks["address_id"].to_list() == [4096, 4608, 6144]
    assert recording.blocks["requested_bytes"].to_list() == [500, None, None]
    assert recording.blocks["gpu"].unique().to_list() == ["3"]
    assert recording.blocks["pool"].null_count() == 3


def test_events_without_a_time_have_none(tmp_path: Path) -> None:
    old = [{"action": "alloc", "addr": 1, "size": 2, "stream": 0}, event("alloc", 1, 2, time_us=123)]
    recording = load(written(tmp_path / "a.pickle", {**SNAPSHOT, "device_traces": [old]}))
    assert recording.allocator_events["time"].to_list() == [None, None]
    assert recording.sources[0].clocks == ()


@pytest.mark.parametrize(
    ("pool", "shown"), [((0, 0), None), ([0, 0], None), ((1, 2), "1,2"), ([0, 5], "0,5"), ("x", None)]
)
def test_pools_are_told_apart_whichever_way_they_are_written(tmp_path: Path, pool: object, shown: str | None) -> None:
    private = segment(1, [block(4096, "inactive")], segment_pool_id=pool)
    recording = load(written(tmp_path / "a.pickle", {"segments": [private], "device_traces": []}))
    assert recording.blocks["pool"].to_list() == [shown]


def test_unknown_actions_are_named_and_left_out(tmp_path: Path) -> None:
    recording = load(
        written(tmp_path / "a.pickle", {**SNAPSHOT, "device_traces": [[*EVENTS, event("teleport", 1, 2)]]})
    )
    assert len(recording.allocator_events) == len(EVENTS)
    assert "teleport" in " ".join(recording.sources[0].notes)


def test_segments_that_contradict_their_blocks_are_a_doubt(tmp_path: Path) -> None:
    wrong = [segment(1, [block(4096)], total_size=9999)]
    recording = load(written(tmp_path / "a.pickle", {"segments": wrong, "device_traces": []}))
    assert "do not add up" in " ".join(recording.sources[0].doubts)
    assert {finding.id for finding in diag.diagnose(recording).findings} == {"data.implausible"}
    assert load(written(tmp_path / "b.pickle", SNAPSHOT)).sources[0].doubts == ()


def failing(free: int, events: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[dict[str, Any]]:
    failed = {"action": "oom", "size": 8 * MIB, "device_free": free, "stream": 0, "time_us": TIME_US, "frames": []}
    return [*events, failed, *after]


def test_a_failed_allocation_knows_what_was_reserved_then(tmp_path: Path) -> None:
    """Walked back from the end: a segment that came later was not there, memory freed later was in use."""
    later = [
        event("free_requested", 1 << 40, 3 * MIB),
        event("free_completed", 1 << 40, 3 * MIB),
        event("segment_alloc", 3 << 40, 4 * MIB),
        event("segment_map", 5 << 40, 2 * MIB),
        event("segment_free", 6 << 40, 7 * MIB),
    ]
    recording = load(written(tmp_path / "a.pickle", {**SNAPSHOT, "device_traces": [failing(MIB, EVENTS, later)]}))
    row = recording.ooms.row(0, named=True)
    assert (row["requested_bytes"], row["free_bytes"], row["memory"]) == (8 * MIB, MIB, "device")
    assert row["reserved_bytes"] == sum(each["total_size"] for each in SEGMENTS) - 6 * MIB + 7 * MIB
    live = sum(each["allocated_size"] for each in SEGMENTS)
    low, high = (row["allocated_bytes"] + sign * row["allocated_resolution_bytes"] for sign in (-1, 1))
    assert low <= live + 3 * MIB <= high
    assert high - low <= MIB + 512
    assert row["total_bytes"] is None


def test_idle_bytes_that_would_have_served_are_fragmentation(tmp_path: Path) -> None:
    path = written(tmp_path / "a.pickle", {**SNAPSHOT, "device_traces": [failing(MIB, EVENTS, [])]})
    document = diag.diagnose(load(path)).to_dict()
    [oom] = document["memory"]["ooms"]
    assert (oom["verdict"], oom["compaction_would_help"], oom["evidence"]) == ("fragmentation", True, [])
    assert document["findings"][0]["id"] == "memory.fragmentation"


def test_a_failure_without_enough_idle_bytes_stays_open(tmp_path: Path) -> None:
    full = {**SNAPSHOT, "segments": SEGMENTS[:1], "device_traces": [failing(MIB, EVENTS, [])]}
    [oom] = diag.diagnose(load(written(tmp_path / "a.pickle", full))).to_dict()["memory"]["ooms"]
    assert (oom["verdict"], oom["compaction_would_help"]) == ("undetermined", None)


def test_compressed_snapshots_are_read(tmp_path: Path) -> None:
    data = pickle.dumps(SNAPSHOT)
    (tmp_path / "a.gz").write_bytes(gzip.compress(data))
    (tmp_path / "a.zst").write_bytes(zstandard.compress(data))
    assert load(tmp_path / "a.gz").blocks.equals(load(tmp_path / "a.zst").blocks)


def test_the_collector_is_left_as_it_was(tmp_path: Path) -> None:
    path = written(tmp_path / "a.pickle", SNAPSHOT)
    (tmp_path / "b.pickle").write_bytes(path.read_bytes()[:-40])
    for enabled in (True, False):
        (gc.enable if enabled else gc.disable)()
        try:
            load(path)
            with pytest.raises(SourceError):
                load(tmp_path / "b.pickle")
            assert gc.isenabled() is enabled
        finally:
            gc.enable()


class Gadget:
    """Unpickled by plain pickle, it calls `call` with `arguments`."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self.made = (call, arguments)

    def __reduce__(self) -> Any:
        return self.made


def _exec_gadget(mark: Path) -> bytes:
    import os

    return pickle.dumps({"segments": [Gadget(os.system, f"touch {mark}")]})


def gadgets(mark: Path) -> dict[str, bytes]:
    """Pickles that would create the file `mark`, by every kind of opcode that leads to a callable."""
    import builtins
    import functools
    import os
    import subprocess

    code = f"open({str(mark)!r}, 'w').close()"
    text = code.encode()
    shell = f"touch {mark}".encode()
    short = bytes([len(shell)])
    return {
        "os.system": _exec_gadget(mark),
        "eval": pickle.dumps([Gadget(builtins.eval, f"__import__('os').system('touch {mark}')")]),
        "exec, protocol 2": pickle.dumps(Gadget(builtins.exec, code), protocol=2),
        "subprocess": pickle.dumps(Gadget(subprocess.Popen, ["touch", str(mark)])),
        "partial": pickle.dumps({"a": [Gadget(functools.partial, Gadget(os.system, f"touch {mark}"))]}),
        "copyreg": b"\x80\x02ccopyreg\n_reconstructor\n(c__builtin__\nobject\nc__builtin__\nobject\nNtR.",
        "getattr chain": b"\x80\x04c__builtin__\ngetattr\n(c__builtin__\n__import__\nX\x08\0\0\0__call__tR.",
        "stack global": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c" + short + shell + b"\x85R.",
        "inst": b"\x80\x02(S'" + shell + b"'\nios\nsystem\n.",
        "obj": b"\x80\x02(cos\nsystem\nS'" + shell + b"'\no.",
        "newobj": b"\x80\x02c__builtin__\nexec\nX" + struct.pack("<I", len(text)) + text + b"\x85\x81.",
        "persistent id": b"\x80\x02Pevil\n.",
        "persistent object": b"\x80\x04NQ.",
        "nested": b"\x80\x04}\x8c\x08segments](" + b"]" + b"cos\nsystem\n\x8c" + short + shell + b"\x85Ra" + b"eu.",
        "inside the events": pickle.dumps(
            {"segments": [], "device_traces": [[event("alloc", 1, 2), Gadget(os.system, f"touch {mark}")]]}
        ),
        "a list that calls": b"\x80\x02cbuiltins\nlist\n)Rcos\nsystem\n\x8c" + short + shell + b"\x85Ra.",
    }


@pytest.mark.parametrize("name", sorted(gadgets(Path("/"))))
def test_no_pickle_runs_anything(tmp_path: Path, name: str) -> None:
    mark, path = tmp_path / "ran", tmp_path / "a.pickle"
    path.write_bytes(gadgets(mark)[name])
    with pytest.raises(SourceError) as raised:
        load(path)
    assert not mark.exists()
    assert "pickle" in str(raised.value)


def test_registered_extensions_are_refused_too(tmp_path: Path) -> None:
    """Their codes lead to callables without a name in the file, and a cache hands these out unasked."""
    import os

    data = b"\x80\x02\x82\xf0\x8c\x0aNOT_A_NAME\x85R."
    copyreg.add_extension("os", "getenv", 0xF0)
    try:
        assert pickle.loads(data) is os.getenv("NOT_A_NAME")
        (tmp_path / "a.pickle").write_bytes(data)
        with pytest.raises(SourceError, match=r"os\.getenv"):
            load(tmp_path / "a.pickle")
    finally:
        copyreg.remove_extension("os", "getenv", 0xF0)
        copyreg.clear_extension_cache()


def test_the_reader_of_events_cannot_be_changed_by_the_file(tmp_path: Path) -> None:
    data = pickle.dumps({"segments": [], "device_traces": [EVENTS]})
    at = data.rindex(b"a", 0, len(data) - 1)
    changed = data[:at] + b"}b" + data[at:]
    (tmp_path / "a.pickle").write_bytes(changed.replace(data[2:11], b"\x95" + struct.pack("<Q", len(changed) - 11), 1))
    with pytest.raises(SourceError, match=r"change of its reader"):
        load(tmp_path / "a.pickle")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="address space is limited on Linux only")
@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04Nr\xff\xff\xff\x7f.",
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\0\0\0x.",
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\0\0N.",
        b"\x80\x02\x8b\xff\xff\xff\x7f.",
    ],
    ids=["memo index", "bytes", "frame", "long"],
)
def test_an_opcode_that_asks_for_gigabytes_gets_none(tmp_path: Path, data: bytes) -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    (tmp_path / "a.pickle").write_bytes(data)
    with pytest.raises(SourceError):
        load(tmp_path / "a.pickle")
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 6 << 20


def test_a_bomb_in_an_archive_is_refused(tmp_path: Path) -> None:
    head = b"\x80\x04\x8e" + struct.pack("<Q", 64 << 30)
    stretch = zstandard.ZstdCompressor().compressobj()
    with (tmp_path / "a.zst").open("wb") as out:
        out.write(stretch.compress(head))
        for _ in range(1100):
            out.write(stretch.compress(bytes(MIB)))
        out.write(stretch.flush())
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"\x80\x04" + b"N0" * (8 << 20)))
    for name in ("a.zst", "b.gz"):
        with pytest.raises(SourceError):
            load(tmp_path / name)


@pytest.mark.parametrize(
    "value", [{}, [], [1], {"segments": 3}, {"segments": {}}, {"segments": [], "device_traces": 4}, "text", 7, None]
)
def test_other_pickles_are_refused_in_one_line(tmp_path: Path, value: object) -> None:
    with pytest.raises(SourceError) as raised:
        load(written(tmp_path / "a.pickle", value))
    assert "\n" not in str(raised.value)


def test_text_given_as_a_snapshot_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("INFO 11-29 20:36:01 no pickle at all\n")
    with pytest.raises(SourceError):
        load(tmp_path / "a.log", format="pytorch-snapshot")
    with pytest.raises(SourceError):
        load(written(tmp_path / "a.pickle", SNAPSHOT), format="vllm")


odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=8),
    st.just("\ud800"),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
KEYS = ("action", "addr", "size", "stream", "time_us", "frames", "device_free", "state", "blocks", "address", "device")
SIZES = ("total_size", "requested_size", "segment_type", "segment_pool_id", "is_expandable", "history")
loose = st.dictionaries(st.sampled_from(KEYS + SIZES), odd, max_size=8)
slow = settings(max_examples=70, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def diagnosed(path: Path) -> None:
    """Reads a file; whatever it raises beside the errors of infer_diag fails the test."""
    try:
        diag.diagnose(load(path)).to_json()
    except DiagError as error:
        assert "\n" not in str(error)


@slow
@given(segments=st.lists(st.one_of(loose, odd), max_size=3), events=st.lists(st.one_of(loose, odd), max_size=5))
def test_odd_values_are_read_or_refused(tmp_path: Path, segments: list[Any], events: list[Any]) -> None:
    whole = [segment(1, [block(4096)]), *segments]
    for each in segments:
        if isinstance(each, dict):
            whole.append({**segment(2, [block(512)]), "blocks": [each], **each})
    diagnosed(written(tmp_path / "a.pickle", {"segments": whole, "device_traces": [[*EVENTS, *events], events]}))


@slow
@given(seed=st.integers(0, 10**6))
def test_damaged_bytes_are_read_or_refused(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    data = bytearray(pickle.dumps(SNAPSHOT, protocol=chance.choice((2, 4))))
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(2, len(data))
        kind = chance.randrange(3)
        if kind == 0:
            data[at] = chance.randrange(256)
        elif kind == 1:
            del data[at : at + chance.randrange(1, 30)]
        else:
            data[at:at] = bytes(chance.randrange(256) for _ in range(chance.randrange(1, 9)))
    (tmp_path / "a.pickle").write_bytes(data)
    diagnosed(tmp_path / "a.pickle")


def plainly_read(path: Path) -> Any:
    """The snapshot by the standard library alone, which resolves nothing either."""

    class Plain(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            raise AssertionError(f"{module}.{name}")

    with path.open("rb") as file:
        return Plain(file).load()


@needs_corpus
@pytest.mark.parametrize("path", sorted(CORPUS.glob("*")), ids=lambda path: path.stem)
def test_real_snapshots_give_every_block_and_event(path: Path) -> None:
    truth, recording = plainly_read(path), load(path)
    blocks = [each for segment in truth["segments"] for each in segment["blocks"]]
    assert recording.blocks["size_bytes"].to_list() == [each["size"] for each in blocks]
    idle = [each["state"] == "inactive" for each in blocks]
    assert (recording.blocks["state"].cast(pl.String) == "inactive").to_list() == idle
    events = [each for trace in truth["device_traces"] for each in trace]
    actions = [each["action"].replace("free_completed", "free") for each in events]
    assert recording.allocator_events["action"].cast(pl.String).to_list() == actions
    sizes = recording.allocator_events.select(pl.coalesce("requested_bytes", "allocated_bytes"))["requested_bytes"]
    assert sizes.to_list() == [None if each["action"] == "snapshot" else each["size"] for each in events]
    stamps = recording.allocator_events["time"].dt.epoch("us").to_list()
    assert stamps == [each.get("time_us") for each in events]
