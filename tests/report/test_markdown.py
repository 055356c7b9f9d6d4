"""The report as Markdown for a ticket: findings first, nothing in it that calls, links, runs or tells a secret."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import hostile
import made
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

import infer_diag as diag
from infer_diag.diagnose.finding import Finding
from infer_diag.errors import UnknownNameError
from infer_diag.fleet import fleet_of
from infer_diag.redact import plain
from infer_diag.report import markdown, report
from infer_diag.report.markdown import MOST_CHARACTERS, escaped, fenced, table, worded

READER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
WITHOUT_WIDTH = "\u200b"


def kinds(text: str) -> set[str]:
    """The kinds of everything that a reader of Markdown finds in a text."""
    found = READER.parse(text)
    return {each.type for token in found for each in (token, *(token.children or ()))}


def read(text: str) -> str:
    """What a reader sees of a text."""
    return "".join(each.content for token in READER.parse(text) for each in token.children or ())


def test_findings_come_first_with_their_lines(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("\n".join(f"line {number}" for number in range(1, 8)))
    source = dataclasses.replace(made.source(str(log)), size_bytes=log.stat().st_size)
    finding = Finding("cold_start.process", "high", "Slow.", "measured", (f"{log}:4",), "Use `--fast` now.", 12.5)
    text = markdown(made.diagnosis(recording={"sources": (source,)}, findings=(finding,)))
    assert text.index("## Findings") < text.index("## Cold start") < text.index("## Serving") < text.index("## Sources")
    assert "- **high**: Slow." in text
    assert "### 1\\. high: Slow." in text
    assert "`cold_start.process` · measured · fixing it alone saves 12.5 s" in text
    assert "**What to do:** Use `--fast` now." in text
    assert "```text\n       2  line 2\n       3  line 3\n>      4  line 4\n" in text
    assert "ab" * 32 in text


def test_tables_have_a_cell_for_each_head() -> None:
    text = markdown(made.diagnosis())
    rows = re.findall(r"^\|.*\|$", text, re.MULTILINE)
    assert len(rows) > 10
    assert "tables" not in kinds(text) and "table_open" in kinds(text)
    for block in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in block.splitlines()}) == 1


def test_an_empty_diagnosis_is_a_text_too() -> None:
    assert "No finding." in markdown(diag.diagnose(diag.Recording()))


def test_the_same_logs_give_the_same_text_by_suffix_and_by_name(tmp_path: Path) -> None:
    text = markdown(made.diagnosis())
    assert report(made.diagnosis(), tmp_path / "r.md").read_text() == text
    assert report(made.diagnosis(), tmp_path / "r.txt", format="md").read_text() == text
    assert report(made.diagnosis(), tmp_path / "r.html").read_text().startswith("<!doctype html>")
    with pytest.raises(UnknownNameError, match="did you mean md"):
        report(made.diagnosis(), tmp_path / "r", format="mdd")


def test_it_is_never_too_long_for_a_ticket() -> None:
    sentence = "word " * 190
    findings = tuple(
        Finding("cold_start.process", "high", f"{n} {sentence}", "measured", (), sentence) for n in range(200)
    )
    text = markdown(made.diagnosis(findings=findings))
    assert len(text) <= MOST_CHARACTERS
    assert re.search(r"\*\d+ parts are left out here", text.splitlines()[-1])


def test_a_fleet_is_a_text_too() -> None:
    recording = diag.load("sample:captured/sequence_limit/server.log")
    other = diag.load("sample:captured/kv_preempts/server.log")
    text = markdown(diag.diagnose(fleet_of({"@one": recording, "two|x": other})))
    assert "@&#8203;one" in text and "two\\|x" in text
    assert text.index("## Deployments") < text.index("## Causes") < text.index("## Findings")


@pytest.mark.parametrize("attack", hostile.TEXTS.values(), ids=hostile.TEXTS)
def test_text_of_a_log_does_nothing(attack: str, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(f"first\n{attack.replace(chr(10), ' ')} two\nthird\n", encoding="utf-8")
    source = dataclasses.replace(
        made.source(str(log)), size_bytes=log.stat().st_size, engine_version=attack, notes=(attack,)
    )
    finding = Finding("cold_start.process", "high", attack, "measured", (f"{log}:2", f"{attack}:3"), attack, 1.0)
    document = made.document()
    document["starts"][0]["start_id"] = attack
    told = made.diagnosis(recording={"sources": (source, made.source(attack))}, findings=(finding,), document=document)
    text = markdown(told)
    assert not hostile.faults(text, most=MOST_CHARACTERS)
    assert not kinds(text) & {"html_inline", "html_block", "link_open", "image"}
    outside = re.sub(r"(?s)```+text\n.*?\n```+", "", text)
    assert not re.search(r"(?<![\w`])[@#!]\w|://|\bwww\.", re.sub(r"`[^`]*`|&#8203;", " ", outside))
    assert text.count("\n# ") == 0 and text.startswith("# Inference diagnosis")


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=200))
def test_a_reader_sees_what_was_there(text: str) -> None:
    clean = plain(text)
    assert read(escaped(clean)).replace(WITHOUT_WIDTH, "") == clean
    assert not kinds(escaped(clean)) - {"inline", "text", "text_special", "paragraph_open", "paragraph_close"}


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=200))
def test_code_ends_where_it_should(text: str) -> None:
    clean = plain(text)
    assert read(worded(clean)).replace(WITHOUT_WIDTH, "").replace("`", "").split() == clean.replace("`", "").split()
    (block,) = [token for token in READER.parse(fenced([clean])) if token.type == "fence"]
    assert block.content == f"{clean}\n"


def test_a_long_table_says_what_it_leaves_out() -> None:
    text = table(["a", "b"], [[str(number), "x|y"] for number in range(25)], right=(0,))
    assert text.splitlines()[1] == "| ---: | --- |"
    assert text.endswith("… and 5 more rows")
    assert text.count("x\\|y") == 20
