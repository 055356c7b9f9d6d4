"""Loki's listings, which come newest first: the same reading as of the log itself, with evidence at its own lines."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import written

import infer_diag as diag
from infer_diag.errors import SourceError

STAMPED = [
    (f"2026-03-14T{match[1]}.{number:03d}Z", line)
    for number, line in enumerate(written.vllm_lines())
    if (match := re.search(r"03-14 (\d\d:\d\d:\d\d)", line))
]


def listing(entries: list[tuple[str, str]]) -> str:
    lines = [json.dumps({"labels": {"pod": "p-0"}, "line": line, "timestamp": stamp}) for stamp, line in entries]
    return "\n".join(lines) + "\n"


def answer(entries: list[tuple[str, str]], indent: int | None = None) -> str:
    values = [[f"{diag_ns(stamp)}", line] for stamp, line in entries]
    result = [{"stream": {"pod": "p-0"}, "values": values}]
    return json.dumps(
        {"status": "success", "data": {"resultType": "streams", "result": result, "stats": {}}}, indent=indent
    )


def diag_ns(stamp: str) -> int:
    from datetime import datetime

    return round(datetime.fromisoformat(stamp).timestamp() * 1000) * 1_000_000


def document(path: Path, text: str) -> dict[str, Any]:
    path.write_text(text)
    return diag.diagnose(diag.load(path)).to_dict()


def without_places(told: Any) -> Any:
    if isinstance(told, dict):
        return {
            key: without_places(each) for key, each in told.items() if key not in ("evidence", "sources", "sentence")
        }
    return [without_places(each) for each in told] if isinstance(told, list) else told


@pytest.mark.parametrize(
    "text",
    [listing(STAMPED[::-1]), answer(STAMPED[::-1]), answer(STAMPED[::-1], indent=1), answer(STAMPED)],
    ids=["logcli", "api", "api pretty", "api forward"],
)
def test_the_order_is_mended(tmp_path: Path, text: str) -> None:
    forward = document(tmp_path / "log", listing(STAMPED))
    told = document(tmp_path / "log", text)
    assert without_places(told) == without_places(forward)
    assert told["sources"][0]["format"] == "vllm"
    assert told["starts"][0]["phases_s"]["compile"] == 31.03


@pytest.mark.parametrize("text", [listing(STAMPED[::-1]), answer(STAMPED[::-1], indent=1), listing(STAMPED)])
def test_evidence_is_where_the_line_stands(tmp_path: Path, text: str) -> None:
    told = document(tmp_path / "log", text)
    lines = text.split("\n")
    loads = [phase for phase in told["starts"][0]["phases"] if phase["phase"] == "compile"]
    places = [int(place.rpartition(":")[2]) for phase in loads for place in phase["evidence"]]
    near = [" ".join(lines[place - 1 : place + 2]) for place in places]
    assert near and all("torch.compile takes 31.03 s" in each for each in near)


def test_streams_of_several_pods_are_interleaved(tmp_path: Path) -> None:
    streams = [
        {"stream": {"pod": pod}, "values": [[f"{diag_ns(stamp) + shift}", line] for stamp, line in STAMPED[::-1]]}
        for pod, shift in (("p-0", 0), ("p-1", 100))
    ]
    text = json.dumps({"status": "success", "data": {"resultType": "streams", "result": streams}})
    told = document(tmp_path / "log", text)
    assert sorted(start["replica"] for start in told["starts"]) == ["p-0", "p-1"]
    assert {start["phases_s"]["compile"] for start in told["starts"]} == {31.03}


def test_lines_of_one_instant_keep_their_order(tmp_path: Path) -> None:
    same = [(stamp[:19] + "Z", line) for stamp, line in STAMPED]
    forward, backward = document(tmp_path / "log", listing(same)), document(tmp_path / "log", listing(same[::-1]))
    assert without_places(forward) == without_places(backward)


def test_what_came_in_order_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(listing(STAMPED))
    source = diag.load(path).sources[0]
    assert source.places is None and not source.notes


def test_a_first_line_that_never_comes_to_its_stamp_is_no_listing(tmp_path: Path) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_text('{"labels": {' + '"line": "' * 110_000 + "\n")
    with pytest.raises(SourceError, match="in no format"):
        diag.load(path)
