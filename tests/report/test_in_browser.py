"""The report as a browser shows it: charts drawn under the content policy, nothing fetched, nothing executed."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import made
import pytest

from infer_diag.diagnose.finding import Finding
from infer_diag.report import report

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
CHROMIUM = (
    os.environ.get("CHROMIUM")
    or shutil.which("chromium")
    or shutil.which("chromium-browser")
    or shutil.which("google-chrome")
)
OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
CHARTS = ("chart-starts", "chart-start-1", "chart-start-2", "chart-start-3", "chart-serving", "chart-steps")
pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")]


class Seen:
    """What a page did that it should not have done."""

    def __init__(self, page: sync_api.Page) -> None:
        self.faults: list[str] = []
        page.on("console", lambda message: self.faults.append(message.text))
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("dialog", lambda dialog: (self.faults.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: self._ask(request.url))

    def _ask(self, url: str) -> None:
        if not url.startswith(("file:", "data:", "blob:")):
            self.faults.append(url)


@pytest.fixture(scope="module")
def browser() -> Iterator[sync_api.Browser]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report(made.diagnosis(), tmp_path_factory.mktemp("report") / "r.html")


def drawn(page: sync_api.Page, path: Path) -> None:
    page.goto(path.as_uri())
    for name in CHARTS:
        page.locator(f"#{name} .cartesianlayer .trace").first.wait_for(state="attached")


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (400, "light"), (1200, "dark")])
def test_charts_draw_and_nothing_leaves_or_overflows(
    browser: sync_api.Browser, written: Path, width: int, scheme: str
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    seen = Seen(page)
    drawn(page, written)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(20, 23, 26)") == (scheme == "dark")
    assert not seen.faults
    page.close()


def test_the_folded_evidence_opens_by_keyboard(browser: sync_api.Browser, written: Path) -> None:
    page = browser.new_page()
    drawn(page, written)
    page.locator("summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("details").first.get_attribute("open") is not None
    page.close()


def test_print_unfolds_the_evidence_and_folds_it_again(browser: sync_api.Browser, written: Path) -> None:
    page = browser.new_page()
    drawn(page, written)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details[open]").count() == 0
    page.close()


def test_hostile_text_runs_nowhere_not_even_in_a_chart(browser: sync_api.Browser, tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)><script>alert(2)</script><a href='javascript:alert(3)'>x</a>"
    source = dataclasses.replace(made.source(f"{evil}.log"), notes=(evil,))
    finding = Finding("cold_start.process", "high", evil, "measured", (f"{evil}.log:3",), evil, 1.0)
    told = made.cold_start()
    hostile = dataclasses.replace(told, slices=told.slices.with_columns(after=made.pl.lit(evil)))
    diagnosis = made.diagnosis(recording={"sources": (source,)}, findings=(finding,), cold_start=hostile)
    page = browser.new_page()
    seen = Seen(page)
    drawn(page, report(diagnosis, tmp_path / "r.html"))
    page.locator("#chart-start-1 .trace.bars .point path").nth(3).hover(force=True)
    assert page.locator("img").count() == 0
    assert not seen.faults
    page.close()
