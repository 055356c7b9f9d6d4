"""What the tests of live widgets share: notebooks put into a JupyterLab, run, timed and looked at."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from playwright.sync_api import Browser, Page, expect

ARTEFACTS = Path(__file__).parents[2] / "artefacts"
WAIT_MS = 60_000
CELLS = "[...jupyterapp.shell.currentWidget.content.model.cells].map(cell => cell.toJSON())"
READY = "() => jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'"
_direct = build_opener(ProxyHandler({}))


def put_notebook(lab: str, name: str, *cells: str) -> str:
    """Writes a notebook through the server's own interface and returns its address."""
    code = [
        {"cell_type": "code", "execution_count": None, "id": f"c{n}", "metadata": {}, "outputs": [], "source": cell}
        for n, cell in enumerate(cells)
    ]
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    content = {"cells": code, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    parts = urlsplit(lab)
    (token,) = parse_qs(parts.query)["token"]
    body = json.dumps({"type": "notebook", "format": "json", "content": content}).encode()
    root = f"{parts.scheme}://{parts.netloc}"
    asked = Request(f"{root}/api/contents/{name}", body, {"Authorization": f"token {token}"}, method="PUT")
    with _direct.open(asked, timeout=30):
        return f"{root}/lab/workspaces/{name.partition('.')[0]}/tree/{name}?token={token}&reset"


def open_notebook(browser: Browser, address: str, *, dark: bool = False, width: int = 900) -> Page:
    """The notebook in a new page, its kernel ready."""
    page = browser.new_page(viewport={"width": width, "height": 1000}, color_scheme="dark" if dark else "light")
    page.add_locator_handler(
        page.locator(".jp-Dialog").first, lambda _: page.locator(".jp-Dialog .jp-mod-accept").first.click()
    )
    page.goto(address)
    expect(page.locator(".jp-Notebook .jp-Cell").first).to_be_visible(timeout=WAIT_MS)
    page.wait_for_function(READY, timeout=WAIT_MS)
    if dark:
        page.evaluate("jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})")
        page.wait_for_function("document.body.dataset.jpThemeLight === 'false'", timeout=WAIT_MS)
    page.evaluate("jupyterapp.shell.collapseLeft()")
    return page


def run_all(page: Page) -> None:
    """Runs every cell without waiting for the last one."""
    page.evaluate("void jupyterapp.commands.execute('notebook:run-all-cells')")


def cells_of(page: Page) -> list[dict[str, Any]]:
    """The cells as they would be saved."""
    cells: list[dict[str, Any]] = page.evaluate(CELLS)
    return cells


def errors_in(page: Page) -> list[Any]:
    """Error outputs of all cells."""
    return [output for cell in cells_of(page) for output in cell.get("outputs", []) if output["output_type"] == "error"]


def timed(what: str, act: Callable[[], object], then: Callable[[], object]) -> float:
    """Seconds from an action until what it leads to is on the page; printed."""
    begin = time.perf_counter()
    act()
    then()
    taken = time.perf_counter() - begin
    print(f"{what}: {taken * 1000:.0f} ms")
    return taken


def drag(page: Page, selector: str, from_share: tuple[float, float], to_share: tuple[float, float]) -> None:
    """Drags inside an element, between two places as shares of its width and height."""
    element = page.locator(selector)
    element.scroll_into_view_if_needed()
    box = element.bounding_box()
    assert box is not None
    ends = [(box["x"] + box["width"] * x, box["y"] + box["height"] * y) for x, y in (from_share, to_share)]
    page.mouse.move(*ends[0])
    page.mouse.down()
    page.mouse.move(*ends[1], steps=4)
    page.mouse.up()
