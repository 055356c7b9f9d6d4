"""The report as a file that somebody was sent: no network, no errors, readable in the dark and on a narrow screen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

import infer_diag as diag

ARTEFACTS = Path(__file__).parents[2] / "artefacts"
SAMPLES = ("captured/sequence_limit/server.log", "captured/two_starts/server.log")

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A report per sample."""
    folder = tmp_path_factory.mktemp("reports")
    return {
        name: diag.report(diag.diagnose(diag.load(f"sample:{name}")), folder / f"{Path(name).parent.name}.html")
        for name in SAMPLES
    }


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 400)])
def test_the_report_shows_itself_alone(
    browser: Browser, reports: dict[str, Path], watch: Any, name: str, scheme: Any, width: int
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    watch.follow(page)
    page.goto(reports[name].as_uri())
    charts = page.locator(".js-plotly-plot")
    assert charts.count() >= 2
    for chart in charts.all():
        expect(chart.locator(".main-svg").first).to_be_attached()
        assert chart.locator("path").count() > 10
    assert watch.requests == [reports[name].as_uri()]
    assert not watch.complaints
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.screenshot(path=ARTEFACTS / f"report_{reports[name].stem}_{scheme}_{width}.png", full_page=True)
    page.close()
