"""A diagnosis as Markdown for a ticket: findings first, their lines fenced, tables, and never too long to be pasted.

Trackers make more of text than Markdown does: names call people, numbers become references, addresses become links. So
text is escaped, and such words are broken by a space without width. All of it has gone through the rules of `redact`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from infer_diag.diagnose.cost import FleetDiagnosis
from infer_diag.report.excerpts import Block
from infer_diag.report.fleet import fleet_page
from infer_diag.report.memory import memory_section
from infer_diag.report.page import page, without_secrets

if TYPE_CHECKING:
    from infer_diag.diagnose import Diagnosis

MOST_CHARACTERS = 60_000
"""GitHub takes 65,536 characters for an issue; other trackers take more."""
MOST_ROWS = 20
MOST_BLOCKS = 3
_LONG, _CELL = 1000, 300
_BREAK = "\u200b"
_SPECIAL = re.compile(r"[\\`*_{}\[\]<>|~^$#]|^[-+=]")
_ENTITY = re.compile(r"&(?=#?\w)")
_CALLS = re.compile(r"[@#!%&$~](?=\w)|:(?=//)|\bwww(?=\.)|\bGH(?=-\d)", re.IGNORECASE)
_NUMBERED = re.compile(r"^(\d+)([.)])(?=\s|$)")


def markdown(diagnosis: Diagnosis | FleetDiagnosis) -> str:
    """The report as Markdown of at most `MOST_CHARACTERS` characters; the same text for the same logs.

    What no longer fits is left out from the end, and the last line says so.
    """
    told = _fleet(diagnosis) if isinstance(diagnosis, FleetDiagnosis) else _recording(diagnosis)
    return _fitted(list(told))


def escaped(text: str, most: int = _LONG) -> str:
    """Clean text as Markdown that shows it as it is, in one line of at most `most` characters, and calls nobody."""
    broken = _CALLS.sub(rf"\g<0>{_BREAK}", _line(text, most))
    marked = _SPECIAL.sub(r"\\\g<0>", _ENTITY.sub("&amp;", broken))
    return _NUMBERED.sub(r"\1\\\2", marked).replace(_BREAK, "&#8203;")


def worded(text: str, most: int = _LONG) -> str:
    """A clean sentence as Markdown, where what stands between two backticks is code."""
    parts = _line(text, most).split("`")
    last = len(parts) - 1
    return "".join(
        f"`{part}`" if number % 2 and part.strip() and number < last else _between(part)
        for number, part in enumerate(parts)
    )


def fenced(lines: Iterable[str]) -> str:
    """Lines as a block of code whose fence is longer than any run of backticks in it."""
    text = "\n".join(lines)
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(longest + 1, 3)
    return f"{fence}text\n{text}\n{fence}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> str:
    """A table of escaped cells, its first `MOST_ROWS` rows; `right`: the columns of numbers."""
    numbers = set(right)
    lines = [_row(head), _row(["---:" if column in numbers else "---" for column in range(len(head))], raw=True)]
    lines += [_row(row) for row in rows[:MOST_ROWS]]
    more = len(rows) - MOST_ROWS
    return "\n".join(lines) + (f"\n\n… and {more} more rows" if more > 0 else "")


def _line(text: str, most: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def _between(part: str) -> str:
    """A part of a sentence with the spaces at its ends, which stand next to code."""
    if not part.strip():
        return part
    return part[: len(part) - len(part.lstrip())] + escaped(part) + part[len(part.rstrip()) :]


def _row(cells: Sequence[str], *, raw: bool = False) -> str:
    return "| " + " | ".join(cell if raw else escaped(cell, _CELL) or " " for cell in cells) + " |"


def _fitted(sections: list[str]) -> str:
    note = "\n\n*{} parts are left out here, because a ticket takes no more; the HTML report has them.*\n"
    kept, size = list[str](), len(note) + 8
    for section in sections:
        if size + len(section) + 2 > MOST_CHARACTERS:
            break
        kept.append(section)
        size += len(section) + 2
    rest = len(sections) - len(kept)
    return "\n\n".join(kept) + (note.format(rest) if rest else "\n")


def _recording(diagnosis: Diagnosis) -> Iterable[str]:
    content = page(diagnosis)
    yield f"# Inference diagnosis\n\n{escaped(content['subject']) or 'no source'}"
    yield from _answer(content["answer"])
    yield "## Findings" + ("" if content["findings"] else "\n\nNo finding.")
    for number, finding in enumerate(content["findings"], start=1):
        yield _finding(number, finding)
    yield from _starts(content)
    yield from _serving(content)
    lines = memory_section(diagnosis).lines
    if lines:
        yield "## Memory\n\n" + "\n".join(f"- {escaped(line)}" for line in lines)
    yield from _cost(content["cost"])
    yield from _sources(content)


def _cost(told: dict[str, Any] | None) -> Iterable[str]:
    if told is None:
        return
    after = f" The log to add next: {worded(told['next_log'])}." if told["next_log"] else ""
    yield f"## Cost\n\n{escaped(told['sentence'][:1].upper() + told['sentence'][1:])}.{after}"
    rows = [[row[name] for name in ("entry", "amount", "unit", "status", "source")] for row in told["rows"]]
    yield table(("entry", "amount", "unit", "status", "from"), rows, right=[1])
    if told["refused"]:
        yield "These logs cannot tell " + escaped(", ".join(each["entry"] for each in told["refused"])) + "."


def _answer(answer: Sequence[dict[str, str]]) -> Iterable[str]:
    if answer:
        yield "\n".join(f"- **{each['severity']}**: {worded(each['sentence'])}" for each in answer)


def _finding(number: int, finding: dict[str, Any]) -> str:
    about = [f"`{finding['id'].replace('`', '')}`", finding["status"]]
    if finding.get("saves"):
        about.append(f"fixing it alone saves {escaped(str(finding['saves']))}")
    parts = [f"### {number}\\. {finding['severity']}: {worded(finding['sentence'])}", " · ".join(about)]
    if finding.get("remedy"):
        parts.append(f"**What to do:** {worded(finding['remedy'])}")
    blocks: list[Block] = finding.get("blocks", [])
    for block in blocks[:MOST_BLOCKS]:
        parts.append(f"From {escaped(block.name)}" + (":" if block.lines else ""))
        if block.lines:
            parts.append(fenced(f"{'>' if line.cited else ' '} {line.number:>6}  {line.text}" for line in block.lines))
    rest = [block.name for block in blocks[MOST_BLOCKS:]] + list(finding.get("more_evidence", []))
    if rest:
        parts.append(f"also {escaped(', '.join(rest[:MOST_ROWS]))}" + (" …" if len(rest) > MOST_ROWS else ""))
    return "\n\n".join(parts)


def _starts(content: dict[str, Any]) -> Iterable[str]:
    if not content["starts"]:
        return
    head = ["start", "outcome", "span", "no line explains", "caches", "progress"]
    rows = [
        [each["start_id"], each["outcome"], each["span"], each["unlogged"], each["caches"], each["progress"]]
        for each in content["starts"]
    ]
    yield f"## Cold start\n\n{table(head, rows, right=(2, 3))}"
    for start in content["detailed"]:
        head = ["phase", "inside", "duration", "status", "from line"]
        phases = [
            [each["phase"], each["inside"], each["duration"], each["status"], each["evidence"]]
            for each in start["phases"]
            if not each["rank"]
        ]
        if phases:
            yield f"Phases of {escaped(start['start_id'])}:\n\n{table(head, phases, right=(2,))}"
        gaps = [[each["after"], each["before"], each["seconds"], each["reason"]] for each in start["gaps"]]
        if gaps:
            told = table(["after", "before", "length", "why"], gaps, right=(2,))
            yield f"Stretches of {escaped(start['start_id'])} that no line explains:\n\n{told}"


def _serving(content: dict[str, Any]) -> Iterable[str]:
    serving = content["serving"]
    if serving is None:
        return
    yield (
        f"## Serving\n\n{serving['samples']} statistics lines over {escaped(serving['window'])}; requests finished: "
        f"{escaped(serving['requests'])}; preemptions: {escaped(serving['preemptions'])}."
    )
    kinds = (
        (["statistics lines", "first", "last", "least", "mean", "most"], serving["sample_rows"]),
        (
            ["steps of kind", "steps", "time in all", "mean batch", "prompt tokens", "output tokens"],
            content["step_rows"],
        ),
        (["requests", "mean", "median", "95th percentile", "most"], serving["request_rows"]),
    )
    for head, rows in kinds:
        if rows:
            yield table(head, rows, right=range(1, len(head)))


def _sources(content: dict[str, Any]) -> Iterable[str]:
    head = ["file", "format", "engine", "lines", "rejected", "time", "SHA-256"]
    rows = [
        [
            each["path"],
            each["format"],
            f"{each['engine']} {each['version']}",
            each["lines"],
            each["rejected"],
            each["span"],
            each["sha256"] or "",
        ]
        for each in content["sources"]
    ]
    yield "## Sources\n\n" + (table(head, rows, right=(3, 4)) if rows else "No file was read.")
    if content["rejected"]:
        lines = [f"{each['place']}  ({each['rule']})  {each['text']}" for each in content["rejected"]]
        count = content["rejected_count"]
        told = fenced(_line(line, _CELL) for line in lines)
        yield f"{count} lines that a rule claims and cannot read, so that no number rests on them:\n\n{told}"
    yield (
        "*measured*: a line prints it, or it is the difference of two stamps; *modelled*: computed under an assumption "
        "that the sentence names; *bounded*: only a limit is known; *not identifiable*: these logs cannot tell. Keys, "
        "tokens and passwords are replaced by `[redacted]`."
    )


def _fleet(diagnosis: FleetDiagnosis) -> Iterable[str]:
    content = without_secrets(fleet_page(diagnosis))
    yield f"# Fleet diagnosis\n\n{escaped(content['subject'])}"
    yield from _answer(content["answer"])
    head = ["deployment", "per 1M output tokens", "ratio", "largest cause", "reference", "status"]
    rows = [
        [each["name"], each["cost"], each["ratio"], each["cause"], each["reference"], each["status"]]
        for each in content["ranking"]
    ]
    yield f"## Deployments, the dearest first\n\n{table(head, rows, right=(1, 2))}"
    rows = [
        [each["name"], each["excess"], each["recoverable"], str(each["discovered"]), str(each["deployments"])]
        for each in content["causes"]
    ]
    head = ["cause", "excess", "recoverable", "found in", "deployments"]
    yield f"## Causes\n\n{table(head, rows, right=(1, 2, 3, 4))}"
    yield "## Findings" + ("" if content["findings"] else "\n\nNo finding.")
    for number, finding in enumerate(content["findings"], start=1):
        places = list(finding["evidence"])[:MOST_ROWS]
        yield _finding(number, {**finding, "saves": None, "blocks": [Block(place) for place in places]})
    yield escaped(content["weight"])
