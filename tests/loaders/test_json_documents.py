"""Files of JSON: one document or several, the lines of their parts, and what is left of one that breaks off."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from infer_diag.errors import SourceError
from infer_diag.loaders import json_documents
from infer_diag.loaders.files import LogFile, find
from infer_diag.loaders.json_documents import document, documents
from infer_diag.loaders.loader import Options

LIST = json.dumps({"items": [{"uid": "b"}, {"uid": "a"}, {"uid": "a"}]}, indent=1) + "\n"


def file(tmp_path: Path, text: str) -> LogFile:
    path = tmp_path / "export.json"
    path.write_text(text)
    return find((path,))[0]


def test_one_document_tells_its_value_and_its_lines(tmp_path: Path) -> None:
    read = document(file(tmp_path, LIST), Options())
    assert read.value["items"][0] == {"uid": "b"}
    assert read.lines == LIST.count("\n")
    assert read.line_of("items") == 2
    assert read.line_of("a") == 7
    assert read.line_of("nowhere") == 0


def test_strings_asked_for_in_order_are_found_from_where_the_last_one_stood(tmp_path: Path) -> None:
    line_of = document(file(tmp_path, LIST), Options()).lines_in_order()
    assert [line_of(name) for name in ("b", "a", "b", "a")] == [4, 7, 0, 7]


@pytest.mark.parametrize("text", ['{"a": 1', '{"a": 1}\n{"a": 2}', "no JSON"])
def test_what_is_no_single_document_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(SourceError, match="no whole JSON document"):
        document(file(tmp_path, text), Options())


def test_several_documents_stand_among_other_text(tmp_path: Path) -> None:
    read = documents(file(tmp_path, 'curl says\n{"a": 1}\nand\n[2, 3]'), Options())
    assert [(read.line_at(place), value) for place, value in read.found] == [(2, {"a": 1}), (4, [2, 3])]
    assert (read.lines, read.cut) == (4, False)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('{"a": [1, 2, {"b": 3}, {"b": ', {"a": [1, 2, {"b": 3}]}),
        ('{"a": 1, "b": "cut', {"a": 1}),
        ('{"a": 1, "b": "]},' + '\\"' * 100_000 + "\n", {"a": 1}),
    ],
)
def test_of_a_document_that_breaks_off_the_whole_parts_are_left(
    tmp_path: Path, text: str, left: dict[str, object]
) -> None:
    read = documents(file(tmp_path, text), Options())
    assert [value for _, value in read.found] == [left]
    assert read.cut


@pytest.mark.parametrize("read", [document, documents])
def test_deep_nesting_and_large_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: object
) -> None:
    assert callable(read)
    with pytest.raises(SourceError, match="too deeply"):
        read(file(tmp_path, "[" * 200_000), Options())
    monkeypatch.setattr(json_documents, "SIZE_LIMIT", 1 << 10)
    with pytest.raises(SourceError, match="more than 0 MiB"):
        read(file(tmp_path, "[" + "1," * 2000 + "1]"), Options())
