"""What a panel shows."""

from __future__ import annotations

from pathlib import Path

import plotly.graph_objects as go
import polars as pl
import pytest

from infer_diag.diagnose import diagnose
from infer_diag.jupyter.panel import MAX_LINES, MAX_ROWS, PLOTLY, Panel
from infer_diag.jupyter.panels import summary_panel
from infer_diag.loaders import load


@pytest.mark.parametrize("count", [0, 9, 10, 11, 500])
def test_the_text_has_twelve_lines_at_most_and_says_what_it_leaves_out(count: int) -> None:
    panel = Panel("title", "sentence", tuple(f"detail {number}" for number in range(count)))
    assert len(panel.lines) == min(count + 2, MAX_LINES)
    if count + 2 > MAX_LINES:
        assert panel.lines[-1] == f"… and {count + 2 - (MAX_LINES - 1)} more"
    assert panel.text == repr(panel) == panel._repr_mimebundle_()["text/plain"]


def test_empty_parts_make_no_line() -> None:
    assert Panel("title", "", ("", "detail\nsecond")).lines == ["title", "detail", "second"]


def test_a_figure_goes_out_as_plain_values() -> None:
    bundle = Panel("title", figure=go.Figure(go.Bar(y=[1, 2]), {"title": {"text": "drawn"}}))._repr_mimebundle_()
    assert bundle[PLOTLY]["layout"]["title"]["text"] == "drawn"
    assert bundle[PLOTLY]["data"][0]["y"] == [1, 2]
    assert bundle["text/plain"] == "title"


def test_a_table_escapes_what_came_out_of_a_log() -> None:
    evil = "<script>alert(1)</script>"
    frame = pl.DataFrame({"<b>": [evil, None], "lines": [[evil], []], "number": [1.23456789, 2.0]})
    html = Panel(evil, evil, frame=frame)._repr_mimebundle_()["text/html"]
    assert "<script" not in html
    assert "<b></th>" not in html
    assert html.count("&lt;script&gt;") == 4
    assert ">1.235<" in html
    assert "None" not in html


def test_a_long_table_is_cut_and_says_so() -> None:
    html = Panel("t", frame=pl.DataFrame({"n": range(MAX_ROWS + 1_500)}))._repr_mimebundle_()["text/html"]
    assert html.count("<tr>") == MAX_ROWS + 1
    assert "and 1,500 more rows" in html


def test_secrets_are_not_shown() -> None:
    secret = "hf_abcdefghijklmnopqrstuvwxyz123456"
    panel = Panel(f"token {secret}", secret, (secret,), pl.DataFrame({"path": [f"https://me:{secret}@host/x.log"]}))
    assert secret not in panel.text
    assert secret not in panel._repr_mimebundle_()["text/html"]


def test_every_line_of_a_sentence_stands_on_its_own() -> None:
    html = Panel("t", "first\nsecond", frame=pl.DataFrame({"n": [1]}))._repr_mimebundle_()["text/html"]
    assert "first<br>second" in html


def test_a_summary_of_many_starts_says_each_thing_once(tmp_path: Path) -> None:
    begin = "INFO 06-13 11:3{0}:32 [x.py:244] Initializing a V1 LLM engine (v0.9.1) with config: model='a'"
    end = "ERROR 06-13 11:3{0}:52 [core.py:515] EngineCore failed to start."
    path = tmp_path / "loop.log"
    path.write_text("\n".join(f"{begin}\n{end}".format(number) for number in range(6)))
    diagnosis = diagnose(load(path))
    panel = summary_panel(diagnosis)
    assert "… 6 starts in all" in panel.sentence
    assert len(panel.details) == len(diagnosis.findings)
    assert panel.lines == diagnosis.text().splitlines()
