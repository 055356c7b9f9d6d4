"""Scrape ``/metrics`` at intervals, keeping only the families that matter."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from pathlib import Path

HISTOGRAMS = (
    "time_to_first_token_seconds",
    "request_queue_time_seconds",
)
SUMS_ONLY = (
    "inter_token_latency_seconds",
    "e2e_request_latency_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_num_preemptions",
    "iteration_tokens_total",
)
PLAIN = (
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "num_preemptions_total",
    "prompt_tokens_total",
    "prompt_tokens_cached_total",
    "generation_tokens_total",
    "request_success_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
)
FIRST_ONLY = ("cache_config_info",)

SAMPLE = re.compile(r"^vllm:([A-Za-z0-9_]+?)(_bucket|_sum|_count)?([{ ])")


def _stem(name: str) -> str:
    return name.removesuffix("_total")


def keep_line(line: str, first: bool) -> bool:
    """Tell whether a line of the exposition belongs into the recording."""
    if line.startswith(("# HELP vllm:", "# TYPE vllm:")):
        name = line.split()[2].removeprefix("vllm:")
        wanted = (*HISTOGRAMS, *SUMS_ONLY, *PLAIN, *FIRST_ONLY)
        return first and _stem(name) in {_stem(each) for each in wanted}
    if not (match := SAMPLE.match(line)):
        return False
    name, part = match[1], match[2]
    if name in HISTOGRAMS:
        return True
    if name in SUMS_ONLY:
        return part in ("_sum", "_count")
    return part is None and (name in PLAIN or (first and name in FIRST_ONLY))


def read_counter(text: str, name: str) -> float:
    """Sum the samples of ``vllm:<name>`` over all label sets."""
    pattern = re.compile(rf"^vllm:{name}(?:{{[^}}]*}})? (\S+)$", re.MULTILINE)
    return sum(float(value) for value in pattern.findall(text))


class Scraper:
    """Appends filtered scrapes to a file until told to stop."""

    def __init__(self, session, url: str, target: Path, every: float = 5.0) -> None:
        """Scrape ``url`` every ``every`` seconds into ``target``."""
        self.session = session
        self.url = f"{url}/metrics"
        self.target = target
        self.every = every
        self.last = ""
        self._task: asyncio.Task | None = None

    async def scrape(self) -> None:
        """Take one scrape and append it."""
        async with self.session.get(self.url) as answer:
            self.last = await answer.text()
        first = not self.target.exists()
        lines = [line for line in self.last.splitlines() if keep_line(line, first)]
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        with self.target.open("a") as sink:
            sink.write("\n".join((f"# scrape {stamp}", *lines)) + "\n")

    async def __aenter__(self) -> Scraper:
        """Take the first scrape and go on in the background."""
        await self.scrape()
        self._task = asyncio.create_task(self._loop())
        return self

    async def __aexit__(self, *_: object) -> None:
        """End the background scrapes and take a last one."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.scrape()

    async def _loop(self) -> None:
        while True:
            await asyncio.sleep(self.every)
            await self.scrape()
