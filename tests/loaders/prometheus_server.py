"""A real Prometheus server on loopback, and an exporter for it that replays pages one after the other.

`PrometheusServer` runs the Debian package's `prometheus` in a folder of its own and is gone with it. Any test may have
one of its own (`with PrometheusServer(folder, targets) as server`), with `arguments` such as a receiver for remote
writes.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

PROMETHEUS = shutil.which("prometheus")
ABSENT = "prometheus is not installed (Debian: apt-get install prometheus)"
PATIENCE_S = 60.0
_TRIES = 3
_direct = build_opener(ProxyHandler({}))


def waited_for(told: Callable[[], Any], what: str) -> Any:
    """The first true value of `told`, asked again and again; fails after a minute."""
    ends = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends:
        if value := told():
            return value
        threading.Event().wait(0.05)
    raise AssertionError(f"{what} did not come within {PATIENCE_S:.0f} s")


class Exporter:
    """Serves `/metrics`: each scrape gets the next page, and after the last one nothing but errors.

    `served` counts the pages that were handed out. A page that is null is a scrape that fails.
    """

    def __init__(self, pages: Sequence[str | None]) -> None:
        self.pages, self.served = list(pages), 0
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page = exporter.pages[exporter.served] if exporter.served < len(exporter.pages) else None
                exporter.served += 1
                body = (page or "no page\n").encode()
                self.send_response(200 if page is not None else 503)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    @property
    def done(self) -> bool:
        """Whether every page was scraped, and one more scrape told that there is no other."""
        return self.served > len(self.pages)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class PrometheusServer:
    """The server, scraping `targets` (job to addresses) every `interval`."""

    def __init__(
        self,
        folder: Path,
        targets: dict[str, Sequence[str]] | None = None,
        *,
        interval: str = "250ms",
        arguments: Sequence[str] = (),
    ) -> None:
        self._folder, self._arguments, self._port = folder, arguments, 0
        scraped = [
            {"job_name": job, "static_configs": [{"targets": list(addresses)}]}
            for job, addresses in (targets or {}).items()
        ]
        every = {"scrape_interval": interval, "scrape_timeout": interval}
        self._configuration = {"global": every, "scrape_configs": scraped}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def get(self, path: str, **parameters: str) -> dict[str, Any]:
        """The answer of the API, as it is saved."""
        url = f"http://{self.address}/api/v1/{path}?{urlencode(parameters)}"
        with _direct.open(url, timeout=10) as answer:
            document: dict[str, Any] = json.load(answer)
        return document

    def __enter__(self) -> Self:
        assert PROMETHEUS is not None
        self._folder.mkdir(parents=True, exist_ok=True)
        written = self._folder / "prometheus.yml"
        written.write_text(json.dumps(self._configuration), encoding="utf-8")  # JSON is YAML
        data = self._folder / "data"
        command = [PROMETHEUS, f"--config.file={written}", f"--storage.tsdb.path={data}", *self._arguments]
        for _ in range(_TRIES):
            self._port = _free_port()
            self._start([*command, f"--web.listen-address={self.address}"])
            if waited_for(self._state, "the server") == "ready":
                return self
            self._stop()
        raise AssertionError(f"the server ended: {self.told()[-500:]}")

    def __exit__(self, *_: object) -> None:
        self._stop()

    def told(self) -> str:
        """What the server logged."""
        return (self._folder / "prometheus.log").read_text(encoding="utf-8", errors="replace")

    def _start(self, command: Sequence[str]) -> None:
        environment = {**os.environ, "GOMAXPROCS": "1"}
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder, env=environment)

    def _stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _state(self) -> str | None:
        assert self._process is not None
        if self._process.poll() is not None:
            return "ended"  # another process may have taken the port meanwhile
        try:
            with _direct.open(f"http://{self.address}/-/ready", timeout=5) as answer:
                return "ready" if answer.status == 200 else None
        except OSError:
            return None


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
