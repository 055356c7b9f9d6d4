from __future__ import annotations

import subprocess
import sys

import plotly.io as pio
import pytest

from infer_diag import charts, schema
from infer_diag.charts.template import label, where
from infer_diag.recording import Source


def test_the_template_is_registered_and_not_made_the_default() -> None:
    asked = "import plotly.io as pio; was = pio.templates.default; import infer_diag.charts as c"
    told = "print(c.NAME in pio.templates, pio.templates.default == was != c.NAME)"
    done = subprocess.run([sys.executable, "-c", f"{asked}; {told}"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


def test_every_phase_has_a_colour_and_paper_is_transparent() -> None:
    assert set(schema.PHASES) <= set(charts.COLOURS)
    layout = pio.templates[charts.NAME].layout
    assert layout.paper_bgcolor == layout.plot_bgcolor == "rgba(0,0,0,0)"


def contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("page", ["#ffffff", "#111111"])
def test_text_is_readable_on_light_and_dark_pages(page: str) -> None:
    assert contrast(pio.templates[charts.NAME].layout.font.color, page) >= 4.0


@pytest.mark.parametrize(
    ("one", "other"), [("prefill", "decode"), ("decode", "mixed"), ("running", "kv"), ("weights_load", "compile")]
)
def test_neighbours_differ_in_lightness_so_that_grey_tells_them(one: str, other: str) -> None:
    assert contrast(charts.COLOURS[one], charts.COLOURS[other]) >= 1.2


def test_labels_are_redacted_cut_and_without_markup() -> None:
    text = label("<b>x</b> & <a href='j'>y</a> api_key=abcdef123 " + "z" * 500)
    assert "<" not in text and ">" not in text and "&lt;b&gt;" in text and "&amp; " in text
    assert "abcdef123" not in text
    assert text.endswith("…")


def test_evidence_names_the_file_without_its_folders() -> None:
    sources = (Source("/var/log/<i>/a<b>.log", "vllm", "vllm"),)
    assert where(sources, 0, [3, 4]) == "a&lt;b&gt;.log:3, 4"
    assert where((), 0, [3, 4, 5, 6]) == "line 3, 4, 5 …"
    assert where(sources, 0, []) == ""
