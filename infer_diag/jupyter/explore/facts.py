"""Numbers with the lines behind them, and those lines with their neighbours as HTML."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl
from jinja2 import Environment

from infer_diag.recording import Recording
from infer_diag.redact import plain
from infer_diag.report.excerpts import blocks, excerpts

MOST_PLACES = 6
"""More places than this are no longer read by anyone."""
_LONG = 600

_PANEL = Environment(autoescape=True).from_string(
    "<div style='display:grid;grid-template-columns:minmax(0,1fr);font-size:12px;line-height:1.45;white-space:normal;"
    "overflow-wrap:anywhere'>"
    "<b>{{ text }}</b>"
    "{% if note %}<div style='opacity:.8'>{{ note }}</div>{% endif %}"
    "{% for block in found %}<div style='opacity:.8;margin-top:4px;overflow-wrap:anywhere'>{{ block.name }}</div>"
    "{% if block.lines %}<pre style='margin:0;overflow-x:auto;max-height:220px;white-space:pre;font-size:11.5px'>"
    "{% for line in block.lines %}"
    "<span style='{{ 'font-weight:700' if line.cited else 'opacity:.65' }}'>"
    "{{ '%s %6d  %s' | format('▶' if line.cited else ' ', line.number, line.text) }}\n</span>{% endfor %}</pre>"
    "{% else %}<div style='opacity:.65'>the file is not there any more as it was read, or lies behind an address</div>"
    "{% endif %}{% endfor %}</div>"
)


@dataclass(frozen=True)
class Fact:
    """A sentence with a number in it, and the `path:line` places that it comes from.

    `key` tells that two facts are the same one at different times; by default that is where the text is the same.
    """

    text: str
    places: tuple[str, ...] = ()
    note: str = ""
    key: str = ""


def fact(recording: Recording, text: str, rows: Iterable[tuple[int, int]] = (), note: str = "") -> Fact:
    """The fact with the places of rows (`source_id`, `line`); rows without a line are left out."""
    places = dict.fromkeys(recording.evidence(source, line) for source, line in rows if line)
    return Fact(plain(text), tuple(places), note)


def extremes(told: pl.DataFrame, column: str) -> tuple[tuple[float, float, float], list[tuple[int, int]]]:
    """((mean, least, most) of a column without nulls, the rows with the most and the least as `source_id`, `line`)."""
    value = pl.col(column).cast(pl.Float64)
    mean, least, most = told.select(value.mean().alias("a"), value.min().alias("b"), value.max().alias("c")).row(0)
    place = pl.col("source_id", "line")
    ends = [told.select(place.get(at)).row(0) for at in (value.arg_max(), value.arg_min())]
    return (mean, least, most), ends


def grown(recording: Recording) -> Recording:
    """The recording with the sizes that its files have now: those that only ever grow keep the lines that they had."""
    now = []
    for source in recording.sources:
        path = Path(source.path).expanduser()
        size_bytes = path.stat().st_size if path.is_file() else 0
        now.append(replace(source, size_bytes=max(size_bytes, source.size_bytes)))
    return recording.replace(sources=tuple(now))


def evidence_html(recording: Recording, chosen: Fact) -> str:
    """The fact and, below it, its lines in their files with two neighbours each; redacted and escaped."""
    places = chosen.places[:MOST_PLACES]
    names = [plain(place, _LONG) for place in places]
    found = blocks(places, names, excerpts(recording, places)) if places else []
    more = len(chosen.places) - len(places)
    notes = [plain(chosen.note, _LONG)] if chosen.note else []
    notes += [f"and {more} more places"] if more > 0 else []
    notes += ["no single line says it: it is counted over many, or comes from a file without lines"] * (not places)
    return _PANEL.render(text=plain(chosen.text, _LONG), note=" · ".join(notes), found=found)
