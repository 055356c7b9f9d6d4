"""Every notebook in a real JupyterLab, as a reader runs it: no cell fails, and every chart is drawn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.conftest import Watch
from tests.browser.live_pages import ARTEFACTS, CELLS, READY, cells_of, errors_in, open_notebook

NOTEBOOKS = sorted(path.name for path in (Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
RUN_LIMIT_MS = 240_000
WIDGET = "jupyterapp.shell.currentWidget"
DONE = f"""() => {{
    const code = {CELLS}.filter(cell => cell.cell_type === "code");
    const failed = code.some(cell => cell.outputs.some(output => output.output_type === "error"));
    return failed || code.every(cell => cell.execution_count !== null);
}}"""
PLOTLY = "application/vnd.plotly.v1+json"
DRAWN = """index => {
    const shown = jupyterapp.shell.currentWidget.node;  // another notebook may lie behind it
    const cell = shown.querySelector(`.jp-Cell[data-windowed-list-index="${index}"]`);
    const plot = cell && cell.querySelector(".js-plotly-plot .main-svg");
    const marks = cell && cell.querySelector(".js-plotly-plot path, .js-plotly-plot canvas");
    return Boolean(plot && plot.getBoundingClientRect().height > 50 && marks);
}"""

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def page(browser: Browser, lab: str) -> Iterator[Page]:
    """JupyterLab at 900 pixels, in which one notebook after the other is opened."""
    opened = open_notebook(browser, f"{lab}&reset", width=900)
    yield opened
    opened.close()


def opened_as(page: Page, name: str) -> None:
    """Shows a notebook alone, its kernel ready and its outputs cleared."""
    place = json.dumps({"path": f"notebooks/{name}", "factory": "Notebook"})
    page.evaluate(f"void jupyterapp.commands.execute('docmanager:open', {place})")
    page.wait_for_function(f"() => {WIDGET}?.context?.path === 'notebooks/{name}'", timeout=RUN_LIMIT_MS)
    page.wait_for_function(READY, timeout=RUN_LIMIT_MS)
    page.evaluate("jupyterapp.commands.execute('notebook:clear-all-cell-outputs').then(() => null)")


def closed(page: Page) -> None:
    """Ends the kernel of the notebook that is shown and takes it away, unsaved."""
    page.evaluate(f"""async () => {{
        const widget = {WIDGET};
        await widget.sessionContext.shutdown();
        widget.context.model.dirty = false;
        widget.dispose();
    }}""")


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_cell_runs_and_the_charts_are_drawn(page: Page, name: str) -> None:
    watch = Watch()
    watch.follow(page)
    opened_as(page, name)
    page.evaluate("void jupyterapp.commands.execute('notebook:run-all-cells')")
    page.wait_for_function(DONE, timeout=RUN_LIMIT_MS)
    cells = cells_of(page)
    assert not errors_in(page)
    charts = [index for index, cell in enumerate(cells) if PLOTLY in shown_by(cell)]
    assert charts
    for number, index in enumerate(charts):
        page.evaluate(f"index => {WIDGET}.content.scrollToItem(index, 'start')", index)
        page.wait_for_function(DRAWN, arg=index, timeout=RUN_LIMIT_MS)
        page.screenshot(path=ARTEFACTS / f"notebook_{Path(name).stem}_{number}.png")
    assert not watch.outside
    assert not [line for line in watch.complaints if "favicon" not in line]
    closed(page)


def shown_by(cell: dict[str, Any]) -> set[str]:
    """The kinds of output that a cell shows."""
    return {kind for output in cell.get("outputs", []) for kind in output.get("data", {})}
