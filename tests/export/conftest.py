"""A collector that keeps what it is sent, and a diagnosis to send."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from served_pages import running

import infer_diag as diag
from infer_diag.diagnose import Diagnosis


class Collector:
    """Takes what is posted to it, as OTLP over HTTP is; answers with `status`."""

    def __init__(self) -> None:
        self.status, self.told = 200, b""
        self.taken: list[tuple[str, dict[str, str], bytes]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.taken.append((self.path, dict(self.headers), body))
                self.send_response(collector.status)
                self.send_header("Content-Length", str(len(collector.told)))
                self.end_headers()
                self.wfile.write(collector.told)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    with running(made.server):
        yield made


@pytest.fixture(scope="session")
def two_starts() -> Diagnosis:
    """Two starts of a real engine with its scrapes, on a known clock."""
    return diag.diagnose(diag.load("sample:captured/two_starts"))
