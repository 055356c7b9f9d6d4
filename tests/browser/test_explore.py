"""`%diag explore` in a real JupyterLab: it responds, fits 900 pixels and dark pages, and complains of nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

import infer_diag as diag
from infer_diag.schema import AllocatorEvents, Requests
from tests.browser.conftest import Watch
from tests.browser.live_pages import (
    ARTEFACTS,
    WAIT_MS,
    cells_of,
    drag,
    open_notebook,
    put_notebook,
    run_all,
    timed,
    wait_for,
)

SAMPLE = "sample:captured/kv_preempts"
EVENTS, SLOTS, REQUESTS = 1_000_000, 100_000, 1_000_000
OPEN_MS = 400_000
"""A million events are read and, on a new machine, what reads them is compiled first."""
EXPLORER = ".infer-diag-explorer"
FACTS = f"document.querySelector('{EXPLORER} select').textContent"
MAP = f"document.querySelector('{EXPLORER} image').getAttribute('href')"

pytestmark = pytest.mark.browser


def allocator_events(begin: Any) -> pl.DataFrame:
    """A CuPy pool that frees and takes blocks at random for two minutes."""
    rng = np.random.default_rng(7)
    pairs = (EVENTS - SLOTS) // 2
    places = np.concatenate([np.arange(SLOTS), np.repeat(rng.integers(0, SLOTS, pairs), 2)])
    is_free = np.concatenate([np.zeros(SLOTS, bool), np.tile([True, False], pairs)])
    frame = pl.DataFrame({"place": places, "is_free": is_free, "size": rng.integers(1, 120, len(places)) * 512})
    asked = pl.when(~pl.col("is_free")).then("size").forward_fill().over("place").alias("size")
    frame = frame.with_columns(asked).with_columns(
        pl.lit(0).alias("source_id"),
        pl.lit(0).alias("line"),
        (pl.lit(begin) + pl.duration(microseconds=pl.int_range(pl.len()) * (120_000_000 // EVENTS))).alias("time"),
        pl.when("is_free").then(pl.lit("free")).otherwise(pl.lit("alloc")).alias("action"),
        (pl.col("place") * 65536 + (1 << 33)).alias("address_id"),
        pl.col("size").alias("requested_bytes"),
        pl.col("size").alias("allocated_bytes"),
        pl.lit("0").alias("gpu"),
    )
    missing = [name for name in AllocatorEvents.column_names() if name not in frame.columns]
    whole = frame.with_columns(pl.lit(None).alias(name) for name in missing)
    return AllocatorEvents.validate(whole.select(AllocatorEvents.column_names()), cast=True)


def requests() -> pl.DataFrame:
    """A million requests over two minutes, slower towards the end, each told by a line of the sample's log."""
    rng = np.random.default_rng(8)
    arrival = np.sort(rng.uniform(24, 140, REQUESTS))
    queue = rng.exponential(0.2 + arrival / 50)
    first = queue + rng.exponential(0.1, REQUESTS)
    frame = pl.DataFrame(
        {"arrival_s": arrival, "queued_s": arrival, "scheduled_s": arrival + queue, "first_token_s": arrival + first}
    ).with_columns(
        pl.lit(1).alias("source_id"),
        (pl.int_range(pl.len()) % 2000 + 1).alias("line"),
        pl.format("req-{}", pl.int_range(pl.len())).alias("request_id"),
        pl.Series("last_token_s", arrival + first + rng.exponential(2, REQUESTS)),
        pl.lit(100).alias("output_tokens"),
    )
    missing = [name for name in Requests.column_names() if name not in frame.columns]
    whole = frame.with_columns(pl.lit(None).alias(name) for name in missing)
    return Requests.validate(whole.select(Requests.column_names()), cast=True)


