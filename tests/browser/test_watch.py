"""`%diag watch` in a real JupyterLab: it follows an engine, shows findings with their lines, stops by its button."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from served_pages import growing_page

from tests.browser.live_pages import (
    ARTEFACTS,
    CELLS,
    WAIT_MS,
    cells_of,
    errors_in,
    open_notebook,
    put_notebook,
    run_all,
    timed,
    wait_for,
)

WATCH = ".infer-diag-watch"
SEVERAL = re.compile(r"\b[1-9]\d+ scrapes")

pytestmark = pytest.mark.browser


def page_of(count: int) -> bytes:
    """A metrics page of an engine whose KV pool is full while requests wait."""
    labels = '{engine="0",model_name="m"}'
    values = {
        "vllm:num_requests_running": 8 + count % 3,
        "vllm:num_requests_waiting": 20 + count % 7,
        "vllm:kv_cache_usage_perc": 0.97 + 0.01 * (count % 3),
        "vllm:num_preemptions_total": 3 * count,
        "vllm:prompt_tokens_total": 900 * count,
        "vllm:generation_tokens_total": 400 * count + 37 * (count % 5),
    }
    return "".join(f"{name}{labels} {value}\n" for name, value in values.items()).encode()


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    """The address of metrics that change with every scrape."""
    with growing_page(page_of) as address:
        yield address


def choose_one_with_lines(page: Page) -> None:
    """Chooses one finding after the other until one shows its lines.

    Which one stands first changes while the engine runs, and some stand on no line.
    """
    page.wait_for_function(
        f"""() => {{
            if (document.querySelector("{WATCH} pre")?.textContent.includes("▶")) return true;
            const list = document.querySelector("{WATCH} select");
            if (list && list.options.length) {{
                list.selectedIndex = (list.selectedIndex + 1) % list.options.length;
                list.dispatchEvent(new Event("change", {{ bubbles: true }}));
            }}
            return false;
        }}""",
        polling=1000,
        timeout=WAIT_MS,
    )


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_watch_lives_and_ends_by_its_button(browser: Browser, lab: str, engine: str, watch: Any, dark: bool) -> None:
    begin = f"%diag watch {engine} --every 500ms --as live"
    address = put_notebook(lab, "watch.ipynb", "%load_ext infer_diag", begin, "print(1 + 1)")
    page = open_notebook(browser, address, dark=dark)
    watch.follow(page)
    run_all(page)
    head = page.locator(f"{WATCH} .widget-label", has_text="live: ").first
    wait_for(page, f"{WATCH} .infer-diag-svg path")
    expect(page.locator(f"{WATCH} .widget-label", has_text=SEVERAL)).to_be_visible(timeout=WAIT_MS)
    # The kernel is free while it watches.
    assert any("2" in str(output) for cell in cells_of(page) for output in cell["outputs"])
    expect(page.locator(f"{WATCH} select option").first).to_be_attached()
    choose_one_with_lines(page)
    page.locator(WATCH).first.scroll_into_view_if_needed()
    page.screenshot(path=ARTEFACTS / f"watch_{'dark' if dark else 'light'}.png")
    assert page.locator(WATCH).evaluate("node => node.scrollWidth - node.clientWidth") <= 1
    ended = f"[...document.querySelectorAll('{WATCH} .widget-label')].some(each => each.textContent.includes(arg))"
    timed(page, "stop", page.locator(f"{WATCH} .jupyter-button").click, ended, "ended: stopped; kept as live")
    expect(head).to_contain_text("ended: stopped; kept as live")
    assert not errors_in(page)
    assert not watch.outside
    assert not [line for line in watch.complaints if "favicon" not in line]
    assert len(json.dumps(cells_of(page))) < 50_000
    page.close()


def test_a_watch_of_a_stated_time_is_waited_for(browser: Browser, lab: str, engine: str) -> None:
    begin = f"%diag watch {engine} --every 500ms --for 3s --as timed"
    address = put_notebook(lab, "timed.ipynb", "%load_ext infer_diag", begin, "%diag batching timed")
    page = open_notebook(browser, address)
    run_all(page)
    page.wait_for_function(f"() => {CELLS}.every(cell => cell.execution_count !== null)", timeout=WAIT_MS)
    assert not errors_in(page)
    text = json.dumps(cells_of(page)[1]["outputs"])
    assert "watched as timed" in text
    assert "3 s are over" in text
    page.close()


def test_a_watch_of_a_stated_time_is_interrupted(browser: Browser, lab: str, engine: str) -> None:
    begin = f"%diag watch {engine} --every 500ms --for 10m --as broken_off"
    address = put_notebook(lab, "interrupted.ipynb", "%load_ext infer_diag", begin, "%diag batching broken_off")
    page = open_notebook(browser, address)
    run_all(page)
    wait_for(page, WATCH)
    expect(page.locator(f"{WATCH} .widget-label", has_text=SEVERAL)).to_be_visible(timeout=WAIT_MS)
    page.evaluate("void jupyterapp.commands.execute('notebook:interrupt-kernel')")
    expect(page.locator(f"{WATCH} .widget-label", has_text="ended: interrupted")).to_be_visible(timeout=WAIT_MS)
    assert not errors_in(page)
    page.close()
