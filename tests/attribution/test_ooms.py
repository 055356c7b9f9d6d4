"""Verdicts on failed allocations: from the numbers alone, and never more sure than the printed digits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infer_diag import schema
from infer_diag.attribution.allocator_pool import allocator_pool
from infer_diag.attribution.oom_verdict import Numbers, Span, reading
from infer_diag.attribution.ooms import oom_readings
from infer_diag.recording import Recording, Source
from infer_diag.results import OOM_VERDICTS

GIB = float(1 << 30)
SIZES = ("requested", "total", "free", "process", "allocated", "reserved", "idle", "private_pools", "allowed")


def gib(size: float, digits: int = 2) -> Span:
    half = 0.5 * 10.0**-digits
    return Span(max(size - half, 0.0) * GIB, (size + half) * GIB)


def numbers(listed: tuple[float, ...] = (), **sizes: float) -> Numbers:
    told = {name: gib(size) for name, size in sizes.items()}
    return Numbers(**told, listed=tuple(map(gib, listed)))


def told(listed: tuple[float, ...] = (), memory: str = "device", line: int = 1, **sizes: float) -> dict[str, Any]:
    row: dict[str, Any] = {"source_id": 0, "line": line, "memory": memory}
    for name, size in sizes.items():
        row |= {f"{name}_bytes": size * GIB, f"{name}_resolution_bytes": 0.005 * GIB}
    if listed:
        row |= {"listed_bytes": [size * GIB for size in listed]}
        row |= {"listed_resolution_bytes": [0.005 * GIB] * len(listed)}
    return row


def frame(name: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    columns = schema.FRAMES[name]
    made = {column: [row.get(column) for row in rows] for column in columns.column_names()}
    return columns.validate(pl.DataFrame(made, strict=False), cast=True)


def recorded(cut: bool = False, **frames: list[dict[str, Any]]) -> Recording:
    source = Source("a.log", "vllm", "vllm", lines=99, cut=cut)
    return Recording(sources=(source,), **{name: frame(name, rows) for name, rows in frames.items()})  # type: ignore[arg-type]


FULL = {"total": 80.0, "free": 0.5, "process": 79.0, "allocated": 77.5, "reserved": 78.2, "idle": 0.7}
SHARED = FULL | {"process": 39.0, "allocated": 38.0, "reserved": 38.5, "idle": 0.5}
ROOMY = FULL | {"free": 60.0, "process": 20.0, "allocated": 19.0, "reserved": 19.5, "idle": 0.5}
UNTOLD = {"total": 80.0, "free": 1.0}
VERDICTS: list[tuple[str, Numbers, bool | None]] = [
    ("request_exceeds_device", numbers(requested=90, **FULL), False),
    ("capacity", numbers(requested=4, **FULL), False),
    ("capacity", numbers(requested=4, allocated=74, reserved=75, idle=1, **UNTOLD), False),
    ("fragmentation", numbers(requested=0.6, **FULL), True),
    ("fragmentation", numbers(requested=4, **FULL | {"allocated": 68.0, "idle": 10.2}), True),
    (
        "fragmentation",
        numbers(requested=10, **FULL | {"free": 8.0, "allocated": 63.0, "reserved": 70.0, "idle": 7.0}),
        True,
    ),
    ("fragmentation", numbers(requested=0.6, private_pools=0.3, **FULL), None),
    ("other_process", numbers(requested=2, listed=(40.0,), **SHARED), False),
    ("other_process", numbers(requested=2, **SHARED), False),
    ("non_framework_memory", numbers(requested=4, **FULL | {"allocated": 59.5, "reserved": 60.0, "idle": 0.5}), False),
    ("process_limit", numbers(requested=2, allowed=20, **ROOMY), False),
    ("process_limit", numbers(requested=1, allowed=20.5, **ROOMY | {"allocated": 18.0, "idle": 1.5}), True),
    ("host_or_driver_limit", numbers(requested=2, allowed=70, **ROOMY), False),
    ("host_or_driver_limit", numbers(requested=2, **ROOMY), False),
    ("borderline", numbers(requested=80, **FULL), None),
    ("borderline", numbers(requested=3, **FULL | {"free": 3.2, "process": 76.0, "idle": 0.2}), None),
    ("borderline", numbers(requested=4.2, **FULL | {"free": 3.5, "process": 76.0, "idle": 0.7}), None),
    ("undetermined", numbers(total=80, free=60), None),
    ("undetermined", numbers(requested=4, **UNTOLD), None),
    ("undetermined", numbers(requested=4, allocated=39.5, reserved=40, idle=0.5, **UNTOLD), False),
    ("undetermined", numbers(requested=4, **{name: size for name, size in FULL.items() if name != "total"}), None),
]


@pytest.mark.parametrize(("verdict", "known", "helps"), VERDICTS)
def test_a_verdict_for_each_kind_of_trouble(verdict: str, known: Numbers, helps: bool | None) -> None:
    found = reading(known)
    assert (found.verdict, found.compaction_would_help) == (verdict, helps)


def test_every_verdict_but_the_host_s_is_reached_from_numbers() -> None:
    assert {verdict for verdict, *_ in VERDICTS} == set(OOM_VERDICTS) - {"host_memory"}


sizes = st.floats(0.01, 200).map(lambda size: round(size, 2))
some = st.one_of(st.none(), sizes)
anything = st.builds(
    lambda listed, **known: Numbers(
        **{name: None if size is None else gib(size) for name, size in known.items()}, listed=tuple(map(gib, listed))
    ),
    listed=st.lists(sizes, max_size=3),
    **dict.fromkeys(SIZES, some),
)


def scaled(span: Span | None, factor: float) -> Span | None:
    return None if span is None else Span(span.low * factor, span.high * factor)


@given(anything, st.sampled_from([2.0**-20, 2.0**-10, 2.0**10, 4.0]))
@settings(max_examples=200)
def test_the_unit_does_not_matter(known: Numbers, factor: float) -> None:
    other = replace(
        known,
        **{name: scaled(getattr(known, name), factor) for name in SIZES},
        listed=tuple(Span(span.low * factor, span.high * factor) for span in known.listed),
    )
    assert reading(other) == reading(known)


@given(anything)
@settings(max_examples=200)
def test_coarser_digits_never_turn_one_sure_verdict_into_another(known: Numbers) -> None:
    def coarser(span: Span | None) -> Span | None:
        return None if span is None else Span(max(span.low - 0.3 * GIB, 0.0), span.high + 0.3 * GIB)

    vague = replace(known, **{name: coarser(getattr(known, name)) for name in ("requested", "free", "idle", "total")})
    open_verdicts = {"borderline", "undetermined"}
    before, after = reading(known).verdict, reading(vague).verdict
    full_device = known.free is not None and known.total is not None and known.total.share(0.02).high > known.free.low
    if before not in open_verdicts and after not in open_verdicts and not full_device and known.allowed is None:
        assert after == before or {before, after} <= {"capacity", "other_process", "non_framework_memory"}


@given(anything)
@settings(max_examples=200)
def test_the_order_of_the_listed_processes_does_not_matter(known: Numbers) -> None:
    assert reading(replace(known, listed=tuple(reversed(known.listed)))) == reading(known)


def read(*rows: dict[str, Any], **frames: list[dict[str, Any]]) -> pl.DataFrame:
    return oom_readings(recorded(ooms=list(rows), **frames))


IN_CONTAINER = {"total": 80.0, "free": 0.5, "allocated": 77.5, "idle": 0.7}


def test_a_container_s_own_process_is_told_by_its_size() -> None:
    row = read(told(requested=4, listed=(79.0,), **IN_CONTAINER)).row(0, named=True)
    assert row["process_bytes"] == pytest.approx(79 * GIB)
    assert (row["other_bytes"], row["verdict"]) == (None, "capacity")
    both = read(told(requested=4, listed=(9.0, 70.0), **IN_CONTAINER | {"allocated": 69.0})).row(0, named=True)
    assert (both["process_bytes"], both["other_bytes"]) == (70 * GIB, 9 * GIB)


def test_two_processes_that_could_be_it_leave_it_open() -> None:
    row = read(told(requested=2, total=80, free=0.5, allocated=30, idle=0.5, listed=(40.0, 39.0))).row(0, named=True)
    assert (row["process_bytes"], row["other_bytes"], row["verdict"]) == (None, None, "other_process")


def test_the_failing_process_may_not_be_listed() -> None:
    row = read(told(requested=2, total=80, free=0.5, allocated=30, idle=0.5, listed=(40.0,))).row(0, named=True)
    assert row["process_bytes"] is None


def test_a_process_larger_than_its_device_is_a_fault_of_the_driver() -> None:
    row = read(told(requested=4, process=17179869184.0, listed=(17179869184.0,), **IN_CONTAINER)).row(0, named=True)
    assert (row["process_bytes"], row["other_bytes"], row["verdict"]) == (None, None, "capacity")


def test_what_is_not_printed_is_completed_or_null() -> None:
    new, old, bare = read(
        told(line=1, requested=4, **IN_CONTAINER),
        told(line=2, requested=4, total=80, free=0.5, allocated=77.5, reserved=78.2),
        told(line=3),
    ).iter_rows(named=True)
    assert new["reserved_bytes"] == pytest.approx(78.2 * GIB)
    assert old["reserved_unallocated_bytes"] == pytest.approx(0.7 * GIB)
    assert {bare[f"{name}_bytes"] for name in ("requested", "reserved", "process", "other")} == {None}
    assert bare["verdict"] == "undetermined"


def test_host_memory_is_a_verdict_of_its_own() -> None:
    assert read(told(memory="host", requested=4))["verdict"].to_list() == ["host_memory"]


BUSY = {"line": 7, "running_count": 3}


@pytest.mark.parametrize(
    ("frames", "recovered"),
    [
        ({}, None),
        ({"engine_samples": [{"line": 9, "running_count": 3}]}, True),
        ({"engine_samples": [{"line": 2, "running_count": 3}]}, None),
        ({"engine_samples": [{"line": 9, "running_count": 0, "output_tokens_per_s": 0.0}]}, None),
        ({"incidents": [{"line": 9, "kind": "response", "fields": "POST /v1/completions 200"}]}, True),
        ({"incidents": [{"line": 9, "kind": "response", "fields": "POST /v1/completions 500"}]}, None),
        ({"incidents": [{"line": 5, "kind": "failed"}], "engine_samples": [BUSY]}, False),
        ({"incidents": [{"line": 5, "kind": "engine_begin"}], "engine_samples": [BUSY]}, False),
        ({"incidents": [{"line": 9, "kind": "shutdown"}], "engine_samples": [BUSY]}, True),
    ],
)
def test_what_comes_after_a_failure(frames: dict[str, list[dict[str, Any]]], recovered: bool | None) -> None:
    whole = {name: [{"source_id": 0, "kind": "interval"} | row for row in rows] for name, rows in frames.items()}
    assert read(told(line=4, requested=4, **IN_CONTAINER), **whole)["recovered"].to_list() == [recovered]


def test_no_failure_gives_an_empty_frame() -> None:
    assert oom_readings(Recording()).is_empty()


def block(segment: int, size: int, state: str, line: int = 5, **values: Any) -> dict[str, Any]:
    fixed = {"source_id": 0, "line": line, "snapshot": "dump", "segment_id": segment, "address_id": 0}
    return {**fixed, "size_bytes": size, "state": state, **values}


BLOCKS = [block(1, 100, "active"), block(1, 60, "inactive"), block(2, 240, "free"), block(3, 40, "awaiting")]


def test_a_block_map_tells_how_broken_up_the_idle_bytes_are() -> None:
    row = allocator_pool(recorded(blocks=BLOCKS)).row(0, named=True)
    names = ("reserved_bytes", "allocated_bytes", "active_bytes", "inactive_split_bytes", "largest_free_bytes")
    assert [row[name] for name in names] == [440, 100, 140, 60, 240]
    assert (row["segment_count"], row["external_frag_ratio"]) == (3, pytest.approx(1 - 240 / 300))
    assert row["unusable_free_ratio"] is None


def test_idle_bytes_in_holes_too_small_for_the_request_are_unusable() -> None:
    failed = {"source_id": 0, "line": 9, "memory": "device", "requested_bytes": 100.0}
    row = allocator_pool(recorded(blocks=BLOCKS, ooms=[failed])).row(0, named=True)
    assert row["unusable_free_ratio"] == pytest.approx(60 / 300)


def test_of_a_map_that_breaks_off_nothing_is_told() -> None:
    assert allocator_pool(recorded(cut=True, blocks=BLOCKS)).is_empty()


def test_a_table_counts_before_a_map_and_the_last_one_before_earlier_ones() -> None:
    tables = [
        {"source_id": 0, "line": line, "gpu": gpu, "reserved_bytes": size, "allocated_bytes": 1.0}
        for line, gpu, size in ((1, "0", 5.0), (2, "1", 7.0), (3, "0", 6.0))
    ]
    row = allocator_pool(recorded(blocks=BLOCKS, memory_stats=tables)).row(0, named=True)
    assert (row["reserved_bytes"], row["allocated_bytes"], row["largest_free_bytes"]) == (13, 2, 240)