@pytest.fixture(scope="module")
def address(lab: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A notebook that explores a server's logs with a million requests and its allocator's events."""
    folder = tmp_path_factory.mktemp("recorded")
    begin = diag.load(SAMPLE).first_time
    allocator_events(begin).drop("source_id", "line").write_parquet(folder / "events.parquet")
    requests().write_parquet(folder / "requests.parquet")
    made = (
        "import polars as pl, infer_diag as diag\nfrom infer_diag.recording import combine\n"
        "if 'prod' not in globals():\n"
        f"    recorded = combine([diag.load({SAMPLE!r}), diag.load({str(folder / 'events.parquet')!r})])\n"
        f"    prod = recorded.replace(requests=pl.read_parquet({str(folder / 'requests.parquet')!r}))"
    )
    return put_notebook(lab, "explore.ipynb", "%load_ext infer_diag", made, "%diag explore prod")


@dataclass
class Opened:
    """An explorer on a page."""

    page: Page
    kind: str
    watch: Any

    def turn_to(self, name: str) -> None:
        """Opens a page of the explorer."""
        self.page.locator(f"{EXPLORER} .widget-toggle-button", has_text=name).click()

    def shoot(self, name: str) -> None:
        """Keeps a picture of the explorer, and sees that nothing of it sticks out."""
        self.page.locator(EXPLORER).first.scroll_into_view_if_needed()
        self.page.screenshot(path=ARTEFACTS / f"explore_{name}_{self.kind}.png")
        assert self.page.locator(EXPLORER).evaluate("node => node.scrollWidth - node.clientWidth") <= 1

    def plot(self, number: int = 0) -> str:
        """The selector of a plot, by place."""
        return f"{EXPLORER} .infer-diag-svg >> nth={number}"

    def labelled(self, text: str) -> Locator:
        """A label that holds this text."""
        return self.page.locator(f"{EXPLORER} .widget-label", has_text=text).first

    def options(self, text: str) -> Locator:
        """Facts that hold this text."""
        return self.page.locator(f"{EXPLORER} select option", has_text=text)

    def press(self, key: str, number: int = 0) -> None:
        """Presses a key on a plot."""
        self.page.locator(self.plot(number)).focus()
        self.page.keyboard.press(key)

    def time(self, what: str, act: Callable[[], object], shown: str = FACTS) -> None:
        """Prints how long an action takes until what is shown is another thing."""
        timed(self.page, what, act, f"{shown} !== arg", self.page.evaluate(shown))

    @property
    def evidence(self) -> Locator:
        """The lines that are shown."""
        return self.page.locator(f"{EXPLORER} .infer-diag-evidence pre").first


@pytest.fixture(scope="module", params=["light", "dark"])
def explorer(browser: Browser, address: str, request: pytest.FixtureRequest) -> Iterator[Opened]:
    """The explorer at 900 pixels."""
    page = open_notebook(browser, address, dark=request.param == "dark")
    watch = Watch()
    watch.follow(page)
    run_all(page)
    wait_for(page, f"{EXPLORER} select")
    yield Opened(page, request.param, watch)
    assert not watch.outside
    assert not [line for line in watch.complaints if "favicon" not in line]
    page.close()


def test_findings_lead_to_their_lines(explorer: Opened) -> None:
    explorer.turn_to("overview")
    explorer.page.locator(f"{EXPLORER} select").first.select_option(index=0)
    expect(explorer.evidence).to_contain_text("▶")
    explorer.shoot("overview")


def test_a_start_is_walked_through_by_keys(explorer: Opened) -> None:
    explorer.turn_to("cold start")
    expect(explorer.page.locator(f"{EXPLORER} .infer-diag-box").first).to_be_attached(timeout=WAIT_MS)
    explorer.press("ArrowRight")
    expect(explorer.page.locator(f"{EXPLORER} .infer-diag-chosen")).to_have_count(1)
    expect(explorer.evidence).to_contain_text("▶")
    explorer.shoot("coldstart")


def test_a_window_of_a_million_requests(explorer: Opened) -> None:
    explorer.turn_to("batching")
    expect(explorer.labelled("the whole recording")).to_be_visible(timeout=WAIT_MS)
    expect(explorer.options("1,000,000 requests")).not_to_have_count(0)
    words = explorer.labelled(" s to ")
    explorer.time(
        "drag a window over a million requests", lambda: drag(explorer.page, explorer.plot(), (0.3, 0.3), (0.6, 0.3))
    )
    expect(words).to_be_visible()
    expect(explorer.options("1,000,000 requests")).to_have_count(0)
    explorer.page.locator(explorer.plot()).focus()
    explorer.time("move it by a key", lambda: explorer.page.keyboard.press("ArrowRight"))
    explorer.page.locator(f"{EXPLORER} select >> nth=-1").select_option(index=0)
    expect(explorer.evidence).to_contain_text("▶")
    explorer.shoot("batching")
    explorer.press("Escape")
    expect(explorer.labelled("the whole recording")).to_be_visible()


def test_the_block_map_is_drawn_anew(explorer: Opened) -> None:
    page = explorer.page
    explorer.turn_to("memory")
    moment, image = explorer.labelled("after event"), page.locator(f"{EXPLORER} image")
    expect(moment).to_be_visible(timeout=OPEN_MS)
    expect(image).to_have_count(1)
    at = moment.inner_text()
    page.locator(f"{EXPLORER} .noUi-handle").last.focus()
    explorer.time(f"another moment of {EVENTS:,} events", lambda: page.keyboard.press("ArrowLeft"), MAP)
    expect(moment).not_to_have_text(at)
    explorer.time(f"zoom into {SLOTS:,} blocks", lambda: drag(page, explorer.plot(1), (0.3, 0.3), (0.5, 0.4)), MAP)
    box = page.locator(explorer.plot(1)).bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(explorer.options("0x")).not_to_have_count(0)
    explorer.shoot("memory")


def test_the_block_map_follows_the_window(explorer: Opened) -> None:
    explorer.turn_to("memory")
    moment = explorer.labelled("after event")
    expect(moment).to_be_visible(timeout=OPEN_MS)
    for ends in ((0.2, 0.3), (0.5, 0.7)):
        before = moment.inner_text()
        explorer.turn_to("batching")
        expect(explorer.labelled("what this window says")).to_be_visible()
        drag(explorer.page, explorer.plot(), (ends[0], 0.3), (ends[1], 0.3))
        explorer.turn_to("memory")
        expect(moment).to_be_visible()
        expect(moment).not_to_have_text(before)
    explorer.turn_to("batching")
    # A page that is shown again asks the kernel what to draw, and hears no key before that.
    expect(explorer.page.locator(f"{EXPLORER} .infer-diag-brush").first).to_be_attached()
    explorer.press("Escape")
    expect(explorer.labelled("the whole recording")).to_be_visible()


def test_what_a_window_costs(explorer: Opened) -> None:
    explorer.turn_to("cost")
    expect(explorer.page.locator(f"{EXPLORER} .infer-diag-box").first).to_be_attached()
    expect(explorer.options("these logs cannot tell")).not_to_have_count(0)
    explorer.time("drag a window over its cost", lambda: drag(explorer.page, explorer.plot(1), (0.3, 0.3), (0.6, 0.3)))
    expect(explorer.labelled(" s to ")).to_be_visible()
    explorer.shoot("cost_window")
    explorer.press("ArrowRight")
    expect(explorer.page.locator(f"{EXPLORER} .infer-diag-chosen")).to_have_count(1)
    expect(explorer.page.locator(f"{EXPLORER} .infer-diag-evidence").first).to_contain_text("cold: 23 GPU-s")
    expect(explorer.evidence).to_contain_text("▶")
    explorer.shoot("cost")
    explorer.press("Escape", 1)
    expect(explorer.labelled("the whole recording")).to_be_visible()


def test_what_is_saved_is_small(explorer: Opened) -> None:
    saved = json.dumps(cells_of(explorer.page))
    assert len(saved) < 100_000
    assert "plotly" not in saved
