"""The first notebook in a real JupyterLab, as a reader runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

ARTEFACTS = Path(__file__).parents[2] / "artefacts"
RUN_LIMIT_MS = 180_000
NOTEBOOK_MODEL = "jupyterapp.shell.currentWidget.content"
CELLS = f"[...{NOTEBOOK_MODEL}.model.cells].map(cell => cell.toJSON())"
READY = "() => jupyterapp.shell.currentWidget?.sessionContext.session?.kernel?.status === 'idle'"
DONE = f"""() => {{
    const code = {CELLS}.filter(cell => cell.cell_type === "code");
    const failed = code.some(cell => cell.outputs.some(output => output.output_type === "error"));
    return failed || code.every(cell => cell.execution_count !== null);
}}"""
PLOTLY = "application/vnd.plotly.v1+json"

pytestmark = pytest.mark.browser


def uncover(page: Page) -> None:
    """Accept the dialogs, such as the choice of a kernel, whenever one covers the page."""
    page.add_locator_handler(
        page.locator(".jp-Dialog").first, lambda _: page.locator(".jp-Dialog .jp-mod-accept").first.click()
    )


def run_all(page: Page) -> list[dict[str, Any]]:
    """Clear the outputs, run every cell and return the cells once the last one is done or one has failed.

    Cells that are run before the kernel answers are dropped without a word, so that comes first.
    """
    page.wait_for_function(READY, timeout=RUN_LIMIT_MS)
    for menu, command in (("Edit", "editmenu:clear-all"), ("Run", "runmenu:run-all")):
        page.get_by_role("menuitem", name=menu, exact=True).click()
        page.locator(f'[data-command="{command}"]').click()
    page.wait_for_function(DONE, timeout=RUN_LIMIT_MS)
    cells: list[dict[str, Any]] = page.evaluate(CELLS)
    return cells


def draw(page: Page, index: int) -> None:
    """Scroll to a cell, because outputs below the fold are not rendered, and wait until its chart has marks."""
    page.evaluate(f"index => {NOTEBOOK_MODEL}.scrollToItem(index, 'start')", index)
    cell = page.locator(f'.jp-Cell[data-windowed-list-index="{index}"]')
    expect(cell.locator(".js-plotly-plot .main-svg").first).to_be_visible(timeout=30_000)
    expect(cell.locator(".js-plotly-plot path, .js-plotly-plot canvas").first).to_be_attached()


def test_every_cell_runs_and_the_charts_are_drawn(browser: Browser, lab: str, watch: Any) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    watch.follow(page)
    uncover(page)
    page.goto(lab)
    expect(page.locator(".jp-Notebook .jp-Cell").first).to_be_visible(timeout=60_000)

    cells = run_all(page)
    outputs = [(index, output) for index, cell in enumerate(cells) for output in cell.get("outputs", [])]
    assert not [output for _, output in outputs if output["output_type"] == "error"]

    charts = [index for index, output in outputs if PLOTLY in output.get("data", {})]
    assert len(charts) >= 2
    for number, index in enumerate(charts):
        draw(page, index)
        page.screenshot(path=ARTEFACTS / f"notebook_chart_{number}.png")
    assert not watch.outside
