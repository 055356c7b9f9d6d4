"""What the tests of live widgets share: notebooks put into a JupyterLab, run, timed and looked at."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from playwright.sync_api import Browser, Page, expect

ARTEFACTS = Path(__file__).parents[2] / "artefacts"
WAIT_MS = 120_000
CELLS = "[...jupyterapp.shell.currentWidget.content.model.cells].map(cell => cell.toJSON())"
READY = "() => jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'"
_CLOCK = """([done, arg]) => {
    const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel;
    const clock = { begin: null, kernel: 0, busy: null, end: null };
    const holds = new Function("arg", `return ${done}`);
    const input = () => { clock.begin = performance.now(); };
    const status = (_, now) => {
        if (now === "busy") clock.busy = performance.now();
        else if (clock.busy !== null) { clock.kernel += performance.now() - clock.busy; clock.busy = null; }
    };
    const kinds = ["pointerup", "click", "keydown", "change"];
    for (const kind of kinds) addEventListener(kind, input, true);
    kernel.statusChanged.connect(status);
    const look = () => {
        if (clock.begin === null || kernel.status !== "idle" || !holds(arg)) { requestAnimationFrame(look); return; }
        clock.end = performance.now();
        for (const kind of kinds) removeEventListener(kind, input, true);
        kernel.statusChanged.disconnect(status);
    };
    window.inferDiagClock = clock;
    requestAnimationFrame(look);
}"""
_direct = build_opener(ProxyHandler({}))
# The machine may be busy with other tests: what is waited for is a state, and this only says when to give up.
expect.set_options(timeout=WAIT_MS)


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
    """Runs every cell without waiting for the last one; what an earlier run left is no answer of this one."""
    page.evaluate("jupyterapp.commands.execute('notebook:clear-all-cell-outputs').then(() => null)")
    page.evaluate("void jupyterapp.commands.execute('notebook:run-all-cells')")


def cells_of(page: Page) -> list[dict[str, Any]]:
    """The cells as they would be saved."""
    cells: list[dict[str, Any]] = page.evaluate(CELLS)
    return cells


def wait_for(page: Page, selector: str) -> None:
    """Waits until an element is there, or a cell has failed, which is told at once."""
    failed = f"{CELLS}.some(cell => (cell.outputs ?? []).some(output => output.output_type === 'error'))"
    there = f"document.querySelector({json.dumps(selector)}) !== null"
    page.wait_for_function(f"() => {there} || {failed}", timeout=WAIT_MS)
    assert not errors_in(page)


def errors_in(page: Page) -> list[Any]:
    """Error outputs of all cells."""
    return [output for cell in cells_of(page) for output in cell.get("outputs", []) if output["output_type"] == "error"]


def timed(page: Page, what: str, act: Callable[[], object], done: str, arg: object = None) -> None:
    """Prints the milliseconds from the last input of an action until the page shows what it leads to.

    `done`: an expression over `arg` that holds then; beside it the kernel has to be idle again. The page's own clock
    counts, frame by frame, so that neither the way to the browser nor the tests' looking is in it.
    """
    page.evaluate(_CLOCK, [done, arg])
    act()
    page.wait_for_function("() => window.inferDiagClock.end !== null", timeout=WAIT_MS)
    clock = page.evaluate("window.inferDiagClock")
    print(f"{what}: {clock['end'] - clock['begin']:.0f} ms, in the kernel {clock['kernel']:.0f} ms of them")


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
