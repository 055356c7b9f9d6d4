"""Hostile text in every field of a recording: inert, visible as what it is, bounded and without secrets wherever shown.

Fields that name other rows (`start_id`) and those that only our own words can fill are left as they are.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any

import hostile
import ipywidgets as widgets
import plotly.graph_objects as go
import polars as pl
import pytest

import infer_diag as diag
from infer_diag import schema
from infer_diag.diagnose import Diagnosis, diagnose
from infer_diag.fleet import fleet_of
from infer_diag.jupyter import (
    batching_panel,
    cold_start_panel,
    evidence_panel,
    ledger_panel,
    memory_panel,
    sources_panel,
    summary_panel,
)
from infer_diag.jupyter.cost import cost_panel
from infer_diag.jupyter.explore import explore
from infer_diag.jupyter.explore.plot import Plot
from infer_diag.jupyter.losses_panel import losses_panel
from infer_diag.jupyter.panel import Panel
from infer_diag.jupyter.watch_view import WatchView
from infer_diag.recording import Recording, combine
from infer_diag.report import figures, markdown, render
from infer_diag.watch import View

SAMPLES = ("captured/kv_preempts", "captured/two_starts")
OUR_WORDS = {"start_id", "phase", "inside", "kind", "status", "state", "action", "scope", "rule", "finish_reason"}
PSEUDO_HTML = ("b", "br", "i", "em", "sub", "sup", "span", "extra")
"""What plotly makes of text; `a` is among it, so that no link may be left to it."""
MOST = 2500


def poisoned(recording: Recording) -> Recording:
    """The recording with hostile text in front of every text of it; equal texts stay equal."""
    attacks = list(hostile.TEXTS.values())

    def with_text(frame: pl.DataFrame) -> pl.DataFrame:
        changed = []
        for name, kind in frame.schema.items():
            if kind == pl.String and name not in OUR_WORDS and frame[name].is_not_null().any():
                values = frame[name].drop_nulls().unique(maintain_order=True).to_list()
                taken = {value: f"{attacks[n % len(attacks)]} {value}" for n, value in enumerate(values)}
                changed.append(pl.col(name).replace_strict(taken, default=None, return_dtype=pl.String))
        return frame.with_columns(changed)

    frames = {name: with_text(getattr(recording, name)) for name in schema.FRAMES}
    sources = tuple(
        dataclasses.replace(
            each, path=f"{attacks[n % len(attacks)]}/{each.path}", engine_version=attacks[n % len(attacks)],
            notes=tuple(attacks), doubts=tuple(attacks),
        )
        for n, each in enumerate(recording.sources)
    )  # fmt: skip
    return recording.replace(sources=sources, **frames)


def with_devices(recording: Recording) -> Recording:
    """The recording with samples of GPUs and blocks of the KV pool."""
    begin = recording.first_time or datetime(2026, 1, 1, tzinfo=UTC)
    place = {"source_id": pl.lit(0, pl.UInt32), "line": pl.int_range(1, pl.len() + 1), "time": pl.lit(begin)}
    gpus = pl.DataFrame({"gpu": ["0", "1"], "instance": ["a", "b"], "used_bytes": [1 << 30, 1 << 31]})
    blocks = pl.DataFrame({"block_id": [0, 1], "filled_tokens": [16, 3], "state": ["active", "active"]})
    frames = {}
    for name, rows, kind in (("gpu_samples", gpus, schema.GpuSamples), ("kv_blocks", blocks, schema.KvBlocks)):
        whole = rows.with_columns(**place)
        missing = [column for column in kind.column_names() if column not in whole.columns]
        whole = whole.with_columns(pl.lit(None).alias(column) for column in missing)
        frames[name] = kind.validate(whole.select(kind.column_names()), cast=True)
    return recording.replace(**frames)


@pytest.fixture(scope="module")
def calm() -> Diagnosis:
    """What the samples say."""
    return diagnose(with_devices(combine([diag.load(f"sample:{name}") for name in SAMPLES])))


@pytest.fixture(scope="module")
def told(calm: Diagnosis) -> Diagnosis:
    """What the same samples say with hostile text in them."""
    return diagnose(poisoned(calm.recording))


@pytest.fixture(scope="module")
def found(told: Diagnosis) -> Diagnosis:
    """The hostile diagnosis, with a hostile finding for each text."""
    more = tuple(
        dataclasses.replace(told.findings[0], sentence=text, remedy=text, evidence=(f"{text}:1",))
        for text in hostile.TEXTS.values()
    )
    return dataclasses.replace(told, findings=(*more, *told.findings))


class Tags(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.text: list[str] = []
        self._script = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(sorted(name for name, _ in attrs))))
        self._script = tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self._script:
            self.text.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._script = False


def figure_faults(figure: Any) -> list[str]:
    """What is wrong with the texts of a figure."""
    texts = hostile.strings(json.loads(figure.to_json()))
    shown = [text for text in texts if len(text) < 200_000]
    return [fault for text in shown for fault in (*hostile.faults(text, most=MOST), *hostile.tags(text, PSEUDO_HTML))]


def drawn_by(monkeypatch: pytest.MonkeyPatch, diagnosis: Any) -> tuple[str, list[Any]]:
    """A report and the figures in it."""
    kept: list[Any] = []
    made = figures.go.Figure.to_html
    monkeypatch.setattr(go.Figure, "to_html", lambda self, **options: (kept.append(self), made(self, **options))[1])
    return render(diagnosis), kept


def test_the_page_has_no_markup_but_ours(monkeypatch: pytest.MonkeyPatch, calm: Diagnosis, found: Diagnosis) -> None:
    html, drawn = drawn_by(monkeypatch, found)
    page, other = Tags(html), Tags(render(calm))
    assert set(page.tags) <= set(other.tags)
    assert not [text for text in page.text for _ in hostile.faults(text, most=MOST)]
    assert len(drawn) >= 3
    assert not [fault for figure in drawn for fault in figure_faults(figure)]
    assert hostile.TOKEN not in html and hostile.PASSWORD not in html


def test_the_ticket_is_text(found: Diagnosis) -> None:
    text = markdown(found)
    assert not hostile.faults(text)
    assert hostile.TOKEN not in text


def panels(diagnosis: Diagnosis) -> Iterator[Panel]:
    """Every panel of a recording."""
    yield from (each(diagnosis) for each in (summary_panel, cold_start_panel, batching_panel, memory_panel))
    yield from (each(diagnosis) for each in (ledger_panel, evidence_panel))
    yield from (cold_start_panel(diagnosis, start) for start in diagnosis.cold_start.summary["start_id"])
    yield sources_panel(diagnosis.recording)
    yield losses_panel(diagnosis.recording)


def test_panels_show_text_and_tables_of_it(found: Diagnosis) -> None:
    for panel in panels(found):
        bundle = panel._repr_mimebundle_()
        assert not hostile.faults(bundle["text/plain"])
        page = Tags(dataclasses.replace(panel, figure=None)._repr_mimebundle_().get("text/html", ""))
        allowed = {"b", "p", "br", "pre", "table", "thead", "tbody", "tr", "td", "th"}
        assert {tag for tag, _ in page.tags} <= allowed
        assert {name for _, names in page.tags for name in names} <= {"style"}
        assert not [fault for text in page.text for fault in hostile.faults(text)]
        assert panel.figure is None or not figure_faults(panel.figure)


def test_a_fleet_named_to_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = diag.load(f"sample:{SAMPLES[0]}")
    names = {name: text for name, text in hostile.TEXTS.items() if name != "long"}
    poison = poisoned(recording)
    fleet = diagnose(fleet_of(dict.fromkeys((f"{text} {name}" for name, text in names.items()), poison)))
    html, drawn = drawn_by(monkeypatch, fleet)
    page = Tags(html)
    assert not {"img", "svg", "iframe", "b2"} & {tag for tag, _ in page.tags}
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert not [fault for text in page.text for fault in hostile.faults(text, most=MOST)]
    assert not [fault for figure in drawn for fault in figure_faults(figure)]
    assert not hostile.faults(markdown(fleet))
    panel = cost_panel(fleet)
    assert not hostile.faults(panel.text)
    assert panel.figure is None or not figure_faults(panel.figure)


def shown_by(widget: widgets.Widget) -> Iterator[str]:
    """Every text that a tree of widgets shows."""
    if isinstance(widget, Plot):
        assert "innerHTML" not in str(widget._esm)
        yield from hostile.strings(widget._scene or {})
    elif isinstance(widget, widgets.HTML):
        page = Tags(widget.value)
        assert {tag for tag, _ in page.tags} <= {"div", "b", "br", "i", "pre", "span"}
        assert {name for _, names in page.tags for name in names} <= {"style"}
        yield from page.text
    elif isinstance(widget, widgets.Select | widgets.Dropdown | widgets.ToggleButtons):
        yield from map(str, widget._options_labels)
    elif isinstance(widget, widgets.Label):
        yield widget.value
    for child in getattr(widget, "children", ()):
        yield from shown_by(child)


def test_the_explorer_shows_text(found: Diagnosis) -> None:
    explorer = explore(found)
    assert set(explorer.model.pages) == {"overview", "cold start", "batching", "memory", "cost"}
    for page in explorer.model.pages:
        explorer._names.value = page
        for fact in explorer.model.findings():
            explorer._tell(fact)
            assert not [fault for text in shown_by(explorer._evidence) for fault in hostile.faults(text, most=MOST)]
        assert not [fault for text in shown_by(explorer.view) for fault in hostile.faults(text, most=MOST)]


@pytest.mark.parametrize("attack", hostile.TEXTS.values(), ids=hostile.TEXTS)
def test_a_watch_shows_text(attack: str, found: Diagnosis) -> None:
    samples = found.recording.engine_samples
    view = View(
        elapsed_s=1.0, states=((attack, attack),), diagnosis=found, samples=((attack, samples),),
        gpus=found.recording.gpu_samples, over=attack, verdicts=(),
    )  # fmt: skip
    shown = WatchView(attack, lambda: None)
    shown.show(view)
    assert not [fault for text in shown_by(shown.view) for fault in hostile.faults(text, most=MOST)]
    shown._tell(shown._facts[0])
    shown.failed(attack)
    assert not [fault for text in shown_by(shown.view) for fault in hostile.faults(text, most=MOST)]
