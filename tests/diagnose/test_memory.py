"""Memory in the diagnosis: the document's shape, findings per verdict, and what is left unsaid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from infer_diag import schema
from infer_diag.diagnose import diagnose
from infer_diag.diagnose.fragmentation import holes_sentence
from infer_diag.diagnose.memory import observed_memory
from infer_diag.loaders import load
from infer_diag.recording import Recording, Source
from infer_diag.results import OOM_VERDICTS

GIB = float(1 << 30)
OOM = {
    "requested_bytes",
    "total_bytes",
    "free_bytes",
    "process_bytes",
    "allocated_bytes",
    "reserved_bytes",
    "reserved_unallocated_bytes",
    "private_pools_bytes",
    "allowed_bytes",
    "other_bytes",
    "verdict",
    "compaction_would_help",
    "recovered",
    "evidence",
}
BLOCKS = {
    "reserved_bytes",
    "allocated_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "largest_free_bytes",
    "external_frag_ratio",
    "unusable_free_ratio",
    "segments",
}
OPEN = "Of the allocated memory {a} GiB is allocated by PyTorch, and {u} GiB is reserved by PyTorch but unallocated."
SHARED = "GPU 0 has a total capacity of 80.00 GiB of which {f} GiB is free. {p}"
MESSAGES = {
    "fragmentation": ("4.00 GiB", "0.50", "this process has 79.00 GiB memory in use. ", "60.00", "18.00"),
    "capacity": ("4.00 GiB", "0.50", "this process has 79.00 GiB memory in use. ", "77.00", "1.50"),
    "request_exceeds_device": ("90.00 GiB", "0.50", "this process has 79.00 GiB memory in use. ", "77.00", "1.50"),
    "other_process": (
        "4.00 GiB",
        "0.50",
        "Process 7 has 40.00 GiB memory in use. this process has 39.00 GiB memory in use. ",
        "38.00",
        "0.50",
    ),
    "process_limit": (
        "2.00 GiB",
        "60.00",
        "this process has 20.00 GiB memory in use. 19.50 GiB allowed; ",
        "19.00",
        "0.10",
    ),
    "host_or_driver_limit": ("2.00 GiB", "60.00", "this process has 20.00 GiB memory in use. ", "19.00", "0.10"),
    "non_framework_memory": ("4.00 GiB", "0.50", "this process has 79.00 GiB memory in use. ", "60.00", "0.10"),
    "borderline": ("3.00 GiB", "3.20", "this process has 76.00 GiB memory in use. ", "75.00", "0.10"),
    "undetermined": ("4.00 GiB", "0.50", "", "40.00", "0.10"),
}


def message(verdict: str) -> str:
    if verdict == "host_memory":
        return "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes."
    asked, free, processes, allocated, idle = MESSAGES[verdict]
    shared = SHARED.format(f=free, p=processes)
    return f"CUDA out of memory. Tried to allocate {asked}. {shared}{OPEN.format(a=allocated, u=idle)}"


def document(tmp_path: Path, text: str) -> dict[str, Any]:
    path = tmp_path / "text.log"
    path.write_text(text + "\n")
    return diagnose(load(path)).to_dict()


def ids(document: dict[str, Any]) -> set[str]:
    return {finding["id"] for finding in document["findings"]}


@pytest.mark.parametrize("verdict", OOM_VERDICTS)
def test_each_verdict_is_a_finding_with_its_line_and_a_remedy(tmp_path: Path, verdict: str) -> None:
    told = document(tmp_path, f"Traceback (most recent call last):\n{message(verdict)}")
    assert [oom["verdict"] for oom in told["memory"]["ooms"]] == [verdict]
    assert {name for name in ids(told) if name.startswith("memory.")} == {f"memory.{verdict}"}
    (finding,) = [finding for finding in told["findings"] if finding["id"].startswith("memory.")]
    assert finding["evidence"] == [f"{tmp_path / 'text.log'}:2"]
    assert "unknown" not in finding["sentence"]
    assert finding["remedy"]
    # A message tells the idle bytes of all pools and streams together, so what they would have served is bounded.
    assert (finding["status"] == "measured") == (verdict not in ("borderline", "undetermined", "fragmentation"))


def test_the_document_has_every_key_of_the_contract(tmp_path: Path) -> None:
    told = document(tmp_path, message("capacity"))["memory"]
    assert set(told) == {"ooms", "gpus", "blocks", "waste", "components"}
    assert set(told["ooms"][0]) >= OOM
    assert (told["gpus"], told["blocks"], told["components"]) == ([], None, [])
    assert told["ooms"][0]["requested_bytes"] == 4 << 30


def test_the_order_of_different_failures_does_not_matter(tmp_path: Path) -> None:
    some = [message("capacity"), message("fragmentation")]
    one, two = (document(tmp_path, "\n".join(order)) for order in (some, some[::-1]))
    assert ids(one) == ids(two) >= {"memory.capacity", "memory.fragmentation"}


def frame(name: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    columns = schema.FRAMES[name]
    whole = [{"source_id": 0, "line": number, **row} for number, row in enumerate(rows, 1)]
    made = {column: [row.get(column) for row in whole] for column in columns.column_names()}
    return columns.validate(pl.DataFrame(made, strict=False), cast=True)


def recorded(**frames: list[dict[str, Any]]) -> Recording:
    source = Source("a.log", "pytorch", "pytorch", lines=99)
    return Recording(sources=(source,), **{name: frame(name, rows) for name, rows in frames.items()})  # type: ignore[arg-type]


def table(reserved: float, allocated: float) -> dict[str, Any]:
    return {"gpu": "0", "reserved_bytes": reserved * GIB, "allocated_bytes": allocated * GIB, "oom_count": 0}


@pytest.mark.parametrize(("allocated", "found"), [(5.0, True), (9.5, False)])
def test_a_reservation_far_beyond_its_use_is_found(allocated: float, found: bool) -> None:
    told = diagnose(recorded(memory_stats=[table(10, allocated)])).to_dict()
    assert ("memory.reserved_idle" in ids(told)) == found
    assert set(told["memory"]["blocks"]) == BLOCKS
    assert told["memory"]["blocks"]["allocated_bytes"] == allocated * GIB
    assert told["memory"]["blocks"]["largest_free_bytes"] is None


def test_a_table_without_its_count_of_failures_does_not_say_that_none_failed() -> None:
    unknown, none = ({**table(10, 5.0), "oom_count": count} for count in (None, 0))
    said = [
        "No allocation had failed" in str(diagnose(recorded(memory_stats=[row])).findings) for row in (unknown, none)
    ]
    assert said == [False, True]


def test_a_limit_is_named_without_numbers_that_the_message_lacks() -> None:
    oom = {"memory": "device", "requested_bytes": 2 * GIB, "allowed_bytes": 20 * GIB, "allocated_bytes": 19 * GIB}
    (finding,) = diagnose(recorded(ooms=[oom])).findings
    assert finding.id == "memory.process_limit"
    assert "unknown" not in finding.sentence
    assert "holds 19 GiB" in finding.sentence


def test_devices_and_ledger_stand_in_the_document() -> None:
    gpus = [{"gpu": "0", "instance": "1g.10gb", "used_bytes": size, "free_bytes": 100 - size} for size in (40, 55)]
    components = [{"name": "model", "size_bytes": 70.5}, {"name": "model_extra", "size_bytes": -2.0}]
    told = diagnose(recorded(gpu_samples=gpus, components=components)).to_dict()["memory"]
    assert told["components"] == [{"name": "model", "bytes": 70}, {"name": "model_extra", "bytes": -2}]
    (gpu,) = told["gpus"]
    assert (gpu["instance"], gpu["samples"], gpu["used_bytes"], gpu["growth_bytes"]) == ("1g.10gb", 2, 55, 15)


def test_nothing_of_memory_is_null_and_no_finding() -> None:
    told = diagnose(recorded(incidents=[{"kind": "ready"}]))
    assert told.memory is None
    assert told.to_dict()["memory"] is None
    assert not [name for name in ids(told.to_dict()) if name.startswith("memory.")]


MIB = 1 << 20


def piece(segment: int, size: int, state: str, **more: Any) -> dict[str, Any]:
    place = {"segment_id": segment, "address_id": segment + more.pop("offset", 0), "gpu": "0", "snapshot": "s"}
    return {**place, "segment_kind": "large", "size_bytes": size, "state": state, **more}


def test_waste_stands_beside_the_blocks_and_adds_up() -> None:
    blocks = [
        piece(1, 30 * MIB, "active", requested_bytes=29 * MIB),
        piece(1, 10 * MIB, "inactive", offset=30 * MIB),
        piece(2, 60 * MIB, "inactive"),
    ]
    told = diagnose(recorded(blocks=blocks))
    held = told.to_dict()["memory"]
    assert held["waste"] == {
        "requested_bytes": 29 * MIB,
        "internal_bytes": MIB,
        "awaiting_bytes": 0,
        "stuck_bytes": 10 * MIB,
        "cached_bytes": 60 * MIB,
        "unnamed_bytes": 0,
    }
    assert sum(held["waste"].values()) == held["blocks"]["reserved_bytes"]
    (finding,) = [each for each in told.findings if each.id == "memory.reserved_idle"]
    assert "60 MiB" in str(finding.remedy)


def test_an_emptied_cache_is_no_remedy_for_bytes_beside_live_blocks() -> None:
    blocks = [piece(1, 30 * MIB, "active", requested_bytes=30 * MIB), piece(1, 30 * MIB, "inactive", offset=30 * MIB)]
    (finding,) = [each for each in diagnose(recorded(blocks=blocks)).findings if each.id == "memory.reserved_idle"]
    assert "would return 0 B only" in str(finding.remedy)
    assert "expandable_segments" in str(finding.remedy)


def test_a_cut_source_tells_no_waste() -> None:
    source = Source("a.log", "pytorch", "pytorch", lines=99, cut=True)
    blocks = [piece(1, 30 * MIB, "active", requested_bytes=30 * MIB)]
    told = observed_memory(recorded(blocks=blocks).replace(sources=(source,)))
    assert told is None or told.waste.is_empty()


def test_the_words_tell_fragmentation_from_a_full_pool() -> None:
    full = [piece(1, 1000 * MIB, "active", requested_bytes=1000 * MIB), piece(1, MIB, "inactive", offset=1000 * MIB)]
    broken = [
        piece(address << 30, size * MIB, state, offset=size, requested_bytes=size * MIB if state == "active" else None)
        for address in range(1, 9)
        for size, state in ((30, "active"), (20, "inactive"))
    ]
    words = {}
    for name, blocks in (("full", full), ("broken", broken)):
        told = observed_memory(recorded(blocks=blocks))
        assert told is not None
        words[name] = holes_sentence(told.waste.filter(scope="pool").row(0, named=True))
    assert "full rather than broken up" in words["full"] and "fragmentation" not in words["full"]
    assert (
        "up to 20 MiB are served; from there to 160 MiB the bytes are there, in 8 pieces (fragmentation)"
        in (words["broken"])
    )
